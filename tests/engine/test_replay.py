"""The replay of a failed run: one conditional write that keeps what is done and resets the rest (group 6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel import transitions
from kernel.context import Context
from kernel.directives import Sleep
from kernel.errors import WorkflowFailed
from kernel.store.conditional import Missed
from tests.engine.flows import fails_first, flow, gives, raises, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("sor-failed-replay", "sor-replay-claimable", "rec-finish")
def test_a_replay_replaces_the_input_and_clears_what_the_failed_run_left(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    definition = flow(rig, "a", step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(definition, "k", {"round": 1})
    before = rig.row(workflow_id)
    assert "finish_time" in before
    rig.advance(5_000)

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", input={"round": 2})

    row, instance = rig.row(workflow_id), rig.instance(workflow_id)
    assert handle.execution_activated
    assert row["status"] == "running"
    assert row["input"] != before["input"]
    assert (row["retry_count"], row["workflow_run"]) == (before["retry_count"] + 1, before["workflow_run"] + 1)
    assert row["revision"] == before["revision"] + 1
    assert row["claimable_time"] == rig.clock.wall_ms()
    assert {"finish_time", "error", "resume", "wait", "claim_token", "finalizer"} & set(row) == set()
    assert (instance.runs[-1].workflow_run, instance.runs[-1].status) == (1, "failed")
    changed = {name for name in {*row, *before} if row.get(name) != before.get(name)}
    assert changed == {
        "status", "input", "retry_count", "workflow_run", "revision", "claimable_time", "finish_time", "error", "steps",
        "runs", "run_time", "commit_ids",
    }  # fmt: skip
    assert row["run_time"] == rig.clock.wall_ms()


@pytest.mark.req("sor-replay-steps", "stp-on-failed", "stp-checkpoint-cleared-on-error", "sor-no-second-instance")
def test_completed_and_skipped_steps_stay_and_the_failed_one_starts_from_nothing(rig: SteppedRig) -> None:
    seen: list[Any] = []

    def bad(ctx: Context) -> Any:
        seen.append((ctx.workflow_run, ctx.attempt, ctx.checkpoint()))
        if ctx.workflow_run == 1:
            if ctx.resume is None:
                return Sleep(seconds(1), "cursor of round 1")
            raise ValueError("no")
        return "good"

    definition = flow(
        rig,
        "done",
        step(rig, "left_out", raises(ValueError("never mind")), on_failed="skip"),
        step(rig, "bad", bad),
    )
    workflow_id = rig.drive(definition, "k")
    kept = rig.row(workflow_id)["steps"][:2]
    failed = rig.instance(workflow_id).steps[2]
    assert (failed.status, failed.attempt, failed.failures, failed.checkpoint) == ("failed", 1, 1, None)

    rig.start(definition, "k")
    fresh = rig.instance(workflow_id).steps[2]
    assert rig.row(workflow_id)["steps"][:2] == kept
    assert (fresh.status, fresh.attempt, fresh.failures, fresh.takeovers, fresh.elapsed_ms) == ("pending", 0, 0, 0, 0)
    assert (fresh.error, fresh.errors, fresh.checkpoint, fresh.traffic_wait_count) == (None, (), None, 0)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    assert (rig.ledger.count("done"), rig.ledger.count("left_out"), rig.ledger.count("bad")) == (1, 1, 3)
    assert seen == [(1, 1, None), (1, 1, "cursor of round 1"), (2, 1, None)]


@pytest.mark.req("sor-no-second-instance", "rec-retry-count", "id-workflow-run")
def test_five_failures_and_replays_are_one_instance(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    definition = flow(rig, "once", step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(definition, "k")
    for _ in range(5):
        assert rig.start(definition, "k") == workflow_id
        rig.finish(workflow_id)

    instance = rig.instance(workflow_id)
    assert (instance.retry_count, instance.workflow_run, len(instance.runs)) == (5, 6, 5)
    assert rig.ledger.count("once") == 1
    assert [entry.run for entry in rig.ledger.of("bad")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.req("sor-replay-race")
def test_the_loser_of_two_racing_replays_finds_the_instance_running(rig: SteppedRig) -> None:
    """Both have read `failed`; between the loser's reading and its write the winner replays."""
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(definition, "k")
    winner = []

    def between(write: Any) -> None:
        if "replay_failed" in write.names and not winner:
            winner.append(rig.make_client(rig.store).start_or_resume(definition.plan, biz_key="k", input="winner"))

    rig.client_store.fault_of = between
    loser = rig.client.start_or_resume(definition.plan, biz_key="k", input="loser")

    assert (winner[0].execution_activated, loser.execution_activated) == (True, False)
    assert loser.branch == "running"
    instance = rig.instance(workflow_id)
    assert (instance.retry_count, instance.workflow_run) == (1, 2)
    assert b"winner" in instance.input


@pytest.mark.parametrize("status", ["running", "waiting", "failing", "completed", "canceled"])
@pytest.mark.req("sor-failed-replay", "sor-failing", "s6")
def test_the_write_of_a_replay_hits_a_failed_row_and_no_other(rig: SteppedRig, status: str) -> None:
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(definition, "k")
    read = rig.instance(workflow_id)
    set_fields(rig, workflow_id, status=status)
    before = rig.row(workflow_id)

    late = transitions.replay_failed(read, input_=b"\x01\xc0", priority=0, commit_id="late")

    assert isinstance(rig.store.apply(late), Missed)
    assert rig.row(workflow_id) == before


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply"])
@pytest.mark.req("sor-replay-race")
def test_a_replay_whose_answer_is_lost_happens_once(rig: SteppedRig, fault: Any) -> None:
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(definition, "k")
    rig.client_store.fail_once("replay_failed", fault)

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", input="new")

    assert handle.execution_activated
    assert rig.instance(workflow_id).retry_count == 1


@pytest.mark.req("sor-replay-unfinished", "dag-wave-siblings")
def test_a_sibling_that_was_suspended_when_the_run_failed_is_run_again(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "naps", lambda ctx: "rested" if ctx.resume else Sleep(seconds(600), "old"), depends_on=[]),
        step(rig, "bad", fails_first(1), depends_on=[]),
        step(rig, "last", depends_on=["naps", "bad"]),
    )
    workflow_id = rig.drive(definition, "k")
    assert [s.status for s in rig.instance(workflow_id).steps] == ["waiting", "failed", "pending"]

    rig.start(definition, "k")
    assert [(s.status, s.wait, s.checkpoint) for s in rig.instance(workflow_id).steps] == [("pending", None, None)] * 3
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    assert rig.ledger.steps() == ["naps", "bad", "naps", "bad", "naps", "last"]


@pytest.mark.req("sor-replay-claimable")
def test_a_replayed_instance_runs_within_one_poll_interval(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "bad", fails_first(1)))
    workflow_id = rig.drive(definition, "k")
    rig.queue.wipe()
    rig.queue.forgets = True
    rig.queue.deaf = True
    rig.advance(50)

    rig.start(definition, "k")
    rig.queue.forgets = False
    worker = rig.workers[0]
    worker.sweep()
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("sor-business-precondition")
def test_what_a_failure_finalizer_gave_back_is_taken_again_by_the_activity_itself(rig: SteppedRig) -> None:
    """The kernel restores nothing before a replay: `take` ran once, `use` has to look after its own precondition."""
    holders: set[str] = set()

    def use(ctx: Context) -> str:
        holders.add(ctx.workflow_id)
        if ctx.workflow_run == 1:
            raise ValueError("no")
        return "used"

    definition = flow(
        rig,
        step(rig, "take", lambda ctx: holders.add(ctx.workflow_id)),
        step(rig, "use", use),
        failure_finalizer=lambda ctx: holders.discard(ctx.workflow_id),
    )
    workflow_id = rig.drive(definition, "k")
    assert holders == set()

    rig.start(definition, "k")
    assert holders == set()
    rig.finish(workflow_id)

    assert holders == {workflow_id}
    assert rig.ledger.count("take") == 1


def test_the_result_of_a_failed_run_tells_why_and_that_of_its_replay_is_the_value(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", gives(1)), step(rig, "bad", fails_first(1, "good")))
    workflow_id = rig.drive(definition, "k")
    with pytest.raises(WorkflowFailed, match="ValueError: failure 1"):
        rig.client.result(workflow_id, timedelta(0))

    rig.start(definition, "k")
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == "good"
