"""What each transition may do, as a table of its own: when it hits, and which fields it changes.

Written from the specification (requirement groups 5, 6, 10, 13 to 20), not from the constructors, so that a guard or
a change that got lost in one of them shows as a difference between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kernel import transitions as make
from kernel.records import Document, ErrorRecord, Instance, PermitWaitRecord, to_instance
from kernel.states import CLAIMABLE, INSTANCE_STATUSES, LIVE, STEP_STATUSES, TERMINAL
from kernel.store.conditional import Transition
from kernel.transitions import Held, Rest
from tests.conformance.instances import (
    ERROR,
    KEY,
    OWNER,
    TOKEN,
    claimed,
    instance_document,
    step_document,
    wait_document,
    wait_of,
)

HOUR_MS = 3_600_000
LEASE_MS = 30_000
FAULT = ErrorRecord(code="kernel_error", type="RuntimeError", message="again", attempt=4)
NEW_TOKEN = "token-of-the-next-holder"
COMMIT = "commit-of-the-test"

CLAIM_FIELDS = ("claim_token", "claim_time", "worker_id", "worker")
TAKEN = (*CLAIM_FIELDS, "claimable_time", "deferred")
ENDED = (*CLAIM_FIELDS, "finish_time", "claimable_time", "wait", "finalizer", "permit_wait", "deferred")
RESTED = (*CLAIM_FIELDS, "status", "claimable_time", "wait")
FAILED_ONCE = ("steps.0.failures", "steps.0.error", "steps.0.errors", "steps.0.checkpoint", "steps.0.resume")


class Case(NamedTuple):
    """One transition. `row` is a full row on which every change shows; `build` gets that row as an Instance.

    `statuses` and `step` are the states of the instance and of its first step in which it hits (step None: any).
    `held`: a write of the claim's holder. `revision` and `commit` say whether the write leaves these marks.
    """

    name: str
    build: Callable[[Instance, int], Transition]
    row: Callable[[int], Document]
    statuses: tuple[str, ...]
    step: tuple[str, ...] | None
    changes: tuple[str, ...]
    held: bool = True
    revision: bool = True
    commit: bool = True

    @property
    def declared(self) -> set[str]:
        return {*self.changes, *(["revision"] if self.revision else []), *(["commit_ids"] if self.commit else [])}


def full_row(now_ms: int, **fields: Any) -> Document:
    """A row that a holder is working on, with every optional field set, so that clearing one shows."""
    step = step_document(
        0,
        "running",
        attempt=3,
        failures=1,
        traffic_since_time=now_ms - 1,
        due_time=now_ms - 5_000,
        started_time=now_ms - 4_000,
        finish_time=now_ms - 3_000,
        worker_id="an-earlier-worker",
        checkpoint=b"\x01\x01",
        wait=wait_document(0, now_ms - HOUR_MS),
        resume={"kind": "timer"},
        last_signal_id="signal-0",
        error=ERROR,
        errors=[ERROR],
    )
    other = step_document(1, due_time=now_ms - 5_000)
    standing: Document = {
        "steps": [step, other],
        "deaths": 1,
        "claimable_time": now_ms - HOUR_MS,
        "wait": wait_document(0, now_ms - HOUR_MS),
        "resume": {"kind": "timer"},
        "error": ERROR,
        "finalizer": {"attempt": 1, "error": ERROR, "next_time": now_ms},
        "permit_wait": {"resource": "printer", "step": "step_0", "since_time": now_ms - 1},
        "deferred": {"stored": "other", "offered": [], "since_time": now_ms},
        "finalizing_ms": 7,
        "finish_time": now_ms - 2_000,
        **claimed(now_ms=now_ms - 9_000),
    }
    return instance_document("full", now_ms, **{**standing, **fields})


def _row(*, without: tuple[str, ...] = (), step: Document | None = None, other: Document | None = None, **fields: Any):
    def make_row(now_ms: int) -> Document:
        document = full_row(now_ms, **fields)
        document["steps"][0] |= step or {}
        document["steps"][1] |= other or {}
        return {name: value for name, value in document.items() if name not in without}

    return make_row


def _claim(function: Callable[..., Transition], **more: Any) -> Callable[[Instance, int], Transition]:
    def build(instance: Instance, now_ms: int) -> Transition:
        taken = Held(instance.workflow_id, NEW_TOKEN)
        return function(
            taken,
            worker_id="next-worker",
            worker="host:2",
            lease_ms=LEASE_MS,
            definition_keys=("x@y", KEY),
            commit_id=COMMIT,
            **more,
        )

    return build


def _held(function: Callable[..., Transition], *arguments: Any, **more: Any) -> Callable[[Instance, int], Transition]:
    """A transition of the holder: arguments that are functions get the instance and now."""

    def build(instance: Instance, now_ms: int) -> Transition:
        values = [value(instance, now_ms) if callable(value) else value for value in arguments]
        named = {name: value(instance, now_ms) if callable(value) else value for name, value in more.items()}
        return function(Held(instance.workflow_id, TOKEN), *values, **named, commit_id=COMMIT)

    return build


def _instance(instance: Instance, now_ms: int) -> Instance:
    return instance


def _rest(instance: Instance, now_ms: int) -> Rest:
    wait = wait_of(wait_document(1, now_ms + HOUR_MS, wait_id="wait-of-another"))
    return Rest(status="waiting", claimable_time=now_ms + HOUR_MS, wait=wait)


def _wait(instance: Instance, now_ms: int) -> Any:
    return wait_of(wait_document(0, now_ms + HOUR_MS, wait_id="wait-2"))


def _later(instance: Instance, now_ms: int) -> int:
    return now_ms + HOUR_MS


def _permit(instance: Instance, now_ms: int) -> PermitWaitRecord:
    return PermitWaitRecord(resource="scanner", step="step_0", since_time=now_ms)


FREE = _row(without=CLAIM_FIELDS)
SIGNAL_WAIT = wait_document(0, 1_700_000_000_000, kind="signal")
RUNNING_STEP = ("running",)
BEGUN = ("attempt", "started_time", "worker_id", "due_time")
REFUSED = ("steps.0.traffic_wait_count", "steps.0.traffic_since_time", "permit_wait", "finalizer")
PERMITTED = ("steps.0.traffic_wait_ms", "steps.0.traffic_since_time", "permit_wait")
EXECUTED = ("steps.0.elapsed_ms", "steps.0.executed_ms")
STEP_ENDED = ("steps.0.status", *EXECUTED, "steps.0.finish_time")

CLAIMS = (
    Case("claim", _claim(make.claim), FREE, CLAIMABLE, None, TAKEN, held=False, revision=False),
    Case("claim_alone", _claim(make.claim_alone), FREE, CLAIMABLE, None, TAKEN, held=False, revision=False),
    Case(
        "take_over",
        _claim(make.take_over, dead_token=TOKEN, alone=True),
        _row(),
        CLAIMABLE,
        None,
        (*TAKEN, "deaths"),
        revision=False,
    ),
    Case(
        "claim_handed_over",
        _claim(make.claim_handed_over, resource="printer"),
        FREE,
        ("running",),
        None,
        TAKEN,
        held=False,
        revision=False,
    ),
    Case(
        "renew",
        lambda instance, now_ms: make.renew(Held(instance.workflow_id, TOKEN), LEASE_MS),
        _row(),
        CLAIMABLE,
        None,
        ("claimable_time",),
        revision=False,
        commit=False,
    ),
    Case(
        "release", _held(make.release, status="running", rest=_rest), _row(), ("running",), None, (*RESTED, "finalizer")
    ),
    Case(
        "release",
        _held(make.release, status="failing", rest=_rest),
        _row(status="failing"),
        ("failing",),
        None,
        (*CLAIM_FIELDS, "claimable_time"),
    ),
    Case(
        "release_dead",
        _held(make.release_dead, worker_id=OWNER, counted=True, deaths_max=3),
        _row(),
        CLAIMABLE,
        None,
        (*CLAIM_FIELDS, "claimable_time", "deaths"),
    ),
    Case(
        "release_dead",
        _held(make.release_dead, worker_id=OWNER, counted=False, deaths_max=0, after_ms=2_000),
        _row(),
        CLAIMABLE,
        None,
        (*CLAIM_FIELDS, "claimable_time"),
    ),
    Case(
        "park_dead",
        _held(make.park_dead, worker_id=OWNER, deaths_max=3, reason="poison", now_ms=_later),
        _row(deaths=2),
        CLAIMABLE,
        None,
        (*CLAIM_FIELDS, "claimable_time", "deaths", "parked"),
    ),
    Case(
        "park",
        lambda instance, now_ms: make.park(
            instance.workflow_id, dead_token=TOKEN, deaths_max=3, reason="poison", now_ms=now_ms, commit_id=COMMIT
        ),
        _row(deaths=2),
        CLAIMABLE,
        None,
        (*CLAIM_FIELDS, "claimable_time", "deaths", "parked"),
    ),
    Case(
        "unpark",
        lambda instance, now_ms: make.unpark(instance.workflow_id, commit_id=COMMIT),
        _row(without=(*CLAIM_FIELDS, "claimable_time"), parked={"reason": "poison", "since_time": 1}),
        LIVE,
        None,
        ("parked", "deaths", "claimable_time"),
        held=False,
    ),
)

STEPS = (
    Case(
        "begin_step",
        _held(make.begin_step, _instance, 0, worker_id="w", waited_ms=1, ready_time=1_700_000_000_000),
        _row(step={"status": "pending", "failed_time": 1, "elapsed_ms": 5}),
        ("running",),
        ("pending",),
        (
            *("steps.0.status", *(f"steps.0.{field}" for field in BEGUN), *PERMITTED, "finalizer"),
            *("steps.0.ready_time", "steps.0.failed_time", "steps.0.elapsed_ms"),
        ),
    ),
    Case(
        "begin_step",
        _held(make.begin_step, _instance, 0, worker_id="w", waited_ms=1),
        _row(step={"failed_time": 1, "elapsed_ms": 5}),
        ("running",),
        RUNNING_STEP,
        (
            *("steps.0.takeovers", *(f"steps.0.{field}" for field in BEGUN), *PERMITTED, "finalizer"),
            *("steps.0.failed_time", "steps.0.elapsed_ms"),
        ),
    ),
    Case(
        "begin_step",
        _held(make.begin_step, _instance, 0, worker_id="w", waited_ms=1, others_wait=_permit),
        _row(step={"status": "pending"}),
        ("running",),
        ("pending",),
        ("steps.0.status", *(f"steps.0.{field}" for field in BEGUN), *PERMITTED, "finalizer"),
    ),
    Case(
        "unbegin",
        _held(make.unbegin, 0, rest=_rest),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*RESTED, "steps.0.status", "steps.0.attempt"),
    ),
    Case(
        "mark_stuck",
        _held(make.mark_stuck, _instance, 0),
        _row(),
        ("running",),
        RUNNING_STEP,
        ("steps.0.stuck_attempt",),
    ),
    Case(
        "complete_step",
        _held(make.complete_step, _instance, 0, output=b"\x01\x07", elapsed_ms=9, worker_id="w"),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*STEP_ENDED, "outputs.step_0", "steps.0.error", "deaths"),
    ),
    Case(
        "complete_step",
        _held(make.complete_step, _instance, 0, output=b"\x01\x07", elapsed_ms=9, worker_id="w", begin_next=1),
        _row(),
        ("running",),
        RUNNING_STEP,
        (
            *(*STEP_ENDED, "outputs.step_0", "steps.0.error", "deaths"),
            *("steps.1.status", "steps.1.ready_time", *(f"steps.1.{field}" for field in BEGUN), "finalizer"),
        ),
    ),
    Case(
        "complete_step",
        _held(make.complete_step, _instance, 0, output=b"\x01\x07", elapsed_ms=9, worker_id="w", finish=True),
        _row(other={"status": "skipped"}),
        ("running",),
        RUNNING_STEP,
        (
            *(*STEP_ENDED, "outputs.step_0", "steps.0.error", "deaths"),
            *(*CLAIM_FIELDS, "status", "finish_time", "claimable_time", "wait", "finalizer", "permit_wait"),
        ),
    ),
    Case(
        "yield_step",
        _held(make.yield_step, 0, checkpoint=b"\x01\x02", elapsed_ms=9, rest=None),
        _row(),
        ("running",),
        RUNNING_STEP,
        (
            *("steps.0.status", "steps.0.attempt", "steps.0.checkpoint", *EXECUTED, "steps.0.resume"),
            *("resume", "deaths"),
        ),
    ),
    Case(
        "retry_step",
        _held(make.retry_step, 0, error=FAULT, elapsed_ms=9, due_time=_later, rest=_rest),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*RESTED, *FAILED_ONCE, *EXECUTED, "steps.0.status", "steps.0.due_time", "steps.0.failed_time", "deaths"),
    ),
    Case(
        "skip_step",
        _held(make.skip_step, 0, error=FAULT, elapsed_ms=9),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*FAILED_ONCE, *STEP_ENDED, "deaths"),
    ),
    Case(
        "fail_step",
        _held(make.fail_step, 0, error=FAULT, elapsed_ms=9, failing=True),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*FAILED_ONCE, *STEP_ENDED, "deaths", "status", "error", "wait", "finalizer", "permit_wait"),
    ),
    Case(
        "defer_for_permit",
        _held(make.defer_for_permit, 0, wait=_permit, due_time=_later, ready_time=1_700_000_000_000, rest=_rest),
        _row(step={"status": "pending"}),
        ("running",),
        ("pending", "running"),
        (*RESTED, *REFUSED, "steps.0.due_time", "steps.0.ready_time"),
    ),
    Case(
        "defer_for_permit",
        _held(make.defer_for_permit, 0, wait=_permit, due_time=None, rest=_rest),
        _row(step={"status": "pending"}),
        ("running",),
        ("pending", "running"),
        (*RESTED, *REFUSED, "steps.0.due_time"),
    ),
)

WAITS = (
    Case(
        "suspend_step",
        _held(make.suspend_step, 0, wait=_wait, checkpoint=b"\x01\x02", elapsed_ms=9, rest=_rest),
        _row(),
        ("running",),
        RUNNING_STEP,
        (
            *(*RESTED, "resume", "deaths", "steps.0.status", "steps.0.attempt", "steps.0.checkpoint"),
            *("steps.0.wait", *EXECUTED, "steps.0.resume"),
        ),
    ),
    Case(
        "activate_timer",
        lambda instance, now_ms: make.activate_timer(instance, 0, now_ms=now_ms, commit_id=COMMIT),
        _row(status="waiting", step={"status": "waiting", "resume": {"kind": "poll"}}, resume={"kind": "poll"}),
        ("waiting",),
        ("waiting",),
        (
            *(*RESTED, "resume", "steps.0.status", "steps.0.wait", "steps.0.due_time", "steps.0.resume"),
            "steps.0.external_wait_ms",
        ),
        held=False,
    ),
    Case(
        "activate_signal",
        lambda instance, now_ms: make.activate_signal(
            instance, 0, signal_id="signal-1", now_ms=now_ms, commit_id=COMMIT
        ),
        _row(status="waiting", step={"status": "waiting", "wait": SIGNAL_WAIT}, wait=SIGNAL_WAIT),
        ("waiting",),
        ("waiting",),
        (
            *(*RESTED, "resume", "steps.0.status", "steps.0.wait", "steps.0.due_time", "steps.0.resume"),
            *("steps.0.external_wait_ms", "steps.0.last_signal_id"),
        ),
        held=False,
    ),
    Case(
        "activate_own",
        _held(make.activate_own, _instance, 0, now_ms=lambda instance, now_ms: now_ms),
        _row(step={"status": "waiting", "resume": {"kind": "poll"}}, resume={"kind": "poll"}),
        ("running",),
        ("waiting",),
        (
            *("resume", "steps.0.status", "steps.0.wait", "steps.0.due_time", "steps.0.resume"),
            "steps.0.external_wait_ms",
        ),
    ),
)

ENDS = (
    Case(
        "enter_failing",
        _held(make.enter_failing, error=FAULT),
        _row(),
        ("running",),
        None,
        ("status", "error", "wait", "finalizer", "permit_wait"),
    ),
    Case(
        "finish_completed",
        _held(make.finish_completed, _instance, elapsed_ms=3),
        _row(step={"status": "completed"}, other={"status": "skipped"}),
        ("running",),
        ("completed", "skipped"),
        (
            *(*CLAIM_FIELDS, "status", "finish_time", "claimable_time", "wait", "finalizer", "permit_wait"),
            *("finalizing_ms", "deaths"),
        ),
    ),
    Case(
        "finish_failed",
        _held(make.finish_failed, elapsed_ms=3),
        _row(status="failing"),
        ("failing",),
        None,
        (*ENDED, "status", "finalizing_ms", "deaths"),
    ),
    Case(
        "finish_canceled",
        _held(make.finish_canceled, 0, error=FAULT, elapsed_ms=9),
        _row(),
        ("running",),
        RUNNING_STEP,
        (*ENDED, *FAILED_ONCE, *STEP_ENDED, "status", "resume", "deaths"),
    ),
    Case(
        "defer_finalizer",
        _held(
            make.defer_finalizer,
            status="failing",
            attempt=2,
            error=FAULT,
            delay_ms=2_000,
            next_time=_later,
            elapsed_ms=3,
        ),
        _row(status="failing"),
        ("failing",),
        None,
        (*CLAIM_FIELDS, "finalizer", "finalizing_ms", "claimable_time", "deaths"),
    ),
    Case(
        "supersede",
        lambda instance, now_ms: make.supersede(instance.workflow_id, commit_id=COMMIT),
        _row(parked={"reason": "poison", "since_time": 1}),
        LIVE,
        None,
        (*ENDED, "status", "resume", "parked"),
        held=False,
    ),
)

_NEW_RUN = (
    *("status", "input", "retry_count", "workflow_run", "business_priority", "claimable_time", "deaths", "runs"),
    *("run_time", "finalizing_ms"),
    *(*CLAIM_FIELDS, "finish_time", "resume", "wait", "error", "finalizer", "parked", "permit_wait", "deferred"),
)
_FORGOTTEN = (
    *("status", "attempt", "failures", "due_time", "started_time", "finish_time", "worker_id", "checkpoint", "wait"),
    *("resume", "error", "errors"),
)
STARTS = (
    Case(
        "replay_failed",
        lambda instance, now_ms: make.replay_failed(instance, input_=b"\x01\x09", priority=1, commit_id=COMMIT),
        _row(status="failed", step={"status": "failed"}, parked={"reason": "x", "since_time": 1}),
        ("failed",),
        None,
        (*_NEW_RUN, *(f"steps.0.{field}" for field in _FORGOTTEN), "steps.0.traffic_since_time", "steps.1.due_time"),
        held=False,
    ),
    Case(
        "fresh_run",
        lambda instance, now_ms: make.fresh_run(
            instance,
            type_="other",
            fingerprint="e" * 16,
            step_names=("only",),
            input_=b"\x01\x09",
            priority=1,
            commit_id=COMMIT,
        ),
        _row(status="canceled", outputs={"step_0": b"\x01\x03"}, parked={"reason": "x", "since_time": 1}),
        TERMINAL,
        None,
        (*_NEW_RUN, "type", "definition_fingerprint", "definition_key", "steps", "outputs.step_0"),
        held=False,
    ),
    Case(
        "raise_priority",
        lambda instance, now_ms: make.raise_priority(instance.workflow_id, 1),
        _row(),
        INSTANCE_STATUSES,
        None,
        ("business_priority",),
        held=False,
        commit=False,
    ),
    Case(
        "defer_for_fingerprint",
        lambda instance, now_ms: make.defer_for_fingerprint(
            instance, offered=("a",), delay_ms=HOUR_MS, now_ms=now_ms, commit_id=COMMIT
        ),
        FREE,
        CLAIMABLE,
        None,
        ("deferred", "claimable_time"),
        held=False,
    ),
    Case(
        "release_deferred",
        lambda instance, now_ms: make.release_deferred(instance.workflow_id, definition_key=KEY, commit_id=COMMIT),
        FREE,
        CLAIMABLE,
        None,
        ("deferred", "claimable_time"),
        held=False,
    ),
)

CASES = (*CLAIMS, *STEPS, *WAITS, *ENDS, *STARTS)


def states(case: Case) -> list[tuple[str, str | None]]:
    """Every state of instance and first step that the case must be tried in."""
    steps: tuple[str | None, ...] = (None,) if case.step is None else STEP_STATUSES
    return [(status, step) for status in INSTANCE_STATUSES for step in steps]


def hits(case: Case, status: str, step: str | None) -> bool:
    """Whether the case must hit in that state."""
    return status in case.statuses and (case.step is None or step in case.step)


def built(case: Case, document: Document, now_ms: int) -> Transition:
    """The transition as its caller would make it who read the full row of the case under this row's key."""
    seen = {**case.row(now_ms), "workflow_id": document["workflow_id"]}
    return case.build(to_instance(seen), now_ms)
