"""Who has ended, or was put aside, while it stood in line keeps no place from those who wait (DECISIONS 12)."""

from __future__ import annotations

import pytest

from kernel.context import Context
from kernel.definition import Definition
from tests.engine.flows import flow, raises, step
from tests.engine.occupied import Occupied
from tests.engine.test_permits import waits
from tests.support.engine_rig import SteppedRig

WAYS = ["superseded", "superseded as a whole", "failed"]
CROWD = 20


def in_line(rig: SteppedRig) -> set[str]:
    return {workflow_id for workflow_id, _ in rig.permits.of("printer").line}


def doomed(rig: SteppedRig, way: str) -> Definition:
    """Of workflows that stand in line for the printer, and will end there."""
    if way == "superseded as a whole":
        return flow(rig, "a", type="doomed", resource="printer")
    beside = [step(rig, "b", raises(ValueError("no")), depends_on=[])] if way == "failed" else []
    return flow(rig, step(rig, "a", resource="printer", depends_on=[]), *beside, type="doomed")


def enter_line(rig: SteppedRig, definition: Definition, number: int) -> list[str]:
    ids = [rig.start(definition, f"doomed{k}") for k in range(number)]
    rig.run(lambda: in_line(rig) >= set(ids) and not any(worker.busy for worker in rig.workers), "all stand in line")
    return ids


def end(rig: SteppedRig, *ids: str) -> None:
    """Supersede those that have not failed by themselves."""
    for workflow_id in ids:
        rig.client.supersede(workflow_id)
    assert rig.ended(*ids)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.req("prm-release", "can-supersede", "can-wait-released", "dag-wave-siblings")
def test_who_ended_in_line_keeps_no_place_from_the_one_behind(rig: SteppedRig, way: str) -> None:
    printer = Occupied(rig, "printer")
    definition, printing = doomed(rig, way), flow(rig, step(rig, "a", resource="printer"))
    rig.worker(definition, printing, permit_wait_ms=600_000)
    ids = enter_line(rig, definition, CROWD)
    live = rig.start(printing)
    waits(rig, live)
    end(rig, *ids)
    assert in_line(rig) == {*ids, live}

    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(live)

    assert {rig.status(workflow_id) for workflow_id in ids} == {"failed" if way == "failed" else "canceled"}
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert in_line(rig) == set()
    assert rig.permits.owners("printer") == []


@pytest.mark.req("prm-release", "can-supersede")
def test_newcomers_do_not_wait_behind_superseded_workflows(rig: SteppedRig) -> None:
    printer = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    ids = enter_line(rig, definition, 100)
    end(rig, *ids)
    printer.free()

    delays_ms = []
    for number in range(5):
        newcomer = rig.start(definition, f"new{number}")
        rig.finish(newcomer)
        delays_ms.append(rig.step(newcomer, "a").started_time - rig.instance(newcomer).created_time)
        rig.advance(1_000)

    assert max(delays_ms) <= rig.settings.poll_ms
    assert in_line(rig) == set()


@pytest.mark.req("prm-release", "prm-wake-lost")
def test_a_parked_workflow_leaves_the_line_and_stands_in_it_again_when_it_is_back(rig: SteppedRig) -> None:
    """Its first step stands in line, the one beside it kills three workers."""
    printer = Occupied(rig, "printer")

    def kills(ctx: Context) -> str:
        for worker in rig.workers[:3]:
            if worker.worker_id == ctx.worker_id:
                worker.kill()
        return ctx.worker_id

    deadly = flow(rig, step(rig, "a", resource="printer", depends_on=[]), step(rig, "b", kills, depends_on=[]))
    printing = flow(rig, step(rig, "a", resource="printer"), type="printing")
    workflow_id = rig.start(deadly)
    for _ in range(3):
        mortal = rig.worker(deadly, permit_wait_ms=600_000)
        rig.run(lambda mortal=mortal: mortal.dead, "its death", mortal)
    survivor = rig.worker(deadly, printing, permit_wait_ms=600_000)
    rig.run(lambda: "parked" in rig.row(workflow_id), "the parking", survivor)
    live = rig.start(printing, "live")
    waits(rig, live)
    assert in_line(rig) == {workflow_id, live}

    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(live)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert in_line(rig) == set()

    printer = Occupied(rig, "printer")
    assert rig.client.unpark(workflow_id)
    rig.run(lambda: in_line(rig) == {workflow_id} and survivor.busy == 0, "it stands in line again")
    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert (rig.status(workflow_id), rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms) == ("completed", True)


@pytest.mark.req("prm-release", "fin-failing-first")
def test_who_fails_for_days_holds_up_nobody_and_is_asked_for_by_nobody(rig: SteppedRig) -> None:
    """Its failure finalizer goes on failing: it is no end, and it waits for no place any more."""
    printer = Occupied(rig, "printer")
    steps = [step(rig, "a", resource="printer", depends_on=[]), step(rig, "b", raises(ValueError("no")), depends_on=[])]
    failing = flow(rig, *steps, type="failing", failure_finalizer=raises(ValueError("away")))
    printing = flow(rig, step(rig, "a", resource="printer"))
    worker = rig.worker(failing, printing, permit_wait_ms=600_000)
    ids = enter_line(rig, failing, CROWD)
    waits(rig, live := rig.start(printing))
    rig.run(lambda: {rig.status(workflow_id) for workflow_id in ids} == {"failing"}, "all fail")
    assert not any("permit_wait" in rig.row(workflow_id) for workflow_id in ids)

    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(live)

    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert in_line(rig) == set()
    assert worker.sweeps.permit_rows.queue_forgotten() == 0


@pytest.mark.req("sor-enqueue-always", "prm-release")
def test_the_same_request_again_takes_no_place_back(rig: SteppedRig) -> None:
    """It is registered already, and has just been called: its id is due now, and not at its own time."""
    printer = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    waits(rig, workflow_id := rig.start(definition))
    printer.free()
    freed_ms = rig.clock.wall_ms()

    assert rig.start(definition) == workflow_id
    assert rig.queue.due_of(workflow_id) == freed_ms

    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
