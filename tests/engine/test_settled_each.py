"""Independent transitions in few commits: those that nobody has to make cost none."""

from __future__ import annotations

import pytest

from kernel.clock import ManualClock
from kernel.engine.commit import settled_each
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow
from tests.support.engine_rig import SteppedRig
from tests.support.engine_store import FaultyStore


def test_nothing_to_settle_asks_the_store_nothing() -> None:
    """A commit of nothing is a commit all the same, and every scan of every worker would make one."""
    store = FaultyStore(MemoryStore(ManualClock()))

    assert list(settled_each(store, [])) == []
    assert store.writes == []


@pytest.mark.req("sch-scan-bounded")
def test_an_idle_worker_writes_nothing_but_its_sign_of_life(rig: SteppedRig) -> None:
    worker = rig.worker(flow(rig, "a"), flow(rig, "b", type="other"))

    rig.run(lambda: rig.clock.boot_ms() >= 1_010_000, "ten scans")

    assert worker.store.writes == []
    assert {*worker.store.others} == {"touch_definition", "first_definition"}
