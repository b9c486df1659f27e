"""A worker that is stopped while it commits to SQLite keeps the write lock: the tree waits until it goes on or dies.

Nothing is lost and nothing is broken by that; it is what one file for all processes costs (a store of several machines
has no such lock).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults import apps
from tests.faults.invariants import Watch, findings, orphans
from tests.faults.pausing import lock_is_free, stand_still
from tests.faults.rig import Tree, kill, tree
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

ASKED = 6


@pytest.fixture
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("loaded") / "data", lease_s=2.4, durability="full") as running:
        yield running


def stop_in_commit(loaded: Tree, pid: int) -> None:
    """Stop that process at a moment when it holds the store's lock: while it stands still nobody gets it. Others may
    hold it in turn, or one of them for long; so it is asked for again and again before that is believed."""

    def stopped() -> bool:
        stand_still(pid)
        if not any(lock_is_free(loaded.folder) for _ in range(ASKED)):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped, f"process {pid} stands still in a commit", every=0.003)


@pytest.mark.case("A12", "A53")
@pytest.mark.parametrize("end", ["goes on", "dies"])
def test_the_tree_waits_for_it_and_then_everything_ends(loaded: Tree, end: str) -> None:
    ids = loaded.start_many(apps.TEN, "work", 300)
    pid = loaded.pids()[0]
    others = set(loaded.pids()) - {pid}
    with Watch(loaded, every_s=0.2) as watch:
        stop_in_commit(loaded, pid)
        try:
            revisions = [row["revision"] for row in loaded.rows()]
            assert not loaded.ended(ids), "there is work left"
            stays(
                lambda: [row["revision"] for row in loaded.rows()] == revisions,
                "nobody writes, everybody reads",
                seconds=1.5 * loaded.config.lease_s,
                every=0.2,
            )
        finally:
            if end == "dies":
                kill(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        loaded.finish(*ids)

    assert [loaded.output(key) for key in ids] == [number + 9 for number in range(300)]
    assert (pid in loaded.pids()) == (end == "goes on")
    assert others <= set(loaded.pids()), "nobody was lost by waiting"
    assert watch.found == []
    wait_until(lambda: not orphans(loaded.rows()), "no claim is left")
    assert findings(loaded.rows(), loaded.effects.all(), [f"work:{number}" for number in range(300)]) == []
