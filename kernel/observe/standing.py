"""The one thing that a workflow waits for, and the step that it is at, by its record (ops-find, ops-where-stuck)."""

from __future__ import annotations

from typing import NamedTuple

from kernel.observe.split import is_executed
from kernel.observe.views import Waiting
from kernel.permit_words import WORKFLOW
from kernel.records import Instance, PermitWaitRecord, Wait
from kernel.states import (
    FAILED,
    FAILING,
    RUNNING,
    STEP_FAILED,
    STEP_PENDING,
    STEP_RUNNING,
    STEP_SATISFIES,
    STEP_WAITING,
    TERMINAL,
    WAITING,
)


class Standing(NamedTuple):
    """As the fields of the same names in `Snapshot`; `current` is the position of the current step."""

    waiting: Waiting | None
    waiting_on: str | None
    waiting_since: int | None
    waiting_until: int | None
    current: int | None


def standing_of(instance: Instance, now_ms: int) -> Standing:
    """How a workflow stands at `now_ms` (ms, the store's clock). A wait whose time has come is a wait for a worker: it
    is due, and nobody has taken it yet."""
    if instance.status in TERMINAL:
        return Standing(None, None, None, None, _ended_at(instance))
    current = _at(instance)
    if instance.parked is not None:
        return Standing("parked", None, instance.parked.since_time, None, current)
    due_ms = instance.claimable_time
    if due_ms is not None and due_ms <= now_ms:  # unclaimed and due, or claimed by one whose lease has run out
        if instance.permit_wait is not None and instance.status == RUNNING and not _was_entered(instance):
            # It asks again now, and may be refused: it waits for its place all the time.
            return _refused(instance, instance.permit_wait, current)
        return Standing("worker", None, due_ms, None, current)
    if instance.claim_token is not None:
        return _claimed(instance, current)
    if instance.deferred is not None:
        return Standing("version", instance.deferred.stored, instance.deferred.since_time, due_ms, current)
    if instance.finalizer is not None:
        since_ms = instance.finalizer.since_time
        return Standing("finalizer", None, now_ms if since_ms is None else since_ms, due_ms, current)
    if instance.status == WAITING and instance.wait is not None:
        return _suspended(instance, instance.wait, due_ms)
    if instance.permit_wait is not None:
        return _refused(instance, instance.permit_wait, current)
    return _resting(instance, due_ms, current, now_ms)


def _refused(instance: Instance, shown: PermitWaitRecord, current: int | None) -> Standing:
    """It stands before a permit: of one step, or as a whole."""
    if shown.step != WORKFLOW:
        current = next((k for k, step in enumerate(instance.steps) if step.name == shown.step), current)
    return Standing("permit", shown.resource, shown.since_time, instance.claimable_time, current)


def _was_entered(instance: Instance) -> bool:
    """Whether a worker was in the middle of it, or holds its claim."""
    return instance.claim_token is not None or any(step.status == STEP_RUNNING for step in instance.steps)


def _claimed(instance: Instance, current: int | None) -> Standing:
    """Somebody works at it: at the step that was entered first, or at what is no step: `prepare`, a finalizer, what
    lies between two steps."""
    entered = [(step.started_time or 0, k) for k, step in enumerate(instance.steps) if is_executed(instance, step)]
    if not entered:
        return Standing("step", None, instance.claim_time or instance.created_time, None, current)
    since_ms, index = min(entered)
    return Standing("step", instance.steps[index].name, since_ms, None, index)


def _suspended(instance: Instance, wait: Wait, due_ms: int | None) -> Standing:
    since_ms = instance.created_time if wait.since_time is None else wait.since_time
    return Standing(wait.kind, wait.signal_type, since_ms, due_ms, wait.step_index)


def _resting(instance: Instance, due_ms: int | None, current: int | None, now_ms: int) -> Standing:
    """Unclaimed, `running`, and to be gone on with later: by the step whose time comes first."""
    for index, step in enumerate(instance.steps):
        if step.status == STEP_PENDING and step.due_time is not None and step.due_time == due_ms:
            since_ms = step.failed_time or step.started_time or instance.created_time
            return Standing("retry", None, since_ms, due_ms, index)
        if step.status == STEP_WAITING and step.wait is not None and step.wait.poll_time == due_ms:
            return _suspended(instance, step.wait, due_ms)
    if _was_entered(instance):
        # Given back by a worker that had to end in the middle of it: nobody's until that one is gone.
        return Standing("worker", None, now_ms, due_ms, current)
    # Nothing of it has been entered: a start delay.
    return Standing("timer", None, instance.created_time, due_ms, current)


_NEARNESS = {STEP_RUNNING: 0, STEP_WAITING: 1, STEP_PENDING: 2, STEP_FAILED: 3}


def _at(instance: Instance) -> int | None:
    """The step that a live workflow is at: the failed one while it is failing, else one that was entered before one
    that waits before one that is to come."""
    first = None
    nearest = 4
    for index, step in enumerate(instance.steps):
        if step.status in STEP_SATISFIES:
            continue
        nearness = -1 if instance.status == FAILING and step.status == STEP_FAILED else _NEARNESS[step.status]
        if nearness < nearest:
            first, nearest = index, nearness
    return first


def _ended_at(instance: Instance) -> int | None:
    """The step that ended it: the failed one, or the one in which it was canceled; None when it went to its end."""
    for index, step in enumerate(instance.steps):
        if step.status == STEP_FAILED or (step.error is not None and step.error.kind == "canceled"):
            return index
    return None if instance.status not in (FAILED, "canceled") else _at(instance)
