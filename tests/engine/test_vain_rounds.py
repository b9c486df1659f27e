"""A queue that recommends nothing but what this worker can not run hides no work from it, and costs no more than looks
at the rate of the polls (group 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel.candidates import Candidate
from tests.engine.flows import flow
from tests.support.engine_rig import SteppedRig

POLL_MS = 5_000
SLOW = {
    "lease_ms": 30_000, "renew_ms": 10_000, "fence_ms": 25_000, "poll_ms": POLL_MS, "scan_ms": 30_000
}  # fmt: skip
"""The intervals of the default profile: a round by the poll is no matter of moments."""
MINUTE_MS = 60_000

MakeRig = Callable[..., SteppedRig]


def repeat(rig: SteppedRig, every_ms: int, turn: Callable[[], object]) -> None:
    """Let `turn` be made again and again while time passes, the first time in a moment."""

    def once() -> None:
        turn()
        rig.base_runner.call_at(rig.clock.boot_ms() + every_ms, once)

    rig.base_runner.call_at(rig.clock.boot_ms() + 1, once)


def let_pass(rig: SteppedRig, ms: int) -> None:
    end_ms = rig.clock.boot_ms() + ms
    rig.run(lambda: rig.clock.boot_ms() >= end_ms, f"{ms} ms")


@pytest.mark.req("sch-eight-stale", "sch-round-end", "sch-registered-types")
def test_a_backlog_that_waits_for_busy_workers_of_another_version_keeps_no_idle_worker_from_its_own(
    make_rig: MakeRig,
) -> None:
    """All of it is older than what is new, and each sweep of a dispatcher queues all of it again."""
    rig = make_rig(**SLOW)
    theirs, ours = flow(rig, "x", type="theirs"), flow(rig, "y", type="ours")
    for _ in range(2):
        rig.worker(ours, slots=8)
    let_pass(rig, POLL_MS)
    busy, _ = rig.dispatcher(theirs)
    _, sweeping = rig.dispatcher(theirs, ours)
    backlog = [rig.start(theirs, f"theirs-{number}") for number in range(100)]
    repeat(rig, POLL_MS, busy.sweeps.touch_definitions)
    repeat(rig, POLL_MS, sweeping.pass_once)
    let_pass(rig, 2 * MINUTE_MS)
    began_ms = rig.clock.boot_ms()

    wanted = rig.start(ours, "ours")
    rig.finish(wanted)

    assert rig.clock.boot_ms() - began_ms <= 3 * POLL_MS
    assert all("deferred" not in rig.row(key) for key in backlog), "their workers are alive"


@pytest.mark.req("sch-eight-stale", "sch-round-end", "sch-stale-sources", "sch-stale-dropped")
def test_hundreds_of_superseded_workflows_in_front_do_not_keep_a_live_one_waiting(make_rig: MakeRig) -> None:
    """Their ids are still got rid of, eight in a round, and the lane is empty in the end."""
    rig = make_rig(**SLOW)
    worker = rig.worker(definition := flow(rig, "a"), slots=8)
    dead = [rig.start(definition, f"dead-{number}") for number in range(500)]
    for workflow_id in dead:
        rig.client.supersede(workflow_id)
    rig.advance(1_000)
    live = rig.start(definition, "live")
    began_ms = rig.clock.boot_ms()

    rig.finish(live)

    assert rig.clock.boot_ms() - began_ms <= 3 * POLL_MS + 1_000
    assert len(rig.queue.ids()) > 400, "it did not wait for the lane to be empty"
    rig.run(lambda: not rig.queue.ids(), "the lane is empty", limit_ms=(500 // 8 + 4) * POLL_MS)
    assert [entry.workflow_id for entry in rig.ledger.entries] == [live]
    assert worker.scheduler.claims_stale >= 500


@pytest.mark.req("sch-eight-stale", "sch-round-end")
@pytest.mark.parametrize(("every_ms", "looks"), [(POLL_MS, MINUTE_MS // POLL_MS), (250, MINUTE_MS // 1_000)])
def test_a_minute_of_nothing_but_vain_candidates_costs_few_looks_at_the_store(
    make_rig: MakeRig, every_ms: int, looks: int
) -> None:
    """One for each poll, beside what an idle worker asks anyway; and one in a second at most however often the worker
    is woken, because a vain round may be what wakes it for the next one."""
    scans = []
    for candidates in (0, 2_500):
        rig = make_rig(**SLOW)
        worker = rig.worker(flow(rig, "a"), slots=8)
        rig.pass_once(worker)
        due_ms = rig.clock.wall_ms() - MINUTE_MS
        rig.queue.push([Candidate(f"wf-{number}", 1, due_ms) for number in range(candidates)], wake=False)
        worker.store.scans.clear()
        for _ in range(MINUTE_MS // every_ms):
            rig.advance(every_ms)
            rig.pass_once(worker)
        scans.append(len(worker.store.scans))
        assert candidates == 0 or rig.queue.ids(), "there was always a vain one"

    assert scans[0] < scans[1] <= scans[0] + looks + 1
