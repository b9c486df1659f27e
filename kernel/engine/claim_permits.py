"""The permits of one claim: a step's while it is invoked, and the workflow's own until the claim ends.

Every invocation of a step with a resource asks before the step is begun, so that a refusal leaves no trace of an
attempt (prm-before-attempt), and gives back when the invocation ends, however it ends (B-11). The owner names the
claim: whoever takes the workflow over is another owner (prm-new-claim-new-owner).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from kernel.definition import Definition
from kernel.engine.claims import ActiveClaim
from kernel.engine.permits import Denied, PermitDesk
from kernel.errors import KernelError
from kernel.permit_words import REQUESTS, WORKFLOW, Owner, Permit
from kernel.records import Instance, PermitWaitRecord
from kernel.states import STEP_ENTERABLE

log = logging.getLogger("kernel.permits")


class ClaimPermits:
    """Used by the claim's thread and, for `of_step`, by those of its waves."""

    def __init__(self, desk: PermitDesk, definition: Definition, claim: ActiveClaim) -> None:
        self._desk = desk
        self._definition = definition
        self._claim = claim
        handed = claim.take_handed()
        whole = handed is not None and handed.owner.step == WORKFLOW
        self._whole = handed if whole else None
        self._handed = None if whole else handed
        self._admitted = self._looked = False
        # 0 was the request of a place that was handed over.
        self._requests = itertools.count(1)

    @property
    def handed_step(self) -> str | None:
        """The step for which this claim was taken before its time, as long as it has not been entered."""
        return None if self._handed is None else self._handed.owner.step

    def admit(self, index: int) -> Denied | None:
        """A place for the workflow as a whole, if its Definition asks for one (prm-tenant); kept until `end`.

        `index` is the step that it holds up. Raises InvalidDefinition or CheckpointError when the resource of this
        input can not be told.
        """
        if self._definition.resource is None or self._admitted:
            return None
        name = self._definition.resource_of(self._claim.instance.input)
        if self._whole is not None and self._whole.resource != name:
            # The Definition has changed since it was refused: a place of another resource is none of this one.
            self._desk.give_back(self._whole)
            self._whole = None
        answer = self._whole if self._whole is not None or name is None else self._ask(name, WORKFLOW, index)
        if isinstance(answer, Denied):
            return answer
        self._whole, self._admitted = answer, True
        return None

    def look_for_place(self, enterable: Sequence[int], now_ms: int) -> None:
        """Once, before anything else: ask for a step that waits in line and whose time is still ahead, without a write.
        This claim was made for something else, it may have taken the hint that was meant for that step, and while it
        lasts no other claim of this workflow can use the place."""
        instance = self._claim.instance
        if self._handed is not None or self._looked:
            return
        self._looked = True
        for index in enterable:
            step, resource = instance.steps[index], self._definition.steps[index].resource
            rests_ms = (step.due_time or 0) - now_ms
            if step.traffic_since_time is not None and resource is not None and rests_ms > 0:
                answer = self._ask(resource, step.name, index, at_least_ms=rests_ms)
                if isinstance(answer, Permit):
                    self._handed = answer
                    return

    def of_step(self, index: int) -> AbstractContextManager[Denied | Callable[[], None]]:
        """Around one invocation: why there is no place, or what is to be called right before the activity is."""
        step = self._definition.steps[index]
        return _UNLIMITED if step.resource is None else self._limited(index, step.name, step.resource)

    @contextmanager
    def _limited(self, index: int, name: str, resource: str) -> Iterator[Denied | Callable[[], None]]:
        answer = self._take_handed(resource, name) or self._ask(resource, name, index)
        if isinstance(answer, Denied):
            yield answer
            return
        try:
            yield partial(self._desk.start, answer, self._claim.check)
        finally:
            self._desk.give_back(answer)

    def end(self) -> None:
        """The claim has ended: what it still holds is free."""
        for permit in (self._handed, self._whole):
            if permit is not None:
                self._desk.give_back(permit)
        self._handed = self._whole = None

    def told(self, instance: Instance, now_ms: int) -> None:
        """The claim is given back, and whoever waits in line may be claimed from now on. A place that was handed over
        while the claim was held woke somebody who could do nothing: the id is pushed once more."""
        lane, rests_ms = instance.business_priority, (instance.claimable_time or 0) - now_ms
        for resource, step in waiting(instance, self._definition):
            self._desk.deferred(resource, instance.workflow_id, step, lane=lane, rests_ms=rests_ms)

    def _take_handed(self, resource: str, name: str) -> Permit | None:
        handed = self._handed
        if handed is None or handed.owner.step != name:
            return None
        self._handed = None
        if handed.resource == resource:
            return handed
        self._desk.give_back(handed)  # the Definition has changed since the step was refused
        return None

    def _ask(self, resource: str, name: str, index: int, at_least_ms: int = 0) -> Permit | Denied:
        instance, held = self._claim.instance, self._claim.held
        return self._desk.ask(
            resource,
            Owner(held.workflow_id, name, held.claim_token),
            lane=instance.business_priority,
            request=next(self._requests) % REQUESTS,
            waits=instance.steps[index].traffic_wait_count,
            at_least_ms=at_least_ms,
            waited_ms=waited_ms(instance, name, instance.claim_time or 0),
        )


def _nothing() -> None:
    pass


_UNLIMITED: AbstractContextManager[Callable[[], None]] = nullcontext(_nothing)


def waited_ms(instance: Instance, name: str, now_ms: int) -> int:
    """How long step `name`, or the workflow as a whole, has waited for a place until `now_ms`; 0 if it never had to."""
    if name == WORKFLOW:
        shown = instance.permit_wait
        since_ms = None if shown is None or shown.step != WORKFLOW else shown.since_time
    else:
        since_ms = next((step.traffic_since_time for step in instance.steps if step.name == name), None)
    return 0 if since_ms is None else max(0, now_ms - since_ms)


def waiting(instance: Instance, definition: Definition) -> list[tuple[str, str]]:
    """(resource, step) of everything for which an instance stands in line."""
    shown = instance.permit_wait
    if shown is None:
        return []
    if shown.step == WORKFLOW:
        return [(shown.resource, WORKFLOW)]
    return [(resource, name) for resource, name, _ in _waiting_steps(instance, definition)]


def _waiting_steps(instance: Instance, definition: Definition) -> Iterator[tuple[str, str, int]]:
    """(resource, step, since when) of every step that was refused a place of its own resource."""
    resources = {step.name: step.resource for step in definition.steps}
    for step in instance.steps:
        resource = resources.get(step.name)
        if resource is not None and step.traffic_since_time is not None:
            yield resource, step.name, step.traffic_since_time


def next_wait(instance: Instance, index: int, definition: Definition) -> PermitWaitRecord | None:
    """What the row shall say when step `index` waits no longer: another step that does, also one that stood in line
    before the workflow as a whole had to wait."""
    for resource, name, since_ms in _waiting_steps(instance, definition):
        if name != instance.steps[index].name:
            return PermitWaitRecord(resource=resource, step=name, since_time=since_ms)
    return None


def owners_of(instance: Instance, claim_token: str, definition: Definition) -> Iterator[tuple[str, Owner]]:
    """Every place that a claim of this instance may have held when its worker died."""
    resources = {step.name: step.resource for step in definition.steps}
    for step in instance.steps:
        resource = resources.get(step.name)
        if resource is not None and step.status in STEP_ENTERABLE:
            yield resource, Owner(instance.workflow_id, step.name, claim_token)
    for whole, name in whole_of(instance, definition):
        yield whole, Owner(instance.workflow_id, name, claim_token)


def whole_of(instance: Instance, definition: Definition) -> list[tuple[str, str]]:
    """(resource, WORKFLOW) of a workflow that needs a place as a whole; none where that can not be told any more."""
    try:
        whole = definition.resource_of(instance.input)
    except KernelError as error:
        log.warning("the resource of %s is not known; its place ends with its lease: %s", instance.workflow_id, error)
        return []
    return [] if whole is None else [(whole, WORKFLOW)]


class HandedOver:
    """Whether a workflow whose time has not come may be claimed all the same: a place is there for it (detail 7).

    It is asked for before the claim is made and under the token that the claim will have, so that a hint that comes
    too late, or was none, costs the durable store nothing.
    """

    def __init__(self, desk: PermitDesk, definitions: dict[str, Definition]) -> None:
        self._desk = desk
        self._definitions = definitions

    def permit(self, instance: Instance, claim_token: str, now_ms: int) -> Permit | None:
        """The place for one of its waiting steps; kept until `give_back`."""
        definition = self._definitions.get(instance.type)
        if definition is None:
            return None
        rests_ms = max(0, (instance.claimable_time or 0) - now_ms)
        for resource, name in waiting(instance, definition):
            counts = [step.traffic_wait_count for step in instance.steps if step.name == name]
            answer = self._desk.ask(
                resource,
                Owner(instance.workflow_id, name, claim_token),
                lane=instance.business_priority,
                request=0,
                waits=max(counts, default=0),
                at_least_ms=rests_ms,
                waited_ms=waited_ms(instance, name, now_ms),
            )
            if isinstance(answer, Permit):
                return answer
        return None

    def give_back(self, permit: Permit) -> None:
        self._desk.give_back(permit)

    def leave(self, instance: Instance) -> None:
        """It has ended, or was put aside, and was called all the same: it stands in line, where nobody takes it out
        who ends a workflow from outside."""
        definition = self._definitions.get(instance.type)
        if definition is None or all(step.traffic_since_time is None for step in instance.steps):
            return
        stood = [(resource, name) for resource, name, _ in _waiting_steps(instance, definition)]
        for resource, name in (*stood, *whole_of(instance, definition)):
            self._desk.leave(resource, [(instance.workflow_id, name)])
