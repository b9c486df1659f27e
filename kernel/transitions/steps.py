"""One step's way through an attempt; all written by the holder of the claim (groups 13 and 15)."""

from __future__ import annotations

from kernel.permit_words import WORKFLOW
from kernel.records import ErrorRecord, Instance, PermitWaitRecord, to_document
from kernel.states import (
    COMPLETED,
    FAILING,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_PENDING,
    STEP_RUNNING,
    STEP_SATISFIES,
    STEP_SKIPPED,
)
from kernel.store.conditional import Add, Change, Clear, Equals, Guard, OneOf, Put, PutNow, Transition
from kernel.transitions.parts import (
    NOTHING_MORE,
    PROGRESS,
    UNCLAIM,
    Held,
    Rest,
    executed,
    held,
    put_or_clear,
    resting,
    step_error,
    step_field,
    transition,
)


def begin_step(
    claim: Held,
    instance: Instance,
    index: int,
    *,
    worker_id: str,
    ready_time: int | None = None,
    waited_ms: int = 0,
    others_wait: PermitWaitRecord | None = None,
    commit_id: str,
) -> Transition:
    """running and attempt + 1, committed before business code is entered (stp-running-before-entry).

    A step found `running` was entered by a worker that never committed: the re-entry is counted as a takeover.
    `ready_time` is since when the step could have run, where the row does not say so yet.
    Of a step that had to wait for a permit, `waited_ms` is the time since its `traffic_since_time` (prm-traffic-ms);
    `others_wait` is what the row shall say from now on, where another step goes on waiting.
    """
    step = instance.steps[index]
    guards = (*held(claim), Equals(step_field(index, "status"), step.status))
    taken_over = step.status == STEP_RUNNING
    changes = _begun(index, taken_over=taken_over, worker_id=worker_id)
    if taken_over or step.failed_time is not None:
        # Another attempt; one that only goes on, after a wait or a yield, adds to what it has.
        changes = (*changes, Put(step_field(index, "elapsed_ms"), 0), Clear(step_field(index, "failed_time")))
    if ready_time is not None and step.ready_time is None:
        changes = (*changes, Put(step_field(index, "ready_time"), ready_time))
    if step.traffic_since_time is not None:
        changes = (
            *changes,
            Add(step_field(index, "traffic_wait_ms"), waited_ms),
            Clear(step_field(index, "traffic_since_time")),
        )
    shown = instance.permit_wait
    if shown is not None and shown.step in (step.name, WORKFLOW):
        changes = (*changes, put_or_clear("permit_wait", None if others_wait is None else to_document(others_wait)))
    return transition("begin_step", claim.workflow_id, guards, changes, commit_id)


def _begun(index: int, *, taken_over: bool, worker_id: str) -> tuple[Change, ...]:
    changes: tuple[Change, ...] = (
        Put(step_field(index, "status"), STEP_RUNNING),
        Add(step_field(index, "attempt"), 1),
        PutNow(step_field(index, "started_time")),
        Put(step_field(index, "worker_id"), worker_id),
        Clear(step_field(index, "due_time")),
        Clear("finalizer"),
    )
    return (*changes, Add(step_field(index, "takeovers"), 1)) if taken_over else changes


def mark_stuck(claim: Held, instance: Instance, index: int, *, commit_id: str) -> Transition:
    """This attempt ignores its timeout, and its worker will be replaced (B-40). The next claim finds the mark and
    counts the timeout as the attempt's failure, instead of entering the step again and again."""
    attempt = instance.steps[index].attempt
    guards = (
        *held(claim),
        Equals(step_field(index, "status"), STEP_RUNNING),
        Equals(step_field(index, "attempt"), attempt),
    )
    return transition(
        "mark_stuck", claim.workflow_id, guards, (Put(step_field(index, "stuck_attempt"), attempt),), commit_id
    )


def unbegin(claim: Held, index: int, *, rest: Rest, commit_id: str) -> Transition:
    """The claim ends after `begin_step` and before the entry: no attempt happened (DECISIONS detail 4)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_PENDING),
        Add(step_field(index, "attempt"), -1),
        *resting(rest),
    )
    return transition("unbegin", claim.workflow_id, guards, changes, commit_id)


def complete_step(
    claim: Held,
    instance: Instance,
    index: int,
    *,
    output: bytes,
    elapsed_ms: int,
    worker_id: str,
    begin_next: int | None = None,
    finish: bool = False,
    commit_id: str,
) -> Transition:
    """Status and output in one write (cmp-atomic), touching only this step and its own output key.

    Merged where one value can say both: `begin_next` enters the only ready step that follows; `finish` is the end
    of a workflow without SuccessFinalizer and guards that every other step is completed or skipped (detail 10).
    """
    name = instance.steps[index].name
    guards: tuple[Guard, ...] = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes: tuple[Change, ...] = (
        Put(step_field(index, "status"), STEP_COMPLETED),
        Put(f"outputs.{name}", output),
        *executed(index, elapsed_ms),
        PutNow(step_field(index, "finish_time")),
        Clear(step_field(index, "error")),
        *PROGRESS,
    )
    if begin_next is not None:
        guards = (*guards, Equals(step_field(begin_next, "status"), STEP_PENDING))
        # It is ready by this very completion, and has never been entered.
        ready = PutNow(step_field(begin_next, "ready_time"))
        changes = (*changes, *_begun(begin_next, taken_over=False, worker_id=worker_id), ready)
    if finish:
        others = (k for k in range(len(instance.steps)) if k != index)
        guards = (*guards, *(OneOf(step_field(k, "status"), STEP_SATISFIES) for k in others))
        changes = (*changes, *COMPLETION)
    return transition("complete_step", claim.workflow_id, guards, changes, commit_id)


COMPLETION: tuple[Change, ...] = (
    Put("status", COMPLETED),
    PutNow("finish_time"),
    Clear("claimable_time"),
    Clear("wait"),
    Clear("finalizer"),
    Clear("permit_wait"),
    *UNCLAIM,
)
"""The end of a completed workflow, for a merged commit and for `finish_completed` alike."""


def yield_step(
    claim: Held, index: int, *, checkpoint: bytes | None, elapsed_ms: int, rest: Rest | None, commit_id: str
) -> Transition:
    """Give the slot back between two pages of work: pending with its cursor, attempt rolled back (group 22)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_PENDING),
        Add(step_field(index, "attempt"), -1),
        put_or_clear(step_field(index, "checkpoint"), checkpoint),
        *executed(index, elapsed_ms),
        Clear(step_field(index, "resume")),
        Clear("resume"),
        *PROGRESS,
        *resting(rest),
    )
    return transition("yield_step", claim.workflow_id, guards, changes, commit_id)


def retry_step(
    claim: Held,
    index: int,
    *,
    error: ErrorRecord,
    elapsed_ms: int,
    due_time: int | None,
    rest: Rest | None,
    commit_id: str,
) -> Transition:
    """Back to pending, durable, for any worker; never a loop in the thread (stp-retry-durable)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_PENDING),
        *executed(index, elapsed_ms),
        put_or_clear(step_field(index, "due_time"), due_time),
        PutNow(step_field(index, "failed_time")),
        *step_error(index, error),
        *PROGRESS,
        *resting(rest),
    )
    return transition("retry_step", claim.workflow_id, guards, changes, commit_id)


def skip_step(claim: Held, index: int, *, error: ErrorRecord, elapsed_ms: int, commit_id: str) -> Transition:
    """The retries are used up and the step may be done without: skipped, with its error (stp-skip-not-silent)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_SKIPPED),
        *executed(index, elapsed_ms),
        PutNow(step_field(index, "finish_time")),
        *step_error(index, error),
        *PROGRESS,
    )
    return transition("skip_step", claim.workflow_id, guards, changes, commit_id)


def fail_step(
    claim: Held, index: int, *, error: ErrorRecord, elapsed_ms: int, failing: bool, commit_id: str
) -> Transition:
    """The step failed for good. With `failing` the instance enters failure convergence in the same write."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes: tuple[Change, ...] = (
        Put(step_field(index, "status"), STEP_FAILED),
        *executed(index, elapsed_ms),
        PutNow(step_field(index, "finish_time")),
        *step_error(index, error),
        *PROGRESS,
    )
    if failing:
        changes = (*changes, Put("status", FAILING), Put("error", to_document(error)), *NOTHING_MORE)
    return transition("fail_step", claim.workflow_id, guards, changes, commit_id)


def defer_for_permit(
    claim: Held,
    index: int,
    *,
    wait: PermitWaitRecord,
    due_time: int | None,
    ready_time: int | None = None,
    rest: Rest | None,
    commit_id: str,
) -> Transition:
    """Refused a permit: still pending, no attempt, no error; the wait is counted (prm-refused, stp-wait-vs-fail).

    `wait.since_time` is that of the first refusal. `due_time` None: the workflow as a whole was refused its own
    resource before step `index`, which may start at any time once it has that (prm-tenant), also where it had been
    entered before its own time, for a place that was handed to it and is given back now. `ready_time` is that of the
    step, where the row does not say it yet.
    """
    guards = (*held(claim), OneOf(step_field(index, "status"), (STEP_PENDING, STEP_RUNNING)))
    changes: tuple[Change, ...] = (
        Add(step_field(index, "traffic_wait_count"), 1),
        Put(step_field(index, "traffic_since_time"), wait.since_time),
        Put("permit_wait", to_document(wait)),
        Clear("finalizer"),  # of a `prepare` that has succeeded meanwhile: it is not what is waited for any more
        *resting(rest),
    )
    changes = (*changes, put_or_clear(step_field(index, "due_time"), due_time))
    if ready_time is not None:
        changes = (*changes, Put(step_field(index, "ready_time"), ready_time))
    return transition("defer_for_permit", claim.workflow_id, guards, changes, commit_id)
