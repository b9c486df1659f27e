"""Ending work that should not be done any more: by its own activity, or from outside, in every status (group 17)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel.client import Superseded
from kernel.context import Context
from kernel.directives import Sleep, WaitForSignal
from kernel.errors import InvalidId, WorkflowCanceled, WorkflowWasCanceled
from kernel.ids import workflow_id_for
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("can-activity", "fin-no-cancel", "can-meaning")
@pytest.mark.parametrize("side_by_side", [False, True])
def test_an_activity_that_cancels_ends_the_workflow_at_once(rig: SteppedRig, side_by_side: bool) -> None:
    """Its step is skipped, nothing is retried, no later step runs, no finalizer."""
    roots = [step(rig, "other", depends_on=[])] if side_by_side else []
    definition = flow(
        rig,
        *roots,
        step(rig, "cancels", raises(WorkflowCanceled("deleted")), max_retry=5, depends_on=[]),
        step(rig, "later", depends_on=["cancels"]),
        failure_finalizer=rig.ledger(lambda ctx: None),
        success_finalizer=rig.ledger(lambda ctx: None),
    )
    workflow_id = rig.drive(definition)

    record = rig.step(workflow_id, "cancels")
    assert (rig.status(workflow_id), record.status, record.error.kind) == ("canceled", "skipped", "canceled")
    assert record.error.message == "deleted"
    assert rig.ledger.counts() == {(workflow_id, s.name): 1 for s in (*roots, definition.steps[len(roots)])}
    with pytest.raises(WorkflowWasCanceled):
        rig.client.result(workflow_id, timedelta(0))


@pytest.mark.parametrize("status", ["pending", "claimed", "sleeping", "asking", "retrying", "failing", "deferred"])
@pytest.mark.req("can-supersede", "can-supersede-no-token")
def test_a_live_workflow_is_canceled_in_one_write_whatever_it_is_doing(durable_rig: SteppedRig, status: str) -> None:
    rig = durable_rig
    activity = {
        "sleeping": lambda ctx: Sleep(seconds(60), "cursor"),
        "asking": lambda ctx: WaitForSignal("answer", "key-1", poll_fallback=seconds(60)),
        "retrying": fails_first(1),
        "failing": raises(ValueError("no")),
        "deferred": raises(ValueError("no")),
    }.get(status)
    definition = flow(
        rig,
        step(rig, "a", activity, max_retry=int(status == "retrying")),
        failure_finalizer=raises(ValueError("later")) if status == "deferred" else None,
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    if status == "failing":
        worker.store.fail_once("finish_failed", "kill_before")
    if status == "claimed":
        worker.loop.pass_once()
    elif status != "pending":
        rig.pass_once(worker)
    before = rig.row(workflow_id)

    assert rig.client.supersede(workflow_id) == Superseded(True, "canceled")

    row = rig.row(workflow_id)
    gone = {"claim_token", "worker_id", "worker", "claim_time", "claimable_time", "wait", "resume", "finalizer"}
    assert gone & set(row) == set()
    assert (row["status"], row["revision"]) == ("canceled", before["revision"] + 1)
    assert row["finish_time"] == rig.clock.wall_ms()
    assert row["steps"] == before["steps"], "the steps stay as they are (B-13)"
    assert ("claim_token" in before) is (status in ("claimed", "failing"))


@pytest.mark.req("can-supersede-idempotent", "can-supersede-failed")
def test_an_ended_or_unknown_workflow_is_left_alone(rig: SteppedRig) -> None:
    done, bad = flow(rig, "a"), flow(rig, step(rig, "b", fails_first(1)), type="bad")
    rig.worker(done, bad)
    completed, failed, canceled = rig.start(done, "k1"), rig.start(bad, "k2"), rig.start(done, "k3", start_delay=_HOUR)
    rig.client.supersede(canceled)
    rig.finish(completed, failed)
    before = [rig.row(workflow_id) for workflow_id in (completed, failed, canceled)]

    answers = [rig.client.supersede(workflow_id) for workflow_id in (completed, failed, canceled, "wf-nothing")]

    assert answers == [Superseded(False, s) for s in ("completed", "failed", "canceled", None)]
    assert [rig.row(workflow_id) for workflow_id in (completed, failed, canceled)] == before
    with pytest.raises(InvalidId):
        rig.client.supersede("")
    rig.start(bad, "k2")
    rig.finish(failed)
    assert rig.status(failed) == "completed"


_HOUR = timedelta(hours=1)


@pytest.mark.req("can-supersede-idempotent")
@pytest.mark.case("A48")
def test_a_supersede_of_what_is_not_there_leaves_nothing_that_meets_a_later_start(rig: SteppedRig) -> None:
    """Neither of a key that has no workflow yet nor, later, of a run that has failed."""
    definition = flow(rig, step(rig, "a", fails_first(1)))
    rig.worker(definition)
    workflow_id = workflow_id_for("job-1")

    assert rig.client.supersede(workflow_id) == Superseded(False, None)
    assert rig.start(definition) == workflow_id
    rig.finish(workflow_id)
    assert rig.status(workflow_id) == "failed"
    assert rig.client.supersede(workflow_id) == Superseded(False, "failed")
    rig.start(definition)
    rig.finish(workflow_id)

    assert (rig.status(workflow_id), rig.row(workflow_id)["workflow_run"]) == ("completed", 2)


@pytest.mark.req("can-late-commit", "can-no-recall", "can-supersede-no-token", "core-miss-stops")
@pytest.mark.parametrize("late", ["completes", "sleeps", "fails", "retries", "cancels"])
def test_what_a_superseded_activity_returns_is_not_written(rig: SteppedRig, late: str) -> None:
    """Its outside effect has happened; no state follows from it and no later step runs."""
    effects: list[str] = []
    ends: dict[str, Any] = {
        "completes": lambda ctx: "done",
        "sleeps": lambda ctx: Sleep(seconds(1)),
        "fails": raises(ValueError("no")),
        "retries": raises(ValueError("no")),
        "cancels": raises(WorkflowCanceled("no")),
    }

    def activity(ctx: Context) -> Any:
        effects.append("sent")
        rig.client.supersede(ctx.workflow_id)
        after.update(rig.row(ctx.workflow_id))
        return ends[late](ctx)

    after: dict[str, Any] = {}
    definition = flow(rig, step(rig, "a", activity, max_retry=int(late == "retries")), "b")
    workflow_id = rig.drive(definition)
    rig.run(lambda: rig.clock.boot_ms() > 1_030_000, "half a minute")

    assert rig.row(workflow_id) == after
    assert (after["status"], after["steps"][0]["status"]) == ("canceled", "running")
    assert effects == ["sent"]
    assert rig.ledger.steps() == ["a"]
    assert [event["code"] for event in rig.recorder.of("claim.lost")] == ["claim_lost"]
    assert rig.workers[0].busy == 0


@pytest.mark.req("can-late-commit", "act-detach-lease-loss")
def test_a_superseded_activity_is_told_within_a_third_of_the_lease(rig: SteppedRig) -> None:
    waited: list[int] = []

    def activity(ctx: Context) -> None:
        rig.client.supersede(ctx.workflow_id)
        began_ms = rig.clock.boot_ms()
        while not ctx.cancelled:
            rig.advance(10)
        waited.append(rig.clock.boot_ms() - began_ms)

    rig.drive(flow(rig, step(rig, "a", activity)))

    assert waited[0] <= rig.settings.lease_ms / 3 + 100


@pytest.mark.req("can-stale-ready")
def test_a_sleeping_workflow_that_was_superseded_never_wakes(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "nap", lambda ctx: Sleep(seconds(5))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.client.supersede(workflow_id)
    assert workflow_id in rig.queue.ids()
    before = rig.row(workflow_id)

    rig.run(lambda: rig.clock.boot_ms() > 1_030_000, "half a minute")

    assert rig.row(workflow_id) == before
    assert workflow_id not in rig.queue.ids()
    assert rig.ledger.count("nap") == 1
