"""An orderly end: the step at hand is finished and committed, the claim given back, and the rest is run by others.

The lease is 60 s in the tests of a single worker: nothing here goes on because a lease ran out.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults import apps
from tests.faults.effects import LEAVE, boot_ms
from tests.faults.invariants import findings, orphans
from tests.faults.rig import PROMPT_MS, Tree, tree, wait_for
from tests.faults.stalls import STEADY
from tests.support.figures import Figures
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

ALL_ONCE = dict.fromkeys("abcdefghij", 1)


@pytest.fixture(scope="module")
def rolling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("rolling") / "data", lease_s=60.0, drain_s=8.0) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> None:
    if "rolling" in request.fixturenames:
        request.getfixturevalue("rolling").wait_running()


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def ended(rolling: Tree, pid: int) -> str:
    """How the process ended, as the supervisor saw it; empty while it lives."""
    ends = {line["x"]["child_pid"]: line["msg"] for line in rolling.log("child.exited")}
    return str(ends.get(pid, ""))


def drained(rolling: Tree, pid: int) -> list[str]:
    """The stages of that process's drain in the order in which it told them."""
    events = [line["event"] for line in rolling.lines() if line["pid"] == pid and line["event"].startswith("drain.")]
    return [event.removeprefix("drain.") for event in events]


@pytest.mark.req("shd-not-cancel", "shd-claim-stops", "shd-release", "shd-order")
def test_sigterm_during_step_2_of_4_step_3_is_run_by_another_process(rolling: Tree) -> None:
    workflow_id = rolling.start(apps.STEADY, "step 2 of 4", 1, hold_s=1.0)
    pid = rolling.entered(workflow_id, "b").pid

    terminate(pid)
    third = rolling.entered(workflow_id, "c")
    rolling.finish(workflow_id)
    wait_until(lambda: ended(rolling, pid), "the worker ends")

    stages = ["wakeups_stopped", "poll_stopped", "claims_ended", "observations_drained", "ended"]
    wait_until(lambda: len(drained(rolling, pid)) == len(stages), "its last line is in the log")
    assert drained(rolling, pid) == stages
    (leave,) = rolling.effects.of(workflow_id, "b", LEAVE)
    assert (leave.pid, leave.note) == (pid, "int"), "it was not cancelled"
    assert third.pid != pid
    assert third.at_ms - leave.at_ms <= PROMPT_MS, "60 s of lease were not waited for"
    assert "exit status 0" in ended(rolling, pid)
    assert rolling.effects.counts(workflow_id) == dict.fromkeys("abcd", 1)
    row = rolling.instance(workflow_id)
    assert ([step.takeovers for step in row.steps], row.deaths) == ([0, 0, 0, 0], 0)
    assert rolling.output(workflow_id) == 4


@pytest.mark.req("shd-five-min")
def test_a_long_job_survives_three_rolling_restarts_without_repeating_anything(rolling: Tree) -> None:
    """The whole job takes longer than the grace time; each restart ends every worker once, in mid-step."""
    ids = rolling.start_many(apps.STAGED, "long job", 3)
    stages = iter(apps.STAGES)
    for _ in range(3):
        for pid in rolling.pids():
            stage = next(stages)
            for key in ids:
                rolling.entered(key, stage)
            terminate(pid)
            wait_for(boot_ms() + 1_500)
            rolling.open_gate(stage)
            wait_until(partial(ended, rolling, pid), "it drains")
            rolling.wait_running(without=[pid])
    assert not rolling.ended(ids), "the restarts were all under way"
    rolling.open_gate(*stages)
    rolling.finish(*ids)

    for key in ids:
        effects = rolling.effects.of(key)
        assert rolling.effects.counts(key) == dict.fromkeys(apps.STAGES, 1)
        assert rolling.output(key) == apps.STAGES[-1]
        assert len({effect.pid for effect in effects}) > 1
        assert effects[-1].at_ms - effects[0].at_ms > 1000 * rolling.config.drain_s


@pytest.mark.case("A70")
@pytest.mark.req("shd-not-cancel", "shd-release")
def test_sigterm_at_random_offsets_around_step_ends(rolling: Tree) -> None:
    """16 workers get their order at any moment of a 60 ms step: each ends soon and cleanly, nothing repeats."""
    chance, ordered = random.Random(70), []
    ids = rolling.start_many(apps.TEN, "offsets", 40, hold_s=0.06)
    for _ in range(8):
        wait_for(boot_ms() + chance.randrange(0, 120))
        pids = rolling.pids()
        for pid in pids:
            terminate(pid)
        ordered += pids
        for pid in pids:
            wait_until(partial(ended, rolling, pid), "it ends")
        rolling.wait_running(without=pids)
    rolling.finish(*ids)

    assert len(ordered) == 16
    assert all("exit status 0" in ended(rolling, pid) for pid in ordered)
    assert all(rolling.effects.counts(key) == ALL_ONCE for key in ids)
    assert [rolling.output(key) for key in ids] == [number + 9 for number in range(40)]


def test_afterwards_every_invariant_holds(rolling: Tree) -> None:
    wait_until(lambda: not orphans(rolling.rows()), "no claim is left")
    rows = rolling.rows()

    assert findings(rows, rolling.effects.all(), [row["biz_key"] for row in rows]) == []
    assert rolling.log("claim.released_dead") == [], "every claim was given back by its own holder"


@pytest.mark.case("A71")
@pytest.mark.bound("L8")
@pytest.mark.req("shd-grace", "shd-no-force-clear", "shd-no-business-fail", "l8")
def test_past_the_grace_time_it_is_killed_and_the_next_tree_goes_on(tmp_path: Path, figure: Figures) -> None:
    """Eight activities that ignore everything, and one that takes 60 s: the end comes at the grace time of 2 s. No work
    is failed because processes ended. That its claims are released: tests/process/test_last_release.py."""
    with tree(tmp_path / "data", slots=8, drain_s=2.0, **STEADY) as first:
        ids = first.start_many(apps.STUBBORN, "stubborn", 8)
        held = first.start(apps.HELD, "held", 5)
        for key in (*ids, held):
            first.entered(key, "b")
        ordered_ms = boot_ms()

        assert first.session.stop() == 1

        ended_s = (boot_ms() - ordered_ms) / 1000
        assert ended_s >= 1.8, "not before the grace time is over"
        figure.check("L8", "the end of a tree that ignores its order", [ended_s], first.config.drain_s + 2.0)
        rows = {key: first.row(key) for key in (*ids, held)}
        assert {row["status"] for row in rows.values()} == {"running"}

    with tree(tmp_path / "data", lease_s=30.0) as second:
        second.finish(*ids, held)
        for key, row in rows.items():
            resumed = second.effects.of(key, "b")[1]
            assert resumed.wall_ms >= row["claimable_time"], "not before it is free, by proof or by the lease"
            assert second.effects.counts(key) == {"a": 1, "b": 2, "c": 1}
        assert [second.output(key) for key in ids] == [number + 2 for number in range(8)]
