"""L11, measured: a step that kills its worker, and what it costs the others until it is put aside.

The lease of this tree is 30 s: all of it happens by proof of death.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import apps
from tests.faults.effects import LEAVE, boot_ms
from tests.faults.rig import LIMIT_S, Tree, tree
from tests.support.figures import Figures
from tests.support.wait import wait_until

OTHERS, HOLD_S = 40, 0.06


@pytest.mark.fault
@pytest.mark.bound("L11")
@pytest.mark.case("A21")
@pytest.mark.req("l11", "dc-tests-fault")
def test_poison_is_parked_after_three_takeovers_and_costs_others_no_more_than_their_time_again(
    tmp_path: Path, figure: Figures
) -> None:
    """The time of all others together, with the poison beside them and on the same tree without."""
    with tree(tmp_path / "data", lease_s=30.0) as running:
        fault_free_s = lasting_s(running, "fault-free", poison=False)
        poisoned_s = lasting_s(running, "poisoned", poison=True)
        (poison,) = (row["workflow_id"] for row in running.rows() if row["type"] == "poison")
        wait_until(lambda: running.instance(poison).parked, "it is parked", LIMIT_S)

        assert running.effects.counts(poison) == {"a": 1, "b": 3}
        assert running.instance(poison).deaths == 3
    figure.check("L11", "others beside poison, of their fault-free time", [poisoned_s / fault_free_s], 2.0, "")


def lasting_s(running: Tree, prefix: str, *, poison: bool) -> float:
    began_ms = boot_ms()
    if poison:
        running.start(apps.POISON, "poison", 1)
    ids = running.start_many(apps.TEN, prefix, OTHERS, hold_s=HOLD_S)
    running.finish(*ids)
    return (max(running.effects.of(key, "j", LEAVE)[-1].at_ms for key in ids) - began_ms) / 1000
