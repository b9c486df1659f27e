"""One process's engine: the parts of `kernel.engine`, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from kernel.app import App
from kernel.client import Client
from kernel.clock import Clock, SystemClock
from kernel.config import Limit
from kernel.dispatch import DispatchSource
from kernel.engine.claim_permits import HandedOver
from kernel.engine.commit import Committer
from kernel.engine.delivery import Delivery
from kernel.engine.dispatcher import DispatcherLoop
from kernel.engine.event_loop import EventLoop
from kernel.engine.invoke import Invoker
from kernel.engine.lease import Renewals
from kernel.engine.outbox import Outbox
from kernel.engine.ports import DispatchCandidates, Observer, Permits, ReadyQueue, Runner
from kernel.engine.registering import Surroundings
from kernel.engine.scheduler import Scheduler
from kernel.engine.services import Services
from kernel.engine.settings import Settings
from kernel.engine.sweeps import Sweeps
from kernel.engine.takeover import Claimer, Worker
from kernel.engine.threads import ThreadRunner
from kernel.engine.worker import WorkerLoop
from kernel.errors import CoordinationUnavailable
from kernel.ids import IdSource, RandomIds
from kernel.limits import Limits
from kernel.observe.events import LogObserver
from kernel.permit_words import Granted, Owner, Permit
from kernel.store.protocol import Store
from kernel.stream_writer import StreamPort
from kernel.streams import ClientStreams, NoStreams, StreamSettings

log = logging.getLogger("kernel.runtime")


class NoCandidates:
    """The index of due intents without Redis: never there, so every dispatcher goes by its scans."""

    def add(self, source: str, intents: object, *, wake: bool = True) -> int:
        raise CoordinationUnavailable("no Redis is configured")

    def take(self, source: str, count: int, until_ms: int) -> Any:
        raise CoordinationUnavailable("no Redis is configured")

    def hold_scan(self, source: str, hold_ms: int) -> Any:
        raise CoordinationUnavailable("no Redis is configured")

    def free_scan(self, source: str, token: str) -> bool:
        raise CoordinationUnavailable("no Redis is configured")


class NoPermits:
    """Places without Redis: whatever has a limit is unavailable, what has none needs nobody (B-25)."""

    def acquire(
        self, resource: str, owner: Owner, limit: Limit, *, lane: int, request: int = 0, wait_ms: int | None = None
    ) -> Any:
        if limit == Limit():
            return Granted("unlimited", Permit(resource, owner, request, 0))
        raise CoordinationUnavailable("no Redis is configured")

    def start(self, permit: Permit, limit: Limit) -> int:
        return 0

    def renew(self, permits: object) -> Any:
        raise CoordinationUnavailable("no Redis is configured")

    def release(self, resource: str, owners: object, limit: Limit) -> Any:
        raise CoordinationUnavailable("no Redis is configured")

    def sweep(self, resource: str, limit: Limit) -> int:
        raise CoordinationUnavailable("no Redis is configured")

    def deferred(self, resource: str, workflow_id: str, step: str, *, lane: int, in_line: bool) -> bool:
        raise CoordinationUnavailable("no Redis is configured")

    def missing(self, resource: str, pairs: object) -> Any:
        raise CoordinationUnavailable("no Redis is configured")

    def leave(self, resource: str, pairs: object, limit: Limit) -> int:
        raise CoordinationUnavailable("no Redis is configured")


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
        sources: Sequence[DispatchSource] = (),
        candidates: DispatchCandidates | None = None,
        limits: Limits | None = None,
        permits: tuple[Permits, Permits] | None = None,
        streams: tuple[StreamPort, StreamSettings] | None = None,
    ) -> None:
        clock = clock or SystemClock()
        ids = ids or RandomIds()
        runner = runner or ThreadRunner(clock)
        self.event_loop = EventLoop(runner, clock)
        committer = Committer(store, ids, runner.event())
        invoker = Invoker(
            *(runner, clock, self.event_loop),
            stuck_grace_ms=settings.stuck_grace_ms,
            on_stuck=on_stuck or (lambda reason: log.error("stuck: %s", reason)),
        )
        shown = _client_streams(streams, runner, clock, ids)
        observer = observer or LogObserver()
        around = (store, queue, clock, ids, runner.event())
        self._client = Client(*around, input_bytes_max=settings.input_bytes_max, streams=shown, observer=observer)
        self._sources, self._candidates = sources, candidates or NoCandidates()
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
            observer=observer,
            settings=settings,
            worker=worker,
            flows=self._client,
            limits=limits or Limits(store, clock, app.limits),
            permits=permits or (NoPermits(), NoPermits()),
            streams=shown,
            ports=ports,
        )
        keys = tuple(definition.plan.key for definition in app.definitions.values())
        self.stop_listening = runner.event()
        self.scheduler = Scheduler(self.services, self._claimer(keys), keys)
        self.sweeps = Sweeps(self.services)
        self.scheduler.repair = self.sweeps.inbox.pass_when_due

    def watch_deliveries(self, seen: Callable[[Sequence[Delivery]], None]) -> None:
        """Tell `seen` of every delivery of signals that activities of this process make."""
        self._client.watch_deliveries(seen)

    def _claimer(self, keys: tuple[str, ...]) -> Claimer:
        services = self.services
        definitions = services.app.definitions
        return Claimer(
            *(services.store, services.clock, services.ids, services.settings, services.worker, keys),
            poison_fails=frozenset(d.type for d in definitions.values() if d.on_poison == "fail"),
            on_unknown=services.given_up.add,
            damaged=services.damaged,
            handed_over=HandedOver(services.permits, definitions),
            note=services.note,
        )

    @cached_property
    def outbox(self) -> Outbox:
        """The recovery of intents, for a dispatcher."""
        services = self.services
        around = Surroundings(
            registrar=self._client,
            plan_of=lambda type_: services.app.definition(type_).plan,
            live_definitions=self.sweeps.live_definitions,
            settings=services.settings,
            clock=services.clock,
            ids=services.ids,
            runner=services.runner,
        )
        return Outbox(self._sources, self._candidates, around, services.committer.count_commit)

    def worker_loop(self) -> WorkerLoop:
        return WorkerLoop(self.services, self.scheduler, self.sweeps, self.event_loop, self.stop_listening)

    def dispatcher_loop(self) -> DispatcherLoop:
        return DispatcherLoop(self.services, self.sweeps, self.outbox)


def _client_streams(
    given: tuple[StreamPort, StreamSettings] | None, runner: Runner, clock: Clock, ids: IdSource
) -> ClientStreams:
    port, settings = given or (NoStreams(), StreamSettings())
    return ClientStreams(port, runner=runner, clock=clock, ids=ids, settings=settings)
