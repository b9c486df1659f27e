"""What a failed attempt means: budget, back-off, the errors that decide otherwise, and where retries run (group 13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import RetryPolicy
from kernel.directives import Sleep, Yield
from kernel.errors import NonRetryable, RetryAfter, WorkflowCanceled
from tests.engine.flows import fails_first, flow, gives, raises, seconds, step
from tests.support.engine_rig import SteppedRig


@pytest.mark.parametrize("max_retry", [0, 1, 2, 5])
@pytest.mark.req("stp-max-retry", "id-attempt")
def test_max_retry_is_the_number_of_entries_beside_the_first(rig: SteppedRig, max_retry: int) -> None:
    workflow_id = rig.drive(flow(rig, step(rig, "a", raises(ValueError("no")), max_retry=max_retry)))

    record = rig.step(workflow_id, "a")
    assert rig.ledger.count("a") == record.attempt == record.failures == 1 + max_retry
    assert [entry.attempt for entry in rig.ledger.of("a")] == list(range(1, 2 + max_retry))
    assert (record.status, rig.status(workflow_id)) == ("failed", "failed")


@pytest.mark.req("stp-retry-durable", "stp-retry-rules", "clm-release-clears")
def test_a_retry_is_persisted_and_run_by_whoever_claims_next(durable_rig: SteppedRig) -> None:
    """The first worker dies right after the release: nothing of the retry lived in it."""
    rig = durable_rig
    definition = flow(rig, step(rig, "a", fails_first(2), max_retry=2))
    first, second, third = (rig.worker(definition) for _ in range(3))
    workflow_id = rig.start(definition)
    wakeups = rig.queue.wakeups
    rig.pass_once(first)
    first.kill()

    row = rig.row(workflow_id)
    assert (row["status"], row["steps"][0]["status"], "claim_token" in row) == ("running", "pending", False)
    assert workflow_id in rig.queue.ids()
    assert rig.queue.wakeups > wakeups
    rig.pass_once(second)
    second.loop.drain()
    rig.pass_once(third)

    assert rig.status(workflow_id) == "completed"
    assert [entry.worker_id for entry in rig.ledger.entries] == ["w1", "w2", "w3"]
    assert [error.worker_id for error in rig.step(workflow_id, "a").errors] == ["w1", "w2"]


@pytest.mark.req("stp-retry-immediate")
def test_without_a_policy_a_retry_is_due_at_once(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", fails_first(3), max_retry=3))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    assert rig.row(workflow_id)["claimable_time"] <= rig.clock.wall_ms()

    rig.finish(workflow_id)

    assert {entry.begin_ms for entry in rig.ledger.entries} == {rig.ledger.entries[0].begin_ms}


@pytest.mark.parametrize(
    ("policy", "waits_ms"),
    [
        (RetryPolicy(max_attempts=4, initial_interval=seconds(0.5)), [500, 1_000, 2_000]),
        (RetryPolicy(max_attempts=4, backoff=10, max_interval=seconds(5)), [1_000, 5_000, 5_000]),
        (RetryPolicy(max_attempts=3), [1_000, 2_000]),
        (RetryPolicy(max_attempts=3, initial_interval=timedelta(0)), [0, 0]),
        (RetryPolicy(max_attempts=1), []),
    ],
)
@pytest.mark.req("stp-retry-backoff-future", "dbo-opt-interval", "dbo-opt-backoff", "dbo-opt-max-interval")
def test_with_a_policy_the_candidate_waits_in_its_lane(
    rig: SteppedRig, policy: RetryPolicy, waits_ms: list[int]
) -> None:
    """The delay lives in the row and in the lane; the worker is free meanwhile."""
    definition = flow(rig, step(rig, "a", raises(ValueError("no")), retry=policy))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    for wait_ms in waits_ms:
        due_ms = rig.row(workflow_id)["claimable_time"]
        assert due_ms == rig.clock.wall_ms() + wait_ms
        assert rig.queue.due_of(workflow_id) == due_ms
        assert (worker.busy, rig.step(workflow_id, "a").status) == (0, "pending")
        if wait_ms:
            rig.advance(wait_ms - 1)
            entries = rig.ledger.count("a")
            rig.pass_once(worker)
            assert rig.ledger.count("a") == entries
            rig.advance(1)
        rig.pass_once(worker)

    assert rig.status(workflow_id) == "failed"
    assert rig.ledger.count("a") == len(waits_ms) + 1


def test_jitter_moves_the_delay_by_its_share_and_no_more(rig: SteppedRig) -> None:
    policy = RetryPolicy(max_attempts=30, initial_interval=seconds(10), backoff=1, jitter=0.2)
    definition = flow(rig, step(rig, "a", raises(ValueError("no")), retry=policy))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    delays = []
    rig.pass_once(worker)
    while rig.status(workflow_id) == "running":
        delays.append(rig.row(workflow_id)["claimable_time"] - rig.clock.wall_ms())
        rig.advance(delays[-1])
        rig.pass_once(worker)

    assert len(delays) == 29
    assert 8_000 <= min(delays) < 9_500 < 10_500 < max(delays) <= 12_000


@pytest.mark.parametrize(
    ("delay", "wait_ms"),
    [(7_000, 7_000), (0, 0), (-5, 0), (1_500.5, 1_500), (10**30, 10_000), (float("inf"), 10_000),
     (float("nan"), 10_000), ("soon", 10_000)],
)  # fmt: skip
@pytest.mark.parametrize("policy", [{"max_retry": 1}, {"retry": RetryPolicy(max_attempts=2, backoff=1.0)}])
def test_an_error_may_set_its_own_delay(rig: SteppedRig, policy: dict[str, Any], delay: Any, wait_ms: int) -> None:
    """Also a careless one, as from the header of a response: the row stays readable and the workflow alive."""
    definition = flow(rig, step(rig, "a", fails_first(1, error=lambda text: RetryAfter(delay, text)), **policy))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    due_in_ms = rig.row(workflow_id)["claimable_time"] - rig.clock.wall_ms()
    assert rig.instance(workflow_id).steps[0].error.code == "retry_after"
    if wait_ms < 10_000:
        assert abs(due_in_ms - wait_ms) <= 1
        rig.finish(workflow_id)
        assert rig.output(workflow_id) == "done"
    else:
        assert due_in_ms >= 0


@pytest.mark.parametrize("options", [{"max_retry": 5}, {"retry": RetryPolicy(max_attempts=10)}])
def test_an_error_may_forbid_a_retry(rig: SteppedRig, options: dict[str, Any]) -> None:
    workflow_id = rig.drive(flow(rig, step(rig, "a", raises(NonRetryable("hopeless")), **options)))

    error = rig.step(workflow_id, "a").error
    assert rig.ledger.count("a") == 1
    assert (error.code, error.message) == ("non_retryable", "hopeless")


@pytest.mark.req("dbo-opt-should-retry", "dbo-exhausted-single")
def test_should_retry_decides_for_each_error_and_a_declined_one_stays_itself(rig: SteppedRig) -> None:
    asked: list[BaseException] = []

    def should_retry(error: BaseException) -> bool:
        asked.append(error)
        return "again" in str(error)

    def activity(ctx: Context) -> None:
        raise ValueError("again" if ctx.attempt < 3 else "enough")

    policy = RetryPolicy(max_attempts=10, initial_interval=timedelta(0), should_retry=should_retry)
    workflow_id = rig.drive(flow(rig, step(rig, "a", activity, retry=policy)))

    record = rig.step(workflow_id, "a")
    assert rig.ledger.count("a") == len(asked) == 3
    assert (record.error.type, record.error.message) == ("ValueError", "enough")
    assert [error.message for error in record.errors] == ["again", "again", "enough"]


@pytest.mark.parametrize("attempts", [1, 2, 4])
@pytest.mark.req("dbo-exhausted", "dbo-exhausted-single")
def test_used_up_attempts_are_told_as_such_with_every_error_kept(rig: SteppedRig, attempts: int) -> None:
    policy = RetryPolicy(max_attempts=attempts, initial_interval=timedelta(0))
    workflow_id = rig.drive(flow(rig, step(rig, "a", fails_first(9), retry=policy)))

    record = rig.step(workflow_id, "a")
    assert record.error.code == ("activity_error" if attempts == 1 else "max_step_retries_exceeded")
    assert [error.attempt for error in record.errors] == list(range(1, attempts + 1))
    assert f"failure {attempts}" in record.error.message
    assert rig.instance(workflow_id).error == record.error


@pytest.mark.req("stp-error-order", "can-activity", "dbo-never-retry-cancel")
def test_cancellation_comes_before_every_retry(rig: SteppedRig) -> None:
    asked: list[BaseException] = []
    policy = RetryPolicy(max_attempts=6, should_retry=lambda error: bool(asked.append(error)) or True)
    definition = flow(rig, step(rig, "a", raises(WorkflowCanceled("gone")), retry=policy, on_failed="skip"), "b")
    workflow_id = rig.drive(definition)

    assert (rig.status(workflow_id), rig.step(workflow_id, "a").status) == ("canceled", "skipped")
    assert rig.ledger.steps() == ["a"]
    assert asked == []


@pytest.mark.req("stp-error-order", "stp-on-failed", "stp-skip-satisfies", "stp-skip-not-silent", "stp-max-retry")
def test_a_step_that_may_be_left_out_is_skipped_after_its_retries_and_keeps_its_error(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "a", raises(ValueError("no")), max_retry=2, on_failed="skip"),
        step(rig, "b", lambda ctx: ["went on", ctx.output("a")]),
    )
    workflow_id = rig.drive(definition)

    record = rig.step(workflow_id, "a")
    assert rig.output(workflow_id) == ["went on", None]
    assert (record.status, record.attempt, rig.ledger.count("a")) == ("skipped", 3, 3)
    assert "no" in record.error.message
    assert len(record.errors) == 3
    assert "a" not in rig.instance(workflow_id).outputs


@pytest.mark.req("stp-on-failed", "stp-error-order", "stp-failed-not-ready", "dag-failed-not-ready")
def test_by_default_a_failed_step_stops_the_workflow_and_stays_failed(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", raises(ValueError("no")), max_retry=1), "b")
    workflow_id = rig.drive(definition)
    before = rig.row(workflow_id)
    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute of scans")

    assert rig.ledger.steps() == ["a", "a"]
    assert rig.row(workflow_id) == before
    assert [s.status for s in rig.instance(workflow_id).steps] == ["failed", "pending"]


@pytest.mark.req("stp-checkpoint-cleared-on-error", "stp-retry-checkpoint")
def test_an_error_clears_the_checkpoint_for_the_next_attempt(rig: SteppedRig) -> None:
    seen: list[tuple[int, Any, Any]] = []

    def activity(ctx: Context) -> Any:
        seen.append((ctx.attempt, ctx.checkpoint(), None if ctx.resume is None else ctx.resume.kind))
        if ctx.resume is None:
            return Sleep(seconds(1), f"task {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("the task failed")
        return ctx.checkpoint()

    workflow_id = rig.drive(flow(rig, step(rig, "a", activity, max_retry=1)))

    assert seen == [(1, None, None), (1, "task 1", "timer"), (2, None, None), (2, "task 2", "timer")]
    assert rig.output(workflow_id) == "task 2"


@pytest.mark.req(
    "stp-checkpoint-kept-over-polls", "slp-checkpoint-roundtrip", "slp-retry-budget", "stp-attempt-suspend"
)
def test_the_checkpoint_survives_polls_workers_and_deaths(durable_rig: SteppedRig) -> None:
    """Every poll in another worker, one of which dies in the middle: the same value comes back each time."""
    rig = durable_rig
    seen: list[Any] = []

    def activity(ctx: Context) -> Any:
        seen.append(ctx.checkpoint())
        polls = (ctx.checkpoint() or {"polls": 0})["polls"]
        if polls == 3 and rig.ledger.count("a") == 4:
            rig.workers[-1].kill()
        return Sleep(seconds(1), {"polls": polls + 1, "task": "t-77", "raw": b"\0\xff"}) if polls < 6 else ctx.attempt

    definition = flow(rig, step(rig, "a", activity))
    workflow_id = rig.start(definition)
    while not rig.ended(workflow_id):
        rig.pass_once(rig.worker(definition))
        rig.advance(rig.settings.lease_ms)

    polls = [0 if checkpoint is None else checkpoint["polls"] for checkpoint in seen]
    assert polls == [0, 1, 2, 3, 3, 4, 5, 6]
    assert all(c == {"polls": c["polls"], "task": "t-77", "raw": b"\0\xff"} for c in seen if c is not None)
    assert rig.output(workflow_id) == 2, "one attempt, and one for the death"
    assert rig.step(workflow_id, "a").failures == 0


@pytest.mark.req("stp-attempt-crash", "core-running-is-not-alive", "dag-running-ready", "stp-running-before-entry")
def test_a_death_is_a_further_attempt_and_costs_no_retry(rig: SteppedRig) -> None:
    """Crashes do not eat the budget of returned failures (DECISIONS detail 15)."""
    rows: list[Any] = []

    def activity(ctx: Context) -> str:
        rows.append((rig.step(ctx.workflow_id, "a").status, rig.step(ctx.workflow_id, "a").attempt))
        if ctx.attempt == 1:
            first.kill()
        if ctx.attempt == 2:
            raise ValueError("no")
        return "third"

    definition = flow(rig, step(rig, "a", activity, max_retry=1))
    first = rig.worker(definition)
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    assert (rig.step(workflow_id, "a").status, rig.step(workflow_id, "a").attempt) == ("running", 1)
    rig.finish(workflow_id)

    record = rig.step(workflow_id, "a")
    assert rows == [("running", 1), ("running", 2), ("running", 3)]
    assert rig.output(workflow_id) == "third"
    assert (record.attempt, record.failures, record.takeovers) == (3, 1, 1)


@pytest.mark.req("stp-states")
def test_every_status_of_a_step_is_reached(rig: SteppedRig) -> None:
    seen: set[str] = set()

    def watch(call: Any) -> None:
        seen.update(record.status for record in rig.instance(workflow_id).steps)

    definition = flow(
        rig,
        step(rig, "a", lambda ctx: "rested" if ctx.resume else Sleep(seconds(1))),
        step(rig, "b", raises(ValueError("no")), on_failed="skip"),
        step(rig, "c", lambda ctx: "turned" if ctx.checkpoint() else Yield(1)),
        step(rig, "d", raises(ValueError("no"))),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.store.fault_of = watch
    rig.finish(workflow_id)
    watch(None)

    assert seen == {"pending", "running", "waiting", "completed", "skipped", "failed"}


def test_an_output_that_is_too_large_is_a_clear_failure_without_retries(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", gives(b"x" * 2_000), max_retry=3))
    rig.worker(definition, output_bytes_max=1_000)
    workflow_id = rig.drive(definition)

    error = rig.step(workflow_id, "a").error
    assert (error.code, rig.ledger.count("a")) == ("too_large", 1)
    assert "output of step a" in error.message
    assert "1000" in error.message
    assert rig.instance(workflow_id).outputs == {}
