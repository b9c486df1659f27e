"""The only place where the kernel is put together: config → store, coordination, engine, roles (ARCHITECTURE §2).

`worker`, `dispatcher` and `probe` are the roles that a supervisor's children run; `open_client` is what a publisher
uses. Everything that holds a connection or a thread is made here, after the fork (dc-fork-safety).
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from kernel.app import App, PortsRequest
from kernel.client import Client
from kernel.clock import Clock, SystemClock
from kernel.config import Config
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.keys import Keys
from kernel.coordination.lanes import LanePolicy, Lanes
from kernel.coordination.ready_queue import LaneQueue
from kernel.coordination.scripts import ScriptRunner
from kernel.coordination.wakeup import WakeupListener
from kernel.engine.commit import Committer
from kernel.engine.event_loop import EventLoop
from kernel.engine.invoke import Invoker
from kernel.engine.lease import Renewals
from kernel.engine.ports import Observer, ReadyQueue, Runner
from kernel.engine.scheduler import Scheduler
from kernel.engine.services import Services
from kernel.engine.settings import Settings
from kernel.engine.sweeps import Sweeps
from kernel.engine.takeover import Claimer, Worker
from kernel.engine.threads import ThreadRunner
from kernel.engine.worker import DispatcherLoop, WorkerLoop
from kernel.errors import CoordinationUnavailable, InvalidConfig, KernelError
from kernel.ids import IdSource, RandomIds
from kernel.observe.events import LogObserver
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore

log = logging.getLogger("kernel.runtime")

STORE_FILE = "store.sqlite"
RUN_FILE = "run.json"
_EXIT_FAILED, _EXIT_CONFIG = 1, 2
_REPORT_S = 1.0
_RELEASE_AGAIN_MS = (1_000, 5_000)
_DRAINING_REPORT_S = 0.05


class Order(Protocol):
    """What the supervisor asks of a child."""

    @property
    def kind(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def cause(self) -> str: ...

    @property
    def notice_id(self) -> int: ...


class Link(Protocol):
    """A child's connection to its supervisor (supervisor.child.ChildLink)."""

    role: str
    slot: int
    worker_id: str
    config: Config
    redis_url: str | None
    data_dir: Path
    addresses: Mapping[str, str]
    listener: socket.socket | None

    def ready(self) -> None: ...

    def next_order(self, timeout_s: float | None) -> Any: ...

    def acknowledge(self, notice_id: int) -> None: ...

    def report(self, status: dict[str, Any]) -> None: ...

    def ask_recycle(self, reason: str) -> None: ...

    def failed(self, text: str) -> None: ...


class NoQueue:
    """The ready queue of a process without Redis: never there, so everything goes by the durable store."""

    def push(self, candidates: object, *, wake: bool = True) -> None:
        raise CoordinationUnavailable("no Redis is configured")

    def pop(self, n: int) -> Any:
        raise CoordinationUnavailable("no Redis is configured")


def load_app(path: str | None) -> App:
    """The App at `module:attribute`, with the working directory importable. Raises InvalidConfig with one line."""
    if path is None:
        raise InvalidConfig("app: name your application, for example --app flows:app")
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(f"app: {path}: there is no module {error.name!r}") from error
    except KernelError as error:
        raise InvalidConfig(f"app: {path}: {error}") from error
    except Exception as error:
        raise InvalidConfig(f"app: {path}: importing it failed: {type(error).__name__}: {error}") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise InvalidConfig(f"app: {path}: expected a kernel.App named {attribute!r}, found {found}")
    return app


def open_store(config: Config, data_dir: Path, clock: Clock, *, prepare: bool = True) -> Store:
    """The durable store of `config`, prepared. Raises StoreUnavailable, SchemaMismatch or InvalidConfig.

    Without `prepare` it is taken as it is: enough for reading, also while somebody holds the write lock.
    """
    lease_ms = round(config.lease_s * 1000)
    store: Store
    if config.mongodb_uri is not None:
        store = MongoStore(config.mongodb_uri, config.mongodb_database, clock, timeout_ms=max(100, lease_ms // 6))
    else:
        store = SqliteStore(data_dir / STORE_FILE, clock, durability=config.durability, lease_ms=lease_ms)
    if prepare:
        store.prepare()
    return store


def open_lanes(config: Config, redis_url: str | None, clock: Clock) -> tuple[Lanes, ScriptRunner] | None:
    """The lanes on the Redis at `redis_url`; None without one. Nothing is connected yet."""
    if redis_url is None:
        return None
    endpoint = parse_redis_url(redis_url)
    scripts = ScriptRunner(endpoint.connection, clock, call_timeout_s=config.redis_budget_s * 0.4)
    policy = LanePolicy(config.lane_weights, config.lane_burst)
    return Lanes(scripts, Keys(config.namespace), policy), scripts


def embedded_redis_url(data_dir: str | os.PathLike[str]) -> str | None:
    """The Redis of the tree that runs in `data_dir`; None when none does: work then starts with the next scan."""
    try:
        run = msgspec.json.decode((Path(data_dir) / RUN_FILE).read_bytes(), type=dict[str, Any])
        return f"unix://{quote(str(run['redis']))}"
    except (OSError, KeyError, msgspec.MsgspecError):
        return None


def open_client(
    config: Config, data_dir: str | os.PathLike[str], redis_url: str | None, *, prepare: bool = True
) -> Client:
    """A publisher's client. It needs no App and imports no activity (spl-publisher-light).

    `redis_url` None: nobody is told of new work, and it starts with the next scan.
    """
    clock, ids = SystemClock(), RandomIds()
    store = open_store(config, Path(data_dir), clock, prepare=prepare)
    opened = open_lanes(config, redis_url, clock)
    queue: ReadyQueue = NoQueue() if opened is None else LaneQueue(opened[0], store.now_ms)
    pause = ThreadRunner(clock).event()
    return Client(store, queue, clock, ids, pause, input_bytes_max=config.input_bytes_max)


class Engine:
    """One process's engine, assembled and not yet running."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        store: Store,
        queue: ReadyQueue,
        worker: Worker,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        runner: Runner | None = None,
        observer: Observer | None = None,
        ports: Any = None,
        on_stuck: Callable[[str], None] | None = None,
    ) -> None:
        clock = clock or SystemClock()
        ids = ids or RandomIds()
        runner = runner or ThreadRunner(clock)
        self.event_loop = EventLoop(runner, clock)
        committer = Committer(store, ids, runner.event())
        invoker = Invoker(
            runner,
            clock,
            self.event_loop,
            stuck_grace_ms=settings.stuck_grace_ms,
            on_stuck=on_stuck or (lambda reason: log.error("stuck: %s", reason)),
        )
        self.services = Services(
            app=app,
            store=store,
            queue=queue,
            clock=clock,
            ids=ids,
            runner=runner,
            committer=committer,
            renewals=Renewals(store, clock, runner, settings),
            invoker=invoker,
            observer=observer or LogObserver(),
            settings=settings,
            worker=worker,
            ports=ports,
        )
        keys = tuple(definition.plan.key for definition in app.definitions.values())
        fails = frozenset(d.type for d in app.definitions.values() if d.on_poison == "fail")
        claimer = Claimer(store, clock, ids, settings, worker, keys, fails, self.services.given_up.add)
        self.stop_listening = runner.event()
        self.scheduler = Scheduler(self.services, claimer, keys)
        self.sweeps = Sweeps(self.services)

    def worker_loop(self) -> WorkerLoop:
        return WorkerLoop(self.services, self.scheduler, self.sweeps, self.event_loop, self.stop_listening)

    def dispatcher_loop(self) -> DispatcherLoop:
        return DispatcherLoop(self.services, self.sweeps)


def worker(link: Link) -> int:
    """The role of a worker process."""
    recycle: list[str] = []
    engine = _started(link, recycle.append)
    if isinstance(engine, int):
        return engine
    _listen(engine, link)
    loop = engine.worker_loop()
    # At once: a worker that dies of its first workflow has started well, and must not look like one that can not start.
    engine.services.committer.on_first_commit = lambda: link.report(loop.status())
    loop.start()
    link.ready()
    asked = False
    while not loop.done.is_set():
        if not _obey(link, engine, loop):
            return 1
        silent_ms = engine.event_loop.silent_ms()
        if silent_ms > engine.services.settings.loop_silence_ms:
            recycle.append(f"the event loop has been silent for {silent_ms} ms")
        if recycle and not asked:
            # An activity ignores its end (B-40): take nothing new, let the other slots finish, be replaced.
            asked = True
            log.error("this worker asks to be replaced: %s", recycle[0])
            loop.drain()
            link.ask_recycle(recycle[0])
    return 0


def dispatcher(link: Link) -> int:
    """The role of a dispatcher process."""
    engine = _started(link, lambda reason: log.error("stuck: %s", reason))
    if isinstance(engine, int):
        return engine
    loop = engine.dispatcher_loop()
    loop.start()
    link.ready()
    while not loop.done.is_set():
        if not _obey(link, engine, loop):
            return 1
    return 0


def _started(link: Link, on_stuck: Callable[[str], None]) -> Engine | int:
    """This process's engine, or its exit status after its last words: one line that the supervisor shows."""
    faulthandler.enable()
    try:
        return _engine(link, on_stuck)
    except InvalidConfig as error:
        link.failed(str(error))
        return _EXIT_CONFIG  # trying again would not help: the supervisor ends the tree at once
    except KernelError as error:
        link.failed(str(error))
    except Exception as error:
        log.exception("this process could not be started")
        link.failed(f"start failed: {type(error).__name__}: {error}")
    return _EXIT_FAILED


def _obey(link: Link, engine: Engine, loop: WorkerLoop | DispatcherLoop) -> bool:
    """Wait for one order, carry it out, and report; False when this process shall give up what it runs."""
    order = link.next_order(_DRAINING_REPORT_S if loop.draining else _REPORT_S)
    if order is not None:
        if order.kind == "hasten":
            return False
        if order.kind == "drain":
            loop.drain()
        elif order.kind == "owner_dead":
            _release(engine.services, loop, link, order)
    link.report(loop.status())
    return True


def probe(link: Link) -> int:
    """Look at the application before anything else starts: its companions and types, or one line of error."""
    try:
        app = load_app(link.config.app)
        open_store(link.config, link.data_dir, SystemClock()).close()
    except KernelError as error:
        link.report({"error": str(error), "code": error.code})
        return 1
    companions = [{"name": companion.name, "role": companion.role} for companion in app.companions]
    link.report({"companions": companions, "types": sorted(app.definitions)})
    return 0


def _release(services: Services, loop: WorkerLoop | DispatcherLoop, link: Link, order: Order) -> None:
    """Proof of death: free that owner's claims and say so; without the store the supervisor will repeat it."""
    try:
        freed = loop.release_owner(order.worker_id, counted=order.cause == "death")
    except KernelError as error:
        log.warning("the claims of a dead worker could not be released yet: %s", error)
        return
    if freed:
        log.info("released %d claims of a worker that is proved dead", len(freed))
    link.acknowledge(order.notice_id)
    # A claim that the dead worker had sent may reach a remote store only after this pass (DECISIONS detail 5).
    for delay_ms in _RELEASE_AGAIN_MS:
        services.runner.call_at(
            services.clock.boot_ms() + delay_ms,
            partial(services.runner.spawn, "release-again", partial(_release_again, loop, order)),
        )


def _release_again(loop: WorkerLoop | DispatcherLoop, order: Order) -> None:
    try:
        loop.release_owner(order.worker_id, counted=order.cause == "death")
    except KernelError as error:
        log.warning("the claims of a dead worker could not be looked for again: %s", error)


def _engine(link: Link, on_stuck: Callable[[str], None]) -> Engine:
    config, clock, ids = link.config, SystemClock(), RandomIds()
    app = load_app(config.app)
    store = open_store(config, link.data_dir, clock)
    opened = open_lanes(config, link.redis_url, clock)
    queue: ReadyQueue = NoQueue() if opened is None else LaneQueue(opened[0], store.now_ms)
    ports = None
    if app.ports is not None:
        ports = app.ports(PortsRequest(str(link.data_dir), dict(link.addresses)))
    name = f"{socket.gethostname()}/{os.getpid()}/{link.role}-{link.slot}"
    return Engine(
        app,
        Settings.of(config),
        store=store,
        queue=queue,
        worker=Worker(link.worker_id, name),
        clock=clock,
        ids=ids,
        ports=ports,
        on_stuck=on_stuck,
    )


def _listen(engine: Engine, link: Link) -> None:
    """Load the scripts and subscribe to wakeups; a dead Redis delays work and stops nothing."""
    opened = open_lanes(link.config, link.redis_url, engine.services.clock)
    if opened is None or link.redis_url is None:
        return
    lanes, scripts = opened
    try:
        lanes.report()
    except CoordinationUnavailable as error:
        log.warning("starting without Redis: %s", error)
    scripts.close()
    services = engine.services
    listener = WakeupListener(
        parse_redis_url(link.redis_url).connection,
        Keys(link.config.namespace).wakeup_channel,
        lambda _due_ms: engine.scheduler.wake.set(),
        services.clock,
        services.ids.fraction,
    )
    services.runner.spawn("wakeup", partial(listener.run, engine.stop_listening))
