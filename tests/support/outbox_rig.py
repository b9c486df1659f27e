"""Dispatchers in one process: business objects and instances in stores that a test looks into, Redis as plain Python.

Time stands still until the test moves it. A dispatcher sees everything through views of its own, so that one can die,
stop or lose its Redis while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernel.app import App
from kernel.business_objects import BusinessObjects
from kernel.candidates import DueObjects, ScanTurn
from kernel.client import Client
from kernel.clock import Clock, ManualClock
from kernel.definition import Definition, Step
from kernel.dispatch import DispatchSource, DueIntent, Intent
from kernel.engine.dispatcher import DispatcherLoop
from kernel.engine.outbox import Outbox
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.errors import CoordinationUnavailable, StoreUnavailable
from kernel.ids import IdSource, SeededIds, workflow_id_for
from kernel.objects import Objects
from kernel.records import Document, Instance, to_instance
from kernel.runtime import Engine
from kernel.store.memory import MemoryStore
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.support.dispatch_model import DispatchModel
from tests.support.engine_queue import MemoryQueue, QueueView
from tests.support.engine_runner import BaseRunner, Killed, SteppedRunner, WorkerRunner
from tests.support.engine_store import FaultyStore
from tests.support.stores import sqlite_store

SOURCE = "jobs"
JOBS = Objects(name=SOURCE, grace_ms=0)
JOB = Definition(type="job", steps=[Step("only", lambda ctx: "done")])
SETTINGS = Settings(
    poll_ms=5_000,
    dispatch_slots=1,
    dispatch_lease_ms=3_000,
    dispatch_scan_ms=30_000,
    dispatch_delay_ms=1_000,
    dispatch_delay_max_ms=60_000,
)


def changed(settings: Settings, **changes: Any) -> Settings:
    unknown = set(changes) - set(settings.__struct_fields__)
    assert not unknown, f"no such settings: {unknown}"
    return Settings(**{name: changes.get(name, getattr(settings, name)) for name in settings.__struct_fields__})


class MemoryIndex:
    """The dispatch index that all dispatchers of a rig share."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock = clock
        self._ids = ids
        self.models: dict[str, DispatchModel] = {}
        self.down = False
        self.listeners: list[Callable[[], object]] = []

    def of(self, source: str = SOURCE) -> DispatchModel:
        return self.models.setdefault(source, DispatchModel())

    def wipe(self) -> None:
        self.models = {}

    def add(self, source: str, intents: Sequence[DueIntent], *, wake: bool = True) -> int:
        self._fail()
        added = self.of(source).add([(intent.object_id, intent.due_time) for intent in intents])
        for listener in self.listeners if wake else ():
            listener()
        return added

    def take(self, source: str, count: int, until_ms: int) -> DueObjects:
        self._fail()
        ids, next_ms = self.of(source).take(count, until_ms)
        return DueObjects(tuple(ids), next_ms)

    def hold_scan(self, source: str, hold_ms: int) -> ScanTurn:
        self._fail()
        token = self._ids.token()
        left_ms = self.of(source).hold(token, hold_ms, self._clock.boot_ms())
        return ScanTurn(free_in_ms=left_ms) if left_ms else ScanTurn(token=token)

    def free_scan(self, source: str, token: str) -> bool:
        self._fail()
        return bool(self.of(source).free(token, self._clock.boot_ms()))

    def _fail(self) -> None:
        if self.down:
            raise CoordinationUnavailable("Redis is away")


class Watched:
    """A port as one dispatcher sees it: every call is noted and may be met by a hook; a dead process calls nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        """(name, arguments, answer) of each call that came back."""
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda name, args: None
        self.after: Callable[[str, tuple[Any, ...], Any], None] = lambda name, args, answer: None
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            if not self.dead:
                self.before(name, args)
            if self.dead:
                raise Killed
            answer = found(*args, **named)
            self.calls.append((name, args, answer))
            self.after(name, args, answer)
            return answer

        return call

    def of(self, name: str) -> list[tuple[tuple[Any, ...], Any]]:
        """(arguments, answer) of the calls of that name."""
        return [(args, answer) for called, args, answer in self.calls if called == name]


class Desk:
    """One dispatcher process, as far as it fits into this one."""

    def __init__(self, rig: OutboxRig, name: str, settings: Settings, sources: Sequence[DispatchSource]) -> None:
        self.name = name
        self.rig = rig
        self.store = FaultyStore(rig.store)
        self.sources = [Watched(source) for source in sources]
        self.source = self.sources[0]
        self.index = Watched(rig.index)
        self.runner = WorkerRunner(rig.runner)
        self.engine = Engine(
            App(definitions=rig.definitions),
            settings,
            store=self.store,
            queue=QueueView(rig.queue),
            worker=Worker(name, f"rig/{name}"),
            clock=rig.clock,
            ids=rig.ids,
            runner=self.runner,
            sources=self.sources,  # type: ignore[arg-type]
            candidates=self.index,  # type: ignore[arg-type]
        )

    @property
    def outbox(self) -> Outbox:
        return self.engine.outbox

    @property
    def counters(self) -> dict[str, int]:
        return self.outbox.counters

    def loop(self) -> DispatcherLoop:
        return self.engine.dispatcher_loop()

    def round(self) -> int:
        """One round of each source, one after the other; 1,000 for a process that is, or gets, killed."""
        if self.dead:
            return 1_000
        try:
            return min(source.round() for source in self.outbox.sources)
        except Killed:
            self.kill()
            return 1_000

    def kill(self) -> None:
        """As SIGKILL: from here on it does nothing more; what it holds stays held."""
        self.store.dead = self.index.dead = self.runner.dead = True
        for source in self.sources:
            source.dead = True

    @property
    def dead(self) -> bool:
        return self.runner.dead


class OutboxRig:
    """Objects, instances and the index, and dispatchers on them."""

    definitions: tuple[Definition, ...] = (JOB,)

    def __init__(
        self,
        objects_store: Store | None = None,
        *,
        clock: Clock | None = None,
        runner: BaseRunner | None = None,
        declaration: Objects = JOBS,
    ) -> None:
        self.clock = clock or ManualClock()
        self.runner: Any = runner or SteppedRunner(self.clock)  # type: ignore[arg-type]
        self.ids = SeededIds(7)
        self.store = MemoryStore(self.clock)
        self.objects_store = objects_store or MemoryStore(self.clock, {declaration.place: declaration.table})
        self.objects = BusinessObjects(declaration, self.objects_store, self.ids)
        self.queue = MemoryQueue(self.store.now_ms)
        self.index = MemoryIndex(self.clock, self.ids)
        self.client = Client(
            self.store, QueueView(self.queue), self.clock, self.ids, self.runner.event(), input_bytes_max=2**18
        )
        self.desks: list[Desk] = []

    def desk(self, *sources: DispatchSource, **changes: Any) -> Desk:
        """One more dispatcher; `changes` are settings."""
        desk = Desk(self, f"d{len(self.desks) + 1}", changed(SETTINGS, **changes), sources or (self.objects,))
        self.desks.append(desk)
        return desk

    def accept(self, object_id: str = "k", *, announce: bool = False, **more: Any) -> str:
        """An accepted object with its pending intent; its first fencing token."""
        options = {"type_": "job", "biz_key": f"job:{object_id}", "input": {"n": 1}, "priority": 1} | more
        token = self.objects.accept(object_id, **options).object.fencing_token
        assert token is not None
        if announce:
            self.index.add(SOURCE, [DueIntent(object_id, self.intent(object_id).due_time or 0)])
        return token

    def fail_object(self, object_id: str, token: str) -> None:
        """What a FailureFinalizer does to the business side."""
        assert self.objects.fail(object_id, token, {"error": "as asked"})

    def retry(self, object_id: str, token: str, **more: Any) -> str:
        """The user's retry: the next round, pending; its token."""
        options = {"type_": "job", "biz_key": f"job:{object_id}", "input": {"n": 2}, "priority": 1} | more
        found = self.objects.new_round(object_id, token, **options)
        assert found is not None
        return found

    def intent(self, object_id: str = "k") -> Intent:
        found = self.objects.read(object_id)
        assert found is not None, f"{object_id} has no intent"
        return found

    def statuses(self) -> dict[str, int]:
        """How many intents stand how."""
        found: dict[str, int] = {}
        for object_id in self.object_ids():
            status = self.intent(object_id).status
            found[status] = found.get(status, 0) + 1
        return found

    def object_ids(self) -> list[str]:
        ids: list[str] = []
        while page := self.objects.page(after=ids[-1] if ids else None, limit=1_000):
            ids += [row["object_id"] for row in page]
        return ids

    def instance(self, object_id: str = "k") -> Instance | None:
        row = self.store.get(INSTANCES, workflow_id_for(f"job:{object_id}"))
        return None if row is None else to_instance(row)

    def set_instance(self, object_id: str = "k", **fields: Any) -> None:
        """Put the instance into a state that workers would bring it to."""
        key = workflow_id_for(f"job:{object_id}")
        row: Document | None = self.store.get(INSTANCES, key)
        assert row is not None, f"{object_id} has no instance"
        merged = {**row, **fields}
        self.store._rows[INSTANCES][key] = msgspec.msgpack.encode({k: v for k, v in merged.items() if v is not None})

    def end_instance(self, status: str, object_id: str = "k") -> None:
        """The instance has ended in that status, or is failing."""
        gone: Any = None
        terminal = status != "failing"
        finish = {"finish_time": self.store.now_ms(), "claimable_time": gone} if terminal else {}
        self.set_instance(object_id, status=status, **finish)

    def pass_time(self, ms: int) -> None:
        """Timers fire and what they start runs."""
        left = ms
        while left > 0:
            step = min(left, 100)
            self.runner.advance(step)
            self.runner.run_all()
            left -= step

    def stop_time(self, ms: int) -> None:
        """Time passes for everybody but for the timers: as for a process that was stopped."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(ms)

    def settle(self, *desks: Desk, rounds: int = 400) -> None:
        """Rounds of the living dispatchers, as often as they want them, until nothing is left to do at once."""
        for _ in range(rounds):
            waits = [desk.round() for desk in desks or self.desks if not desk.dead]
            self.runner.run_all()
            if min(waits, default=1) > 0:
                return
        raise AssertionError("busy without end")

    def settle_live(self, desk: Desk) -> None:
        """As `settle`, on real threads: a round ends when all of its slots have."""
        while desk.round() == 0:
            pass


def objects_on(kind: str, folder: Path, clock: Clock) -> Store:
    """A fresh store for the objects of a rig: `memory` or `sqlite`."""
    tables = {JOBS.place: JOBS.table}
    return MemoryStore(clock, tables) if kind == "memory" else sqlite_store(folder, clock, tables)


def away(*args: Any) -> None:
    """A hook: the store does not answer."""
    raise StoreUnavailable("the source is away")
