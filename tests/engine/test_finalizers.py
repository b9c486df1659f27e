"""Finalizers: before the end and never after it, again until they succeed, and the steps never with them (group 16)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kernel.context import Context
from kernel.directives import Sleep
from kernel.errors import InsideStep, WorkflowCanceled
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("fin-declare")
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_finalizers_may_be_declared_or_left_out(rig: SteppedRig, declared: bool, fails: bool) -> None:
    called: list[str] = []
    finalizers = {
        "success_finalizer": lambda ctx: called.append("success"),
        "failure_finalizer": lambda ctx: called.append(f"failure: {ctx.error.message}"),
    }
    definition = flow(
        rig, step(rig, "a", raises(ValueError("no")) if fails else None), **(finalizers if declared else {})
    )
    workflow_id = rig.drive(definition)

    assert rig.status(workflow_id) == ("failed" if fails else "completed")
    assert called == ([] if not declared else ["failure: no"] if fails else ["success"])


@pytest.mark.req("fin-success-before", "fin-success-commit", "fin-after-kill-success")
def test_the_success_finalizer_runs_after_all_steps_and_before_completed(rig: SteppedRig) -> None:
    """Killed between finalizer and commit: the finalizer runs again, the steps do not."""
    seen: list[tuple[str, list[str]]] = []

    def finalizer(ctx: Context) -> None:
        row = rig.row(ctx.workflow_id)
        seen.append((row["status"], [s["status"] for s in row["steps"]]))

    definition = flow(rig, "a", "b", success_finalizer=finalizer)
    first = rig.worker(definition)
    first.store.fail_once("finish_completed", "kill_before")
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert seen == [("running", ["completed", "completed"])] * 2
    assert rig.ledger.steps() == ["a", "b"]
    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("fin-success-commit")
def test_completed_is_not_written_by_a_worker_that_lost_its_claim_in_the_finalizer(rig: SteppedRig) -> None:
    definition = flow(rig, "a", success_finalizer=lambda ctx: set_fields(rig, ctx.workflow_id, claim_token="another's"))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "running"
    assert worker.store.missed[-1] == "finish_completed"


@pytest.mark.req("fin-retry", "fin-success-stays-running", "fin-error-visible", "fin-backoff", "fin-idempotent")
def test_a_success_finalizer_that_fails_leaves_the_workflow_running_and_is_tried_again(rig: SteppedRig) -> None:
    """With a growing delay, the error in the record, in any worker; no step runs again."""
    definition = flow(rig, "a", success_finalizer=rig.ledger(fails_first(3)))
    workers = [rig.worker(definition) for _ in range(2)]
    workflow_id = rig.start(definition)
    rig.pass_once(workers[0])
    for attempt, delay_ms in enumerate((1_000, 2_000, 4_000), 1):
        row = rig.row(workflow_id)
        assert (row["status"], "claim_token" in row, "finish_time" in row) == ("running", False, False)
        assert (row["finalizer"]["attempt"], row["finalizer"]["error"]["message"]) == (attempt, f"failure {attempt}")
        assert row["claimable_time"] == row["finalizer"]["next_time"] == rig.clock.wall_ms() + delay_ms
        rig.advance(delay_ms - 1)
        for worker in workers:
            rig.pass_once(worker)
        assert rig.ledger.count(None) == attempt
        rig.advance(1)
        rig.pass_once(workers[attempt % 2])

    row = rig.row(workflow_id)
    assert (row["status"], "finalizer" in row) == ("completed", False)
    assert rig.ledger.count("a") == 1
    assert {entry.worker_id for entry in rig.ledger.of(None)} == {"w1", "w2"}


@pytest.mark.req("fin-backoff")
def test_a_finalizer_that_never_succeeds_is_tried_for_ever_at_a_bounded_rate(rig: SteppedRig) -> None:
    definition = flow(rig, "a", success_finalizer=rig.ledger(raises(ValueError("never"))))
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.ledger.count(None) == 12, "twelve tries")

    entries = rig.ledger.of(None)
    gaps = [after.begin_ms - before.begin_ms for before, after in pairwise(entries)]
    expected = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, *[60_000] * 5]
    assert all(wanted <= gap <= wanted + 5 for gap, wanted in zip(gaps, expected, strict=True))
    assert rig.status(workflow_id) == "running"
    assert rig.ledger.count("a") == 1


@pytest.mark.req("fin-failing-first", "fin-failing-resume")
def test_a_failure_is_failing_first_then_finalized_then_failed(rig: SteppedRig) -> None:
    statuses: list[str] = []
    seen: list[str] = []

    def watch(call: Any) -> None:
        status = rig.status(workflow_id)
        if not statuses or statuses[-1] != status:
            statuses.append(status)

    def finalizer(ctx: Context) -> None:
        seen.append(rig.status(ctx.workflow_id))

    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))), "never", failure_finalizer=finalizer)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.store.fault_of = watch
    rig.finish(workflow_id)
    watch(None)

    assert statuses == ["running", "failing", "failed"]
    assert seen == ["failing"]
    assert rig.ledger.steps() == ["bad"]


@pytest.mark.req("fin-failing-resume", "fin-retry", "fin-error-visible", "fin-backoff")
@pytest.mark.parametrize("fault", ["kill_before", "kill_after"])
def test_whatever_interrupts_the_failure_only_the_failure_is_continued(rig: SteppedRig, fault: Any) -> None:
    """The finalizer fails twice, and its worker dies between: the failed step is never run again."""
    definition = flow(
        rig, step(rig, "bad", raises(ValueError("no"))), "never", failure_finalizer=rig.ledger(fails_first(2))
    )
    first = rig.worker(definition)
    workflow_id = rig.start(definition)
    first.store.fail_once("defer_finalizer", fault)
    rig.pass_once(first)
    assert rig.status(workflow_id) == "failing"
    rig.worker(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "failed"
    assert rig.ledger.count("bad") == 1
    assert rig.ledger.count(None) == 3
    assert rig.instance(workflow_id).error.message == "no"


@pytest.mark.req("fin-error-visible")
@pytest.mark.parametrize("what", ["prepare", "success finalizer", "failure finalizer"])
def test_the_record_says_what_has_failed_beside_the_steps(rig: SteppedRig, what: str) -> None:
    body = raises(ValueError("no")) if what == "failure finalizer" else None
    hooks: dict[str, Any] = {what.replace(" ", "_"): rig.ledger(raises(ValueError("never")))}
    definition = flow(rig, step(rig, "a", body), **hooks)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)

    rig.pass_once(worker)

    assert rig.row(workflow_id)["finalizer"]["what"] == what


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), WorkflowCanceled("no"), ValueError("no")])
@pytest.mark.req("fin-retry", "act-panic")
def test_whatever_a_finalizer_raises_it_is_only_tried_again(rig: SteppedRig, error: BaseException) -> None:
    calls: list[int] = []

    def finalizer(ctx: Context) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise error

    workflow_id = rig.drive(flow(rig, "a", success_finalizer=finalizer))

    assert (rig.status(workflow_id), len(calls)) == ("completed", 3)


@pytest.mark.req("fin-retry")
def test_a_finalizer_has_a_timeout_and_a_later_try(rig: SteppedRig) -> None:
    def finalizer(ctx: Context) -> None:
        if rig.ledger.count(None) == 1:
            rig.advance(rig.settings.finalizer_timeout_ms + 1)

    definition = flow(rig, "a", success_finalizer=rig.ledger(finalizer))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    assert rig.row(workflow_id)["finalizer"]["error"]["code"] == "step_timeout"

    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("fin-no-cancel")
@pytest.mark.parametrize("how", ["activity", "supersede", "supersede while waiting"])
def test_canceled_runs_no_finalizer(rig: SteppedRig, how: str) -> None:
    activities = {
        "activity": raises(WorkflowCanceled("gone")),
        "supersede": lambda ctx: rig.client.supersede(ctx.workflow_id),
        "supersede while waiting": lambda ctx: Sleep(seconds(60)),
    }
    definition = flow(
        rig,
        step(rig, "a", activities[how]),
        success_finalizer=rig.ledger(lambda ctx: None),
        failure_finalizer=rig.ledger(lambda ctx: None),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.client.supersede(workflow_id)
    rig.run(lambda: rig.clock.boot_ms() > 1_100_000, "a minute and more")

    assert rig.status(workflow_id) == "canceled"
    assert rig.ledger.count(None) == 0


@pytest.mark.req("fin-failing-first", "can-supersede")
def test_a_failing_workflow_that_is_superseded_in_its_finalizer_ends_canceled(rig: SteppedRig) -> None:
    """The late commit misses, and so does the deferral of a finalizer that raises (DECISIONS detail 14)."""

    def finalizer(ctx: Context) -> None:
        rig.client.supersede(ctx.workflow_id)
        raise ValueError("too late")

    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))), failure_finalizer=finalizer)
    workflow_id = rig.drive(definition)

    assert rig.status(workflow_id) == "canceled"
    assert rig.workers[0].store.missed[-1] == "defer_finalizer"
    assert "finalizer" not in rig.row(workflow_id)


@pytest.mark.req("fan-start-idempotent")
def test_a_step_may_not_register_another_workflow_and_a_finalizer_may(rig: SteppedRig) -> None:
    """A step may run many times and fail; what it had started would live on."""
    other = flow(rig, "b", type="other")
    refused: list[str] = []

    def activity(ctx: Context) -> None:
        with pytest.raises(InsideStep) as raised:
            ctx.start_or_resume(other.plan, biz_key="from the step")
        refused.append(str(raised.value))

    started: list[str] = []

    def finalizer(ctx: Context) -> None:
        started.append(ctx.start_or_resume(other.plan, biz_key="from the finalizer"))

    workflow_id = rig.drive(flow(rig, step(rig, "a", activity), success_finalizer=finalizer))

    assert rig.status(workflow_id) == "completed"
    assert refused == ["step a: a workflow is registered by a finalizer or a publisher, not by a step"]
    assert rig.store.find("workflow_instances", "biz_key", "from the step") is None
    assert rig.row(started[0])["biz_key"] == "from the finalizer"
