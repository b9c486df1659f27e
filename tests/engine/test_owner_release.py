"""Proof of death: what the claims of a worker become when its death is known (DECISIONS 27)."""

from __future__ import annotations

import pytest

from kernel.context import Context
from kernel.directives import Sleep
from tests.engine.flows import flow, seconds, step
from tests.engine.test_deaths import LEASE_MS, die_once, killer
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("shd-resume")
def test_a_proved_death_frees_every_claim_at_once_and_only_those(durable_rig: SteppedRig) -> None:
    """Running, failing and many; the claims of others and the waits stay as they are."""
    rig = durable_rig
    definition = flow(rig, step(rig, "a", lambda ctx: dead.kill() if ctx.worker_id == "w1" else "done"))
    naps = flow(rig, step(rig, "nap", lambda ctx: Sleep(seconds(60))), type="naps")
    dead = rig.worker(definition, naps, slots=5)
    alive = rig.worker(definition, naps)
    asleep = rig.start(naps, "asleep")
    rig.pass_once(dead)
    orphans = [rig.start(definition, f"o{k}") for k in range(5)]
    dead.loop.pass_once()
    kept = rig.start(definition, "kept")
    alive.loop.pass_once()
    rig.base_runner.run_one()
    assert dead.dead
    before = {workflow_id: rig.row(workflow_id) for workflow_id in (kept, asleep)}
    rig.queue.wipe()
    dispatcher, loop = rig.dispatcher(definition, naps, scan_page=2)

    freed = loop.release_owner("w1", counted=True)

    assert sorted(freed) == sorted(orphans)
    assert rig.queue.ids() == set(orphans)
    for workflow_id in orphans:
        row = rig.row(workflow_id)
        assert ("claim_token" in row, row["deaths"], row["claimable_time"]) == (False, 1, rig.clock.wall_ms())
    assert {workflow_id: rig.row(workflow_id) for workflow_id in (kept, asleep)} == before
    assert loop.release_owner("w1", counted=True) == []
    assert dispatcher.scheduler.busy == 0
    began_ms = rig.clock.boot_ms()
    rig.run(lambda: rig.ended(*orphans), "the end", alive)
    assert rig.clock.boot_ms() - began_ms < 1_000


@pytest.mark.parametrize(("counted", "deaths"), [(True, [1, 2, 3]), (False, [0, 0, 0])])
def test_a_death_that_was_ordered_is_not_counted(rig: SteppedRig, counted: bool, deaths: list[int]) -> None:
    """Drain limit, recycle and stop say nothing about the work; three other deaths park it."""
    definition = flow(rig, killer(rig, ["w1", "w2", "w3"]))
    workflow_id = rig.start(definition)
    _dispatcher, loop = rig.dispatcher(definition)
    seen = []
    for _ in range(3):
        worker = rig.worker(definition)
        rig.run(lambda worker=worker: worker.dead, "a death", worker)
        loop.release_owner(worker.worker_id, counted=counted)
        seen.append(rig.instance(workflow_id).deaths)

    assert seen == deaths
    assert (rig.instance(workflow_id).parked is not None) is counted
    rig.worker(definition)
    rig.finish(workflow_id)
    assert (rig.status(workflow_id) == "completed") is not counted


def test_a_notice_of_death_that_comes_late_touches_no_newer_claim(rig: SteppedRig) -> None:
    """The lease ran out first and another worker holds the claim now."""
    definition = flow(rig, killer(rig, ["w1"]))
    first = rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    rig.advance(LEASE_MS)
    second = rig.worker(definition)
    second.loop.pass_once()
    second.sweep()
    second.loop.pass_once()
    held = rig.row(workflow_id)
    assert held["worker_id"] == "w2"
    _dispatcher, loop = rig.dispatcher(definition)

    assert loop.release_owner("w1", counted=True) == []
    assert rig.row(workflow_id) == held


@pytest.mark.req("clm-late-worker")
def test_a_worker_declared_dead_while_it_lives_can_commit_nothing_more(rig: SteppedRig) -> None:
    """The declaration was wrong; the token decides all the same."""
    definition = flow(rig, step(rig, "a", lambda ctx: _declare(rig, ctx)))
    worker = rig.worker(definition)
    rig.dispatcher(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    row = rig.row(workflow_id)
    assert (row["steps"][0]["status"], row["outputs"], "claim_token" in row) == ("running", {}, False)
    assert rig.recorder.names()[-1] == "claim.lost"


def _declare(rig: SteppedRig, ctx: Context) -> str:
    process, _loop = rig.dispatcher()
    process.sweeps.release_owner(ctx.worker_id, counted=True)
    return "too late"
