"""Snapshots and attempts as the side path would have written them, for tests of what is shown of them."""

from __future__ import annotations

from typing import Any

from kernel.ids import trace_id_for, workflow_id_for
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.observe.views import ATTEMPT_VERSION, SNAPSHOT_VERSION, Attempt, Snapshot, Split, StepView
from kernel.records import to_document
from kernel.store.projection import Keep, ProjectionStore

BEGIN_MS = 1_796_000_000_000
"""When the workflows of these tests were created: a Monday in 2026."""


_COUNTED = ("attempt", "failures", "takeovers", "elapsed_ms", "traffic_wait_count")


def split(scheduling: int = 0, traffic: int = 0, execution: int = 0, external: int = 0) -> Split:
    """Milliseconds of each kind; the total is their sum."""
    return Split(
        total_ms=scheduling + traffic + execution + external,
        scheduling_ms=scheduling,
        traffic_ms=traffic,
        execution_ms=execution,
        external_ms=external,
    )


def step_view(name: str, status: Any = "pending", **fields: Any) -> StepView:
    plain: dict[str, Any] = {"split": split()}
    plain |= dict.fromkeys(_COUNTED, 0)
    return StepView(name=name, status=status, **{**plain, **fields})


def snapshot(biz_key: str = "job:1", **fields: Any) -> Snapshot:
    """A workflow of two steps, created at BEGIN_MS, that has just begun and waits for a worker."""
    workflow_id = fields.get("workflow_id", workflow_id_for(biz_key))
    created = fields.get("created_time", BEGIN_MS)
    plain: dict[str, Any] = {
        "v": SNAPSHOT_VERSION,
        "biz_key": biz_key,
        "workflow_id": workflow_id,
        "type": "parcel",
        "status": "running",
        "revision": 1,
        "workflow_run": 1,
        "retry_count": 0,
        "business_priority": 1,
        "definition_fingerprint": "0123456789abcdef0123",
        "trace_id": trace_id_for(workflow_id, 1),
        "created_time": created,
        "run_time": created,
        "updated_time": created,
        "newest": -created,
        "current_step": "pack",
        "waiting": "worker",
        "waiting_since": created,
        "deaths": 0,
        "split": split(),
        "steps": (step_view("pack", ready_time=created), step_view("ship")),
    }
    return Snapshot(**{**plain, **fields})


def attempt(step: str = "pack", number: int = 1, outcome: Any = "completed", **fields: Any) -> Attempt:
    biz_key = fields.pop("biz_key", "job:1")
    workflow_id = workflow_id_for(biz_key)
    run = fields.pop("workflow_run", 1)
    plain: dict[str, Any] = {"revision": 3, "updated_time": BEGIN_MS + 1_000, "started_time": BEGIN_MS}
    return Attempt(
        v=ATTEMPT_VERSION,
        attempt_key=f"{workflow_id}/{run}/{step}/{number}",
        biz_key=biz_key,
        workflow_id=workflow_id,
        workflow_run=run,
        step=step,
        attempt=number,
        outcome=outcome,
        **{**plain, **fields},
    )


def keep(store: ProjectionStore, *observed: Snapshot | Attempt) -> None:
    """Store them as the side path does."""
    tables = ((SNAPSHOTS if isinstance(one, Snapshot) else ATTEMPTS, one) for one in observed)
    store.keep_all([Keep(table, to_document(one)) for table, one in tables])
