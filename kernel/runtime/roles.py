"""What the children of a supervisor run: worker, dispatcher, probe. A role returns the process's exit status."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

import msgspec

from kernel.app import PortsRequest
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination.dispatch_index import DispatchIndex
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.keys import Keys
from kernel.coordination.ready_queue import LaneQueue
from kernel.coordination.wakeup import WakeupListener
from kernel.engine.dispatcher import DispatcherLoop
from kernel.engine.ports import ReadyQueue
from kernel.engine.services import Services
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.engine.threads import ThreadRunner
from kernel.engine.worker import WorkerLoop
from kernel.errors import (
    CoordinationDenied,
    CoordinationRejected,
    CoordinationUnavailable,
    CorruptRecord,
    InvalidConfig,
    KernelError,
    Unavailable,
    UnknownVersion,
)
from kernel.ids import RandomIds
from kernel.limits import Limits
from kernel.runtime.assembly import Engine
from kernel.runtime.link import Link, Order
from kernel.runtime.metering import open_metering
from kernel.runtime.observer import Observing, open_observer
from kernel.runtime.opening import (
    NoQueue,
    load_app,
    open_lanes,
    open_objects,
    open_permits,
    open_sources,
    open_store,
    open_streams,
)
from kernel.runtime.releasing import released
from kernel.runtime.tracing import open_tracing
from kernel.streams import StreamSettings

log = logging.getLogger("kernel.runtime")

_EXIT_FAILED, _EXIT_CONFIG, _EXIT_UNAVAILABLE = 1, 2, 69
_REPORT_S = 1.0
_RELEASE_AGAIN_MS = (1_000, 5_000)
_DRAINING_REPORT_S = 0.05
_ORPHAN_GONE_MS = 2_000
"""An orphan that hastens is gone by then: the guardian ends it 1 s after that order, whatever holds it up."""


def worker(link: Link) -> int:
    """The role of a worker process."""
    recycle: list[str] = []
    started = _started(link, recycle.append)
    if isinstance(started, int):
        return started
    engine, seen = started
    _listen(engine, link, Keys(link.config.namespace).wakeup_channel, engine.scheduler.wake.set)
    loop = engine.worker_loop()
    loop.last_words = seen.drain
    report = partial(_report, link, loop, seen)
    # At once: a worker that dies of its first workflow has started well, and must not look like one that can not start.
    engine.services.committer.on_first_commit = report
    loop.start()
    link.ready()
    asked = False
    while not loop.done.is_set():
        if not _obey(link, engine, loop, report):
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
    started = _started(link, lambda reason: log.error("stuck: %s", reason))
    if isinstance(started, int):
        return started
    engine, seen = started
    loop = engine.dispatcher_loop()
    loop.last_words = seen.drain
    report = partial(_report, link, loop, seen)
    if engine.outbox:
        _listen(engine, link, Keys(link.config.namespace).dispatch_channel, loop.wake)
    engine.services.committer.on_first_commit = report
    loop.start()
    link.ready()
    while not loop.done.is_set():
        if not _obey(link, engine, loop, report):
            return 1
    engine.stop_listening.set()
    return 0


def _started(link: Link, on_stuck: Callable[[str], None]) -> tuple[Engine, Observing] | int:
    """This process's engine, or its exit status after its last words: one line that the supervisor shows."""
    faulthandler.enable()
    try:
        return _engine(link, on_stuck)
    except InvalidConfig as error:
        link.failed(str(error))
        return _EXIT_CONFIG  # trying again would not help: the supervisor ends the tree at once
    except Unavailable as error:
        link.failed(str(error))
        return _EXIT_UNAVAILABLE  # no fault of this program: the supervisor tries again for ever
    except KernelError as error:
        link.failed(str(error))
    except Exception as error:
        log.exception("this process could not be started")
        link.failed(f"start failed: {type(error).__name__}: {error}")
    return _EXIT_FAILED


def _report(link: Link, loop: WorkerLoop | DispatcherLoop, seen: Observing) -> None:
    link.report(seen.added_to(loop.status()))


def _obey(link: Link, engine: Engine, loop: WorkerLoop | DispatcherLoop, report: Callable[[], None]) -> bool:
    """Wait for one order, carry it out, and report; False when this process shall give up what it runs."""
    order = link.next_order(_DRAINING_REPORT_S if loop.draining else _REPORT_S)
    if order is not None:
        if order.kind == "hasten":
            if order.orphaned and isinstance(loop, WorkerLoop):
                loop.give_up_all(_ORPHAN_GONE_MS)
            return False
        if order.kind == "drain":
            loop.drain()
        elif order.kind == "owner_dead":
            _release(engine.services, loop, link, order)
    report()
    return True


def probe(link: Link) -> int:
    """Look at the application before anything else starts: its companions and types, or one line of error."""
    try:
        app = load_app(link.config.app)
        _check_rights(link.config)  # first: a start that ends with it leaves no store behind
        open_store(link.config, link.data_dir, SystemClock()).close()
        for objects in open_objects(link.config, link.data_dir, app.objects, SystemClock()).values():
            objects.close()
    except KernelError as error:
        link.report({"error": str(error), "code": error.code})
        return 1
    link.report({"companions": msgspec.to_builtins(app.companions), "types": sorted(app.definitions)})
    return 0


def _check_rights(config: Config) -> None:
    """Raise CoordinationDenied when the configured Redis refuses what the roles will ask of it (A69). One that does not
    answer stops no start: work goes on without it."""
    opened = open_lanes(config, config.redis_url, SystemClock())
    if opened is None:
        return
    lanes, scripts = opened
    try:
        lanes.report()
        lanes.remove(["probe"])
        scripts.command("PUBLISH", Keys(config.namespace).wakeup_channel, 0)
    except CoordinationDenied:
        raise
    except (CoordinationUnavailable, CoordinationRejected) as error:
        log.debug("Redis is not there yet: %s", error)
    finally:
        scripts.close()


def _release(services: Services, loop: WorkerLoop | DispatcherLoop, link: Link, order: Order) -> None:
    """Proof of death: free that owner's claims, and look twice again."""
    if not released(loop, link, order):
        return
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


def _engine(link: Link, on_stuck: Callable[[str], None]) -> tuple[Engine, Observing]:
    config, clock, ids = link.config, SystemClock(), RandomIds()
    runner = ThreadRunner(clock)
    # Before the application is imported: it may bring metrics of its own, which are then counted in the same way.
    metering = open_metering(config, link.data_dir, link.role, link.slot)
    app = load_app(config.app)
    store = metering.store(open_store(config, link.data_dir, clock))
    opened = open_lanes(config, link.redis_url, clock)
    queue: ReadyQueue = NoQueue() if opened is None else metering.queue(LaneQueue(opened[0], store.now_ms))
    objects = open_objects(config, link.data_dir, app.objects, clock, ids=ids)
    request = PortsRequest(str(link.data_dir), dict(link.addresses), objects)
    ports = None if app.ports is None else app.ports(request)
    limits = Limits(store, clock, app.limits, config.limits)
    if link.role == "worker":
        _announce(limits)
    # Two ways to the same places: whoever renews never waits for those who ask (DECISIONS detail 12).
    ways = [places for places in (open_permits(config, link.redis_url, clock) for _ in range(2)) if places is not None]
    shown = open_streams(config, link.redis_url, clock)
    name = f"{socket.gethostname()}/{os.getpid()}/{link.role}-{link.slot}"
    for _, scripts in (*ways, *(found for found in (opened, shown) if found is not None)):
        metering.scripts(scripts)
    seen = open_observer(config, link.data_dir, clock, runner, store.now_ms)
    seen.add((*metering.beside, *open_tracing(clock, runner, f"{link.role}-{link.slot}", config.drain_s / 3)))
    engine = Engine(
        app,
        Settings.of(config),
        store=store,
        queue=queue,
        worker=Worker(link.worker_id, name),
        clock=clock,
        ids=ids,
        runner=runner,
        observer=seen.observer,
        ports=ports,
        on_stuck=on_stuck,
        sources=open_sources(app, request) if link.role == "dispatcher" else (),
        candidates=None if opened is None else DispatchIndex(opened[1], Keys(config.namespace), ids),
        limits=limits,
        permits=(ways[0][0], ways[1][0]) if ways else None,
        streams=None if shown is None else (metering.streams(shown[0]), StreamSettings.of(config)),
    )
    metering.watch(engine)
    if link.role == "dispatcher" or (config.dispatchers == 0 and link.slot == 0):
        runner.spawn("retention", partial(seen.forget_old, engine.stop_listening))
    return engine, seen


def _announce(limits: Limits) -> None:
    """Show operators what is declared. A row that can not be read stops its own resource and not this worker."""
    try:
        limits.announce()
    except (CorruptRecord, UnknownVersion) as error:
        log.error("what is declared can not be shown: %s", error)


def _listen(engine: Engine, link: Link, channel: bytes, wake: Callable[[], None]) -> None:
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
        channel,
        lambda _due_ms: wake(),
        services.clock,
        services.ids.fraction,
    )
    services.runner.spawn("wakeup", partial(listener.run, engine.stop_listening))
