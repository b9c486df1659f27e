"""The pass that fills slots: slots before claims, eight vain tries, stale hints, and the store beneath (group 9)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.candidates import Candidate
from kernel.context import Context
from kernel.directives import Sleep, Yield
from kernel.engine.takeover import Stale
from kernel.errors import StoreUnavailable
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.support.engine_rig import RigWorker, SteppedRig


def stale(rig: SteppedRig, number: int, lane: int = 1) -> list[str]:
    """Queue ids of workflows that do not exist, due before everything else."""
    ids = [f"wf-stale-{k:02}" for k in range(number)]
    rig.queue.push([Candidate(workflow_id, lane, rig.clock.wall_ms() - 60_000) for workflow_id in ids], wake=False)
    return ids


def only_pass(worker: RigWorker) -> int | None:
    """One pass of the scheduler alone: no sweep has run, and what it starts has not moved yet."""
    next_in_ms: int | None = worker.scheduler.schedule_runnable_workflows()
    return next_in_ms


def seen(rig: SteppedRig, worker: RigWorker) -> None:
    """Let the worker have its first look at the queue, which rebuilds it."""
    rig.pass_once(worker)


@pytest.mark.req("sch-slots", "sch-slot-before-claim", "sch-one-slot")
def test_a_worker_never_holds_more_claims_than_it_has_slots(rig: SteppedRig) -> None:
    most: list[int] = []

    def activity(ctx: Context) -> None:
        # One after the other in one thread, but while one runs another is already claimed: count the rows.
        rows = [rig.row(workflow_id) for workflow_id in ids]
        most.append(sum(row.get("worker_id") == "w1" for row in rows))

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition, slots=2)
    ids = [rig.start(definition, f"k{k}") for k in range(10)]
    worker.loop.pass_once()
    held = [rig.row(workflow_id).get("worker_id") for workflow_id in ids]
    assert (worker.busy, sorted(filter(None, held)), len(worker.held)) == (2, ["w1", "w1"], 2)
    other = rig.worker(definition, slots=8)
    other.loop.pass_once()
    assert other.busy == 8

    rig.finish(*ids)

    assert max(most) <= 2
    assert (worker.busy, other.busy) == (0, 0)


@pytest.mark.req("sch-slot-before-claim")
def test_a_pop_asks_for_no_more_candidates_than_there_are_free_slots(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition, slots=3)
    seen(rig, worker)
    for k in range(5):
        rig.start(definition, f"k{k}")
    asked = len(worker.queue.asked)

    worker.loop.pass_once()

    assert worker.queue.asked[asked:] == [3]
    assert len(rig.queue.ids()) == 2


@pytest.mark.req("sch-fill-until-full")
def test_one_trigger_fills_all_free_slots(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition, slots=4)
    seen(rig, worker)
    for k in range(4):
        rig.start(definition, f"k{k}")

    only_pass(worker)

    assert worker.busy == 4


@pytest.mark.req("sch-fill-until-full", "sch-stale-dropped")
def test_stale_candidates_between_good_ones_do_not_end_the_filling(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition, slots=4)
    seen(rig, worker)
    stale(rig, 7)
    for k in range(4):
        rig.start(definition, f"k{k}")

    only_pass(worker)

    assert worker.busy == 4
    assert rig.queue.ids() == set()


@pytest.mark.req("sch-eight-stale", "sch-stale-dropped", "clm-loser")
def test_eight_vain_candidates_end_a_round_and_give_the_slot_back(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    seen(rig, worker)
    stale(rig, 20)
    good = rig.start(definition, "good")
    popped = len(rig.queue.popped)

    only_pass(worker)
    assert (len(rig.queue.popped) - popped, worker.busy, len(rig.queue.ids())) == (8, 0, 13)
    only_pass(worker)
    assert (len(rig.queue.popped) - popped, worker.busy, len(rig.queue.ids())) == (16, 0, 5)
    only_pass(worker)
    rig.base_runner.run_all()

    assert rig.status(good) == "completed"
    assert rig.queue.ids() == set()
    assert worker.scheduler.claims_stale >= 20


@pytest.mark.req("sch-round-end", "sch-eight-stale")
def test_after_a_vain_round_the_next_trigger_reaches_the_good_candidate(rig: SteppedRig) -> None:
    """Ending a round is not sleeping: within two further poll intervals the twenty stale ones are behind."""
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    seen(rig, worker)
    stale(rig, 20)
    good = rig.start(definition, "good")
    began_ms = rig.clock.boot_ms()

    rig.finish(good)

    assert rig.clock.boot_ms() - began_ms <= 2 * rig.settings.poll_ms + 10


@pytest.mark.req("sch-stale-dropped", "sch-stale-sources", "can-stale-ready")
def test_hints_left_by_completions_and_supersedes_are_dropped_without_effect(rig: SteppedRig) -> None:
    """What was claimed from the store, ended or superseded leaves its id in the lane; a later pop drops it."""
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    completed, superseded = rig.start(definition, "k1"), rig.start(definition, "k2")
    rig.client.supersede(superseded)
    rig.queue.down = True
    rig.finish(completed)
    rig.queue.down = False
    assert rig.queue.ids() == {completed, superseded}
    before = [rig.row(completed), rig.row(superseded)]

    only_pass(worker)

    assert rig.queue.ids() == set()
    assert [rig.row(completed), rig.row(superseded)] == before
    assert rig.ledger.count("a") == 1


@pytest.mark.req("sch-fallback-down", "core-inv-claim", "sch-stale-sources")
def test_without_a_queue_workflows_run_from_the_store(rig: SteppedRig) -> None:
    rig.queue.down = True
    definition = flow(rig, "a", step(rig, "b", fails_first(1), max_retry=1), step(rig, "c", _naps))
    worker = rig.worker(definition)
    ids = [rig.start(definition, f"k{k}") for k in range(20)]

    rig.finish(*ids)

    assert {rig.status(workflow_id) for workflow_id in ids} == {"completed"}
    assert worker.scheduler.queue_failed
    assert rig.queue.popped == []


def _naps(ctx: Context) -> Any:
    return "rested" if ctx.resume else Sleep(seconds(2))


@pytest.mark.req("sch-fallback-empty")
def test_when_the_repair_scan_fails_an_empty_queue_is_no_answer(rig: SteppedRig) -> None:
    """The due instance is claimed from the store in the same round."""
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    seen(rig, worker)
    rig.queue.forgets = True
    workflow_id = rig.start(definition)
    rig.advance(rig.settings.scan_ms)
    worker.store.scan_fails = 1

    rig.pass_once(worker)

    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("sch-scan-not-only-empty", "core-redis-loss-latency")
def test_the_scan_finds_a_lost_candidate_beside_a_thousand_queued_ones(rig: SteppedRig) -> None:
    """A worker died between pop and claim: its id is nowhere."""
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    seen(rig, worker)
    rig.queue.push([Candidate(f"wf-{k}", 3, rig.clock.wall_ms() + 10_000_000) for k in range(1_000)], wake=False)
    lost = rig.start(definition, "lost")
    assert [candidate.workflow_id for candidate in rig.queue.pop(1)[0]] == [lost]
    rig.advance(rig.settings.scan_ms)
    assert len(rig.queue.ids()) == 1_000

    worker.sweep()

    assert lost in rig.queue.ids()


@pytest.mark.req("sch-expired-lease-found", "core-running-is-not-alive", "clm-crash-lease")
def test_the_scan_queues_a_claim_whose_lease_ran_out_and_leaves_a_live_one_alone(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    dead, alive = rig.worker(definition), rig.worker(definition)
    orphan = rig.start(definition, "orphan")
    dead.loop.pass_once()
    dead.kill()
    kept = rig.start(definition, "kept")
    alive.loop.pass_once()
    rig.queue.wipe()

    rig.advance(rig.settings.lease_ms - 100)
    alive.sweep()
    assert rig.queue.ids() == set()
    rig.advance(100)
    alive.sweep()

    assert rig.queue.ids() == {orphan}
    assert (rig.row(orphan)["worker_id"], rig.row(kept)["worker_id"]) == ("w1", "w2")


@pytest.mark.req("sch-scan-bounded")
@pytest.mark.case("A45")
def test_a_scan_reads_bounded_pages_and_the_next_one_goes_on_where_it_stopped(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition, scan_page=10, scan_pages=3)
    ids = {rig.start(definition, f"k{k:03}") for k in range(100)}
    rig.queue.wipe()
    found: list[int] = []
    for _ in range(4):
        worker.store.scans.clear()
        worker.sweep()
        found.append(len(rig.queue.ids()))
        assert len(worker.store.scans) <= 3
        assert {query.limit for query in worker.store.scans} == {10}

    assert found == [30, 60, 90, 100]
    assert rig.queue.ids() == ids


@pytest.mark.req("sch-registered-types", "spl-worker-full", "spl-type-switch", "s15")
@pytest.mark.case("A57")
def test_a_worker_takes_only_what_it_has_registered_and_leaves_the_rest_untouched(rig: SteppedRig) -> None:
    known, unknown = flow(rig, "a"), flow(rig, "b", type="other")
    worker = rig.worker(known)
    mine, foreign = rig.start(known, "k1"), rig.start(unknown, "k2")
    before = rig.row(foreign)
    rig.finish(mine)
    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute")
    assert rig.row(foreign) == before
    rig.queue.down = True
    rig.run(lambda: rig.clock.boot_ms() > 1_120_000, "a minute without a queue")
    assert rig.row(foreign) == before
    assert worker.held == []

    rig.queue.down = False
    rig.worker(known, unknown)
    rig.finish(foreign)

    assert rig.status(foreign) == "completed"
    assert rig.ledger.count("b") == 1


@pytest.mark.req("spl-registries", "spl-worker-full")
def test_a_plan_alone_makes_no_type_claimable(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker()
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute")
    assert "claim_token" not in rig.row(workflow_id)
    assert worker.scheduler.claims_taken == 0

    rig.worker(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("sch-slot-release")
def test_after_a_thousand_claims_of_every_kind_all_slots_are_free(rig: SteppedRig) -> None:
    definitions = [
        flow(rig, "a", type="completes"),
        flow(rig, step(rig, "a", raises(ValueError("no"))), type="fails"),
        flow(rig, step(rig, "a", fails_first(1), max_retry=1), type="retries"),
        flow(rig, step(rig, "a", _naps), type="sleeps"),
        flow(rig, step(rig, "a", lambda ctx: None if ctx.checkpoint() else Yield(1)), type="yields"),
        flow(rig, step(rig, "a", lambda ctx: rig.client.supersede(ctx.workflow_id)), type="superseded"),
        flow(rig, step(rig, "a", raises(KeyboardInterrupt())), type="panics"),
    ]
    worker = rig.worker(*definitions, slots=5)
    ids = [rig.start(definition, f"{definition.type}-{k}") for definition in definitions for k in range(110)]

    rig.finish(*ids)

    assert worker.scheduler.claims_taken >= 1_000
    assert worker.busy == 0
    assert worker.held == []


@pytest.mark.req("sch-waiting-holds-none")
def test_waiting_instances_hold_no_slot_claim_or_thread(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    sleeper = flow(rig, step(rig, "nap", lambda ctx: Sleep(seconds(86_400))), type="sleeper")
    worker = rig.worker(definition, sleeper, slots=2)
    asleep = [rig.start(sleeper, f"s{k}") for k in range(500)]
    rig.run(lambda: all(rig.status(workflow_id) == "waiting" for workflow_id in asleep), "all asleep")
    assert (worker.busy, worker.held) == (0, [])
    assert all("claim_token" not in rig.row(workflow_id) for workflow_id in asleep)
    began_ms = rig.clock.boot_ms()

    awake = [rig.start(definition, f"k{k}") for k in range(50)]
    rig.finish(*awake)

    assert rig.clock.boot_ms() - began_ms < rig.settings.poll_ms


@pytest.mark.req("core-candidate-not-right", "sch-one-slot", "clm-loser")
def test_one_id_in_all_lanes_and_in_four_hands_is_claimed_once(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    workers = [rig.worker(definition) for _ in range(4)]
    workflow_id = rig.start(definition)
    for lane in range(4):
        rig.queue.model.lanes[lane][workflow_id] = rig.clock.wall_ms()
    for worker in workers:
        worker.loop.pass_once()
    taken = rig.recorder.of("claim.taken")
    rig.finish(workflow_id)

    assert len(taken) == 1
    assert rig.ledger.count("a") == 1
    assert rig.instance(workflow_id).steps[0].attempt == 1


@pytest.mark.req("core-inv-claim")
def test_ids_without_a_row_run_nothing(rig: SteppedRig) -> None:
    worker = rig.worker(flow(rig, "a"))
    ids = stale(rig, 5)

    answers = worker.scheduler._claimer.take_all(ids, alone=False)
    rig.run(lambda: rig.clock.boot_ms() > 1_010_000, "ten seconds")

    assert all(isinstance(answer, Stale) for answer in answers)
    assert rig.ledger.entries == []


def test_a_store_that_is_away_stops_granting_and_is_asked_again(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    seen(rig, worker)
    workflow_id = rig.start(definition)
    worker.store.down = lambda: True
    with pytest.raises(StoreUnavailable):
        only_pass(worker)
    rig.start(definition)
    assert rig.pass_once(worker) <= 1_000
    assert worker.loop.status()["store"] == "down"

    worker.store.down = lambda: False
    rig.finish(workflow_id, limit_ms=10_000)

    assert worker.loop.status()["store"] == "up"


@pytest.mark.case("A45")
def test_forty_rows_that_nobody_can_claim_do_not_hide_a_good_one_from_the_store_fallback(rig: SteppedRig) -> None:
    """Without a queue a worker reads pages of due rows; a page full of damaged ones is not the end of the list."""
    rig.queue.down = True
    definition = flow(rig, "a")
    rig.worker(definition)
    for k in range(40):
        damaged = rig.start(definition, f"bad{k}")
        rig.store.apply(_damage(damaged, rig.clock.wall_ms() - 60_000))
    good = rig.start(definition, "good")

    rig.finish(good, limit_ms=60_000)

    assert rig.status(good) == "completed"


def _damage(workflow_id: str, due_ms: int) -> Any:
    """Make the row undecodable, as a claim left it long ago."""
    from kernel.store.conditional import Put, Transition
    from kernel.store.tables import INSTANCES

    changes = (Put("retry_count", "many"), Put("claim_token", "old"), Put("claimable_time", due_ms))
    return Transition("damage", INSTANCES, workflow_id, (), changes)
