"""Ids that no pop took while their workflows were finished by the scan: the lanes get rid of them by themselves."""

from __future__ import annotations

import pytest

from kernel.candidates import Popped
from kernel.errors import CoordinationUnavailable
from tests.engine.flows import flow
from tests.support.engine_rig import SteppedRig


def no_answer(n: int) -> Popped:
    raise CoordinationUnavailable("pop: no answer")


@pytest.mark.case("A38")
@pytest.mark.req("lane-stale-tolerated", "sch-fallback-down")
def test_lanes_full_of_finished_work_drain_in_ten_idle_minutes(rig: SteppedRig) -> None:
    """1,000 for the case's 100,000; that a pop takes no longer before a deep lane is proved at 100,000 members in
    tests/lua_scripts/test_lane_depth.py. No claim is won, nothing is run again, and one look is all that each costs."""
    definition = flow(rig, "a")
    worker = rig.worker(definition, slots=8, scan_page=200)
    ids = [
        rig.start(definition, f"k{number}", priority=("realtime", "async", "background", "compensation")[number % 4])
        for number in range(1_000)
    ]
    pop = worker.queue.pop
    worker.queue.pop = no_answer  # type: ignore[method-assign]
    rig.finish(*ids)
    assert len(rig.queue.ids()) == 1_000, "every id is still there"
    writes = worker.store.names()

    worker.queue.pop = pop  # type: ignore[method-assign]
    began_ms = rig.clock.boot_ms()
    rig.run(lambda: not rig.queue.ids(), "the lanes are empty", limit_ms=600_000)

    assert rig.clock.boot_ms() - began_ms <= 600_000
    assert len(rig.queue.popped) == 1_000, "each was popped once and pushed by nobody"
    missed = [name for name in worker.store.names()[len(writes) :] if name != "claim"]
    assert missed == []
    assert {rig.ledger.count("a", key) for key in ids} == {1}
