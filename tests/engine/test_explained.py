"""What `limits explain` says of who waits, beside the line as it is."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.observe.projection import snapshot_of
from kernel.permit_words import PermitStats
from supervisor.ops_explain import explained, lines_of
from tests.engine.flows import flow, step
from tests.engine.occupied import Occupied
from tests.engine.test_permits import waits
from tests.support.engine_rig import SteppedRig


def explain(
    rig: SteppedRig, workflow_id: str, *, is_redis_away: bool = False, later_ms: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """The answer and its text, from a snapshot that has missed nothing, `later_ms` after it was made."""

    def ask(resource: str, pair: tuple[str, str]) -> PermitStats | None:
        if is_redis_away:
            return None
        found = rig.permits.of(resource).stats(pair, rig.clock.wall_ms())
        server_ms, epoch, held, starts, reserved, waiting, *lanes, place, lane, handed = found
        return PermitStats(
            resource=resource,
            server_ms=server_ms,
            epoch=epoch or None,
            holders=[],
            held=held,
            starts_last_second=starts,
            reserved=reserved,
            waiting=waiting,
            waiting_by_lane=(lanes[0], lanes[1], lanes[2], lanes[3]),
            place=place or None,
            place_lane=lane if lane >= 0 else None,
            handed=bool(handed),
        )

    seen = snapshot_of(rig.instance(workflow_id), rig.clock.wall_ms())
    now_ms = rig.clock.wall_ms() + later_ms
    answer = explained(seen, now_ms, lambda resource: rig.limits[resource], ask, lambda workflow_id: None)
    return answer, list(lines_of(seen, answer))


@pytest.mark.req("dc-cli-ops", "prm-stats")
def test_the_lane_is_that_in_which_it_stands(rig: SteppedRig) -> None:
    """A priority that was raised meanwhile reaches the line when its own time has come."""
    Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    for number in range(3):
        waits(rig, rig.start(definition, f"k{number}", priority=3))
    raised = rig.start(definition, "k2", priority=0)

    answer, lines = explain(rig, raised)

    assert (answer["place"], answer["lane"]) == (3, 3)
    assert any("place 3 in lane P3, 3 wait in all lanes" in line for line in lines)


@pytest.mark.req("dc-cli-ops", "prm-stats")
def test_places_that_others_are_called_for_are_told(rig: SteppedRig) -> None:
    """Nobody holds one, and yet none is to be had."""
    printer = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    waits(rig, first := rig.start(definition, "k0"))
    waits(rig, second := rig.start(definition, "k1"))
    assert not any(line.startswith("in use") for line in explain(rig, second)[1])
    printer.free()

    answer, lines = explain(rig, second)

    assert (answer["reason"], answer["in_flight"], answer["reserved"]) == ("concurrency", 0, 1)
    assert "in use    0 run, 1 are handed to others who are called now" in lines
    assert explain(rig, first)[0]["reason"] == "handed"


@pytest.mark.req("dc-cli-ops", "ops-where-stuck")
def test_a_reason_is_given_also_where_redis_does_not_answer(rig: SteppedRig) -> None:
    Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    waits(rig, waiter := rig.start(definition, "k0"))

    answer, lines = explain(rig, waiter, is_redis_away=True)

    assert (answer["waits"], answer["reason"]) == (True, None)
    assert lines[2] == "reason    Redis is out of reach, and places are given out there: none can be given"


@pytest.mark.req("dc-cli-ops")
def test_a_time_that_has_passed_is_not_told_as_one_to_come(rig: SteppedRig) -> None:
    Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    waits(rig, waiter := rig.start(definition, "k0"))

    before, after = explain(rig, waiter)[1][-1], explain(rig, waiter, later_ms=86_400_000)[1][-1]

    assert before.startswith("latest    asks again at ")
    assert after.startswith("latest    asks again now: its time came at ")


@pytest.mark.req("ops-where-stuck")
def test_who_is_due_to_ask_again_waits_for_the_same_place(rig: SteppedRig) -> None:
    """Also by a snapshot that was made in that moment: his time has come, and nobody has asked for him yet."""
    Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    waiting = waits(rig, rig.start(definition, "k0"))
    assert waiting.claimable_time is not None

    early, late = (snapshot_of(waiting, waiting.claimable_time + ms) for ms in (-1, 1))

    for seen in (early, late):
        assert (seen.waiting, seen.waiting_on, seen.current_step) == ("permit", "printer", "a")
        assert seen.waiting_until == waiting.claimable_time
