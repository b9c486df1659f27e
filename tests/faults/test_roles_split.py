"""Each role alone: workers finish what is registered, a dispatcher activates and executes nothing, and a worker
leaves alone what it does not know (dc-roles-split).

One store, four trees after another.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import apps
from tests.faults.effects import boot_ms
from tests.faults.rig import PROMPT_MS, Tree, kill, tree
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]


def check_workers_alone(alone: Tree) -> None:
    """Without a dispatcher: sleeps, retries and finalizers end, and a proved death still frees at once (lease 30 s)."""
    ids = alone.start_many(apps.NAPPING, "alone", 20, nap_s=0.3, hold_s=0.01)
    retried = alone.start(apps.RETRYING, "retried")
    finalized = alone.start(apps.FINISHED, "finalized")
    for workflow_id, step, times in ((retried, "only", 1), (retried, "only", 3), (finalized, None, 1)):
        entered = alone.entered(workflow_id, step, times)
        killed_ms = boot_ms()
        kill(entered.pid)
        assert alone.entered(workflow_id, step, times + 1).at_ms - killed_ms <= PROMPT_MS
        alone.wait_running(without=[entered.pid])
    alone.finish(*ids, retried, finalized)
    assert [alone.output(key) for key in ids] == [number + 3 for number in range(20)]


@pytest.mark.case("A57")
@pytest.mark.req("sch-registered-types", "slp-activate", "slp-kinds", "sch-activation-roles")
def test_each_role_runs_alone_on_the_same_store(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with tree(folder, dispatchers=0, lease_s=30.0) as alone:
        check_workers_alone(alone)
        sleeping = alone.start(apps.SLEEPING, "sleeping", 4, nap_s=8.0)
        wait_until(lambda: alone.row(sleeping)["status"] == "waiting", "it sleeps")
        due_ms = alone.row(sleeping)["claimable_time"]

    with tree(folder, dispatchers=0, workers=1, lease_s=0.5, app="tests.faults.apps:other_app") as ignorant:
        known = ignorant.start(apps.OTHER, "known", 1)
        ids = ignorant.start_many(apps.STEADY, "unknown", 10)
        rows = [ignorant.row(key) for key in ids]
        stays(lambda: [ignorant.row(key) for key in ids] == rows, "unknown work is left alone", seconds=5 * 0.5)
        ignorant.finish(known)
    entries = len(ignorant.effects.all())

    # After three of its scan periods a dispatcher defers what no worker runs: this one sees no such time.
    with tree(folder, workers=0, scan_s=60.0) as executing_nothing:
        wait_until(lambda: executing_nothing.row(sleeping)["status"] == "running", "the wait is activated")
        row = executing_nothing.instance(sleeping)
        assert row.resume is not None
        assert (row.steps[0].status, row.resume.kind, row.claim_token, row.wait) == ("pending", "timer", None, None)
        assert executing_nothing.store.now_ms() >= due_ms
        assert executing_nothing.pids() == []
        rows = executing_nothing.rows()
        stays(lambda: executing_nothing.rows() == rows, "nothing is executed", seconds=1)
        assert len(executing_nothing.effects.all()) == entries

    with tree(folder, lease_s=30.0) as whole:
        whole.finish(sleeping, *ids)
        assert whole.output(sleeping) == 4
        assert [whole.output(key) for key in ids] == [number + 3 for number in range(10)]
        assert whole.effects.of(sleeping)[1].wall_ms >= due_ms
        assert all(whole.effects.counts(key) == dict.fromkeys("abcd", 1) for key in ids)
