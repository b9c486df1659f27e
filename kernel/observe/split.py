"""Where the time of a step and of a workflow went, by the record alone (requirement group 27).

Execution, external wait and flow control are measured by whoever commits; scheduling is what is left of the total. So
the four sum to the total exactly, and what nobody accounts for shows up where it belongs: nobody worked.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel.observe.views import Split
from kernel.records import Instance, StepRecord
from kernel.states import STEP_RUNNING, TERMINAL

NOTHING = Split(total_ms=0, scheduling_ms=0, traffic_ms=0, execution_ms=0, external_ms=0)


def run_began(instance: Instance) -> int:
    """From when on the present run could be worked at (ms since the epoch): after a start delay, or from the replay."""
    return instance.created_time if instance.run_time is None else instance.run_time


def is_executed(instance: Instance, step: StepRecord) -> bool:
    """Whether the present claim has entered this step. One that is `running` under no claim, or was entered before the
    present one, was left behind by a worker that died (a takeover gap: scheduling)."""
    if step.status != STEP_RUNNING or step.started_time is None:
        return False
    if instance.claim_token is None:
        # Superseded while it ran: as far as the record tells, until then.
        return instance.status in TERMINAL
    return instance.claim_time is None or step.started_time >= instance.claim_time


def step_split(instance: Instance, step: StepRecord, now_ms: int) -> Split:
    """From when the step could have run until it ended, or until `now_ms`; what is still going on counts up to then."""
    if step.ready_time is None:
        return NOTHING
    end_ms = _end_of(instance, step, now_ms)
    total_ms = end_ms - step.ready_time
    if total_ms <= 0:
        return NOTHING
    execution_ms, external_ms, traffic_ms = step.executed_ms, step.external_wait_ms, step.traffic_wait_ms
    if step.traffic_since_time is not None:
        traffic_ms += max(0, end_ms - step.traffic_since_time)
    wait = step.wait
    if wait is not None and wait.since_time is not None:
        until_ms = end_ms if wait.poll_time is None else min(end_ms, wait.poll_time)
        external_ms += max(0, until_ms - wait.since_time)
    elif step.status == STEP_RUNNING and is_executed(instance, step) and step.started_time is not None:
        # A claim ends with its lease: whoever has not renewed it executes nothing that counts.
        lease_ms = instance.claimable_time
        until_ms = end_ms if lease_ms is None else min(end_ms, lease_ms)
        execution_ms += max(0, until_ms - step.started_time)
    return divided(total_ms, execution_ms=execution_ms, external_ms=external_ms, traffic_ms=traffic_ms)


def divided(total_ms: int, *, execution_ms: int, external_ms: int, traffic_ms: int) -> Split:
    """The parts within the total. They are measured by the clocks of several machines, so each has only what those
    before it have left: a millisecond too much never makes scheduling negative."""
    execution_ms = min(execution_ms, total_ms)
    left_ms = total_ms - execution_ms
    external_ms = min(external_ms, left_ms)
    left_ms -= external_ms
    traffic_ms = min(traffic_ms, left_ms)
    return Split(
        total_ms=total_ms,
        scheduling_ms=left_ms - traffic_ms,
        traffic_ms=traffic_ms,
        execution_ms=execution_ms,
        external_ms=external_ms,
    )


def workflow_split(instance: Instance, splits: Sequence[Split], current: int | None, now_ms: int) -> Split:
    """The present run from its beginning to its end, or to `now_ms`, along the critical path.

    Steps that run side by side have more time together than has passed. So one chain is counted: from the step that
    ended last, or the `current` one while the workflow lives, back to what ended when that became ready, and so on.
    A step is ready when its last dependency ends, so the members of this chain follow each other without a gap and
    without an overlap, and what it says is how long the user waited for what; of a linear workflow these are all steps.
    Finalizers count as execution. What lies between or after the steps is scheduling: the wait for the first claim,
    `prepare`, the commits, and the time in which it was parked.
    """
    began_ms = run_began(instance)
    end_ms = now_ms if instance.finish_time is None else instance.finish_time
    execution_ms, external_ms, traffic_ms = instance.finalizing_ms, 0, 0
    chain_ms = end_ms
    for ended_ms, _, ready_ms, index in _windows(instance, current, began_ms, end_ms):
        if ended_ms <= chain_ms:
            split = splits[index]
            execution_ms += split.execution_ms
            external_ms += split.external_ms
            traffic_ms += split.traffic_ms
            chain_ms = ready_ms
    return divided(max(0, end_ms - began_ms), execution_ms=execution_ms, external_ms=external_ms, traffic_ms=traffic_ms)


def _windows(instance: Instance, current: int | None, began_ms: int, now_ms: int) -> list[tuple[int, bool, int, int]]:
    """(end, is the current one, ready, position) of every step that this run has worked at, the last to end first.
    Of several that ended together the one that became ready last goes first: the others may have led to it."""
    windows = [
        (ended_ms, index == current, step.ready_time, index)
        for index, step in enumerate(instance.steps)
        if step.ready_time is not None and (ended_ms := _end_of(instance, step, now_ms)) > began_ms
    ]
    if len(windows) > 1:
        windows.sort(reverse=True)
    return windows


def _end_of(instance: Instance, step: StepRecord, now_ms: int) -> int:
    if step.finish_time is not None:
        return step.finish_time
    return now_ms if instance.finish_time is None else instance.finish_time
