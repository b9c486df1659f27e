"""One run: a store, a Redis, processes and their troubles, all from one seed."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from fanout import Page, Subscriber, make_fan_out
from kernel.app import App
from kernel.config import Limit
from kernel.context import Context
from kernel.definition import Definition
from kernel.engine.settings import Settings
from kernel.records import Document
from kernel.signals import Signal
from kernel.store.tables import INSTANCES, TABLES
from kernel.streams import StreamSettings
from tests.simulation.counters import Sometimes
from tests.simulation.downstream import Downstream
from tests.simulation.entries import Entry, Ledger
from tests.simulation.fibers import Fiber, Hub
from tests.simulation.flows import RESOURCES, TENANT, draw_definition, next_release
from tests.simulation.holds import Holds
from tests.simulation.job_flow import draw_job
from tests.simulation.jobs import JOBS
from tests.simulation.moves import Trace
from tests.simulation.processes import Process
from tests.simulation.quick_store import QuickStore
from tests.simulation.redis_model import RedisModel
from tests.simulation.roles import ApiProcess, EngineProcess, Notice, ToldOf
from tests.simulation.troubles import draw_profile
from tests.simulation.watch import Watch

START_MS = 1_800_000_000_000
RESTART_MS = (1, 200, 5_000, 40_000)


class Violation(AssertionError):
    """A promise is broken: which one, and what was seen. Ends the run."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class TrueClock:
    """The store's clock: the one that decides."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def wall_ms(self) -> int:
        return self._hub.now_ms

    boot_ms = wall_ms


class World:
    """Everything of one run. `calm` once no more faults happen."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.profile = draw_profile(self.rng)
        self.settings = Settings(
            slots=self.rng.choice((1, 2, 8)),
            wave_threads=self.rng.choice((2, 8)),
            scan_page=self.rng.choice((2, 200)),
            dispatch_batch=self.rng.choice((1, 100)),
        )
        self.stream_settings = StreamSettings()
        self.hub = Hub(self.rng, START_MS)
        self.hub.stickiness = self.profile.stickiness
        self.hub.fault = self._broken
        self.start_ms = START_MS
        self.trace = Trace()
        self.sometimes = Sometimes()
        self.calm = False
        self.planted: Any = None
        """What befalls certain calls instead of what the profile draws (`crash`); None in a campaign."""
        self.lossy = False
        self.observer_fails = self.rng.random() < 0.1
        self.store_down_until_ms = self.redis_down_until_ms = 0
        self.store_hangs_ms = self.redis_hangs_ms = 0
        """How long a caller waits for an answer while it is down; 0: it is refused at once."""
        self.jumps = self.jumped_ms = 0
        self._violation: Violation | None = None
        self._dying: list[Process] = []
        self._born = 0

        clock = TrueClock(self.hub)
        self.store = QuickStore(clock)
        self.objects_store = QuickStore(clock, {JOBS.place: JOBS.table})
        self.watch = Watch(self)
        self.holds = Holds(self)
        self.ledger = Ledger(self)
        self.redis = RedisModel(self, self.rng.choice((0, -3_000, 2_000)), self.rng.getrandbits(32))

        self.keys = self.rng.choice((1, 2, 4))
        """So many of the newest business keys of each type are used: the fewer, the more often callers meet."""
        self.newest: dict[str, int] = {}
        self.facts: set[tuple[str, int]] = set()
        """Facts of the business, by wait key and generation: what a signal tells of."""
        self.asked: set[tuple[str, str, int]] = set()
        """(workflow_id, wait key, generation) of every fact that a step has asked for."""
        self.promised: set[str] = set()
        """Workflows of which somebody was told that they are registered."""
        self.unsent: dict[str, Signal] = {}
        """Signals whose producers have not heard yet that the inbox has them."""
        self.audience: dict[str, list[tuple[str, str, int]]] = {}
        """Whom each event of a fan-out is for."""
        self.untold: set[str] = set()
        """Events whose fan-out is not known to be registered."""
        self.calm_ms = START_MS
        self.refused_permits: set[tuple[object, object]] = set()
        self.limits = {
            RESOURCES[0]: Limit(max_concurrency=1),
            RESOURCES[1]: Limit(max_starts_per_second=2),
            TENANT: Limit(max_concurrency=2),
        }
        self.downstream = Downstream(self)
        self.job = draw_job(self, self.rng)
        self.fan_out = make_fan_out("fan", self._read_page, page_size=2)
        self._pages: set[tuple[str, Any]] = set()
        self.flows = [draw_definition(self, self.rng, f"flow{number}") for number in range(self.rng.choice((1, 2, 3)))]
        self.next_flows = [next_release(flow) for flow in self.flows]
        """The same types in a release that is not everywhere yet."""
        self.processes: list[Any] = []

    # --- processes -------------------------------------------------------------------------------------------

    @property
    def definitions(self) -> list[Definition]:
        return [*self.flows, self.job, self.fan_out]

    @property
    def next_definitions(self) -> list[Definition]:
        return [*self.next_flows, self.job, self.fan_out]

    def app(self, *definitions: Definition) -> App:
        return App(definitions=definitions, limits=self.limits)

    def populate(self) -> None:
        """One to three workers, up to two dispatchers, two web processes."""
        whole = self.app(*self.definitions)
        for _ in range(self.rng.choice((1, 2, 3, 3))):
            self.start_engine(whole)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            self.start_engine(whole, dispatches=True)
        for _ in range(2):
            self.start_api()

    def start_engine(self, app: App, *, dispatches: bool = False) -> EngineProcess:
        self._born += 1
        name = f"{'d' if dispatches else 'w'}{self._born}"
        process = EngineProcess(self, name, self.rng, app, dispatches=dispatches)
        self.processes.append(process)
        return process

    def start_api(self) -> ApiProcess:
        self._born += 1
        process = ApiProcess(self, f"a{self._born}", self.rng)
        self.processes.append(process)
        return process

    def observer_of(self, process: EngineProcess) -> Any:
        """Who hears what the engine of a process tells."""
        return ToldOf(self)

    def living(self, kind: type) -> list[Any]:
        return [process for process in self.processes if isinstance(process, kind) and not process.dead]

    def workers(self) -> list[EngineProcess]:
        return [process for process in self.living(EngineProcess) if not process.dispatches]

    def crash(self, process: Process, *, counted: bool = True) -> None:
        """The process ends now; another takes its place, and maybe a supervisor tells that it is gone."""
        if process.dead:
            return
        process.die()
        self._dying.append(process)
        delay_ms = self.rng.choice(RESTART_MS)
        if isinstance(process, EngineProcess):
            if self.rng.random() < self.profile.proof:
                self.later(5, lambda: self._tell(Notice(process.worker_id, counted=counted)))
            self.later(delay_ms, lambda: self._restart(process))
        else:
            self.later(delay_ms, self.start_api)

    def _restart(self, process: EngineProcess) -> None:
        self.start_engine(process.app, dispatches=process.dispatches)

    def _tell(self, notice: Notice) -> None:
        """To one of the processes that may release claims, again and again until one says that it has."""
        if notice.acknowledged:
            return
        engines = self.living(EngineProcess)
        if engines:
            self.rng.choice(engines).told_of_death(notice)
        self.later(2_000, lambda: self._tell(notice))

    def recycle(self, process: EngineProcess) -> None:
        """An activity ignores its end: the supervisor replaces the process (B-40)."""
        process.loop.drain()
        self.later(5_000, lambda: self.crash(process, counted=False))

    def later(self, ms: int, action: Callable[[], object]) -> None:
        def act() -> None:
            action()

        self.hub.at(self.hub.now_ms + ms, act)

    # --- moving ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One move of one fiber; where nobody can move, the time until something is due passes."""
        if self.hub.move():
            if self.rng.random() < 0.3:
                self.hub.pass_time(1 + int(self.rng.random() * 3))
        else:
            idle_ms = self.hub.idle_ms
            assert idle_ms is not None, "nothing will ever happen again"
            self.hub.pass_time(idle_ms)
        while self._dying:
            self._dying.pop().reap()
        if self._violation is not None:
            raise self._violation

    def close(self) -> None:
        """End everything that still runs."""
        for process in self.processes:
            process.dead = True
        for process in self.processes:
            process.reap()

    # --- what the world knows --------------------------------------------------------------------------------

    def violation(self, promise: str, what: str) -> None:
        """A promise is broken. The run ends after this move; the first one counts."""
        self.trace.add(self.hub.now_ms, "VIOLATION", f"{promise}: {what}")
        if self._violation is None:
            self._violation = Violation(promise, what)

    def _broken(self, fiber: Fiber, error: BaseException) -> None:
        lines = "".join(traceback.format_exception(error))
        self.violation("engine", f"{fiber} ended with {type(error).__name__}: {error}\n{lines}")

    def rows(self, table: str = INSTANCES) -> list[tuple[str, Document]]:
        """All rows of a table, in the order of their keys."""
        store = self.store if table in TABLES else self.objects_store
        return sorted(store.rows(table), key=itemgetter(0))

    def row(self, key: str) -> Document | None:
        return self.store.get(INSTANCES, key)

    def _read_page(self, ctx: Context, cursor: Any, limit: int) -> Page:
        """The audience of an event, in its order; the cursor is a place in it."""
        event = ctx.input
        if (event.event_id, cursor) in self._pages:
            self.sometimes.add("fan-out page repeated")
        self._pages.add((event.event_id, cursor))
        self.hub.give_way()
        first = cursor or 0
        audience = self.audience[event.event_id]
        told = [
            Subscriber(workflow_id=workflow_id, wait_key=key, generation=generation)
            for workflow_id, key, generation in audience[first : first + limit]
        ]
        more = first + limit < len(audience)
        return Page(subscribers=told, next_cursor=first + limit if more else None)

    def submit(self, entry: Entry, place: int) -> None:
        """A task for somebody outside: never again once the checkpoint knows of it (S8)."""
        self.ledger.submitted(entry, place)

    @staticmethod
    def short(key: str) -> str:
        return key[:9]


class EngineFaults(logging.Handler):
    """A fault that the engine caught and logged with its traceback is a fault all the same."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            text = logging.Formatter().format(record)
            self._world.violation("engine", text)
