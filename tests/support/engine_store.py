"""A store as one worker sees it: counts what is asked of it, and fails in the ways that real stores do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from kernel.errors import OutcomeUnknown, StoreUnavailable
from kernel.records import Document
from kernel.store.conditional import Answer, Applied, Insert, InsertAnswer, Remove, RemoveAnswer, Transition
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS
from tests.support.engine_runner import Killed

Fault = Literal["lose_request", "lose_reply", "undecidable", "unavailable", "kill_before", "kill_after"]
"""What may befall one write:

- `lose_request`: not applied, and the caller does not know (OutcomeUnknown);
- `lose_reply`: applied, and the caller does not know;
- `undecidable`: applied, the caller does not know, and the read that would tell fails too;
- `unavailable`: not applied, and the caller knows (StoreUnavailable);
- `kill_before`, `kill_after`: the worker's process ends before or after the store has applied it.
"""

RenewalFault = Literal["unavailable", "lose_reply"]


class Write(NamedTuple):
    """One call that writes: its place among this view's writes, and the names of what it wanted to apply."""

    number: int
    names: tuple[str, ...]


class FaultyStore:
    """`inner` as seen by one process. Only writes of instances and signals are numbered, and renewals are not: they and
    the signs of life of Definitions come when time passes, not when work does."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.writes: list[Write] = []
        self.others: list[str] = []
        """Names of the writes to other tables than these two."""
        self.scans: list[Query] = []
        self.dead = False
        self.down: Callable[[], bool] = lambda: False
        self.renewals_fail: RenewalFault | None = None
        self.renewed_at: list[int] = []
        """When renewals were asked for, by the store's clock."""
        self.fault_of: Callable[[Write], Fault | None] = lambda write: None
        self.scan_fails = 0
        """This many scans from now on raise StoreUnavailable."""
        self.ahead_ms = 0
        """By how much this process's estimate of the store's clock runs ahead of it."""
        self.missed: list[str] = []
        """Names of the transitions whose guards did not hold."""
        self._read_fails = False
        self._lock = threading.Lock()

    # --- the store ---------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.inner.prepare()

    def now_ms(self) -> int:
        return self.inner.now_ms() + self.ahead_ms

    def insert(self, insert: Insert) -> InsertAnswer:
        answer: InsertAnswer = self._write((insert.name,), insert.table, lambda: self.inner.insert(insert))
        return answer

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        names = tuple(insert.name for insert in inserts)
        answers: list[InsertAnswer] = self._write(names, _table(inserts), lambda: self.inner.insert_all(inserts))
        return answers

    def apply(self, transition: Transition) -> Answer:
        answer: Answer = self._write((transition.name,), transition.table, lambda: self.inner.apply(transition))
        self._note_missed([transition], [answer])
        return answer

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        names = tuple(transition.name for transition in transitions)
        answers: list[Answer] = self._write(names, _table(transitions), lambda: self.inner.apply_all(transitions))
        self._note_missed(transitions, answers)
        return answers

    def remove(self, remove: Remove) -> RemoveAnswer:
        return self.remove_all([remove])[0]

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        names = tuple(remove.name for remove in removes)
        answers: list[RemoveAnswer] = self._write(names, _table(removes), lambda: self.inner.remove_all(removes))
        return answers

    def get(self, table: str, key: str) -> Document | None:
        self._read()
        return self.inner.get(table, key)

    def find(self, table: str, column: str, value: str) -> Document | None:
        self._read()
        return self.inner.find(table, column, value)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        self._check_up()
        self.scans.append(query)
        if self.scan_fails > 0:
            self.scan_fails -= 1
            raise StoreUnavailable("a scan fails")
        return self.inner.scan(query)

    def close(self) -> None:
        """The rig closes the inner store."""

    # --- the faults --------------------------------------------------------------------------------------

    def fail_at(self, number: int, fault: Fault) -> None:
        """Let the write with this number, and no other, meet `fault`."""
        self.fault_of = lambda write: fault if write.number == number else None

    def fail_once(self, name: str, fault: Fault) -> None:
        """Let the next write of a transition with this name meet `fault`."""
        left = [True]

        def fault_of(write: Write) -> Fault | None:
            return fault if name in write.names and left and left.pop() else None

        self.fault_of = fault_of

    def names(self) -> list[str]:
        """The names of all numbered writes, in order."""
        return [name for write in self.writes for name in write.names]

    def _write(self, names: tuple[str, ...], table: str, do: Callable[[], Any]) -> Any:
        self._check_up()
        if table not in (INSTANCES, SIGNALS):
            self.others.append(names[0])
            return do()
        if set(names) == {"renew"}:
            return self._renew(do)
        with self._lock:
            write = Write(len(self.writes), names)
            self.writes.append(write)
        return self._suffer(self.fault_of(write), do)

    def _renew(self, do: Callable[[], Any]) -> Any:
        self.renewed_at.append(self.inner.now_ms())
        if self.renewals_fail == "unavailable":
            raise StoreUnavailable("renewals fail")
        answers = do()
        if self.renewals_fail == "lose_reply":
            raise OutcomeUnknown("the answer of a renewal got lost")
        return answers

    def _suffer(self, fault: Fault | None, do: Callable[[], Any]) -> Any:
        if fault == "unavailable":
            raise StoreUnavailable("the store is away")
        if fault == "lose_request":
            raise OutcomeUnknown("the request got lost")
        if fault == "kill_before":
            self._die()
        answer = do()
        if fault == "kill_after":
            self._die()
        if fault in ("lose_reply", "undecidable"):
            self._read_fails = fault == "undecidable"
            raise OutcomeUnknown("the reply got lost")
        return answer

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def _read(self) -> None:
        self._check_up()
        if self._read_fails:
            self._read_fails = False
            raise StoreUnavailable("a read fails")

    def _check_up(self) -> None:
        if self.dead:
            raise Killed
        if self.down():
            raise StoreUnavailable("the store is away")

    def _note_missed(self, transitions: Sequence[Transition], answers: Sequence[Answer]) -> None:
        pairs = zip(transitions, answers, strict=True)
        self.missed.extend(transition.name for transition, answer in pairs if not isinstance(answer, Applied))


def _table(writes: Sequence[Insert | Transition | Remove]) -> str:
    return writes[0].table if writes else INSTANCES
