"""Many who want few places: the order in which they get them, what waiting costs, and the rate that is used.

The limiter is the model of the scripts (`tests/support/permit_model.py`, held to them by another test); time is set.
A43 at its full five minutes is tests/lua_scripts/test_permit_inflow.py, on the scripts themselves.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.limits import change_limit
from kernel.states import PRIORITIES
from tests.engine.flows import flow, step
from tests.engine.occupied import Occupied
from tests.support.engine_rig import SteppedRig

LANES = "".join("0" * 8 + "1" * 6 + "2" * 4 + "3" * 2 for _ in range(2))
"""Two turns of the weights 8:6:4:2."""
MINUTE_MS = 60_000


def pass_time(rig: SteppedRig, ms: int) -> None:
    """Let all workers do for `ms` what they find to do."""
    until_ms = rig.clock.boot_ms() + ms
    rig.run(lambda: rig.clock.boot_ms() >= until_ms, f"{ms} ms have passed")


@pytest.mark.case("A41")
@pytest.mark.req("prm-refused", "lane-weights", "prm-release")
def test_who_waits_for_one_place_gets_it_by_lane_weight_and_inside_a_lane_in_turn(rig: SteppedRig) -> None:
    """100 in four lanes, refused at least once each, and pushed again and again: nobody leaves its lane."""
    occupied = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=2_000)
    lane_of: dict[str, int] = {}
    for number in range(25):
        for lane, priority in enumerate(PRIORITIES):
            lane_of[rig.start(definition, f"{priority}-{number}", priority=priority)] = lane
            rig.advance(1)
    rig.run(lambda: all(rig.instance(key).permit_wait for key in lane_of), "all wait")
    rig.advance(10_000)  # their times come and they are refused again: each keeps its place
    rig.run(lambda: all(rig.instance(key).steps[0].traffic_wait_count > 1 for key in lane_of), "all asked again")

    occupied.free()
    rig.finish(*lane_of)

    order = [entry.workflow_id for entry in rig.ledger.of("a")]
    assert "".join(str(lane_of[key]) for key in order[:40]) == LANES
    started = list(lane_of)
    for lane in range(4):
        mine = [key for key in order if lane_of[key] == lane]
        assert mine == [key for key in started if lane_of[key] == lane], f"lane {lane}: in the order in which they came"
    assert {(c.workflow_id, c.lane) for c in rig.queue.pushed} == set(lane_of.items())
    assert {rig.row(key)["business_priority"] == lane for key, lane in lane_of.items()} == {True}


@pytest.mark.case("A42")
@pytest.mark.req("prm-raise", "prm-refused")
def test_a_crowd_behind_one_place_costs_little_and_goes_on_at_once_when_the_limit_is_raised(
    make_rig: Callable[..., SteppedRig],
) -> None:
    """300 for the 100,000 of the case, 8 slots × 2 processes: while nothing is free a worker asks by the clock of who
    waits and not in a loop. The raise is written to the store alone: a sweep at the scan rate hears of it, and then
    every slot is used."""
    rig = make_rig()
    Occupied(rig, "printer")
    running: list[int] = []

    def works(ctx: Context) -> None:
        running.append(1)
        used.add(ctx.worker_id)
        rig.base_runner.event().wait(0.05)
        most.append(len(running))
        running.pop()

    most: list[int] = []
    used: set[str] = set()
    definition = flow(rig, step(rig, "a", works, resource="printer"))
    workers = [rig.worker(definition, slots=8, permit_wait_ms=600_000) for _ in range(2)]
    ids = [rig.start(definition, f"k{number}") for number in range(300)]
    rig.run(lambda: all(rig.instance(key).permit_wait for key in ids), "all wait")
    pass_time(rig, 10_000)  # each worker finds the lanes empty for the first time, and asks for everybody once more
    asked, writes, pops = len(rig.permits.calls), sum(len(w.store.writes) for w in workers), rig.queue.pops
    pass_time(rig, MINUTE_MS)

    assert sum(len(worker.store.writes) for worker in workers) == writes, "who waits is not touched"
    # The rig wakes both workers whenever one of them wants to be woken: hence twice.
    scans, polls = MINUTE_MS // rig.settings.scan_ms + 1, MINUTE_MS // rig.settings.poll_ms + 1
    looks = Counter(what for what, _ in rig.permits.calls[asked:])
    pages = len(ids) // rig.settings.scan_page + 1
    assert set(looks) == {"sweep", "missing"}, "nobody asks for a place"
    assert looks["sweep"] <= 2 * len(workers) * scans, "a look each scan"
    assert looks["missing"] <= 2 * len(workers) * scans * pages, "and one for each page of those who wait"
    assert rig.queue.pops - pops <= 2 * len(workers) * polls, "a look each poll"

    change_limit(rig.store, "printer", max_concurrency=50)
    raised_ms = rig.clock.boot_ms()
    rig.run(lambda: bool(rig.ledger.of("a")), "the first one runs")
    assert rig.clock.boot_ms() - raised_ms <= rig.settings.scan_ms + 2 * rig.settings.poll_ms
    rig.finish(*ids)

    assert rig.permits.most["printer"] <= 50
    assert max(most) == 8, "every slot; the rig lets one worker go on at a time"
    assert used == {worker.worker_id for worker in workers}
    assert {rig.instance(key).steps[0].attempt for key in ids} == {1}
    assert rig.permits.of("printer").line == {} and rig.permits.of("printer").reserved == {}


@pytest.mark.case("A43")
@pytest.mark.req("prm-window")
@pytest.mark.parametrize(("load", "seconds"), [(0.8, 60), (2.0, 20)], ids=["below", "above"])
def test_under_steady_inflow_the_rate_is_used_and_never_passed(
    make_rig: Callable[..., SteppedRig], load: float, seconds: int
) -> None:
    """Inflow 0.8 × limit for a minute: 95 of 100 begin within a second. Inflow 2 × limit: at least 90% of the rate
    is used as long as there is a crowd, and no second ever holds more starts than the limit."""
    rate = 10
    rig = make_rig()
    rig.limits["printer"] = Limit(max_starts_per_second=rate)
    definition = flow(rig, step(rig, "a", resource="printer"))
    for _ in range(2):
        rig.worker(definition, slots=8)
    chance = random.Random(43)
    at_ms, arrivals = 0.0, []
    while at_ms < seconds * 1_000:
        at_ms += chance.uniform(0.5, 1.5) * 1_000 / (rate * load)
        arrivals.append(round(at_ms))
    began_ms = rig.clock.boot_ms()
    came: dict[str, int] = {}

    def come() -> None:
        came[rig.start(definition, f"k{len(came)}")] = rig.clock.boot_ms()

    for arrival in arrivals:
        rig.base_runner.call_at(began_ms + arrival, come)
    pass_time(rig, seconds * 1_000)
    rig.run(lambda: len(came) == len(arrivals), "the last has come")
    rig.finish(*came)

    begins = {entry.workflow_id: entry.begin_ms for entry in rig.ledger.of("a")}
    assert Counter(entry.workflow_id for entry in rig.ledger.of("a")) == Counter(list(came))
    starts = sorted(begins.values())
    assert all(later - first >= 1_000 for first, later in zip(starts, starts[rate:], strict=False))
    waited = sorted(begins[key] - came[key] for key in came)
    if load < 1:
        assert waited[math.ceil(0.95 * len(waited)) - 1] <= 1_000
    else:
        used = len(starts) / ((starts[-1] - starts[0]) / 1_000)
        assert used >= 0.9 * rate
