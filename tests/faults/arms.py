"""Faults that wait inside a process for one certain call of the engine: armed by a test, met once, and then gone.

An arm is a file in the data folder; whoever meets it first takes it away by renaming it, so that of many processes one
is hurt. The calls are those of the engine's ports and the child's sign of being ready: the product has no hook for
this, it is handed wrapped ports (`crash_ports`; store and ready queue are here).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from kernel.candidates import Candidate, Popped
from kernel.coordination.ready_queue import LaneQueue
from kernel.errors import CoordinationUnavailable, OutcomeUnknown, StoreUnavailable
from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.store.conditional import Answer, Applied, Equals, Insert, InsertAnswer, Remove, RemoveAnswer, Transition
from kernel.store.protocol import Query, Store
from kernel.store.tables import SIGNALS
from tests.faults.effects import boot_ms
from tests.support.crash_proof import proved

T = TypeVar("T")

Point = Literal["before", "lost", "after", "pause", "refused"]
"""Killed before the call leaves; the call is done and its answer lost; killed when the answer is there; held before the
call leaves until the test lets it go on; refused as if the other side did not answer."""

FOLDER, FIRED = "arms", "fired.jsonl"


class Arm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which call, and what befalls it. Fields that are not set match everything."""

    call: str
    """A transition's name, also of business objects; `create`, `get`, `find`, `scan`, `recheck` (the look into the
    inbox after a suspension); `push`, `wakeup` (its second half), `pop`, `popped` (a pop that brought the workflow);
    `take`, `taken` (the same of intents), `hold_scan`; `stream_append`, `stream_reset`, `stream_finish`;
    `keep_attempts`, `keep_snapshot` (a batch of observations that holds them); `ready`; what business code calls:
    `finalizer`, `submit`, `read_page`. `*` is every one of them."""
    point: Point
    workflow_id: str = ""
    """The row's key: of a row of the inbox its signal_id, of a business object its object_id."""
    touches: str = ""
    """A field that the transition changes, or another word of the call, to tell two of the same name apart."""
    follows: str = ""
    """The last transition that this process applied to the same workflow."""
    role: str = ""
    pid: int = 0
    lasting: bool = False
    """Stays until the test takes it away."""


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """An arm was met: by whom, and when (boot clock)."""

    name: str
    pid: int
    at_ms: int
    token: str = ""
    """The claim under which the call was made, where it is a write under one."""


@lru_cache(maxsize=4096)
def _read(path: str) -> Arm | None:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Arm)
    except FileNotFoundError:
        return None


class Arms:
    """The arms of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self._fired = data_dir / FIRED
        self._points: dict[str, Point] = {}

    # --- the test's side ------------------------------------------------------------------------------

    def arm(self, name: str, arm: Arm) -> None:
        """From now on the next call that matches is hurt. A name is used once."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        draft = self._folder / f".{name}"
        draft.write_bytes(msgspec.json.encode(arm))
        draft.rename(self._folder / name)
        self._points[name] = arm.point

    def disarm(self, name: str) -> None:
        """Take a lasting arm away, or let a call that pauses go on."""
        for path in (self._folder / name, self._folder / f".met-{name}"):
            path.unlink(missing_ok=True)

    def fired(self, name: str = "") -> list[Fired]:
        """Who has met the arm of that name, or any."""
        try:
            data = self._fired.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1].splitlines()
        found = [msgspec.json.decode(line, type=Fired) for line in whole]
        found = [fired for fired in found if name in ("", fired.name)]
        if found and name in self._points:
            proved.add(self._points[name])
        return found

    # --- the hurt process's side ----------------------------------------------------------------------

    def met(
        self,
        role: str,
        call: str,
        workflow_id: str = "",
        touched: Sequence[str] = (),
        follows: str = "",
        token: str = "",
    ) -> Arm | None:
        """The arm for this call, if there is one; it is gone for everybody else then."""
        for name in self._names():
            arm = _read(str(self._folder / name))
            if arm is None or not _matches(arm, role, call, workflow_id, touched, follows):
                continue
            if not arm.lasting:
                try:
                    (self._folder / name).rename(self._folder / f".met-{name}")
                except FileNotFoundError:
                    continue  # another process was faster
            self._note(name, token)
            if arm.point == "pause":
                self._wait(name if arm.lasting else f".met-{name}")
            return arm
        return None

    def _wait(self, file: str) -> None:
        """Stand still until the test says go. (A process that stopped itself might do so while another thread of it
        commits: with the store's lock in its hand, and that is another fault.)"""
        while (self._folder / file).exists():
            threading.Event().wait(0.005)

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def _note(self, name: str, token: str) -> None:
        fd = os.open(self._fired, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fired = Fired(name=name, pid=os.getpid(), at_ms=boot_ms(), token=token)
            os.write(fd, msgspec.json.encode(fired) + b"\n")
        finally:
            os.close(fd)


def _matches(arm: Arm, role: str, call: str, workflow_id: str, touched: Sequence[str], follows: str) -> bool:
    return (
        arm.call in ("*", call)
        and arm.workflow_id in ("", workflow_id)
        and arm.role in ("", role)
        and arm.pid in (0, os.getpid())
        and (not arm.touches or arm.touches in touched)
        and arm.follows in ("", follows)
    )


def die() -> NoReturn:
    """As kill -9 from outside, at exactly this place."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def hurt(arm: Arm | None, call: Callable[[], T], lost: Exception, refused: Exception) -> T:
    """Make the call, or what `arm` makes of it."""
    match None if arm is None else arm.point:
        case "before":
            die()
        case "refused":
            raise refused
    answer = call()
    match None if arm is None else arm.point:
        case "after":
            die()
        case "lost":
            raise lost
    return answer


def _token_of(transition: Transition) -> str:
    """The claim that a transition takes, or else is made under."""
    for part in (*transition.changes, *transition.guards):
        field, value = getattr(part, "field", ""), getattr(part, "value", None)
        if field.rpartition(".")[2] == "claim_token" and isinstance(value, str):
            return value
    return ""


class ArmedStore:
    """A store whose calls may be hurt."""

    def __init__(self, inner: Store, arms: Arms, role: str, last: dict[str, str]) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role
        self._last = last

    def insert(self, insert: Insert) -> InsertAnswer:
        return self._hurt(insert.name, insert.key, (), lambda: self._inner.insert(insert))

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        arm = None
        for insert in inserts:
            arm = arm or self._arms.met(self._role, insert.name, insert.key)
        gone = "inserts: no answer"
        return hurt(arm, lambda: self._inner.insert_all(inserts), OutcomeUnknown(gone), StoreUnavailable(gone))

    def apply(self, transition: Transition) -> Answer:
        return self.apply_all((transition,))[0]

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        arm = None
        for t in transitions:
            touched, last = [change.field for change in t.changes], self._last.get(t.key, "")
            arm = arm or self._arms.met(self._role, t.name, t.key, touched, last, _token_of(t))

        def call() -> list[Answer]:
            answers = self._inner.apply_all(transitions)
            for transition, answer in zip(transitions, answers, strict=True):
                if isinstance(answer, Applied):
                    self._last[transition.key] = transition.name
            return answers

        names = ", ".join(t.name for t in transitions)
        return hurt(arm, call, OutcomeUnknown(f"{names}: no answer"), StoreUnavailable(f"{names}: cut off"))

    def remove(self, remove: Remove) -> RemoveAnswer:
        return self._hurt(remove.name, remove.key, (), lambda: self._inner.remove(remove))

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return [self.remove(remove) for remove in removes]

    def get(self, table: str, key: str) -> Document | None:
        return self._read("get", key, lambda: self._inner.get(table, key))

    def find(self, table: str, column: str, value: str) -> Document | None:
        key = workflow_id_for(value) if column == "biz_key" else value
        return self._read("find", key, lambda: self._inner.find(table, column, value))

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        # A scan for the rows of one workflow is that workflow's: the look into the inbox after a suspension.
        own = [g.value for g in query.guards if isinstance(g, Equals) and g.field == "workflow_id"]
        call, key = ("recheck", str(own[0])) if own and query.table == SIGNALS else ("scan", "")
        return self._read(call, key, lambda: self._inner.scan(query))

    def _hurt(self, call: str, key: str, touched: Sequence[str], function: Callable[[], T]) -> T:
        arm = self._arms.met(self._role, call, key, touched, self._last.get(key, ""))
        return hurt(arm, function, OutcomeUnknown(f"{call}: no answer"), StoreUnavailable(f"{call}: cut off"))

    def _read(self, call: str, key: str, function: Callable[[], T]) -> T:
        """A reading whose answer is lost has changed nothing: it may be made again."""
        gone = StoreUnavailable(f"{call}: no answer")
        return hurt(self._arms.met(self._role, call, key, (), self._last.get(key, "")), function, gone, gone)

    def prepare(self) -> None:
        self._inner.prepare()

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def close(self) -> None:
        self._inner.close()


class ArmedQueue:
    """A ready queue whose calls may be hurt. `wakeup` is the second half of a push: hurt before it, the candidates are
    there and nobody was told."""

    def __init__(self, inner: LaneQueue, arms: Arms, role: str, last: dict[str, str]) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role
        self._last = last

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None:
        arm = self._met("push", candidates)
        wakeup = self._met("wakeup", candidates) if wake and arm is None else None
        if wakeup is not None and wakeup.point == "before":
            self._inner.push(candidates, wake=False)
        gone = CoordinationUnavailable("push: no answer")
        hurt(arm or wakeup, lambda: self._inner.push(candidates, wake=wake), gone, gone)

    def pop(self, n: int) -> Popped:
        gone = CoordinationUnavailable("pop: no answer")
        popped = hurt(self._arms.met(self._role, "pop"), lambda: self._inner.pop(n), gone, gone)
        return hurt(self._met("popped", popped.candidates), lambda: popped, gone, gone)

    def _met(self, call: str, candidates: Sequence[Candidate]) -> Arm | None:
        for candidate in candidates:
            key = candidate.workflow_id
            arm = self._arms.met(self._role, call, key, (), self._last.get(key, ""))
            if arm is not None:
                return arm
        return None
