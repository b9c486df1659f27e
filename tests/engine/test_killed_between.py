"""Workers that are killed between two calls of one start, again and again: pop, claim, permit, running (A16, A18, A19).

Who goes on does so by the lease of a claim, by the lease of a place, or by the scan; by nothing that a dead process, or
one of the same name, would have to do.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kernel.config import Limit
from kernel.context import Context
from tests.engine.flows import flow, step
from tests.engine.test_deaths import killer
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.engine_runner import Killed

LEASE_MS = 1_500


@pytest.mark.case("A16")
@pytest.mark.req("clm-crash-lease", "core-running-is-not-alive", "core-worker-replaceable")
def test_a_worker_that_comes_back_under_the_same_name_keeps_no_claim_alive(rig: SteppedRig) -> None:
    """As a container whose host name and process number are always the same, and whose Redis is empty; here even the
    id is the same, that a process draws anew. It works, it renews what it has claimed itself, and the claim of its
    predecessor runs out all the same. Nobody proves the death."""
    killed: list[str] = []

    def activity(ctx: Context) -> str:
        if not killed:
            killed.append(ctx.workflow_id)
            first.kill()
        return "done"

    definition = flow(rig, step(rig, "a", activity))
    long = flow(rig, step(rig, "b", lambda ctx: rig.base_runner.event().wait(0.2)), type="long")
    first = rig.worker(definition, long, worker_id="w1")
    orphan = rig.start(definition)
    rig.pass_once(first)
    assert first.dead
    died_ms, token = rig.clock.boot_ms(), rig.row(orphan)["claim_token"]
    rig.queue.wipe()
    rig.permits.wipe()

    again = rig.worker(definition, long, worker_id="w1")
    others = [rig.start(long, f"other-{n}") for n in range(12)]
    rig.run(lambda: rig.ended(orphan, *others), "the end of all", again)

    (_, second) = [entry for entry in rig.ledger.of("a") if entry.workflow_id == orphan]
    assert LEASE_MS <= second.begin_ms - died_ms <= LEASE_MS + rig.settings.scan_ms + 2 * rig.settings.poll_ms
    assert rig.status(orphan) == "completed"
    assert [event["claim_token"] == token for event in rig.recorder.of("claim.taken", orphan)] == [True, False]
    assert {rig.step(key, "b").attempt for key in others} == {1}


@pytest.mark.case("A18")
@pytest.mark.req("prm-expiry", "prm-new-claim-new-owner")
def test_20_workers_die_with_the_only_place_in_their_hands(rig: SteppedRig) -> None:
    """Between the grant and "running". The place is free again when its lease ends, for whoever is next in line."""
    rig.limits["printer"] = Limit(max_concurrency=1)
    definition = flow(rig, step(rig, "a", resource="printer"))
    ids = [rig.start(definition, f"k{number}") for number in range(30)]
    deaths: list[int] = []
    for _ in range(20):
        worker = rig.worker(definition, deaths_max=0)
        worker.store.fail_once("begin_step", "kill_before")
        rig.run(lambda worker=worker: worker.dead, "a death between grant and running", worker)
        deaths.append(rig.clock.boot_ms())
        assert len(rig.permits.owners("printer")) == 1
    rig.worker(definition, deaths_max=0)
    rig.finish(*ids)

    most_ms = rig.settings.permit_lease_ms + rig.settings.scan_ms + rig.settings.poll_ms
    assert max(later - earlier for earlier, later in itertools.pairwise(deaths)) <= most_ms
    assert rig.permits.owners("printer") == []
    assert rig.permits.most["printer"] == 1
    assert {rig.status(key) for key in ids} == {"completed"}
    assert {rig.step(key, "a").attempt for key in ids} == {1}, "nobody was running yet"


def dies_after_pop(worker: RigWorker) -> None:
    pop = worker.queue.pop

    def dies(n: int) -> Any:
        popped = pop(n)
        if popped.candidates:
            raise Killed
        return popped

    worker.queue.pop = dies  # type: ignore[method-assign]


@pytest.mark.case("A19")
@pytest.mark.req("flt-pop-claim-crash", "prm-expiry")
def test_100_workers_die_between_pop_and_claim_and_between_claim_and_permit(rig: SteppedRig) -> None:
    """While others work at the same lanes: no id is missing in the end, and no place stays taken."""
    rig.limits["printer"] = Limit(max_concurrency=4)
    definition = flow(rig, step(rig, "a", resource="printer"))
    chance = random.Random(19)
    ids = []
    for number in range(100):
        ids += [rig.start(definition, f"k{number}-{n}") for n in range(5)]
        victim = rig.worker(definition, slots=4, deaths_max=0)
        if number % 2:
            dies_after_pop(victim)
        else:
            victim.store.fail_once("claim", "kill_after")
        rig.run(lambda victim=victim: victim.dead, "a death", victim)
        if chance.random() < 0.5:
            helper = rig.worker(definition, slots=4, deaths_max=0)
            rig.pass_once(helper)
            rig.advance(chance.randrange(300))
            rig.workers.remove(helper)
            helper.kill()
    rig.worker(definition, slots=8, deaths_max=0)
    rig.finish(*ids)

    assert len(ids) == 500 and {rig.status(key) for key in ids} == {"completed"}
    assert {rig.ledger.count("a", key) for key in ids} == {1}
    assert rig.permits.owners("printer") == []
    assert rig.permits.most["printer"] <= 4


def test_the_victims_of_these_tests_do_hold_what_they_die_with(rig: SteppedRig) -> None:
    """The tests above are worth something only if a popped id is gone and a claim is held by the dead."""
    definition = flow(rig, killer(rig, []))
    popper, claimer = rig.worker(definition), rig.worker(definition)
    dies_after_pop(popper)
    claimer.store.fail_once("claim", "kill_after")
    first = rig.start(definition, "first")
    rig.pass_once(popper)
    assert rig.queue.ids() == set() and "claim_token" not in rig.row(first)
    second = rig.start(definition, "second")
    rig.pass_once(claimer)
    assert popper.dead and claimer.dead
    assert "claim_token" in rig.row(second)
