"""How a run ends (groups 16 and 17): reliably, once, and never by a worker that lost its claim."""

from __future__ import annotations

from kernel.records import ErrorRecord, FinalizerRecord, Instance, to_document
from kernel.states import (
    CANCELED,
    FAILED,
    FAILING,
    LIVE,
    STEP_RUNNING,
    STEP_SATISFIES,
    STEP_SKIPPED,
    InstanceStatus,
)
from kernel.store.conditional import Add, Change, Clear, Equals, OneOf, Put, PutNow, PutNowPlus, Transition
from kernel.transitions.parts import (
    NOTHING_MORE,
    PROGRESS,
    UNCLAIM,
    Held,
    executed,
    held,
    step_error,
    step_field,
    transition,
)
from kernel.transitions.steps import COMPLETION


def enter_failing(claim: Held, *, error: ErrorRecord, commit_id: str) -> Transition:
    """running → failing, kept by the same claim: from here on only the failure is completed (fin-failing-first)."""
    changes = (Put("status", FAILING), Put("error", to_document(error)), *NOTHING_MORE)
    return transition("enter_failing", claim.workflow_id, held(claim), changes, commit_id)


def finish_completed(claim: Held, instance: Instance, *, elapsed_ms: int = 0, commit_id: str) -> Transition:
    """running → completed, after the SuccessFinalizer; every step completed or skipped (fin-success-commit).

    `elapsed_ms` is how long a finalizer ran just now, here and below.
    """
    guards = (
        *held(claim),
        *(OneOf(step_field(k, "status"), STEP_SATISFIES) for k in range(len(instance.steps))),
    )
    changes = (*COMPLETION, *_finalized(elapsed_ms), *PROGRESS)
    return transition("finish_completed", claim.workflow_id, guards, changes, commit_id)


def finish_failed(claim: Held, *, elapsed_ms: int = 0, commit_id: str) -> Transition:
    """failing → failed, after the FailureFinalizer (fin-failing-first)."""
    changes = (Put("status", FAILED), *_ended(), *_finalized(elapsed_ms), *PROGRESS)
    return transition("finish_failed", claim.workflow_id, held(claim, FAILING), changes, commit_id)


def finish_canceled(claim: Held, index: int, *, error: ErrorRecord, elapsed_ms: int, commit_id: str) -> Transition:
    """An activity said that this work should not be done: its step skipped, the workflow canceled (can-activity)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_SKIPPED),
        *executed(index, elapsed_ms),
        PutNow(step_field(index, "finish_time")),
        *step_error(index, error),
        Put("status", CANCELED),
        *_ended(),
        Clear("resume"),
        *PROGRESS,
    )
    return transition("finish_canceled", claim.workflow_id, guards, changes, commit_id)


def defer_finalizer(
    claim: Held,
    *,
    status: InstanceStatus,
    attempt: int,
    error: ErrorRecord,
    delay_ms: int,
    next_time: int,
    elapsed_ms: int = 0,
    what: str | None = None,
    commit_id: str,
) -> Transition:
    """A finalizer failed, or `prepare`; `what` names it. The claim ends, the same status is claimable after the delay,
    the error is visible.

    Guarded by status and token: when it misses, the workflow was superseded or taken over (DECISIONS detail 14).
    """
    since_time = next_time - delay_ms
    record = FinalizerRecord(attempt=attempt, error=error, next_time=next_time, since_time=since_time, what=what)
    changes = (
        Put("finalizer", to_document(record)),
        PutNowPlus("claimable_time", delay_ms),
        *_finalized(elapsed_ms),
        *UNCLAIM,
        *PROGRESS,
    )
    return transition("defer_finalizer", claim.workflow_id, held(claim, status), changes, commit_id)


def supersede(workflow_id: str, *, commit_id: str) -> Transition:
    """Any live status → canceled, with or without a holder; its later commits miss (can-supersede).

    The steps stay as they are (B-13); waits of steps can not be activated, because the status is not waiting.
    """
    changes = (Put("status", CANCELED), *_ended(), Clear("resume"))
    return transition("supersede", workflow_id, (OneOf("status", LIVE),), changes, commit_id)


def _finalized(elapsed_ms: int) -> tuple[Change, ...]:
    return (Add("finalizing_ms", elapsed_ms),) if elapsed_ms else ()


def _ended() -> tuple[Change, ...]:
    cleared = (Clear(field) for field in ("claimable_time", "wait", "finalizer", "permit_wait", "parked", "deferred"))
    return (PutNow("finish_time"), *cleared, *UNCLAIM)
