"""L7, measured: in what order a real worker takes work from four lanes that never run dry.

A worker with one slot takes one candidate after the other, so that the ledger has the order of its pops. Nothing but
the producers' hints fills the lanes: a sweep that enters a candidate again, just when it is popped, costs its lane a
turn.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.faults import apps
from tests.faults.apps import Job
from tests.faults.effects import ENTER
from tests.faults.rig import LIMIT_S, Tree, tree
from tests.support.figures import Figures
from tests.support.wait import wait_until

WEIGHTS = (8, 6, 4, 2)
WINDOW, BURST = sum(WEIGHTS), 8
ROUNDS, AHEAD, STEP_S = 8, 16, 0.01
"""Rounds of the four lanes that lie there ahead, and a step's time: the worker does not run dry for over a second."""


class Load:
    """What was put into the lanes, and what of it was taken."""

    def __init__(self, running: Tree) -> None:
        self._running = running
        self._filled = 0
        self.lane_of: dict[str, int] = {}

    def fill(self, lane: int, count: int) -> None:
        self._filled += 1
        requests = [(f"{lane}:{self._filled}:{number}", Job(hold_s=STEP_S)) for number in range(count)]
        handles = self._running.client.start_many(apps.ONE.plan, requests, priority=lane)
        self.lane_of |= dict.fromkeys((handle.workflow_id for handle in handles), lane)

    def taken(self) -> list[int]:
        """The lanes in the order of the entries."""
        entered = (e.workflow_id for e in self._running.effects.all() if e.what == ENTER)
        return [self.lane_of[workflow_id] for workflow_id in entered if workflow_id in self.lane_of]

    def left(self, lane: int) -> int:
        return list(self.lane_of.values()).count(lane) - self.taken().count(lane)

    def keep_up(self) -> bool:
        """Fill the first three lanes again where they have run half empty; whether lane 3 is empty."""
        for lane in range(3):
            if self.left(lane) < AHEAD * WEIGHTS[lane] // 2:
                self.fill(lane, AHEAD * WEIGHTS[lane] // 2)
        return self.left(3) == 0


@pytest.mark.fault
@pytest.mark.bound("L7")
@pytest.mark.case("A44")
@pytest.mark.req("l7", "lane-weights", "lane-p3-progress", "dc-tests-fault")
def test_any_twenty_taken_in_a_row_are_8_6_4_2_under_endless_load_of_the_first_three(
    tmp_path: Path, figure: Figures
) -> None:
    # A Redis that stands still for a moment is waited for: without an answer a worker asks the store, in no order.
    alone: dict[str, Any] = {
        "workers": 1,
        "slots": 1,
        "dispatchers": 0,
        "scan_s": 600.0,
        "lease_s": 60.0,
        "redis_budget_s": 20.0,
    }
    with tree(tmp_path / "data", **alone) as single:
        gate = single.start(apps.GATED, "gate")
        single.entered(gate, "only")
        load = Load(single)
        for lane, weight in enumerate(WEIGHTS):
            load.fill(lane, weight * (ROUNDS if lane == 3 else AHEAD))
        single.open_gate(gate)
        wait_until(load.keep_up, "all of lane 3 are taken", LIMIT_S, every=0.05)
        order = load.taken()
        single.finish(*load.lane_of)

    # After an idle look, which the waiting worker has just taken, at most eight of lane 0 come first.
    order = order[len(list(takewhile(lambda lane: lane == 0, order[:BURST]))) :]
    last = max(at for at, lane in enumerate(order) if lane == 3)
    windows = [order[at : at + WINDOW] for at in range(last - WINDOW + 2)]
    wrong = [window for window in windows if tuple(map(window.count, range(4))) != WEIGHTS]
    assert wrong == [], order
    figure.check("L7", "windows of 20 that are not 8:6:4:2", [len(wrong)], 0, "", slack=1)
    of_lane_3 = [window.count(3) for window in windows]
    figure.check_least("L7", "of lane 3 in any 20 under endless load", of_lane_3, 2, at_least=100, slack=1)
