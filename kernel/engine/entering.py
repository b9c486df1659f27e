"""The writes before an invocation: a step is begun, or it waits for a permit, or the entry is taken back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from kernel import transitions
from kernel.definition import Definition
from kernel.engine import readiness
from kernel.engine.claim_permits import next_wait
from kernel.engine.claims import ActiveClaim
from kernel.engine.permits import Denied
from kernel.engine.services import Services
from kernel.permit_words import WORKFLOW
from kernel.records import Instance, PermitWaitRecord
from kernel.states import STEP_PENDING
from kernel.store.conditional import Transition
from kernel.transitions import Rest
from kernel.transitions.waits import earliest_wait


class Entering:
    """Of one claim. Each method is one commit and returns the record after it; ClaimLost and Fenced pass through."""

    def __init__(
        self, services: Services, definition: Definition, depends_on: readiness.Dependencies, claim: ActiveClaim
    ) -> None:
        self._s = services
        self._definition = definition
        self._depends_on = depends_on
        self._claim = claim
        self._traffic = threading.Lock()
        """Held while a write says who waits for a permit: two steps of a wave would overwrite each other's word."""

    def begin(self, index: int) -> Instance:
        """Running, one attempt more (stp-running-before-entry)."""
        if self._claim.instance.permit_wait is None:
            return self._begun(index)
        with self._traffic:
            return self._begun(index)

    def _begun(self, index: int) -> Instance:
        instance = self._claim.instance
        since = instance.steps[index].traffic_since_time
        return self._commit(
            partial(
                transitions.begin_step,
                self._claim.held,
                instance,
                index,
                worker_id=self._s.worker.worker_id,
                ready_time=readiness.ready_time(self._depends_on, instance, index),
                waited_ms=0 if since is None else max(0, self._s.store.now_ms() - since),
                others_wait=next_wait(instance, index, self._definition),
            )
        )

    def unbegin(self, index: int) -> Instance:
        """The worker was told to stop between the commit and the entry: no attempt happened, and the claim is over."""
        pending = readiness.projected(self._claim.instance.steps, index, STEP_PENDING, due_time=None)
        rest = readiness.rest(self._depends_on, pending)
        return self._commit(partial(transitions.unbegin, self._claim.held, index, rest=rest))

    def wait_alone(self, index: int, denied: Denied) -> Instance:
        """The step waits for a permit and nothing else is to be done: the same write ends the claim (prm-refused)."""
        due_ms = self._due_ms(denied)
        steps = self._claim.instance.steps
        after = readiness.projected(steps, index, steps[index].status, due_time=due_ms)
        return self._defer(index, denied, due_ms, readiness.rest(self._depends_on, after))

    def wait_beside_others(self, index: int, denied: Denied) -> Instance:
        """The step waits for a permit while others of its wave run: the claim goes on."""
        return self._defer(index, denied, self._due_ms(denied), None)

    def wait_as_a_whole(self, index: int, denied: Denied) -> Instance:
        """The workflow waits for its own resource (prm-tenant), which holds up step `index`; the claim is over."""
        wait = earliest_wait(self._claim.instance.steps)
        rest = Rest(status="running", claimable_time=self._due_ms(denied), wait=wait)
        return self._defer(index, denied, None, rest)

    def _defer(self, index: int, denied: Denied, due_ms: int | None, rest: Rest | None) -> Instance:
        with self._traffic:
            instance = self._claim.instance
            step = instance.steps[index]
            ready_ms = readiness.ready_time(self._depends_on, instance, index) if step.ready_time is None else None
            wait = PermitWaitRecord(
                resource=denied.resource,
                step=WORKFLOW if due_ms is None else step.name,
                since_time=step.traffic_since_time or self._s.store.now_ms(),
            )
            committed = self._commit(
                partial(
                    transitions.defer_for_permit,
                    self._claim.held,
                    index,
                    wait=wait,
                    due_time=due_ms,
                    ready_time=ready_ms,
                    rest=rest,
                )
            )
        self._s.note("step.deferred", instance=committed, step=index, resource=denied.resource, reason=denied.reason)
        return committed

    def _due_ms(self, denied: Denied) -> int:
        return self._s.store.now_ms() + denied.due_in_ms

    def _commit(self, build: Callable[..., Transition]) -> Instance:
        return self._s.committer.commit(self._claim, lambda commit_id: build(commit_id=commit_id))
