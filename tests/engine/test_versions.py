"""Definitions that change under living instances: never run by index, never failed, never lost (group 24)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import Definition
from kernel.directives import Sleep
from tests.engine.flows import flow, gives, raises, seconds, step
from tests.support.engine_rig import SteppedRig

HOUR_MS = 3_600_000


def abc(rig: SteppedRig, b: Any = None) -> Definition:
    return flow(rig, "a", step(rig, "b", b), "c")


def axbc(rig: SteppedRig) -> Definition:
    return flow(rig, "a", "x", "b", "c")


@pytest.mark.req("fpr-no-index-resume", "fpr-check-on-claim", "fpr-mismatch-not-failure", "s15")
def test_an_instance_of_a_b_c_is_not_run_as_a_x_b_c(rig: SteppedRig) -> None:
    """It sleeps in B while the new version is deployed everywhere; the old worker comes back and finishes it."""
    old = abc(rig, lambda ctx: "rested" if ctx.resume else Sleep(seconds(5)))
    old_worker = rig.worker(old)
    workflow_id = rig.start(old)
    rig.pass_once(old_worker)
    rig.advance(5_000)
    old_worker.sweep()
    before = rig.row(workflow_id)
    new_worker = rig.worker(axbc(rig))

    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute", new_worker)

    assert rig.row(workflow_id) == before
    assert rig.ledger.steps() == ["a", "b"]
    assert rig.recorder.of("workflow.failed") == []
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(old))
    assert rig.ledger.steps() == ["a", "b", "b", "c"]
    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("fpr-check-on-claim", "s15")
@pytest.mark.case("A57")
def test_a_worker_of_another_version_pushes_the_candidate_back_once_and_then_leaves_it(rig: SteppedRig) -> None:
    """Five seconds later another worker may have it; this one does not play ping-pong."""
    worker = rig.worker(axbc(rig))
    rig.pass_once(worker)
    workflow_id = rig.start(abc(rig))
    before = rig.row(workflow_id)
    rig.pass_once(worker)
    assert rig.queue.due_of(workflow_id) == rig.clock.wall_ms() + rig.settings.mismatch_push_ms
    rig.queue.pushed.clear()

    rig.advance(rig.settings.mismatch_push_ms)
    worker.scheduler.schedule_runnable_workflows()

    assert rig.queue.pushed == []
    assert rig.queue.ids() == set()
    assert rig.row(workflow_id) == before
    assert len(rig.recorder.of("claim.mismatch")) == 1
    assert worker.store.names() == ["claim", "claim"]


def dispatching(rig: SteppedRig, *definitions: Definition) -> Any:
    """A dispatcher that has been up for long enough to judge who lives."""
    _process, loop = rig.dispatcher(*definitions)
    rig.advance(3 * rig.settings.scan_ms)
    return loop


@pytest.mark.req("fpr-mismatch-defer", "fpr-mismatch-not-failure", "fpr-compatible-returns", "flt-old-version")
def test_a_dispatcher_defers_what_no_live_worker_can_run_and_releases_it_when_one_appears(rig: SteppedRig) -> None:
    """For an hour, with both fingerprints in the row; status, steps and attempts stay."""
    old, new = abc(rig), axbc(rig)
    _process, loop = rig.dispatcher(new)
    new_worker = rig.worker(new)
    workflow_id = rig.start(old)
    before = rig.row(workflow_id)
    loop.pass_once()
    assert rig.row(workflow_id) == before, "silence proves nothing right after the start"
    rig.run(lambda: rig.clock.boot_ms() >= 1_003_000, "three scan periods", new_worker)
    loop.pass_once()

    row = rig.row(workflow_id)
    assert row["claimable_time"] == rig.clock.wall_ms() + HOUR_MS
    assert row["deferred"] == {
        "stored": old.plan.fingerprint,
        "offered": [new.plan.fingerprint],
        "since_time": rig.clock.wall_ms(),
    }
    assert (row["status"], row["steps"], "claim_token" in row) == ("running", before["steps"], False)
    assert rig.ledger.entries == []
    (told,) = rig.recorder.of("claim.deferred", workflow_id)
    assert (told["stored"], list(told["offered"])) == (old.plan.fingerprint, [new.plan.fingerprint])  # type: ignore[call-overload]
    rig.run(lambda: rig.clock.boot_ms() > 1_120_000, "two minutes", new_worker)
    loop.pass_once()
    assert rig.row(workflow_id) == row

    old_worker = rig.worker(old)
    old_worker.sweeps.touch_definitions()
    rig.advance(rig.settings.scan_ms)
    loop.pass_once()
    assert "deferred" not in rig.row(workflow_id)
    assert rig.row(workflow_id)["claimable_time"] == rig.clock.wall_ms()
    assert workflow_id in rig.queue.ids()
    rig.run(lambda: rig.ended(workflow_id), "the end", old_worker, new_worker)
    assert rig.status(workflow_id) == "completed"
    assert {entry.worker_id for entry in rig.ledger.entries} == {old_worker.worker_id}


@pytest.mark.req("fpr-mismatch-defer")
def test_nothing_is_deferred_while_a_worker_of_its_version_lives(rig: SteppedRig) -> None:
    """It may be busy for long; that it is seen alive is enough."""
    old, new = abc(rig), axbc(rig)
    busy = rig.worker(old, slots=1)
    workflow_id = rig.start(old)
    busy.scheduler._busy = 1
    rig.pass_once(busy)
    loop = dispatching(rig, new)
    for _ in range(10):
        rig.pass_once(busy)
        loop.pass_once()
        rig.advance(rig.settings.scan_ms)

    assert "deferred" not in rig.row(workflow_id)
    busy.scheduler._busy = 0
    rig.finish(workflow_id)


@pytest.mark.req("fpr-compatible-returns")
def test_where_no_dispatcher_runs_a_worker_brings_back_what_was_deferred_for_want_of_it(rig: SteppedRig) -> None:
    """Its own versions alone: what nobody runs stays away."""
    old, other = abc(rig), flow(rig, "z", type="other")
    workflow_id, foreign = rig.start(old), rig.start(other, "foreign")
    loop = dispatching(rig)
    loop.pass_once()
    assert all("deferred" in rig.row(key) for key in (workflow_id, foreign))

    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(old), limit_ms=2 * rig.settings.scan_ms)

    assert (rig.status(workflow_id), "deferred" in rig.row(workflow_id)) == ("completed", False)
    assert "deferred" in rig.row(foreign)


def test_a_deferred_instance_is_claimed_by_itself_after_its_hour(rig: SteppedRig) -> None:
    old = abc(rig)
    workflow_id = rig.start(old)
    loop = dispatching(rig)
    loop.pass_once()
    assert rig.row(workflow_id)["claimable_time"] == rig.clock.wall_ms() + HOUR_MS
    rig.advance(HOUR_MS)

    rig.worker(old)
    rig.finish(workflow_id)

    assert (rig.status(workflow_id), "deferred" in rig.row(workflow_id)) == ("completed", False)


@pytest.mark.case("A45")
def test_a_page_of_rows_without_a_worker_hides_neither_the_others_nor_the_scan(rig: SteppedRig) -> None:
    gone, alive = flow(rig, "a", type="gone"), flow(rig, "b", type="alive")
    foreign = [rig.start(gone, f"g{k:02}") for k in range(25)]
    mine = rig.start(alive, "mine")
    rig.queue.wipe()
    rig.worker(alive, scan_page=5)
    rig.finish(mine, limit_ms=10_000)
    _process, loop = rig.dispatcher(alive, scan_page=5)
    rig.run(lambda: rig.clock.boot_ms() > 1_010_000, "ten seconds")
    loop.pass_once()

    assert all("deferred" in rig.row(workflow_id) for workflow_id in foreign)
    assert rig.status(mine) == "completed"


@pytest.mark.req("fpr-activity-evolves", "fpr-excludes")
def test_an_activity_may_change_under_a_sleeping_instance(rig: SteppedRig) -> None:
    """Another body, timeout and retry under the same names: the same version, and the new body's output."""
    first = flow(rig, step(rig, "a", lambda ctx: Sleep(seconds(5), 1)), "b")
    second = flow(
        rig,
        step(rig, "a", lambda ctx: ["v2", ctx.checkpoint()], timeout=seconds(7), max_retry=4),
        step(rig, "b", lambda ctx: ctx.output("a")),
        success_finalizer=gives(None),
    )
    old_worker = rig.worker(first)
    workflow_id = rig.start(first)
    rig.pass_once(old_worker)
    old_worker.kill()
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(second))

    assert rig.output(workflow_id) == ["v2", 1]


@pytest.mark.req("fpr-mismatch-not-failure")
def test_a_failing_instance_of_another_version_waits_too(rig: SteppedRig) -> None:
    finalized: list[str] = []
    old = flow(rig, step(rig, "a", raises(ValueError("no"))), failure_finalizer=lambda ctx: finalized.append("old"))
    new = flow(rig, "a", "more", failure_finalizer=lambda ctx: finalized.append("new"))
    first = rig.worker(old)
    first.store.fail_once("finish_failed", "kill_before")
    workflow_id = rig.start(old)
    rig.pass_once(first)
    rig.run(lambda: rig.clock.boot_ms() > 1_030_000, "half a minute", rig.worker(new))
    assert (rig.status(workflow_id), finalized) == ("failing", ["old"])

    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(old))

    assert finalized == ["old", "old"]


def test_the_mark_of_life_of_a_version_is_one_row_whoever_touches_it(rig: SteppedRig) -> None:
    definition = abc(rig)
    workers = [rig.worker(definition) for _ in range(3)]
    for worker in workers:
        rig.pass_once(worker)
    assert workers[0].sweeps.live_definitions() == {definition.plan.key}
    rig.advance(3 * rig.settings.scan_ms + 1)

    assert workers[0].sweeps.live_definitions() == frozenset()
    rig.pass_once(workers[1])
    assert workers[0].sweeps.live_definitions() == {definition.plan.key}


def test_the_context_of_an_old_version_is_not_mixed_with_a_new_one_in_one_worker(rig: SteppedRig) -> None:
    """A worker has one Definition per type; what it has not registered it does not touch."""
    seen: list[str] = []

    def activity(ctx: Context) -> None:
        seen.append(ctx.workflow_id)

    new = flow(rig, step(rig, "n", activity))
    worker = rig.worker(new)
    mine, foreign = rig.start(new, "k1"), rig.start(abc(rig), "k2")
    rig.run(lambda: rig.clock.boot_ms() > 1_010_000, "ten seconds", worker)

    assert seen == [mine]
    assert rig.status(foreign) == "running"
