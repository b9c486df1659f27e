"""What a dead worker held is given back in few commits (L1), and a store that is away does not fill the log (L4)."""

from __future__ import annotations

import pytest

from kernel.definition import Definition
from kernel.errors import StoreUnavailable
from tests.engine.flows import flow
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.engine_store import Fault, Write

HELD, TOGETHER, NAMED = 70, 32, 8


def holding(rig: SteppedRig, definition: Definition, count: int) -> tuple[RigWorker, list[str]]:
    """A worker that holds so many claims, each renewed last when it was taken."""
    worker = rig.worker(definition, slots=count)
    ids = [rig.start(definition, f"k{number}") for number in range(count)]
    while len(worker.held) < count:
        worker.loop.pass_once()
    return worker, ids


@pytest.mark.req("l1", "shd-resume")
def test_many_claims_are_freed_in_few_commits_and_the_first_are_queued_before_the_last_are_free(
    durable_rig: SteppedRig,
) -> None:
    rig = durable_rig
    definition = flow(rig, "a")
    dead, ids = holding(rig, definition, HELD)
    dead.kill()
    process, loop = rig.dispatcher(definition)
    rig.queue.wipe()
    queued: list[int] = []

    def see(write: Write) -> Fault | None:
        queued.append(len(rig.queue.ids()))
        return None

    process.store.fault_of = see

    assert sorted(loop.release_owner("w1", counted=True)) == sorted(ids)
    assert [len(write.names) for write in process.store.writes] == [TOGETHER, TOGETHER, HELD - 2 * TOGETHER]
    assert queued == [0, TOGETHER, 2 * TOGETHER]
    assert rig.queue.ids() == set(ids)
    assert {rig.instance(key).deaths for key in ids} == {1}


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "unavailable"])
def test_an_answer_that_is_lost_frees_each_claim_once(durable_rig: SteppedRig, fault: Fault) -> None:
    rig = durable_rig
    definition = flow(rig, "a")
    dead, ids = holding(rig, definition, 5)
    dead.kill()
    process, loop = rig.dispatcher(definition)
    process.store.fail_at(0, fault)

    assert sorted(loop.release_owner("w1", counted=True)) == sorted(ids)
    assert {(rig.instance(key).deaths, rig.instance(key).claim_token) for key in ids} == {(1, None)}
    assert len(rig.recorder.of("claim.released_dead")) == len(ids)


def test_what_was_freed_before_the_store_went_away_is_told_and_queued(rig: SteppedRig) -> None:
    """The batch is lost as a whole, then settled one by one until the store is away; a repeated order does the rest."""
    definition = flow(rig, "a")
    dead, ids = holding(rig, definition, 5)
    dead.kill()
    process, loop = rig.dispatcher(definition)
    rig.queue.wipe()
    process.store.fault_of = lambda write: {0: "lose_request", 3: "unavailable"}.get(write.number)  # type: ignore[return-value]

    with pytest.raises(StoreUnavailable):
        loop.release_owner("w1", counted=True)

    assert len(rig.recorder.of("claim.released_dead")) == 2
    assert len(rig.queue.ids()) == 2
    assert len(loop.release_owner("w1", counted=True)) == 3
    assert {(rig.instance(key).deaths, rig.instance(key).claim_token) for key in ids} == {(1, None)}


@pytest.mark.req("l4")
def test_renewals_that_fail_are_told_once_an_outage_and_many_in_one_line(
    rig: SteppedRig, caplog: pytest.LogCaptureFixture
) -> None:
    worker, _ = holding(rig, flow(rig, "a"), 20)
    told: list[int] = []
    for fails in (True, True, True, False, True):
        worker.store.renewals_fail = "unavailable" if fails else None
        rig.clock.advance(200 if told else 500)
        caplog.clear()
        worker.renewals.pass_once()
        told.append(len([record for record in caplog.records if record.event == "claim.not_renewed"]))  # type: ignore[attr-defined]
        if not fails:
            rig.clock.advance(300)

    assert len(worker.store.renewed_at) == 5
    assert told == [NAMED + 1, 0, 0, 0, NAMED + 1]
    worker.kill()
