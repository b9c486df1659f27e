"""What must be true of every single row of an instance, whoever wrote it last: no document is ever half of a change."""

from __future__ import annotations

from collections.abc import Iterator

from kernel.records import Document
from kernel.states import CLAIMABLE, TERMINAL

_CLAIM = ("claim_token", "claim_time", "worker_id", "worker")


def faults_of(row: Document, now_ms: int) -> Iterator[str]:
    """The rules that the row breaks, one line each (S5)."""
    status = row["status"]
    held = [field for field in _CLAIM if field in row]
    if held and len(held) < len(_CLAIM):
        yield f"half a claim: {held}"
    if held and status not in CLAIMABLE:
        yield f"{status} and claimed"
    if held and "claimable_time" not in row:
        yield "claimed without the end of a lease"
    if status in TERMINAL:
        left = [field for field in ("claimable_time", "wait", "parked", "permit_wait", "finalizer") if field in row]
        if left or "finish_time" not in row:
            yield f"{status} with {left}, finish_time {row.get('finish_time')}"
    elif "finish_time" in row:
        yield f"{status} and finished"
    if status in CLAIMABLE and "claimable_time" not in row and "parked" not in row:
        yield f"{status}, not parked, and nobody may ever claim it"
    if "parked" in row and held:
        yield "parked and claimed"
    yield from _steps(row, status, now_ms)


def _steps(row: Document, status: str, now_ms: int) -> Iterator[str]:
    steps = row["steps"]
    outputs = set(row["outputs"])
    completed = {step["name"] for step in steps if step["status"] == "completed"}
    if outputs != completed:
        yield f"completed steps {sorted(completed)} and outputs of {sorted(outputs)}"
    for step in steps:
        if (step["status"] == "waiting") != ("wait" in step) and status not in ("canceled", "failed"):
            yield f"step {step['name']} is {step['status']} and its wait is {step.get('wait')}"
        if step["attempt"] < 0 or step["failures"] < 0:
            yield f"step {step['name']} has {step['attempt']} attempts, {step['failures']} failures"
    if status == "completed" and any(step["status"] not in ("completed", "skipped") for step in steps):
        yield f"completed with steps {[step['status'] for step in steps]}"
    if status == "waiting":
        yield from _waiting(row)
    if "claim_token" not in row and status == "running" and "parked" not in row:
        yield from _resting(row, now_ms)


def _waiting(row: Document) -> Iterator[str]:
    """waiting: only when nothing can be entered; due at the earliest poll time of all waiting steps."""
    polls = [step["wait"].get("poll_time") for step in row["steps"] if "wait" in step]
    if not polls:
        yield "waiting for nothing"
        return
    timed = [poll for poll in polls if poll is not None]
    if row.get("claimable_time") != min(timed, default=None):
        yield f"waiting until {row.get('claimable_time')}, its waits are due at {timed}"


def _resting(row: Document, now_ms: int) -> Iterator[str]:
    """running and free: due at once, or no later than the earliest of its waits, which would be missed otherwise."""
    if "permit_wait" in row or "finalizer" in row or "deferred" in row:
        return
    polls = [step["wait"]["poll_time"] for step in row["steps"] if step.get("wait", {}).get("poll_time") is not None]
    if polls and row["claimable_time"] > max(now_ms, min(polls)):
        yield f"claimable at {row['claimable_time']}, a step waits until {min(polls)}"
