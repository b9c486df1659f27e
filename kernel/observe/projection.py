"""Snapshots and attempts out of records. Pure: the record that a commit left, the time, and nothing else.

A takeover shows like this: the attempt that the dead worker had entered becomes `lost` when its claim is ended by
somebody else, and the step is entered again under the next number, with one takeover more. The time of the lost attempt
is scheduling from then on: nobody has worked, as far as anything came of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernel.dispatch import round_of
from kernel.ids import trace_id_for
from kernel.observe.events import attempt_of
from kernel.observe.split import is_executed, run_began, step_split, workflow_split
from kernel.observe.standing import standing_of
from kernel.observe.views import ATTEMPT_VERSION, SNAPSHOT_VERSION, Attempt, Outcome, Snapshot, Split, StepView
from kernel.records import ERRORS_KEPT, ErrorRecord, Instance, StepRecord
from kernel.states import (
    STEP_PENDING,
    STEP_WAITING,
    TERMINAL,
)

_OUTCOMES: dict[str, Outcome] = {
    "step.started": "running",
    "step.unbegun": "unbegun",
    "step.completed": "completed",
    "step.suspended": "suspended",
    "step.yielded": "yielded",
    "step.skipped": "skipped",
    "step.canceled": "canceled",
    "step.stuck": "stuck",
    "step.lost": "lost",
}
_FAILED = ("step.retried", "step.failed")


def snapshot_of(instance: Instance, now_ms: int) -> Snapshot:
    """The snapshot of a workflow at `now_ms` (ms since the epoch, the store's clock)."""
    standing = standing_of(instance, now_ms)
    current = standing.current
    splits = [step_split(instance, step, now_ms) for step in instance.steps]
    return Snapshot(
        v=SNAPSHOT_VERSION,
        biz_key=instance.biz_key,
        workflow_id=instance.workflow_id,
        type=instance.type,
        status=instance.status,
        revision=instance.revision,
        workflow_run=instance.workflow_run,
        retry_count=instance.retry_count,
        business_priority=instance.business_priority,
        definition_fingerprint=instance.definition_fingerprint,
        trace_id=instance.trace_id,
        round=round_of(instance.input),
        created_time=instance.created_time,
        run_time=run_began(instance),
        updated_time=now_ms,
        finish_time=instance.finish_time,
        newest=-instance.created_time,
        current_step=None if current is None else instance.steps[current].name,
        waiting=standing.waiting,
        waiting_on=standing.waiting_on,
        waiting_since=standing.waiting_since,
        waiting_until=standing.waiting_until,
        claim_token=instance.claim_token,
        claim_time=instance.claim_time,
        worker_id=instance.worker_id,
        worker=instance.worker,
        lease_until=None if instance.claim_token is None else instance.claimable_time,
        deaths=instance.deaths,
        split=workflow_split(instance, splits, current, now_ms),
        steps=tuple(map(_step_view, instance.steps, splits)),
        error=instance.error,
        error_code=_error_code(instance, current),
        finalizer=instance.finalizer,
        parked=instance.parked,
        deferred=instance.deferred,
        runs=instance.runs,
    )


def _step_view(step: StepRecord, split: Split) -> StepView:
    return StepView(
        name=step.name,
        status=step.status,
        attempt=step.attempt,
        failures=step.failures,
        takeovers=step.takeovers,
        traffic_wait_count=step.traffic_wait_count,
        elapsed_ms=step.elapsed_ms,
        split=split,
        ready_time=step.ready_time,
        started_time=step.started_time,
        finish_time=step.finish_time,
        due_time=step.due_time,
        worker_id=step.worker_id,
        wait=step.wait,
        last_signal_id=step.last_signal_id,
        error=step.error,
    )


def _error_code(instance: Instance, current: int | None) -> str | None:
    error = instance.error
    if error is None and instance.finalizer is not None:
        error = instance.finalizer.error
    if error is None and current is not None:
        error = instance.steps[current].error
    return None if error is None else error.code


def attempts_of(event: str, instance: Instance, step: int, now_ms: int) -> Attempt | None:
    """The attempt that an event tells of, None where it tells of none. `instance` is the record after the commit, in
    which an attempt that waits or yields is not counted any more: the row is that of the attempt that ran."""
    record = instance.steps[step]
    attempt = attempt_of(event, record)
    outcome = _OUTCOMES.get(event)
    if event in _FAILED:
        outcome = _outcome_of(record.error)
    if outcome is None:
        return None
    return _attempt(instance, record, attempt, outcome, instance.workflow_run, now_ms)


def attempts_in(instance: Instance) -> Iterator[Attempt]:
    """What the record itself still says of attempts, for a repair: how each ended, and of the last one of each step its
    times. A row that an event made says more: write these only where there is none, or an older one.

    Of the errors the record keeps the last; attempts whose error it has forgotten are left out.
    """
    for step in instance.steps:
        run = _run_of(instance, step)
        last = _last_of(instance, step)
        time_ms = step.finish_time or step.failed_time or step.started_time or instance.created_time
        errors = {error.attempt: error for error in step.errors}
        forgotten = step.failures > len(errors) or len(step.errors) >= ERRORS_KEPT
        for number in range(1, step.attempt + 1):
            if last is not None and number == last[0]:
                continue
            error = errors.get(number)
            if error is None and forgotten:
                continue
            outcome: Outcome = "lost" if error is None else _outcome_of(error)
            yield _bygone(instance, step, number, outcome, run, error, time_ms)
        if last is not None:
            yield _attempt(instance, step, last[0], last[1], run, time_ms)


def _last_of(instance: Instance, step: StepRecord) -> tuple[int, Outcome] | None:
    """The number of the last attempt and how it stands; None where the record tells of it as of the earlier ones."""
    match step.status:
        case "completed":
            return step.attempt, "completed"
        case "skipped":
            canceled = step.error is not None and step.error.kind == "canceled"
            return step.attempt, "canceled" if canceled else "skipped"
        case "failed":
            return step.attempt, _outcome_of(step.error)
        case "waiting":
            return step.attempt + 1, "suspended"
        case "running":
            if step.stuck_attempt == step.attempt:
                return step.attempt, "stuck"
            if instance.status in TERMINAL:
                return step.attempt, "canceled"
            return step.attempt, "running" if is_executed(instance, step) else "lost"
    if step.resume is not None:
        return step.attempt + 1, "suspended"
    # A failure clears the checkpoint, so one that is there is that of an attempt that goes on.
    return (step.attempt + 1, "yielded") if step.checkpoint is not None else None


def _run_of(instance: Instance, step: StepRecord) -> int:
    """The run in which a step was worked at last: a replay keeps what was completed before it."""
    if step.finish_time is not None and step.finish_time < run_began(instance):
        for run in instance.runs:
            if run.finish_time is not None and step.finish_time <= run.finish_time:
                return run.workflow_run
    return instance.workflow_run


def _outcome_of(error: ErrorRecord | None) -> Outcome:
    kind = "error" if error is None else error.kind
    return "failed" if kind == "error" else kind


def _attempt(instance: Instance, step: StepRecord, attempt: int, outcome: Outcome, run: int, now_ms: int) -> Attempt:
    return _row(
        instance,
        step,
        attempt,
        outcome,
        run,
        now_ms,
        started_time=step.started_time,
        finish_time=_finish_time(instance, step, outcome, now_ms),
        elapsed_ms=step.elapsed_ms,
        traffic_wait_ms=step.traffic_wait_ms,
        takeovers=step.takeovers,
        worker_id=step.worker_id,
        # The record shows the last error until the step is complete; it may be that of an earlier attempt.
        error=step.error if step.error is not None and step.error.attempt == attempt else None,
    )


def _finish_time(instance: Instance, step: StepRecord, outcome: Outcome, now_ms: int) -> int | None:
    if outcome in ("running", "stuck", "lost"):
        return None  # it goes on; or nobody knows when it ended
    if step.finish_time is not None:
        return step.finish_time
    if step.status == STEP_PENDING and outcome in ("failed", "timeout", "panic"):
        return step.failed_time
    if step.status == STEP_WAITING and step.wait is not None:
        return step.wait.since_time
    return now_ms if instance.finish_time is None else instance.finish_time


def _bygone(
    instance: Instance,
    step: StepRecord,
    attempt: int,
    outcome: Outcome,
    run: int,
    error: ErrorRecord | None,
    time_ms: int,
) -> Attempt:
    """An attempt before the last one: the record has kept its error and no times."""
    worker_id = None if error is None else error.worker_id
    return _row(instance, step, attempt, outcome, run, time_ms, worker_id=worker_id, error=error)


def _row(
    instance: Instance, step: StepRecord, attempt: int, outcome: Outcome, run: int, time_ms: int, **known: Any
) -> Attempt:
    """The row of one attempt; `known` is what the record still knows of it."""
    return Attempt(
        v=ATTEMPT_VERSION,
        attempt_key=f"{instance.workflow_id}/{run}/{step.name}/{attempt}",
        biz_key=instance.biz_key,
        workflow_id=instance.workflow_id,
        workflow_run=run,
        step=step.name,
        attempt=attempt,
        outcome=outcome,
        revision=instance.revision,
        updated_time=time_ms,
        trace_id=trace_id_for(instance.workflow_id, run),
        **known,
    )
