"""Where a cell plays: a world without luck. Fixed settings, a few processes, no fault but the one that is planted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

import msgspec

from fanout import Page, make_fan_out
from kernel.config import Config
from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.dispatch import DISPATCHED, INTENT_FIELD, REFUSED, Intent, to_intent
from kernel.engine.settings import Settings
from kernel.errors import Unavailable
from kernel.observe.event_queue import QueueObserver
from kernel.observe.tables import OBSERVE_TABLES
from kernel.records import Document, Instance, to_instance
from kernel.signals import Signal
from kernel.states import TERMINAL
from kernel.store.conditional import Applied, Transition
from kernel.store.memory import MemoryStore
from kernel.store.memory_projection import MemoryProjection
from kernel.store.tables import INSTANCES, TABLES
from tests.simulation.crash.fault import Arm, Call, Plant, Point, Role
from tests.simulation.crash.outside import Asked, Fixed, Outside, ProjectionPort
from tests.simulation.entries import Entry, world_process
from tests.simulation.flows import SIGNAL, Item, Script
from tests.simulation.job_flow import draw_job
from tests.simulation.jobs import JOBS
from tests.simulation.processes import Process
from tests.simulation.redis_model import RedisModel
from tests.simulation.roles import ApiProcess, EngineProcess, Notice
from tests.simulation.troubles import Profile
from tests.simulation.world import TrueClock, World

T = TypeVar("T")

QUIET = Profile(
    refused=0, lost_request=0, lost_reply=0, late=0, slow=0, held=0, crash=0, redis=0, nemesis=0, estimate_ms=0,
    stickiness=0, proof=0,
)  # fmt: skip
SETTINGS = Settings()
TAKEOVER_MS = SETTINGS.lease_ms + SETTINGS.scan_ms + SETTINGS.poll_ms
"""L1: a claim whose holder was killed, and of whose death nobody has proof, is taken over within that time."""
INDEX_MS = SETTINGS.scan_ms + SETTINGS.poll_ms
"""L2: what Redis has lost is found within that time."""
INTENT_MS = SETTINGS.dispatch_lease_ms + SETTINGS.dispatch_scan_ms + SETTINGS.poll_ms
"""The same for the lease of an intent."""
AGAIN_MS = 200
"""So long after a death another process takes the place."""
WORK_MS = 5_000
"""More than all business code of a cell takes by itself, where nothing else is said."""
STEPS_MAX = 200_000


class Enough(Exception):
    """The fault has fired, and only that was wanted."""


class Stage(World):
    """One cell. `enough` ends it by `Enough` when its fault has fired."""

    def __init__(self, seed: int, point: Point, *, enough: bool = False) -> None:
        super().__init__(seed)
        self.point = point
        self.killed = point != "b"
        self.enough = enough
        self.profile, self.settings = QUIET, SETTINGS
        self.hub.stickiness = 0.0
        self.observer_fails = False
        self.redis = RedisModel(self, 0, seed)
        self.plant = self.planted = Plant(self)
        self.flows = []
        self.job = draw_job(self, Fixed(0, (("work", 300),)))  # type: ignore[arg-type]
        self.fan_out = make_fan_out("fan", self._read_page, page_size=2)
        self.observed: MemoryProjection | None = None
        self.observers: dict[Process, QueueObserver] = {}
        self.busy: set[Process] = set()
        """Web processes in which a call is under way."""
        self.submitted: list[str] = []
        """Idempotency keys of the tasks that somebody outside was given."""
        self.at_last: list[Callable[[], object]] = []
        """What operators do in any case before everything must come to its end."""
        self.main: Arm | None = None
        """The arm of the cell."""

    # --- processes -----------------------------------------------------------------------------------------

    def staff(self, *, workers: int = 2, dispatchers: int = 1, apis: int = 2) -> None:
        """Start so many of each; all know every Definition that there is by now."""
        whole = self.app(*self.definitions)
        for _ in range(workers):
            self.start_engine(whole)
        for _ in range(dispatchers):
            self.start_engine(whole, dispatches=True)
        for _ in range(apis):
            self.start_api()

    def crash(self, process: Process, *, counted: bool = True) -> None:
        """As in any world; the place is taken again at once, and nobody has proof of the death."""
        if process.dead:
            return
        child = getattr(process, "child", None)
        if child is not None:
            child.kill_group()  # what follows, its supervisor decides
            return
        process.die()
        self.bury(process)
        again: Callable[[], object] = self.start_api
        if isinstance(process, EngineProcess):
            engine = process
            again = lambda: self.start_engine(engine.app, dispatches=engine.dispatches)  # noqa: E731
        self.later(AGAIN_MS, again)

    def retire(self, process: Process) -> None:
        """The process ends for good: another release takes over."""
        process.die()
        self.bury(process)

    def bury(self, process: Process) -> None:
        """Unwind a process that has just died, when nobody moves."""
        self._dying.append(process)

    def prove(self, process: EngineProcess) -> Notice:
        """A supervisor tells that this process is dead, until somebody has acknowledged it."""
        notice = Notice(process.worker_id, counted=True)
        self._tell(notice)
        return notice

    def observer_of(self, process: EngineProcess) -> Any:
        """The one of the side path, where a cell is about it."""
        if self.observed is None:
            return super().observer_of(process)
        sink: Any = ProjectionPort(process, self.observed)
        config, now_ms = Config(app="sim:app"), self.store.now_ms
        queue = QueueObserver(lambda: sink, threads=process, clock=process.clock, now_ms=now_ms, config=config)
        self.observers[process] = queue
        return queue

    def observe(self) -> MemoryProjection:
        """From here on engines write snapshots and attempts; the store of them."""
        self.observed = MemoryProjection(TrueClock(self.hub), OBSERVE_TABLES)
        return self.observed

    # --- the fault -----------------------------------------------------------------------------------------

    def arm(
        self,
        name: str,
        by: Role = "",
        key: str = "",
        *,
        when: Callable[[Call], bool] = lambda call: True,
        point: Point | None = None,
        times: int | None = 1,
        silent_ms: int = 0,
        effect: Point | Literal[""] | None = None,
    ) -> Arm:
        """Plant the cell's fault, or with `point` another one before it."""
        arm = Arm(name, point or self.point, by, key, when, times, silent_ms, effect)
        self.plant.arms.append(arm)
        if point is None:
            assert self.main is None, "one fault a cell"
            self.main = arm
        return arm

    def fired(self, within_ms: int = TAKEOVER_MS) -> Process:
        """Wait until the cell's fault has fired; the process that it met."""
        main = self.main
        assert main is not None, "no fault is planted"
        self.until(lambda: bool(main.fired), f"the fault at {main.name}", within_ms)
        if self.enough:
            raise Enough
        return main.fired[0].process

    @property
    def victim(self) -> Process:
        """Whom the fault has met."""
        assert self.main is not None and self.main.fired
        return self.main.fired[0].process

    def pick(self, a: T, b: T, c: T) -> T:
        """The one of this cell's point."""
        return {"a": a, "b": b, "c": c}[self.point]

    def wakeups(self) -> None:
        """From here on a wakeup is a call of its own, made by whoever pushes, after the entries are in their lanes. In
        production one script does both; what a subscriber hears of it may get lost all the same."""
        told = self.redis.queue.wake
        self.redis.lanes._wake = lambda: Outside(world_process()).call("lanes.wakeup", told)

    # --- time ----------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, within_ms: int = TAKEOVER_MS + WORK_MS) -> None:
        """Let everybody move until `condition` holds, for at most so long in simulated time."""
        ends_ms = self.hub.now_ms + within_ms
        for _ in range(STEPS_MAX):
            if condition():
                return
            assert self.hub.now_ms <= ends_ms, f"not within {within_ms} ms: {what}"
            self.step()
        raise AssertionError(f"{STEPS_MAX} moves, and not yet: {what}")

    def rest(self, ms: int, unless: Callable[[], bool] = lambda: False) -> None:
        """Let everybody move for so long, or until `unless` holds."""
        ends_ms = self.hub.now_ms + ms
        self.hub.at(ends_ms, lambda: None)
        while self.hub.now_ms < ends_ms and not unless():
            self.step()

    # --- what is asked of it -------------------------------------------------------------------------------

    def ask(self, call: Callable[[ApiProcess], object], name: str = "call") -> Asked:
        """Make a call in a web process that is not busy with another one of these; do not wait."""
        api = self._free()[0]
        asked = Asked(api)
        self.busy.add(api)

        def body() -> None:
            try:
                asked.answer = call(api)
            except Exception as error:
                asked.error = error
            asked.done = True
            self.busy.discard(api)

        api.spawn(name, body)
        return asked

    def _free(self) -> list[ApiProcess]:
        return [api for api in self.living(ApiProcess) if api not in self.busy]

    def answered(self, call: Callable[[ApiProcess], object], within_ms: int = TAKEOVER_MS) -> Any:
        """The answer to a call that its user repeats as long as nobody has answered."""
        ends_ms = self.hub.now_ms + within_ms
        while True:
            self.until(lambda: bool(self._free()), "a web process has time")
            asked = self.ask(call)
            self.until(asked.is_over, "an answer")
            if asked.done and not isinstance(asked.error, Unavailable):
                if asked.error is not None:
                    raise asked.error
                return asked.answer
            assert self.hub.now_ms <= ends_ms, f"no answer within {within_ms} ms"

    def flow(self, *steps: Step, type_: str = "line", **options: Any) -> Definition:
        """One more Definition that the processes which start from here on know."""
        definition = Definition(type=type_, steps=list(steps), **options)
        self.flows.append(definition)
        return definition

    def script(self, name: str, *items: Item, **options: Any) -> Step:
        """A step that plays a script (`tests.simulation.flows`)."""
        options = {"timeout": timedelta(seconds=300), "max_retry": 0, **options}
        streams, resource = options.get("streams", False), options.get("resource")
        return Step(name, Script(self, name, items, streams=streams, resource=resource), **options)

    def work(self, name: str, ms: int = 300, **options: Any) -> Step:
        """A step that takes so long."""
        return self.script(name, Item("work", ms), **options)

    def entered(self, name: str) -> Callable[[Context], str]:
        """An activity that is done as soon as it is entered."""

        def activity(ctx: Context) -> str:
            self.ledger.enter(ctx, name)
            return name

        return activity

    def starting(self, flow: Definition, biz_key: str, **options: Any) -> Callable[[ApiProcess], Any]:
        """The call that starts a workflow, or finds it, or replays it."""

        def call(api: ApiProcess) -> Any:
            handle = api.client.start_or_resume(flow.plan, biz_key=biz_key, **{"input": {"n": 1}, **options})
            self.promised.add(handle.workflow_id)
            return handle

        return call

    def start(self, flow: Definition, biz_key: str = "one", **options: Any) -> str:
        """Start a workflow and wait for the answer; its id."""
        return str(self.answered(self.starting(flow, biz_key, **options)).workflow_id)

    def request(self, object_id: str) -> Callable[[ApiProcess], Any]:
        """The call by which a user wants a job done."""
        return lambda api: api.desk.request({"object_id": object_id}, object_id=object_id)

    def tell(self, workflow_id: str, key: str, generation: int = 0, signal_id: str = "told") -> Callable[..., Any]:
        """The call that delivers a signal; the fact that it tells of is one from here on."""
        self.facts.add((key, generation))
        told = Signal(
            signal_id=signal_id, workflow_id=workflow_id, signal_type=SIGNAL, wait_key=key, generation=generation
        )
        self.unsent[signal_id] = told

        def call(api: ApiProcess) -> Any:
            (receipt,) = api.client.deliver_signals([told])
            self.unsent.pop(signal_id, None)
            return receipt

        return call

    def outside(self) -> Outside:
        """For business code: the world outside of its process."""
        return Outside(world_process())

    def submit(self, entry: Entry, place: int) -> None:
        self.ledger.submitted(entry, place)

    def _read_page(self, ctx: Context, cursor: Any, limit: int) -> Page:
        return self.outside().call("page.read", lambda: super(Stage, self)._read_page(ctx, cursor, limit))

    @staticmethod
    def engine_of(process: Process) -> Any:
        """The engine inside."""
        assert isinstance(process, EngineProcess)
        return process.engine

    # --- what has become of it -----------------------------------------------------------------------------

    def instance(self, workflow_id: str) -> Instance:
        row = self.row(workflow_id)
        assert row is not None, f"{workflow_id} does not exist"
        return to_instance(row)

    def status(self, workflow_id: str) -> str | None:
        row = self.row(workflow_id)
        return None if row is None else str(row["status"])

    def holder(self, workflow_id: str) -> EngineProcess:
        """The process that holds the claim."""
        token = self.instance(workflow_id).claim_token
        assert token is not None, f"nobody holds {workflow_id}"
        process = self.ledger.claims[token][0]
        assert isinstance(process, EngineProcess)
        return process

    def attempts(self, workflow_id: str) -> tuple[int, ...]:
        return tuple(step.attempt for step in self.instance(workflow_id).steps)

    def entries(self, workflow_id: str, *steps: str) -> tuple[int, ...]:
        """How often business code of these steps was entered, over all runs; of a finalizer: `success`, `failure`."""
        counts = self.ledger.counts
        return tuple(sum(n for key, n in counts.items() if (key[0], key[2]) == (workflow_id, step)) for step in steps)

    def ended(self, workflow_id: str, within_ms: int = TAKEOVER_MS + WORK_MS) -> Instance:
        """Wait until the workflow is at its end."""
        self.until(lambda: self.status(workflow_id) in TERMINAL, f"the end of {workflow_id}", within_ms)
        return self.instance(workflow_id)

    def object(self, object_id: str) -> Document | None:
        return self.objects_store.get(JOBS.place, object_id)

    def intent(self, object_id: str) -> Intent:
        row = self.object(object_id)
        assert row is not None
        return to_intent(row[INTENT_FIELD], object_id)

    def settled_intent(self, object_id: str, within_ms: int = INTENT_MS + WORK_MS) -> Intent:
        """Wait until the object's intent has come to its end."""
        done = (DISPATCHED, REFUSED)
        self.until(
            lambda: self.object(object_id) is not None and self.intent(object_id).status in done,
            f"the dispatch of {object_id}",
            within_ms,
        )
        return self.intent(object_id)

    def conclude(self) -> None:
        """No more faults: operators end what they have begun, and documents for which nobody has asked for any work
        are nobody's business."""
        for act in self.at_last:
            act()
        rows = self.objects_store._rows[JOBS.place]
        for key, row in self.rows(JOBS.place):
            if INTENT_FIELD not in row:
                del rows[key]

    def store_of(self, table: str) -> MemoryStore:
        """The store that has that table."""
        return self.store if table in TABLES else self.objects_store

    def misses(self, transition: Transition) -> bool:
        """Whether such a write, sent once more by somebody who comes late, changes nothing."""
        store = self.store_of(transition.table)
        before = store.get(transition.table, transition.key)
        answer = store.apply(transition)
        return not isinstance(answer, Applied) and store.get(transition.table, transition.key) == before

    def alter(self, workflow_id: str, **fields: Any) -> None:
        """Give a row a past."""
        row = self.row(workflow_id)
        assert row is not None
        self.store._rows[INSTANCES][workflow_id] = msgspec.msgpack.encode({**row, **fields})
