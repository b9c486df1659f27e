"""The whole tree dies, and nobody is left who could prove a death: the lease decides, and no lease is stolen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kernel.transitions.claims import SUSPECT_DEATHS
from tests.faults import apps
from tests.faults.effects import boot_ms
from tests.faults.invariants import findings
from tests.faults.rig import PROMPT_MS, Tree, gone, is_alive, kill, store_file, tree
from tests.faults.stalls import STEADY
from tests.support.figures import Figures
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

PROMISED_S, GONE_S = 5.0, 15.0
"""5 s are promised; what is stopped or deaf would go on for 30 s."""


def kill_all(victim: Tree) -> list[psutil.Process]:
    """SIGKILL to the supervisor and everything below it, before any of them can tell of it."""
    family = victim.family()
    kill(*(process.pid for process in family))
    wait_until(lambda: gone(family), "the tree is gone")
    return family


def check_taken_over(row: dict[str, object], resumed_ms: int, ready_ms: int) -> None:
    """Not before the lease of the dead holder has run out, and then soon: the step's timeout is 30 minutes."""
    lease_end_ms = row["claimable_time"]
    assert isinstance(lease_end_ms, int)
    assert resumed_ms >= lease_end_ms, "a lease was stolen"
    assert resumed_ms - max(lease_end_ms, ready_ms) <= PROMPT_MS


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: tmp_path / name


@pytest.mark.case("A14", "A15")
@pytest.mark.req(
    "clm-crash-lease", "core-running-is-not-alive", "sch-expired-lease-found", "shd-no-force-clear",
    "shd-no-business-fail", "core-worker-replaceable",
)  # fmt: skip
def test_supervisor_and_children_killed_at_once_in_mid_step(folder: Callable[[str], Path]) -> None:
    """A fresh supervisor in the same folder goes on when the lease has run out, not at the step's timeout (30 min)."""
    with tree(folder("data"), **STEADY) as first:
        workflow_id = first.start(apps.HELD, "host died", 10)
        entered = first.entered(workflow_id, "b")
        kill_all(first)
        row = first.row(workflow_id)
        assert (row["status"], row["steps"][1]["status"], row["worker_id"]) == ("running", "running", entered.worker_id)

    with tree(folder("data"), lease_s=30.0) as second:
        ready_ms = second.store.now_ms()
        resumed = second.entered(workflow_id, "b", 2)
        second.finish(workflow_id)

        check_taken_over(row, resumed.wall_ms, ready_ms)
        assert second.effects.counts(workflow_id) == {"a": 1, "b": 2, "c": 1}
        assert second.output(workflow_id) == 12
        assert second.instance(workflow_id).steps[1].takeovers == 1
        assert findings(second.rows(), second.effects.all(), ["host died"]) == []


@pytest.mark.case("A64", "A72")
@pytest.mark.bound("L9")
@pytest.mark.req("dc-supervisor-death", "shd-resume", "l9")
def test_supervisor_killed_over_workers_that_hear_nothing(folder: Callable[[str], Path], figure: Figures) -> None:
    """One holds the interpreter in native code, one is stopped, one waits: all are gone within 5 s, and the next
    supervisor in the folder brings their work to its end."""
    with tree(folder("data"), workers=3, slots=1, **STEADY) as first:
        ids = [
            first.start(apps.NATIVE, "native", hold_s=30.0),
            first.start(apps.HELD, "stopped", 1),
            first.start(apps.HELD, "waiting", 2),
        ]
        first.entered(ids[0], "only")
        stopped, waiting = (psutil.Process(first.entered(workflow_id, "b").pid) for workflow_id in ids[1:])
        assert stopped.pid != waiting.pid
        family = first.family()
        stopped.suspend()

        killed_ms = boot_ms()
        kill(first.session.pid)
        wait_until(lambda: gone(family), "everything is gone", timeout=GONE_S)
        gone_s = (boot_ms() - killed_ms) / 1000
        figure.check("L9", "workers that hear nothing are gone after their supervisor's death", [gone_s], PROMISED_S)

    with tree(folder("data"), lease_s=30.0) as second:
        second.finish(*ids)
        assert [second.output(workflow_id) for workflow_id in ids] == [2, 3, 4]
        assert [sum(second.effects.counts(workflow_id).values()) for workflow_id in ids] == [2, 4, 4]


@pytest.mark.case("A64")
@pytest.mark.req("dc-supervisor-death", "core-worker-replaceable")
def test_work_is_not_blamed_for_its_supervisors_deaths(folder: Callable[[str], Path]) -> None:
    """Three supervisors are killed during one step that outlasts every drain. Their workers did not die of the work:
    each gives it back before it ends, so that it is neither a suspect nor parked."""
    workflow_id, took = "", 0
    for number in range(3):
        with tree(folder("data"), **STEADY) as killed:
            workflow_id = workflow_id or killed.start(apps.GATED, "innocent")
            killed.entered(workflow_id, "only", number + 1)
            family = killed.family()
            kill(killed.session.pid)
            wait_until(lambda family=family: gone(family), "everything is gone", timeout=GONE_S)
            took += "claim_token" in killed.row(workflow_id)
    assert took <= 1, "a machine that is too busy may miss the second in which it is given back"

    with tree(folder("data"), **STEADY) as last:
        last.entered(workflow_id, "only", 4)
        assert last.instance(workflow_id).deaths < SUSPECT_DEATHS
        last.open_gate(workflow_id)
        last.finish(workflow_id)
        assert findings(last.rows(), last.effects.all(), ["innocent"]) == []


@pytest.mark.case("A20")
@pytest.mark.req("clm-crash-lease", "core-worker-replaceable", "sch-expired-lease-found")
def test_rolling_restart_new_tree_up_old_tree_killed_and_nothing_started_afterwards(
    folder: Callable[[str], Path],
) -> None:
    """Two supervisors on one store. What the old one's workers held is found by the running ones, not by a start."""
    with tree(folder("old"), **STEADY) as old:
        workflow_id = old.start(apps.HELD, "deploy", 10)
        entered = old.entered(workflow_id, "b")
        folder("new").mkdir(mode=0o700)
        store_file(folder("new")).symlink_to(store_file(folder("old")))
        with tree(folder("new"), **STEADY) as new:
            before = new.pids()
            kill_all(old)
            row = new.row(workflow_id)
            ready_ms = new.store.now_ms()
            resumed = new.entered(workflow_id, "b")
            new.finish(workflow_id)

            check_taken_over(row, resumed.wall_ms, ready_ms)
            assert resumed.pid in before
            assert (entered.attempt, resumed.attempt) == (1, 2)
            assert new.pids() == before and all(is_alive(psutil.Process(pid)) for pid in before)
            assert new.output(workflow_id) == 12
            assert new.effects.counts(workflow_id) == {"b": 1, "c": 1}, "step a is the old tree's, and done"
