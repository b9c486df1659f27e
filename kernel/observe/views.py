"""What the side path keeps: one snapshot per biz_key and one row per attempt (requirement groups 26 and 27).

Both are projections of the authoritative record, made after its commit; they may be late, and events may be missing.
They are for the operator's views: never for audit or billing, and nothing that runs work reads them (obs-not-audit).
No input, output or checkpoint of a user is part of them. `v` is the layout: an unknown one is refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kernel.records import DeferredRecord, ErrorRecord, FinalizerRecord, ParkedRecord, RunRecord, Wait
from kernel.states import InstanceStatus, StepStatus

SNAPSHOT_VERSION = 1
ATTEMPT_VERSION = 1

Waiting = Literal["worker", "step", "signal", "timer", "permit", "retry", "finalizer", "version", "parked"]
"""The one thing that a live workflow waits for (ops-find, ops-where-stuck):

`worker`: it is due and nobody has claimed it, or a worker was interrupted in it and it is due at a known time;
`step`: somebody has, and works at it; `signal`, `timer`: a durable wait, or a start delay; `permit`: a place of a
resource; `retry`: the delay after a failure; `finalizer`: the delay after one of a finalizer or `prepare`; `version`:
no live worker has its Definition; `parked`: put aside until somebody helps.
"""

Outcome = Literal[
    "running", "completed", "failed", "timeout", "panic", "suspended", "yielded", "skipped", "canceled", "stuck",
    "lost", "unbegun",
]  # fmt: skip
"""How an attempt ended, as far as the side path has seen. `lost`: its worker never committed it, and somebody else
ended its claim; the step is entered again under the next number. `unbegun`: its worker stopped before it called the
activity; `suspended`, `yielded` and `unbegun` attempts go on under the same number. `skipped`: it failed, and may."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Where time went, in ms, disjoint: the four figures sum to `total_ms` (lat-split).

    Scheduling is the time that somebody could have worked and nobody did: claimable but unclaimed, the delay before a
    retry, and what was lost with a worker that died. Of a workflow with steps side by side: along the critical path.
    """

    total_ms: int
    scheduling_ms: int
    traffic_ms: int
    execution_ms: int
    external_ms: int


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step as the last event left it. Times are ms since the epoch by the store's clock."""

    name: str
    status: StepStatus
    attempt: int
    failures: int
    takeovers: int
    traffic_wait_count: int
    elapsed_ms: int
    """How long the activity ran in the last attempt; that of all attempts is the execution of `split`."""
    split: Split
    """From when the step could have begun until it ended, or until the snapshot's `updated_time`."""
    ready_time: int | None = None
    """When its last dependency was complete, or its run began. Told with its first entry, or with its first wait for a
    permit; None before that."""
    started_time: int | None = None
    finish_time: int | None = None
    due_time: int | None = None
    worker_id: str | None = None
    wait: Wait | None = None
    last_signal_id: str | None = None
    error: ErrorRecord | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The latest known state of one workflow; never goes back to an older revision (obs-revision-guard)."""

    v: int
    biz_key: str
    workflow_id: str
    type: str
    status: InstanceStatus
    revision: int
    workflow_run: int
    retry_count: int
    business_priority: int
    definition_fingerprint: str
    trace_id: str
    round: str | None = None
    """The business round that its input serves; None when the input names none."""
    created_time: int
    run_time: int
    """From when on the present run could be worked at: created, after the start delay, or replayed."""
    updated_time: int
    finish_time: int | None = None
    newest: int
    """-created_time: the order of lists."""
    current_step: str | None = None
    waiting: Waiting | None = None
    waiting_on: str | None = None
    """The signal's type, the resource, the step that is executed, or the fingerprint that nobody has."""
    waiting_since: int | None = None
    waiting_until: int | None = None
    """When it goes on by itself at the latest, as far as a time is known."""
    claim_token: str | None = None
    claim_time: int | None = None
    worker_id: str | None = None
    worker: str | None = None
    lease_until: int | None = None
    """When the claim's lease ends, as of the last event; a renewal writes none, so the real end may be later. None:
    unclaimed, or a snapshot that is older than this field."""
    deaths: int
    split: Split
    steps: tuple[StepView, ...]
    error: ErrorRecord | None = None
    """Why the workflow fails, or has failed."""
    error_code: str | None = None
    """The code of that; while there is none, of what a finalizer or the current step has failed with last."""
    finalizer: FinalizerRecord | None = None
    parked: ParkedRecord | None = None
    deferred: DeferredRecord | None = None
    runs: tuple[RunRecord, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one step, upserted by biz_key + workflow_run + step + attempt (obs-attempt-key).

    A step that slept or yielded goes on under the same number: its row then tells of the last invocation, and how
    much time all of them took. A beginning (`running`) is the first that is told of an entry: it replaces only a row of
    an older revision, while an end may replace one of the same.
    """

    v: int
    attempt_key: str
    """`workflow_id/workflow_run/step/attempt`."""
    biz_key: str
    workflow_id: str
    workflow_run: int
    step: str
    attempt: int
    outcome: Outcome
    revision: int
    updated_time: int
    started_time: int | None = None
    finish_time: int | None = None
    elapsed_ms: int = 0
    traffic_wait_ms: int = 0
    """How long the step has waited for permits in its run until then."""
    takeovers: int = 0
    worker_id: str | None = None
    trace_id: str = ""
    error: ErrorRecord | None = None
