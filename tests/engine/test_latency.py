"""Where the time went: four figures for each step and for the workflow, exact to the millisecond of the set clock."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import RetryPolicy
from kernel.directives import Sleep
from kernel.observe.projection import snapshot_of
from kernel.observe.views import Snapshot, Split
from tests.engine.flows import Activity, fails_first, flow, gives, raises, seconds, step
from tests.engine.occupied import Occupied
from tests.engine.signals import asks, leave, wait_asleep
from tests.engine.test_deaths import die_once
from tests.support.engine_rig import SteppedRig


def works(rig: SteppedRig, ms: int, then: Activity | None = None) -> Activity:
    """An activity that takes `ms` and goes on as `then`."""

    def activity(ctx: Context) -> Any:
        rig.advance(ms)
        return ctx.step if then is None else then(ctx)

    return activity


def naps(ms: int) -> Activity:
    """An activity that sleeps once, for `ms`."""
    return lambda ctx: "up" if ctx.resume else Sleep(seconds(ms / 1000))


def seen(rig: SteppedRig, workflow_id: str) -> Snapshot:
    return snapshot_of(rig.instance(workflow_id), rig.store.now_ms())


def split_of(rig: SteppedRig, workflow_id: str, name: str | None = None) -> Split:
    """The split of the workflow, or of one of its steps."""
    snapshot = seen(rig, workflow_id)
    return snapshot.split if name is None else next(s.split for s in snapshot.steps if s.name == name)


def parts(scheduling: int = 0, traffic: int = 0, execution: int = 0, external: int = 0) -> Split:
    return Split(
        total_ms=scheduling + traffic + execution + external,
        scheduling_ms=scheduling,
        traffic_ms=traffic,
        execution_ms=execution,
        external_ms=external,
    )


@pytest.mark.req("lat-split")
def test_a_second_of_each_is_told_apart(durable_rig: SteppedRig) -> None:
    """1 s until a worker comes, 1 s before a permit, 1 s of sleep, 1 s of work."""
    rig = durable_rig
    printer = Occupied(rig, "printer")

    def sleeps_and_works(ctx: Context) -> Any:
        if ctx.resume is None:
            return Sleep(seconds(1))
        rig.advance(1_000)
        return "printed"

    definition = flow(rig, step(rig, "print", sleeps_and_works, resource="printer"), "end")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.advance(1_000)
    assert split_of(rig, workflow_id) == parts(scheduling=1_000)
    rig.pass_once(worker)
    rig.advance(1_000)
    assert split_of(rig, workflow_id) == parts(1_000, traffic=1_000), "a wait counts while it lasts"
    printer.free()
    wait_asleep(rig, worker, workflow_id)
    rig.advance(400)
    assert split_of(rig, workflow_id) == parts(1_000, traffic=1_000, external=400)
    rig.advance(600)
    rig.finish(workflow_id)

    assert split_of(rig, workflow_id) == parts(1_000, 1_000, 1_000, 1_000)
    assert split_of(rig, workflow_id, "print") == parts(1_000, 1_000, 1_000, 1_000)
    assert split_of(rig, workflow_id, "end") == parts()


@pytest.mark.req("ops-where-stuck")
def test_a_backlog_is_told_apart_by_what_each_of_it_waits_for(rig: SteppedRig) -> None:
    """No worker is free for the first, no place for the second, and the third fails and fails."""
    Occupied(rig, "printer")
    retried = RetryPolicy(max_attempts=9, initial_interval=seconds(60))
    queued = flow(rig, "a", type="queued")
    limited = flow(rig, step(rig, "print", resource="printer"), type="limited")
    failing = flow(rig, step(rig, "call", raises(ValueError("no")), retry=retried), type="failing")
    worker = rig.worker(limited, failing)
    keys = [rig.start(definition, definition.type) for definition in (queued, limited, failing)]
    rig.pass_once(worker)
    shown = [seen(rig, key) for key in keys]

    assert [(s.waiting, s.waiting_on, s.current_step, s.error_code) for s in shown] == [
        ("worker", None, "a", None),
        ("permit", "printer", "print", None),
        ("retry", None, "call", "activity_error"),
    ]


@pytest.mark.req("lat-fields", "prm-traffic-ms")
def test_permit_wait_and_execution_are_separate_figures_of_the_row_and_of_the_snapshot(rig: SteppedRig) -> None:
    printer = Occupied(rig, "printer")
    definition = flow(rig, step(rig, "print", works(rig, 1_000), resource="printer"))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.advance(2_000)
    printer.free()
    rig.finish(workflow_id)

    row, view = rig.step(workflow_id, "print"), seen(rig, workflow_id).steps[0]
    assert (row.traffic_wait_ms, row.elapsed_ms, row.traffic_wait_count) == (2_000, 1_000, 1)
    assert (view.split.traffic_ms, view.elapsed_ms, view.traffic_wait_count) == (2_000, 1_000, 1)
    assert view.split == parts(traffic=2_000, execution=1_000)


@pytest.mark.req("lat-external")
@pytest.mark.parametrize("busy_ms", [0, 3_000])
def test_a_sleep_ends_when_it_is_due_and_what_follows_is_a_wait_for_a_worker(
    durable_rig: SteppedRig, busy_ms: int
) -> None:
    """Its only worker is busy with something else when the two seconds are over."""
    rig = durable_rig
    nap, other = (
        flow(rig, step(rig, "nap", naps(2_000)), type="nap"),
        flow(rig, step(rig, "x", works(rig, 2_000 + busy_ms)), type="other"),
    )
    worker = rig.worker(nap, other, slots=1)
    workflow_id = rig.start(nap)
    wait_asleep(rig, worker, workflow_id)
    if busy_ms:
        rig.start(other, "job-2")
        rig.pass_once(worker)
        assert seen(rig, workflow_id).waiting == "worker"
    else:
        rig.advance(2_000)
    rig.finish(workflow_id)

    assert rig.step(workflow_id, "nap").external_wait_ms == 2_000
    assert split_of(rig, workflow_id, "nap") == parts(external=2_000, scheduling=busy_ms)
    assert split_of(rig, workflow_id) == parts(external=2_000, scheduling=busy_ms)


@pytest.mark.req("lat-external")
def test_a_wait_for_a_signal_ends_when_the_inbox_has_it_and_not_when_somebody_looks(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    rig.advance(4_000)
    leave(rig, workflow_id)  # its producer dies before it wakes anybody
    rig.advance(5_000)
    worker.sweeps.inbox.pass_once()
    rig.finish(workflow_id)

    assert split_of(rig, workflow_id) == parts(external=4_000, scheduling=5_000)


@pytest.mark.req("lat-external")
def test_a_signal_that_comes_when_the_poll_time_is_over_lengthens_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "ask", asks(fallback=seconds(3))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    rig.advance(10_000)
    rig.client.signal(workflow_id, "ready", wait_key="show-1", generation=2, signal_id="s1")
    rig.finish(workflow_id)

    assert split_of(rig, workflow_id) == parts(external=3_000, scheduling=7_000)


@pytest.mark.req("lat-split", "stp-error-recorded", "cmp-elapsed")
def test_all_invocations_of_an_attempt_are_its_execution(durable_rig: SteppedRig) -> None:
    """Twenty polls of 100 ms, half a second apart; the first attempt fails after its fifth."""
    rig = durable_rig
    calls: list[int] = []

    def polls(ctx: Context) -> Any:
        rig.advance(100)
        calls.append(ctx.attempt)
        if len(calls) == 5:
            raise ValueError("the task is lost")
        return "done" if len(calls) == 25 else Sleep(seconds(0.5), checkpoint=len(calls))

    definition = flow(rig, step(rig, "poll", polls, max_retry=1))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.step(workflow_id, "poll").failures == 1, "the first failure", worker)
    failed = rig.step(workflow_id, "poll")
    assert (failed.attempt, failed.elapsed_ms, failed.executed_ms) == (1, 500, 500)
    rig.finish(workflow_id)

    done = rig.step(workflow_id, "poll")
    assert calls == [1] * 5 + [2] * 20
    assert (done.elapsed_ms, done.executed_ms, done.external_wait_ms) == (2_000, 2_500, 23 * 500)
    split = split_of(rig, workflow_id)
    assert (split.execution_ms, split.external_ms, split.traffic_ms) == (2_500, 23 * 500, 0)
    assert split.scheduling_ms <= 23, "a loop that sleeps until something is due wakes a millisecond later"


@pytest.mark.req("lat-split")
def test_the_delay_before_a_retry_is_scheduling(rig: SteppedRig) -> None:
    policy = RetryPolicy(max_attempts=2, initial_interval=seconds(6))
    definition = flow(rig, step(rig, "a", works(rig, 500, fails_first(1)), retry=policy))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rested = seen(rig, workflow_id)
    rig.advance(6_000)
    rig.finish(workflow_id)

    now_ms = rested.updated_time
    assert (rested.waiting, rested.current_step, rested.error_code) == ("retry", "a", "activity_error")
    assert (rested.waiting_since, rested.waiting_until) == (now_ms, now_ms + 6_000)
    assert split_of(rig, workflow_id) == parts(scheduling=6_000, execution=1_000)


@pytest.mark.req("lat-split", "obs-events")
def test_what_a_dead_worker_did_is_lost_time_until_another_takes_over(durable_rig: SteppedRig) -> None:
    """It dies 500 ms after it has entered the step; the lease is 1.5 s."""
    rig = durable_rig

    def deadly(ctx: Context) -> str:
        rig.advance(500)
        if ctx.worker_id == "w1":
            rig.workers[0].kill()
        return "done"

    definition = flow(rig, step(rig, "a", deadly))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    began_ms = rig.store.now_ms() - 500
    assert split_of(rig, workflow_id) == parts(execution=500), "as far as anybody knows, it works"
    rig.advance(3_000)
    expired = seen(rig, workflow_id)
    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    lease_ms = began_ms + 1_500
    assert (expired.waiting, expired.waiting_since) == ("worker", lease_ms)
    assert expired.split.execution_ms == 1_500, "until its lease ran out"
    ended = seen(rig, workflow_id)
    assert ended.finish_time is not None
    assert ended.split == parts(scheduling=ended.finish_time - began_ms - 500, execution=500)
    assert (ended.steps[0].takeovers, ended.steps[0].attempt) == (1, 2)


@pytest.mark.req("lat-split")
def test_a_replay_counts_from_its_own_beginning(durable_rig: SteppedRig) -> None:
    """What the failed run did, and the time until somebody replays it, are none of the new run's."""
    rig = durable_rig
    bad = works(rig, 200, fails_first(1))
    definition = flow(rig, step(rig, "good", works(rig, 1_000)), step(rig, "bad", bad))
    workflow_id = rig.drive(definition)
    assert split_of(rig, workflow_id) == parts(execution=1_200)
    rig.advance(60_000)
    rig.start(definition)
    replayed_ms = rig.store.now_ms()
    rig.advance(700)
    rig.finish(workflow_id)

    ended = seen(rig, workflow_id)
    assert (ended.run_time, ended.split) == (replayed_ms, parts(scheduling=700, execution=200))
    assert [view.split for view in ended.steps] == [parts(execution=1_000), parts(scheduling=700, execution=200)]
    assert rig.step(workflow_id, "bad").executed_ms == 200


@pytest.mark.req("lat-split")
def test_a_start_delay_is_no_part_of_the_latency(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", works(rig, 100)))
    rig.worker(definition)
    workflow_id = rig.start(definition, start_delay=seconds(90))
    rig.advance(30_000)
    delayed = seen(rig, workflow_id)
    rig.advance(60_000)
    rig.finish(workflow_id)

    assert (delayed.waiting, delayed.waiting_until) == ("timer", delayed.created_time + 90_000)
    assert delayed.split == parts()
    assert split_of(rig, workflow_id) == parts(execution=100)


@pytest.mark.req("lat-split")
def test_waits_side_by_side_count_once(rig: SteppedRig) -> None:
    """The total is what the user waited: the longer of the two, then the step that follows both."""
    definition = flow(
        rig,
        step(rig, "short", naps(2_000), depends_on=[]),
        step(rig, "long", naps(5_000), depends_on=[]),
        step(rig, "end", works(rig, 300), depends_on=["short", "long"]),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    rig.advance(1_000)
    assert split_of(rig, workflow_id) == parts(external=1_000)
    rig.advance(1_000)
    rig.pass_once(worker)
    assert rig.step(workflow_id, "short").status == "completed"
    rig.advance(3_000)
    rig.finish(workflow_id)

    assert split_of(rig, workflow_id, "short") == parts(external=2_000)
    assert split_of(rig, workflow_id, "long") == parts(external=5_000)
    assert split_of(rig, workflow_id) == parts(external=5_000, execution=300)


@pytest.mark.req("lat-split")
@pytest.mark.parametrize("fails", [False, True])
def test_finalizers_are_execution_and_the_delay_between_them_is_not(durable_rig: SteppedRig, fails: bool) -> None:
    rig = durable_rig
    hook = rig.ledger(works(rig, 400, fails_first(1)))
    activity = raises(ValueError("no")) if fails else gives("ok")
    options: dict[str, Any] = {"failure_finalizer" if fails else "success_finalizer": hook}
    definition = flow(rig, step(rig, "a", works(rig, 100, activity)), **options)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    resting = seen(rig, workflow_id)
    assert resting.finalizer is not None and resting.waiting_until is not None
    delay_ms = resting.waiting_until - resting.updated_time
    rig.advance(delay_ms)
    rig.finish(workflow_id)

    assert (resting.waiting, resting.waiting_since) == ("finalizer", resting.updated_time)
    assert resting.split == parts(execution=500)
    assert split_of(rig, workflow_id) == parts(execution=900, scheduling=delay_ms)
    assert rig.instance(workflow_id).finalizing_ms == 800
    if not fails:
        return
    rig.start(definition)
    assert rig.instance(workflow_id).finalizing_ms == 0, "a new run begins with nothing"


@pytest.mark.req("lat-split")
def test_a_superseded_workflow_has_worked_and_waited_until_then(rig: SteppedRig) -> None:
    def superseded(ctx: Context) -> str:
        rig.advance(800)
        rig.client.supersede(ctx.workflow_id)
        rig.advance(800)
        return "too late"

    ran = rig.drive(flow(rig, step(rig, "a", superseded), type="runs"))
    nap = flow(rig, step(rig, "nap", naps(60_000)), type="sleeps")
    worker = rig.worker(nap)
    slept = rig.start(nap, "job-2")
    wait_asleep(rig, worker, slept)
    rig.advance(5_000)
    rig.client.supersede(slept)
    rig.advance(5_000)

    assert split_of(rig, ran) == parts(execution=800)
    assert split_of(rig, slept) == parts(external=5_000)
