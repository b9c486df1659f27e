"""Random kills under load for ten seconds: everything ends once, and every invariant holds at the end (flt-random)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kernel.errors import Refused
from kernel.ids import workflow_id_for
from tests.faults import apps
from tests.faults.arms import Arm, Point
from tests.faults.effects import EFFECT, boot_ms
from tests.faults.invariants import Watch, findings, orphans
from tests.faults.rig import ARMED, LIMIT_S, tree, wait_for
from tests.support.wait import stays, wait_until

POINTS: tuple[tuple[str, Point], ...] = (
    ("claim", "before"),
    ("claim", "after"),
    ("begin_step", "before"),
    ("begin_step", "after"),
)
WORKERS, SLOTS = 4, 4
KILLS, KILL_EVERY_MS, BATCH = 25, 300, 4
COUNT = KILLS * BATCH
ENTRIES = 1 + 2 + 1 + 2


@pytest.mark.fault
@pytest.mark.req("flt-random", "core-unique-outcome", "core-inv-alo", "core-worker-replaceable", "dc-tests-fault")
def test_a_kill_every_300_ms_under_100_workflows_with_sleeps(tmp_path: Path) -> None:
    """New workflows come with every kill, so that each kill meets work, however fast the machine is. The lease is 30 s:
    what a kill costs is what was under way in the killed process."""
    chance, kills, ids = random.Random(590), 0, list[str]()
    # At this rate three deaths in one step are bad luck and no poison, and five deaths of one place before it is ready
    # are this test's doing and no faulty start: nothing is put aside, and nobody gives up.
    settings: dict[str, Any] = {
        "workers": WORKERS,
        "slots": SLOTS,
        "lease_s": 30.0,
        "deaths_max": 0,
        "restart_give_up": 1_000,
    }
    with tree(tmp_path / "data", **settings) as soaked, Watch(soaked, every_s=0.2) as watch:
        while kills < KILLS:
            wait_for(boot_ms() + KILL_EVERY_MS)
            if len(ids) == kills * BATCH:
                ids += soaked.start_many(apps.NAPPING, f"soak {kills}", BATCH, nap_s=2.0, hold_s=0.25)
            try:
                soaked.session.kill_child(chance.randrange(WORKERS))
                kills += 1
            except Refused:
                continue  # that place is empty at the moment
        under_way = not soaked.ended(ids)
        soaked.finish(*ids, timeout=LIMIT_S)
        wait_until(lambda: not orphans(soaked.rows()), "no claim is left")
        rows = soaked.rows()
        stays(lambda: soaked.rows() == rows, "what has ended stays as it is", seconds=1, every=0.2)

        keys = [f"soak {kill}:{number}" for kill in range(KILLS) for number in range(BATCH)]
        assert ids == [workflow_id_for(key) for key in keys]
        assert under_way, "the kills met work from the first to the last"
        assert [soaked.output(key) for key in ids] == [number % BATCH + 3 for number in range(COUNT)]
        entries = sum(sum(soaked.effects.counts(key).values()) for key in ids)
        assert 0 < entries - ENTRIES * COUNT <= kills * SLOTS
        effects = [effect.note for key in ids for effect in soaked.effects.of(key, what=EFFECT)]
        assert len(set(effects)) == 4 * COUNT, "however often a step ran, its effect has one key"
        assert findings(rows, soaked.effects.all(), keys) == []
        assert watch.looks > 0
    assert watch.found == []


@pytest.mark.fault
@pytest.mark.req("flt-pop-claim-crash", "clm-release-clears", "dc-tests-fault")
def test_kills_between_pop_claim_begin_and_entry_under_load(tmp_path: Path) -> None:
    """Each of 24 workflows loses its worker between pop and claim, claim and begin, or begin and entry; 24 others are
    beside them. All end, no id is lost, nothing was entered twice, and only a committed begin counts as an attempt."""
    with tree(tmp_path / "data", ARMED, workers=4, slots=1, lease_s=30.0) as hurt:
        keys = [f"between:{number}" for number in range(24)]
        for number, key in enumerate(keys):
            call, point = POINTS[number % 4]
            hurt.arms.arm(key.replace(":", "-"), Arm(call=call, point=point, workflow_id=workflow_id_for(key)))
        ids = hurt.start_many(apps.LINE, "between", 24, hold_s=0.01)
        others = hurt.start_many(apps.LINE, "beside", 24, hold_s=0.01)
        hurt.finish(*ids, *others)
        wait_until(lambda: not orphans(hurt.rows()), "no claim is left")

        assert len({fired.pid for fired in hurt.arms.fired()}) == len(hurt.arms.fired()) == 24
        assert all(hurt.effects.counts(key) == {"a": 1, "b": 1, "c": 1} for key in (*ids, *others))
        begun = [hurt.instance(key).steps[0].attempt for key in ids]
        assert begun == [2 if POINTS[number % 4] == ("begin_step", "after") else 1 for number in range(24)]
        assert findings(hurt.rows(), hurt.effects.all(), keys) == []
