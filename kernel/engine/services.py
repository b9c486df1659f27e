"""What every part of the engine in one process shares. Built by `kernel.runtime`; holds no state of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kernel.app import App
from kernel.candidates import Candidate
from kernel.clock import Clock
from kernel.engine.commit import Committer
from kernel.engine.damaged import DamagedRows
from kernel.engine.given_up import GivenUp
from kernel.engine.inbox import Inbox
from kernel.engine.invoke import Invoker
from kernel.engine.lease import Renewals
from kernel.engine.permits import PermitDesk
from kernel.engine.ports import Observer, Permits, ReadyQueue, Runner
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.engine.telling import tell
from kernel.errors import CoordinationRejected, CoordinationUnavailable
from kernel.flows import Flows
from kernel.ids import IdSource
from kernel.limits import Limits
from kernel.records import Instance
from kernel.states import LIVE
from kernel.store.protocol import Store
from kernel.streams import ClientStreams

log = logging.getLogger("kernel.engine")


class Services:
    """The engine's surroundings in one process."""

    def __init__(
        self,
        *,
        app: App,
        store: Store,
        queue: ReadyQueue,
        clock: Clock,
        ids: IdSource,
        runner: Runner,
        committer: Committer,
        renewals: Renewals,
        invoker: Invoker,
        observer: Observer,
        settings: Settings,
        worker: Worker,
        flows: Flows,
        limits: Limits,
        permits: tuple[Permits, Permits],
        streams: ClientStreams,
        ports: Any = None,
    ) -> None:
        self.app = app
        self.store = store
        self.queue = queue
        self.clock = clock
        self.ids = ids
        self.runner = runner
        self.committer = committer
        self.renewals = renewals
        self.invoker = invoker
        self.observer = observer
        self.settings = settings
        self.worker = worker
        self.given_up = GivenUp(store, worker.worker_id, committer.commit_id, self.note)
        self.flows = flows
        self.inbox = Inbox(store, self.enqueue, committer.commit_id, runner.event(), self.note)
        self.ports = ports
        self.streams = streams
        self.damaged = DamagedRows()
        asking, renewing = permits
        self.permits = PermitDesk(
            limits,
            asking,
            renewing,
            clock=clock,
            runner=runner,
            settings=settings,
            fraction=ids.fraction,
            note=self.note,
            declared=declared_resources(app),
        )

    def enqueue(self, instances: Sequence[Instance], *, wake: bool = True) -> bool:
        """Tell the ready queue, best effort: a failure costs time and never a result (sor-enqueue-failure)."""
        candidates = [
            Candidate(instance.workflow_id, instance.business_priority, instance.claimable_time)
            for instance in instances
            if instance.status in LIVE and instance.claimable_time is not None and instance.parked is None
        ]
        return self.enqueue_candidates(candidates, wake=wake)

    def enqueue_candidates(self, candidates: Sequence[Candidate], *, wake: bool = True) -> bool:
        """As `enqueue`, for candidates at hand; whether the queue took them. Without `wake` nobody is disturbed."""
        if not candidates:
            return True
        try:
            self.queue.push(candidates, wake=wake)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            log.debug("%d candidates could not be queued; the scan will find them: %s", len(candidates), error)
            return False
        return True

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Tell the observer, after the fact; nothing it does reaches the path (S13)."""
        tell(self.observer, event, instance=instance, step=step, **fields)


def declared_resources(app: App) -> list[str]:
    """Every resource that a Definition names outright; those of tenants are known only when they come."""
    whole = [d.resource for d in app.definitions.values() if isinstance(d.resource, str)]
    return [*whole, *(s.resource for d in app.definitions.values() for s in d.steps if s.resource is not None)]
