"""The ports of one process: each call is a place where the others may go on first, and where something may go wrong.

What a call did is decided here and nowhere else: done or not, now or later, told or not told, and whether the process
is still there to hear of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kernel.errors import CoordinationUnavailable, OutcomeUnknown, StoreUnavailable
from kernel.records import Document
from kernel.store.conditional import Answer, Insert, InsertAnswer, Remove, RemoveAnswer, Transition
from kernel.store.memory import MemoryStore
from kernel.store.protocol import Query
from kernel.stream_words import Seniority, StreamId
from tests.simulation.fibers import Dead
from tests.simulation.holds import ANY
from tests.simulation.processes import Process

T = TypeVar("T")

SLOW_MS = (100, 1_000, 8_000, 40_000)
LATE_MS = (1, 50, 2_000, 20_000)
COMMON = {
    "touch_definition": 1_000, "renew": 20, "claim": 40, "begin_step": 30, "complete_step": 20, "suspend_step": 10,
    "activate_timer": 0.5, "update_object": 10, "confirm_dispatch": 5, "set_limit": 1_000, "declare_limit": 1_000,
    "retry_step": 3, "finish_failed": 4, "fail_step": 4, "finish_completed": 4, "defer_for_permit": 4, "yield_step": 3,
    "defer_finalizer": 3, "mark_matched": 3, "release": 3, "release_dead": 3,
}  # fmt: skip
RARE = 0.4
"""How much less a write is tried than in every second case, by its name: the more of them there are in a run."""


class Port(ABC):
    """What all ports share: the switch before the call, and the faults around it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def _made(self, what: str, do: Callable[[], T], chance: float, key: str | None = None, said: Any = None) -> T:
        """Make one call. `chance`: that any of the faults befalls it, drawn once; `key`: the row that it writes, None
        for a call that only reads; `said`: what is said in it, for a fault that is planted at one certain call."""
        world, process = self._world, self._process
        world.trace.note(world.hub.now_ms, f"{process.name}", what)
        world.hub.give_way()
        if world.planted is not None:
            planted: T = world.planted.made(self, process, what, do, said)
            return planted
        if world.calm or world.rng.random() >= chance:
            return do()
        process.faulted_ms = world.hub.now_ms
        return self._fails(what, do, key, said)

    @abstractmethod
    def _fails(self, what: str, do: Callable[[], T], key: str | None, said: Any) -> T:
        """One of the faults of this kind of port, drawn by their chances."""

    def _crash(self, what: str, do: Callable[[], object], *, writes: bool) -> None:
        """The process ends: before the call, after it, or while it is on its way and will be done later."""
        world = self._world
        how = world.rng.choice(("before", "after", "late") if writes else ("before", "after"))
        world.trace.add(world.hub.now_ms, self._process.name, f"CRASH {how} {what}")
        if how == "after":
            do()
        elif how == "late":
            world.later(world.rng.choice(LATE_MS), do)
        world.crash(self._process)
        raise Dead

    def _hang(self, ms: int, what: str) -> None:
        """What does not answer is waited for as long as a client may wait; what refuses says so at once."""
        self._process.faulted_ms = self._world.hub.now_ms
        if ms:
            self._world.sometimes.add(f"{what} hung")
            self._world.hub.sleep(ms)
        else:
            self._world.hub.give_way()

    def _slow(self, what: str) -> None:
        world = self._world
        ms = world.rng.choice(SLOW_MS)
        world.trace.add(world.hub.now_ms, self._process.name, f"SLOW {ms} ms {what}")
        self._process.troubles.note("slow")
        self._process.troubles.until_ms = max(self._process.troubles.until_ms, world.hub.now_ms + ms)
        world.hub.sleep(ms)


class StorePort(Port):
    """The durable store, as one process sees it (kernel.store.protocol.Store)."""

    def __init__(self, process: Process, store: MemoryStore) -> None:
        super().__init__(process)
        self._store = store
        profile = self._world.profile
        self._reading = profile.refused + profile.slow + profile.crash + profile.held / 4
        self._known = profile.refused + profile.slow + profile.crash + profile.held
        self._writing = self._known + profile.lost_request + profile.lost_reply + profile.late
        self._guarded = min(profile.held * 4, 0.2)
        """Chance that a rare write is held until one of its conditions fails."""
        self.unknown: set[tuple[str, str]] = set()
        """(key, commit_id) of the writes of which this process does not know yet whether they were done."""

    def prepare(self) -> None:
        self._store.prepare()

    def now_ms(self) -> int:
        return self._store.now_ms() + self._process.estimate_ms

    def close(self) -> None:
        """The world's store stays."""

    # --- writing -------------------------------------------------------------------------------------------

    def insert(self, insert: Insert) -> InsertAnswer:
        answer: InsertAnswer = self._write(insert.name, insert.key, lambda: self._inserted(insert), [insert])
        return answer

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return self._many(inserts, self._inserted)

    def apply(self, transition: Transition) -> Answer:
        answer: Answer = self._write(transition.name, transition.key, lambda: self._applied(transition), [transition])
        return answer

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return self._many(transitions, self._applied)

    def remove(self, remove: Remove) -> RemoveAnswer:
        answer: RemoveAnswer = self._write(remove.name, remove.key, lambda: self._store.remove(remove), [remove])
        return answer

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return self._many(removes, self._store.remove)

    def _many(self, writes: Sequence[Any], one: Callable[[Any], T]) -> list[T]:
        """Each is atomic by itself: a call that is lost may have left any of them."""
        if not writes:
            return []

        def some() -> list[T]:
            if self._world.lossy and not self._world.calm:
                return [one(write) for write in writes if self._world.rng.random() < 0.5]
            return [one(write) for write in writes]

        names = ",".join(sorted({write.name for write in writes}))
        answers: list[T] = self._write(f"{names}×{len(writes)}", writes[0].key, some, writes)
        return answers

    def _inserted(self, insert: Insert) -> InsertAnswer:
        answer = self._store.insert(insert)
        self._world.watch.inserted(self._process, insert, answer)
        return answer

    def _applied(self, transition: Transition) -> Answer:
        before = self._store.get(transition.table, transition.key)
        answer = self._store.apply(transition)
        self._world.watch.applied(self._process, transition, before, answer)
        return answer

    def _write(self, name: str, key: str, do: Callable[[], Any], writes: Sequence[Any]) -> Any:
        self._away(writes=True)
        what = f"{name} {self._world.short(key)}"
        self._hold_for_guard(what, writes)
        try:
            return self._made(what, do, self._writing, key, writes)
        except OutcomeUnknown:
            self.unknown.update((write.key, write.commit_id) for write in writes if getattr(write, "commit_id", None))
            raise

    # --- reading -------------------------------------------------------------------------------------------

    def get(self, table: str, key: str) -> Document | None:
        self._away(writes=False)
        what = f"get {self._world.short(key)}"
        document: Document | None = self._made(what, lambda: self._store.get(table, key), self._reading, said=table)
        if self.unknown:
            self._world.watch.resolved(self.unknown, key, document)
        return document

    def find(self, table: str, column: str, value: str) -> Document | None:
        self._away(writes=False)
        do = partial(self._store.find, table, column, value)
        return self._made(f"find {value}", do, self._reading, said=table)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        self._away(writes=False)
        what = f"scan {query.table} by {query.order}"
        return self._made(what, lambda: self._store.scan(query), self._reading, said=what.partition(" ")[2])

    # --- faults --------------------------------------------------------------------------------------------

    def _away(self, *, writes: bool) -> None:
        """An outage: the caller waits a moment and is told that nothing was done."""
        world = self._world
        if world.hub.now_ms < world.store_down_until_ms and not world.calm:
            self._process.troubles.note("refused")
            world.trace.note(world.hub.now_ms, self._process.name, "store is down")
            self._hang(world.store_hangs_ms, "the store")
            raise StoreUnavailable("the store is down")

    def _fails(self, what: str, do: Callable[[], T], key: str | None, said: Any) -> T:
        world, profile = self._world, self._world.profile
        at = world.rng.random() * (self._reading if key is None else self._writing)
        if at < profile.refused:
            return self._refuse(what)
        if at < profile.refused + profile.slow:
            first = world.rng.random() < 0.5
            if first:
                self._slow(what)
            answer = do()
            if not first:
                self._slow(what)
            return answer
        if at < profile.refused + profile.slow + profile.crash:
            self._crash(what, do, writes=key is not None)
        if key is None or at < self._known:
            return self._hold(what, do, key)
        return self._lose(what, do, at - self._known, said)

    def _hold(self, what: str, do: Callable[[], T], key: str | None) -> T:
        """Before the call or after it; what was read or built before is old when it goes on."""
        world = self._world
        first = key is not None and world.rng.random() < 0.7
        whole = world.rng.random() < 0.5
        writes = world.rng.choice((1, 1, 2, 3, 5))
        world.trace.add(world.hub.now_ms, self._process.name, f"HELD {writes} writes {whole=} {first=} {what}")
        if first:
            world.holds.hold(self._process, key or ANY, writes, whole=whole)
        answer = do()
        if not first:
            world.holds.hold(self._process, key or ANY, writes, whole=whole)
        return answer

    def _hold_for_guard(self, what: str, writes: Sequence[Any]) -> None:
        """What is written rarely is tried hard: held, in some runs, until one of its conditions alone keeps it off."""
        world = self._world
        if not self._guarded or world.calm or world.planted is not None:
            return
        write = writes[0] if len(writes) == 1 else world.rng.choice(writes)
        if isinstance(write, Insert) or world.rng.random() >= self._guarded / COMMON.get(write.name, RARE):
            return
        whole = world.rng.random() < 0.6
        met = world.rng.random() < 0.75
        world.trace.add(world.hub.now_ms, self._process.name, f"HELD for its conditions {whole=} {met=} {what}")
        self._process.faulted_ms = world.hub.now_ms
        world.holds.hold_for_guard(self._process, write, whole=whole, met=met)

    def _refuse(self, what: str) -> Any:
        self._process.troubles.note("refused")
        self._world.trace.add(self._world.hub.now_ms, self._process.name, f"REFUSED {what}")
        raise StoreUnavailable("refused by the simulation")

    def _lose(self, what: str, do: Callable[[], Any], at: float, writes: Sequence[Any]) -> Any:
        """The caller will never know from this call whether the write was done."""
        world, profile = self._world, self._world.profile
        how = "request" if at < profile.lost_request else "reply"
        if at >= profile.lost_request + profile.lost_reply:
            how = "late"
        self._process.troubles.note("unknown")
        world.trace.add(world.hub.now_ms, self._process.name, f"LOST {how} {what}")
        world.lossy = True
        try:
            if how == "reply":
                do()
            elif how == "late" and isinstance(writes[0], Transition) and world.rng.random() < 0.5:
                # After a second copy of it, if there is one: at the worst moment for it.
                world.holds.send_later(self._process, writes[0], do)
            elif how == "late":
                world.later(world.rng.choice(LATE_MS), do)
        finally:
            world.lossy = False
        raise OutcomeUnknown(f"the {how} was lost by the simulation")


class CoordinationPort(Port):
    """One of the ports to Redis, as one process sees it: the methods of `target`, a model of the scripts."""

    def __init__(self, process: Process, target: Any, name: str) -> None:
        super().__init__(process)
        self._target = target
        self._name = name
        self._chance = self._world.profile.redis + self._world.profile.crash

    def __getattr__(self, name: str) -> Any:
        getattr(self._target, name)  # AttributeError for what the models do not have
        call = partial(self._call, name)
        setattr(self, name, call)
        return call

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        method = getattr(self._target, name)
        self._away()
        what = f"{self._name}.{name}"
        do = partial(method, *args, **named)
        return self._made(what, do, self._chance, said=args)

    def _away(self) -> None:
        world = self._world
        if world.hub.now_ms < world.redis_down_until_ms and not world.calm:
            world.trace.note(world.hub.now_ms, self._process.name, f"{self._name}: Redis is down")
            world.redis.permits.failed(self._process)
            self._hang(world.redis_hangs_ms, "Redis")
            raise CoordinationUnavailable("Redis is down")

    def _fails(self, what: str, do: Callable[[], T], key: str | None, said: Any) -> T:
        world = self._world
        if world.rng.random() * self._chance < world.profile.crash:
            self._crash(what, do, writes=True)
        world.redis.permits.failed(self._process)
        lost = world.rng.random() < 0.5
        world.trace.add(world.hub.now_ms, self._process.name, f"LOST {'reply' if lost else 'request'} {what}")
        if lost:
            do()
        raise CoordinationUnavailable("lost by the simulation")


class StreamsPort(CoordinationPort):
    """Client streams: whoever is held until a stream begins anew goes on then."""

    def reset(self, stream: StreamId, seniority: Seniority, **named: Any) -> int | None:
        generation: int | None = self._call("reset", stream, seniority, **named)
        self._world.holds.written(stream_key(stream))
        return generation


def stream_key(stream: StreamId) -> str:
    """What stands for a stream among the rows that holds wait for."""
    return f"stream of {stream.workflow_id}"
