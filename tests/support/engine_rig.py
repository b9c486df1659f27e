"""The engine in one process: several workers, each an `Engine` of its own, on one store and one queue of candidates.

`SteppedRig` runs on a clock that stands still until the test or somebody who waits moves it; nothing sleeps, and the
same test always takes the same way. `LiveRig` runs on this machine's clock with real threads and short intervals. Both
keep a ledger of what activities did and a record of what the engine told its observer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from kernel.app import App
from kernel.client import Client
from kernel.clock import Clock, ManualClock, SystemClock
from kernel.config import Config, Limit
from kernel.definition import Definition
from kernel.engine.dispatcher import DispatcherLoop
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.engine.worker import WorkerLoop
from kernel.errors import KernelError
from kernel.ids import IdSource, SeededIds
from kernel.limits import Limits
from kernel.observe.events import EVENTS, named
from kernel.records import Document, Instance, to_instance
from kernel.runtime import Engine
from kernel.states import TERMINAL
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.stream_writer import StreamPort
from kernel.streams import ClientStreams, StreamSettings
from tests.support.engine_ledger import Ledger
from tests.support.engine_permits import MemoryPermits, PermitsView
from tests.support.engine_queue import MemoryQueue, QueueView
from tests.support.engine_runner import BaseRunner, Killed, LiveRunner, SteppedRunner, WorkerRunner
from tests.support.engine_store import FaultyStore
from tests.support.stream_port import StreamsView
from tests.support.wait import wait_until

FAST = Config(lease_s=1.5, poll_s=0.2, scan_s=1.0, permit_lease_s=1.5)
"""The fast profile of RELIABILITY §3: renew 0.5 s, fence 1.25 s."""


def fast_settings(**changes: Any) -> Settings:
    """Settings of the fast profile, with `changes` in the engine's own unit (milliseconds)."""
    base = Settings.of(FAST)
    return Settings(**{name: changes.get(name, getattr(base, name)) for name in base.__struct_fields__})


class Recorder:
    """The Observer of a rig: what was told, by whom, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.told: list[tuple[str, Instance | None, int | None]] = []
        """Each event with the record and the position of the step that it came with."""
        self.raises: BaseException | None = None

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        with self._lock:
            self.told.append((event, instance, step))
            self.events.append((event, {**named(event, instance, step), **fields}))
        if self.raises is not None:
            raise self.raises

    def of(self, event: str, workflow_id: str | None = None) -> list[dict[str, object]]:
        """The fields of every event of that name."""
        with self._lock:
            return [
                fields
                for name, fields in self.events
                if name == event and workflow_id in (None, fields.get("workflow_id"))
            ]

    def names(self, workflow_id: str | None = None) -> list[str]:
        with self._lock:
            return [name for name, fields in self.events if workflow_id in (None, fields.get("workflow_id"))]


class RigWorker:
    """One worker process, as far as it fits into this one."""

    def __init__(self, rig: Rig, app: App, settings: Settings, worker_id: str, ports: Any) -> None:
        self.worker_id = worker_id
        self.store = FaultyStore(rig.store)
        self.queue = QueueView(rig.queue)
        self.runner = WorkerRunner(rig.base_runner)
        self.stuck: list[str] = []
        permits: Any = PermitsView(rig.permits, lambda: self.dead)
        self.engine = Engine(
            app,
            settings,
            store=self.store,
            queue=self.queue,
            worker=Worker(worker_id, f"rig/{worker_id}"),
            clock=rig.clock,
            ids=rig.ids,
            runner=self.runner,
            observer=rig.recorder,
            ports=ports,
            on_stuck=self.stuck.append,
            limits=Limits(rig.store, rig.clock, rig.limits),
            permits=(permits, permits),
            streams=None if rig.streams is None else (StreamsView(rig.streams, lambda: self.dead), rig.stream_settings),
        )
        self.loop: WorkerLoop = self.engine.worker_loop()
        rig.queue.listeners.append(self.engine.scheduler.wake.set)

    @property
    def scheduler(self) -> Any:
        return self.engine.scheduler

    @property
    def sweeps(self) -> Any:
        return self.engine.sweeps

    @property
    def renewals(self) -> Any:
        return self.engine.services.renewals

    @property
    def held(self) -> list[str]:
        """The workflow_ids of the claims that this worker holds."""
        return [] if self.dead else self.engine.services.renewals.held()

    @property
    def busy(self) -> int:
        return self.engine.scheduler.busy

    @property
    def dead(self) -> bool:
        return self.runner.dead or self.store.dead

    def sweep(self) -> Any:
        """One recovery sweep as at the scan rate."""
        return self.sweeps.recover(self.engine.services.settings.scan_ms)

    def kill(self) -> None:
        """As SIGKILL: from here on this worker does nothing more; what it holds stays held."""
        self.store.dead = True
        self.runner.dead = True


class Rig:
    """What both rigs share."""

    def __init__(self, store: Store, clock: Clock, base_runner: BaseRunner, ids: IdSource, settings: Settings) -> None:
        self.store = store
        self.clock = clock
        self.base_runner = base_runner
        self.ids = ids
        self.settings = settings
        self.queue = MemoryQueue(store.now_ms)
        self.permits = MemoryPermits(self.queue, store.now_ms, settings.permit_lease_ms, settings.permit_wait_ms)
        self.limits: dict[str, Limit] = {}
        """What the App of the workers made from now on declares."""
        self.streams: StreamPort | None = None
        """Client streams of the workers and clients made from now on."""
        self.stream_settings = StreamSettings()
        self.recorder = Recorder()
        self.ledger = Ledger(store, clock)
        self.workers: list[RigWorker] = []
        self.client_store = FaultyStore(store)
        self.client = self.make_client(self.client_store)

    def make_client(self, store: Store) -> Client:
        """A publisher's client on `store`; each has a queue connection of its own."""
        around: dict[str, Any] = {"runner": self.base_runner, "clock": self.clock, "ids": self.ids}
        streams = self.streams and ClientStreams(self.streams, settings=self.stream_settings, **around)
        return Client(
            *(store, QueueView(self.queue), self.clock, self.ids, self.base_runner.event()),
            input_bytes_max=2**18,
            streams=streams,
            observer=self.recorder,
        )

    def make_worker(
        self, *definitions: Definition, worker_id: str = "", ports: Any = None, **changes: Any
    ) -> RigWorker:
        """A worker that has registered `definitions`; `changes` are settings in milliseconds."""
        names = {name: changes.get(name, getattr(self.settings, name)) for name in self.settings.__struct_fields__}
        unknown = set(changes) - set(names)
        assert not unknown, f"no such settings: {unknown}"
        worker_id = worker_id or f"w{len(self.workers) + 1}"
        worker = RigWorker(self, App(definitions=definitions), Settings(**names), worker_id, ports)
        self.workers.append(worker)
        return worker

    def start(self, definition: Definition, key: str = "job-1", input: Any = None, **options: Any) -> str:
        """Start or resume by the publisher's client; the workflow_id."""
        return self.client.start_or_resume(definition.plan, biz_key=key, input=input, **options).workflow_id

    def row(self, workflow_id: str) -> Document:
        document = self.store.get(INSTANCES, workflow_id)
        assert document is not None, f"{workflow_id} does not exist"
        return document

    def instance(self, workflow_id: str) -> Instance:
        return to_instance(self.row(workflow_id))

    def step(self, workflow_id: str, name: str) -> Any:
        instance = self.instance(workflow_id)
        return instance.steps[instance.step_index(name)]

    def status(self, workflow_id: str) -> str:
        return str(self.row(workflow_id)["status"])

    def ended(self, *workflow_ids: str) -> bool:
        """Whether all of them are terminal or parked."""
        rows = [self.row(workflow_id) for workflow_id in workflow_ids]
        return all(row["status"] in TERMINAL or "parked" in row for row in rows)

    def output(self, workflow_id: str) -> Any:
        """The last step's output, as a publisher gets it; the workflow must have ended."""
        return self.client.result(workflow_id, timedelta(0))

    def check_events(self) -> None:
        """The engine told only what is on the closed list."""
        unknown = {name for name, _ in self.recorder.events} - set(EVENTS)
        assert not unknown, f"events that are not on the list: {unknown}"


class SteppedRig(Rig):
    """Workers that move only when the test lets them, on a clock that it sets."""

    clock: ManualClock
    base_runner: SteppedRunner

    def __init__(self, store: Store, clock: ManualClock, seed: int = 1, **changes: Any) -> None:
        super().__init__(store, clock, SteppedRunner(clock), SeededIds(seed), fast_settings(**changes))

    def worker(self, *definitions: Definition, **options: Any) -> RigWorker:
        """As `make_worker`, with its heartbeat in the stream of time."""
        worker = self.make_worker(*definitions, **options)
        self.base_runner.beats.append(lambda: self._beat(worker))
        return worker

    def dispatcher(self, *definitions: Definition, **options: Any) -> tuple[RigWorker, DispatcherLoop]:
        """A process that only sweeps."""
        process = self.make_worker(*definitions, **options)
        self.workers.remove(process)
        return process, process.engine.dispatcher_loop()

    def pass_once(self, worker: RigWorker) -> int:
        """One turn of the worker's loop and everything that it started; milliseconds until it wants another."""
        if worker.dead:
            return 1_000
        worker.scheduler.wake.clear()
        try:
            wait_ms = worker.loop.pass_once()
        except Killed:
            worker.kill()
            return 1_000
        self.base_runner.run_all()
        return 0 if worker.scheduler.wake.is_set() else wait_ms

    def advance(self, ms: int) -> None:
        """Let time pass: timers fire and claims are renewed meanwhile."""
        self.base_runner.advance(ms)

    def run(self, until: Callable[[], bool], what: str, *workers: RigWorker, limit_ms: int = 3_600_000) -> None:
        """Let the workers work until `until` holds; fail after `limit_ms` of the rig's time."""
        end_ms = self.clock.boot_ms() + limit_ms
        chosen: Sequence[RigWorker] = workers or self.workers
        vain = 0
        while not until():
            assert self.clock.boot_ms() < end_ms, f"in vain for {limit_ms} ms: {what}"
            waits = [self.pass_once(worker) for worker in chosen]
            self.base_runner.run_all()
            vain = 0 if min(waits, default=0) else vain + 1
            assert vain < 10_000, f"busy without end: {what}"
            if not until():
                self.advance(min(waits, default=1_000))

    def finish(self, *workflow_ids: str, limit_ms: int = 3_600_000) -> None:
        """Let all workers work until these workflows have ended or are parked."""
        self.run(lambda: self.ended(*workflow_ids), f"the end of {workflow_ids}", limit_ms=limit_ms)

    def drive(self, definition: Definition, key: str = "job-1", input: Any = None, **options: Any) -> str:
        """Start a workflow and let it come to its end, by a worker of its own if there is none yet."""
        if not self.workers:
            self.worker(definition)
        workflow_id = self.start(definition, key, input, **options)
        self.finish(workflow_id)
        return workflow_id

    @staticmethod
    def _beat(worker: RigWorker) -> bool:
        permits = worker.engine.services.permits
        if worker.dead or not (worker.held or permits.holds):
            return False
        try:
            worker.renewals.pass_once()
            permits.pass_once()
        except Killed:
            worker.kill()
        return True


class LiveRig(Rig):
    """Workers with real threads on this machine's clock. `close` ends all of them."""

    base_runner: LiveRunner

    def __init__(self, store: Store, seed: int = 1, **changes: Any) -> None:
        clock = SystemClock()
        super().__init__(store, clock, LiveRunner(clock), SeededIds(seed), fast_settings(**changes))
        self._gates: list[threading.Event] = []

    def worker(self, *definitions: Definition, run: bool = True, **options: Any) -> RigWorker:
        """As `make_worker`; its loops run at once unless `run` is false."""
        worker = self.make_worker(*definitions, **options)
        if run:
            worker.loop.start()
        return worker

    def gate(self) -> threading.Event:
        """An event for activities to wait on; `close` opens it, so that no test can leave a thread behind."""
        gate = threading.Event()
        self._gates.append(gate)
        return gate

    def wait_ended(self, *workflow_ids: str, timeout: float = 20.0) -> None:
        wait_until(lambda: self.ended(*workflow_ids), f"the end of {workflow_ids}", timeout)

    def close(self) -> None:
        """Open all gates, drain all workers, and make sure that no thread of theirs is left."""
        for gate in self._gates:
            gate.set()
        for worker in self.workers:
            worker.loop.drain()
            worker.renewals.stop()
            worker.engine.services.permits.stop()
        for worker in self.workers:
            if "scheduler" in worker.runner.started and not worker.dead:
                wait_until(worker.loop.done.is_set, f"the end of {worker.worker_id}")
            worker.engine.event_loop.close()
        left = self.base_runner.close()
        assert not left, f"threads that did not end: {left}"
        unexpected = [error for error in self.base_runner.errors if not isinstance(error, Killed | KernelError)]
        assert not unexpected, f"threads that ended with an error: {unexpected}"
