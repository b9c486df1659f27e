"""Steps side by side: what a wave waits for, what a sibling's end means, and how a claim ends after it (group 14)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kernel.context import Context
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.store.conditional import Put, Transition
from tests.engine.flows import fails_first, flow, gives, raises, seconds, step
from tests.support.engine_rig import LiveRig, SteppedRig
from tests.support.wait import wait_until


@pytest.mark.req("dag-wave-parallel", "dag-root")
def test_the_steps_of_a_wave_run_side_by_side(live: LiveRig) -> None:
    """All of them meet at one barrier, which none could pass alone."""
    barrier = threading.Barrier(4)
    roots = [step(live, f"root{k}", lambda ctx: barrier.wait(60) >= 0, depends_on=[]) for k in range(4)]
    definition = flow(live, *roots, step(live, "last", depends_on=[f"root{k}" for k in range(4)]))
    live.worker(definition)
    workflow_id = live.start(definition)

    live.wait_ended(workflow_id)

    assert live.status(workflow_id) == "completed"
    assert len(live.recorder.of("claim.taken")) == 1


@pytest.mark.req("dag-output-mutex", "dag-wave-independent-commits")
@pytest.mark.parametrize("kind", ["live", "live_sqlite"])
def test_sixteen_steps_that_complete_at_once_lose_no_output(request: pytest.FixtureRequest, kind: str) -> None:
    rig: LiveRig = request.getfixturevalue(kind)
    names = [f"s{k}" for k in range(16)]
    definition = flow(
        rig,
        *(step(rig, name, depends_on=[]) for name in names),
        step(rig, "last", lambda ctx: [ctx.output(name) for name in names], depends_on=names),
    )
    rig.worker(definition, wave_threads=16)
    ids = [rig.start(definition, f"k{k}") for k in range(8)]
    rig.wait_ended(*ids)

    assert [rig.output(workflow_id) for workflow_id in ids] == [names] * 8
    assert all(len(rig.instance(workflow_id).outputs) == 17 for workflow_id in ids)
    assert rig.ledger.overlaps() == []


@pytest.mark.req("dag-wave-independent-commits")
def test_a_completion_touches_its_own_step_and_its_own_output_only(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", depends_on=[]), step(rig, "b", depends_on=[]), step(rig, "c"))
    worker = rig.worker(definition)
    applied: list[Transition] = []
    inner_apply = rig.store.apply

    def apply(transition: Transition) -> Any:
        applied.append(transition)
        return inner_apply(transition)

    rig.store.apply = apply  # type: ignore[method-assign]
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    completions = [t for t in applied if t.name == "complete_step"][:2]
    for index, completion in enumerate(completions):
        fields = {change.field for change in completion.changes}
        assert "outputs" not in fields
        assert {field for field in fields if field.startswith("outputs")} == {f"outputs.{'ab'[index]}"}
        assert {field.split(".")[1] for field in fields if field.startswith("steps")} == {str(index)}
        assert Put(f"steps.{index}.status", "completed") in completion.changes
    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("dag-wave-siblings", "sor-replay-unfinished")
def test_siblings_of_a_failed_step_are_awaited_and_their_results_kept(rig: SteppedRig) -> None:
    order: list[str] = []
    definition = flow(
        rig,
        step(rig, "bad", fails_first(1), depends_on=[]),
        step(rig, "good", lambda ctx: order.append(rig.step(ctx.workflow_id, "bad").status) or "kept", depends_on=[]),
        step(rig, "last", depends_on=["bad", "good"]),
    )
    workflow_id = rig.drive(definition)
    failed = rig.instance(workflow_id)
    assert order == ["failed"]
    assert (failed.status, [s.status for s in failed.steps]) == ("failed", ["failed", "completed", "pending"])
    assert set(failed.outputs) == {"good"}

    rig.start(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    assert rig.ledger.steps() == ["bad", "good", "bad", "last"]


@pytest.mark.req("dag-wave-siblings")
def test_failing_begins_only_after_the_last_sibling_has_returned(live: LiveRig) -> None:
    gate = live.gate()
    begun = threading.Event()

    def slow(ctx: Context) -> str:
        begun.set()
        gate.wait(60)
        return "kept"

    finalized: list[str] = []
    definition = flow(
        live,
        step(live, "slow", slow, depends_on=[]),
        step(live, "bad", lambda ctx: begun.wait(60) and raises(ValueError("no"))(ctx), depends_on=[]),
        failure_finalizer=lambda ctx: finalized.append(live.step(ctx.workflow_id, "slow").status),
    )
    live.worker(definition)
    workflow_id = live.start(definition)
    wait_until(lambda: live.step(workflow_id, "bad").status == "failed", "the failure is committed")
    assert (live.status(workflow_id), finalized) == ("running", [])
    gate.set()
    live.wait_ended(workflow_id)

    assert (live.status(workflow_id), finalized) == ("failed", ["completed"])


@pytest.mark.req("dag-wave-suspend")
def test_when_one_step_of_a_wave_suspends_the_others_finish_before_the_claim_ends(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "naps", lambda ctx: "rested" if ctx.resume else Sleep(seconds(10), "cursor"), depends_on=[]),
        step(rig, "works", depends_on=[]),
        step(rig, "after", depends_on=["works"]),
        step(rig, "last", depends_on=["naps", "after"]),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    row, instance = rig.row(workflow_id), rig.instance(workflow_id)
    assert [s.status for s in instance.steps] == ["waiting", "completed", "completed", "pending"]
    assert (row["status"], "claim_token" in row) == ("waiting", False)
    assert row["claimable_time"] == row["wait"]["poll_time"] == rig.clock.wall_ms() + 10_000
    assert instance.steps[0].checkpoint is not None
    rig.finish(workflow_id)
    assert rig.ledger.steps() == ["naps", "works", "after", "naps", "last"]


@pytest.mark.req("dag-wave-two-suspends", "rec-wait-resume")
def test_two_suspensions_of_one_wave_wake_each_at_its_own_time_with_its_own_checkpoint(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    woken: list[tuple[str, int, Any]] = []

    def naps(name: str, number: float) -> Any:
        def activity(ctx: Context) -> Any:
            if ctx.resume is None:
                return Sleep(seconds(number), f"cursor of {name}")
            woken.append((name, rig.clock.boot_ms() - began_ms, ctx.checkpoint()))
            return name

        return activity

    definition = flow(
        rig,
        step(rig, "long", naps("long", 30), depends_on=[]),
        step(rig, "short", naps("short", 10), depends_on=[]),
        step(rig, "last", lambda ctx: [ctx.output("long"), ctx.output("short")], depends_on=["long", "short"]),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    rig.pass_once(worker)
    row = rig.row(workflow_id)
    assert [s["status"] for s in row["steps"][:2]] == ["waiting", "waiting"]
    assert row["wait"]["step"] == "short"
    assert row["claimable_time"] == rig.clock.wall_ms() + 10_000
    rig.run(lambda: len(woken) == 1, "the first one wakes")
    assert rig.row(workflow_id)["claimable_time"] == row["claimable_time"] + 20_000
    rig.finish(workflow_id)

    assert [(name, cursor) for name, _, cursor in woken] == [
        ("short", "cursor of short"),
        ("long", "cursor of long"),
    ]
    assert 10_000 <= woken[0][1] < 10_400
    assert 30_000 <= woken[1][1] < 30_400
    assert rig.output(workflow_id) == ["long", "short"]


@pytest.mark.req("dag-wave-two-suspends")
def test_two_waits_that_are_due_when_a_claim_begins_are_run_in_one_wave(rig: SteppedRig) -> None:
    """A claim first activates all its own due steps: a long one must not make the other wait (DECISIONS detail 1)."""
    seen: list[list[str]] = []

    def activity(ctx: Context) -> Any:
        if ctx.resume is None:
            return Sleep(seconds(1 if ctx.step == "a" else 2))
        seen.append([record.status for record in rig.instance(ctx.workflow_id).steps[:2]])
        return "rested"

    definition = flow(
        rig,
        step(rig, "a", activity, depends_on=[]),
        step(rig, "b", activity, depends_on=[]),
        step(rig, "last", depends_on=["a", "b"]),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.advance(5_000)
    rig.pass_once(worker)

    assert "waiting" not in seen[0]
    assert rig.status(workflow_id) == "completed"
    assert len(rig.recorder.of("claim.taken")) == 2


@pytest.mark.req("dag-wave-two-suspends", "slp-signal-no-fallback")
def test_a_timed_wait_beside_a_wait_for_a_signal_only_wakes_alone(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "asks", lambda ctx: WaitForSignal("answer", "key-1"), depends_on=[]),
        step(rig, "naps", lambda ctx: "rested" if ctx.resume else Sleep(seconds(5)), depends_on=[]),
        step(rig, "last", depends_on=["asks", "naps"]),
    )
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.step(workflow_id, "naps").status == "completed", "the timed one completes")
    rig.advance(3_600_000)
    rig.pass_once(rig.workers[0])

    row = rig.row(workflow_id)
    assert (row["status"], row["wait"]["step"], "claimable_time" in row) == ("waiting", "asks", False)
    assert rig.ledger.count("asks") == 1


@pytest.mark.parametrize("pause", ["retries", "yields"])
@pytest.mark.req("stp-retry-durable", "dag-wave-suspend")
def test_a_retry_or_yield_in_a_wave_gives_the_claim_back_and_is_no_loop_in_its_thread(
    rig: SteppedRig, pause: str
) -> None:
    """Any worker may run the next attempt; the siblings have committed before."""
    again = fails_first(1) if pause == "retries" else lambda ctx: "done" if ctx.checkpoint() else Yield("cursor")
    definition = flow(
        rig,
        step(rig, "again", again, max_retry=1, depends_on=[]),
        step(rig, "other", depends_on=[]),
        step(rig, "last", depends_on=["again", "other"]),
    )
    first = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    first.loop.drain()
    row = rig.row(workflow_id)
    assert (row["status"], "claim_token" in row) == ("running", False)
    assert row["claimable_time"] <= rig.clock.wall_ms()
    assert workflow_id in rig.queue.ids()

    rig.pass_once(rig.worker(definition))

    assert rig.status(workflow_id) == "completed"
    assert [(e.step, e.worker_id) for e in rig.ledger.entries] == [
        ("again", "w1"),
        ("other", "w1"),
        ("again", "w2"),
        ("last", "w2"),
    ]


@pytest.mark.req("dag-wave-siblings")
def test_a_step_that_is_left_out_does_not_stop_its_siblings(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "left_out", raises(ValueError("no")), on_failed="skip", depends_on=[]),
        step(rig, "good", depends_on=[]),
        step(rig, "last", gives("end"), depends_on=["left_out", "good"]),
    )
    workflow_id = rig.drive(definition)

    assert [s.status for s in rig.instance(workflow_id).steps] == ["skipped", "completed", "completed"]


def test_a_wave_wider_than_its_threads_runs_in_batches(rig: SteppedRig) -> None:
    names = [f"s{k}" for k in range(10)]
    definition = flow(rig, *(step(rig, n, depends_on=[]) for n in names), step(rig, "last", depends_on=names))
    rig.worker(definition, wave_threads=3)
    workflow_id = rig.drive(definition)

    assert rig.ledger.steps() == [*names, "last"]
    assert len(rig.recorder.of("claim.taken")) == 1
    assert rig.status(workflow_id) == "completed"


def test_a_claim_lost_in_one_step_of_a_wave_ends_all_of_it(rig: SteppedRig) -> None:
    """The sibling that has returned meanwhile commits nothing either."""
    definition = flow(
        rig,
        step(rig, "a", lambda ctx: rig.client.supersede(ctx.workflow_id), depends_on=[]),
        step(rig, "b", depends_on=[]),
    )
    workflow_id = rig.drive(definition)
    before = rig.row(workflow_id)
    rig.base_runner.run_all()

    assert rig.row(workflow_id) == before
    assert (before["status"], [s["status"] for s in before["steps"]]) == ("canceled", ["running", "pending"])
    assert rig.workers[0].busy == 0
