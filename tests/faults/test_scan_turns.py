"""The scan for objects that were never announced, by three dispatchers of which the one that scans is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.effects import boot_ms
from tests.faults.rig import LIMIT_S, Tree, kill
from tests.faults.test_accepting import accept, check_each_registered_once, dispatched, orders_tree
from tests.support.wait import wait_until

PERIOD_MS = 2_000


def scans(running: Tree) -> dict[int, int]:
    """Scans begun by each dispatcher that lives."""
    children = running.children("dispatcher")
    return {child["pid"]: child["counters"].get("intents_scans", 0) for child in children if child["pid"]}


@pytest.mark.fault
@pytest.mark.case("A17")
@pytest.mark.req("dsp-scan-mutex", "dc-tests-fault")
def test_one_scans_a_period_and_when_it_is_killed_another_does(tmp_path: Path) -> None:
    """Nothing but the scan can find these objects. All together begin one scan a period, not three."""
    # Whoever gets no answer scans without a turn: a Redis that stands still for a moment is waited for.
    settings = {"dispatchers": 3, "dispatch_scan_s": PERIOD_MS / 1_000, "redis_budget_s": 20.0}
    with orders_tree(tmp_path / "data", **settings) as (running, objects):
        wait_until(lambda: sum(scans(running).values()) >= 1, "the first scan", LIMIT_S)
        first, began_ms = sum(scans(running).values()), boot_ms()
        wait_until(lambda: sum(scans(running).values()) >= first + 4, "four more", LIMIT_S)
        # Two less than there were: a count is told a little later than it is made, at both ends.
        assert boot_ms() - began_ms >= 2 * PERIOD_MS, "each a period after the last"

        before = scans(running)
        holder = wait_until(lambda: next_scanner(running, before), "somebody scans", LIMIT_S)
        kill(holder)
        ids = accept(objects, *range(5))
        wait_until(lambda: dispatched(objects, *ids), "another scans, and finds them", LIMIT_S)

        check_each_registered_once(running, objects, ids)
        assert holder not in scans(running)


def next_scanner(running: Tree, before: dict[int, int]) -> int | None:
    """A dispatcher that has begun a scan since `before`."""
    return next((pid for pid, count in scans(running).items() if count > before.get(pid, 0)), None)
