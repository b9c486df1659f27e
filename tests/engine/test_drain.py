"""An orderly end of a worker: nothing new, the current step to its commit, the claim given back at once (group 28)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.directives import Sleep
from kernel.observe.projection import snapshot_of
from tests.engine.flows import flow, raises, seconds, step
from tests.support.engine_rig import LiveRig, SteppedRig
from tests.support.wait import wait_until


@pytest.mark.req("shd-claim-stops", "shd-release", "shd-not-cancel", "stp-retry-rules")
def test_a_draining_worker_ends_its_claim_after_the_current_step_and_another_goes_on_at_once(
    durable_rig: SteppedRig,
) -> None:
    """The activity is not cancelled; the lease of a minute plays no part."""
    rig = durable_rig
    told: list[bool] = []

    def stopping(ctx: Context) -> str:
        if ctx.worker_id == "w1":
            first.loop.drain()
        rig.advance(500)
        told.append(ctx.cancelled)
        return "committed"

    definition = flow(rig, "a", step(rig, "b", stopping), "c", "d")
    first, second = (rig.worker(definition, lease_ms=60_000, fence_ms=50_000) for _ in range(2))
    workflow_id = rig.start(definition)
    rig.pass_once(first)

    row = rig.row(workflow_id)
    assert [s["status"] for s in row["steps"]] == ["completed", "completed", "pending", "pending"]
    assert (row["status"], "claim_token" in row) == ("running", False)
    assert row["claimable_time"] <= rig.clock.wall_ms()
    assert workflow_id in rig.queue.ids()
    assert (told, first.busy) == ([False], 0)
    assert first.store.names()[-2:] == ["complete_step", "release"], "nothing was begun to be taken back"
    rig.pass_once(second)
    assert rig.status(workflow_id) == "completed"
    assert [(e.step, e.worker_id) for e in rig.ledger.entries] == [
        ("a", "w1"), ("b", "w1"), ("c", "w2"), ("d", "w2"),
    ]  # fmt: skip
    assert [s.attempt for s in rig.instance(workflow_id).steps] == [1, 1, 1, 1]


@pytest.mark.req("core-worker-replaceable")
def test_a_worker_that_must_end_in_mid_step_gives_back_what_nobody_may_begin_before_it_is_gone(
    durable_rig: SteppedRig,
) -> None:
    """Nobody will prove its end. No death is counted; what its activity still returns is not committed."""
    rig = durable_rig
    seen: list[tuple[bool, bool]] = []

    def outlasting(ctx: Context) -> str:
        if ctx.worker_id == "w1":
            first.loop.drain()
            first.loop.give_up_all(2_000)
            given_back.update(rig.row(workflow_id))
            seen.append((ctx.cancelled, given_back["claimable_time"] == rig.clock.wall_ms() + 2_000))
        return ctx.worker_id

    given_back: dict[str, Any] = {}
    definition = flow(rig, step(rig, "a", outlasting))
    first, second = (rig.worker(definition, lease_ms=60_000, fence_ms=50_000) for _ in range(2))
    workflow_id = rig.start(definition)
    rig.pass_once(first)

    assert seen == [(True, True)]
    assert "claim_token" not in given_back
    assert rig.row(workflow_id)["steps"][0]["status"] == "running", "nothing was committed after the fence"
    at_ms = rig.clock.wall_ms()
    shown = snapshot_of(rig.instance(workflow_id), at_ms)
    assert (shown.waiting, shown.waiting_until) == ("worker", at_ms + 2_000), (
        "it was interrupted, and sleeps for nobody"
    )
    rig.pass_once(second)
    assert rig.ledger.count("a") == 1, "the first may still be at work"
    rig.advance(2_000)
    rig.run(lambda: rig.status(workflow_id) == "completed", "the second has done it", second)
    instance = rig.instance(workflow_id)
    assert (rig.output(workflow_id), instance.deaths, instance.steps[0].takeovers) == ("w2", 0, 1)


def test_a_claim_that_ends_between_begin_and_entry_takes_the_attempt_back(rig: SteppedRig) -> None:
    """No attempt happened: the step is pending again, without an attempt, claimable now (DECISIONS detail 4)."""
    definition = flow(rig, "a", "b")
    first = rig.worker(definition)
    workflow_id = rig.start(definition)

    def stop(call: Any) -> None:
        if call.names == ("begin_step",):
            first.scheduler._stopping = True

    first.store.fault_of = stop
    rig.pass_once(first)

    row = rig.row(workflow_id)
    assert first.store.names()[-1] == "unbegin"
    assert (row["steps"][0]["status"], row["steps"][0]["attempt"], row["steps"][0].get("takeovers")) == (
        "pending",
        0,
        0,
    )
    assert (row["status"], "claim_token" in row, row["deaths"]) == ("running", False, 0)
    assert workflow_id in rig.queue.ids()
    assert rig.ledger.entries == []
    rig.worker(definition)
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.workers[1])
    assert rig.step(workflow_id, "a").attempt == 1


def test_a_draining_worker_takes_nothing_new(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    rig.pass_once(worker)
    worker.loop.drain()
    workflow_id = rig.start(definition)

    worker.scheduler.schedule_runnable_workflows()

    assert (worker.busy, worker.queue.asked[-1]) == (0, 8)
    assert workflow_id in rig.queue.ids()
    assert "claim_token" not in rig.row(workflow_id)


def test_a_claim_just_taken_is_given_back_unentered(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.loop.pass_once()
    worker.loop.drain()
    rig.base_runner.run_all()

    row = rig.row(workflow_id)
    assert ("claim_token" in row, row["steps"][0]["attempt"], rig.ledger.entries) == (False, 0, [])
    assert row["claimable_time"] <= rig.clock.wall_ms()


@pytest.mark.req("shd-no-business-fail", "shd-claim-stops")
def test_a_draining_worker_still_completes_a_failure(rig: SteppedRig) -> None:
    """Failure convergence is no new step."""
    definition = flow(
        rig,
        step(rig, "bad", lambda ctx: worker.loop.drain() or raises(ValueError("no"))(ctx)),
        failure_finalizer=rig.ledger(lambda ctx: None),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "failed"
    assert rig.ledger.count(None) == 1


@pytest.mark.req("shd-not-cancel", "shd-claim-stops", "shd-release", "sch-slot-release")
def test_a_live_worker_drains_while_another_takes_over_its_work(live: LiveRig) -> None:
    """The running activity goes on to its commit; then every thread of the worker ends."""
    gate = live.gate()
    definition = flow(live, step(live, "a", lambda ctx: gate.wait(60)), "b")
    first = live.worker(definition)
    workflow_id = live.start(definition)
    wait_until(lambda: live.ledger.count("a"), "the first step has begun")
    first.loop.drain()
    second = live.worker(definition)
    wait_until(lambda: second.loop.status()["counters"], "the second one is up")
    assert not first.loop.done.is_set()
    gate.set()
    live.wait_ended(workflow_id)

    assert [(e.step, e.worker_id) for e in live.ledger.entries] == [("a", "w1"), ("b", "w2")]
    wait_until(first.loop.done.is_set, "the first one has ended")
    assert live.step(workflow_id, "a").attempt == 1


@pytest.mark.req("shd-no-business-fail", "core-worker-replaceable")
def test_a_rolling_restart_of_all_workers_fails_nothing_and_repeats_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, "a", step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(3))), "b", "c")
    ids = [rig.start(definition, f"k{k}") for k in range(20)]
    for _ in range(10):
        worker = rig.worker(definition, slots=3)
        rig.pass_once(worker)
        worker.loop.drain()
        rig.advance(500)
    rig.worker(definition)
    rig.run(lambda: rig.ended(*ids), "the end", rig.workers[-1])

    assert {rig.status(workflow_id) for workflow_id in ids} == {"completed"}
    assert len(rig.ledger.entries) == 20 * 5
    assert all(rig.instance(workflow_id).deaths == 0 for workflow_id in ids)
    assert {s.attempt for workflow_id in ids for s in rig.instance(workflow_id).steps} == {1}


@pytest.mark.req("shd-five-min", "shd-no-business-fail", "core-worker-replaceable")
def test_a_task_of_ten_minutes_survives_restarts_of_all_workers_with_a_short_grace(rig: SteppedRig) -> None:
    """What has to outlive a process is in the row: the grace is for wrapping up only."""

    def poll(ctx: Context) -> Any:
        rig.advance(1_000)
        polls = ctx.checkpoint() or 0
        return Sleep(seconds(30), polls + 1) if polls < 20 else polls

    definition = flow(rig, step(rig, "poll", poll, timeout=seconds(5)))
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    for generation in range(1, 5):
        worker = rig.worker(definition)
        until_ms = began_ms + generation * 150_000
        rig.run(lambda until_ms=until_ms: rig.clock.boot_ms() > until_ms, "a while", worker)  # type: ignore[misc]
        worker.loop.drain()
        rig.pass_once(worker)
        assert worker.busy == 0
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(definition))

    assert rig.output(workflow_id) == 20
    assert rig.clock.boot_ms() - began_ms >= 600_000
    assert {entry.worker_id for entry in rig.ledger.entries} == {"w1", "w2", "w3", "w4", "w5"}
    assert rig.step(workflow_id, "poll").attempt == 1
