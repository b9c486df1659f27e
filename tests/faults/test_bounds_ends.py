"""L8, measured: how long it takes from the order to end until nothing of a tree is left. (L9 is measured where a
supervisor is killed: tests/process/test_supervisor_death.py, test_tree_death.py.)

Its workers hold steps that look at no stop sign, at their worst moment: nothing ends by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults import apps
from tests.faults.effects import boot_ms
from tests.faults.rig import Tree, gone, tree
from tests.support.figures import Figures
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

ENDS = 3
GRACE_S = 1.0
DRAIN_EXTRA_S, HASTEN_S = 2.0, 2.0
"""What is promised: beyond the grace time, and from the second SIGTERM."""


@contextmanager
def busy(folder: Path, drain_s: float) -> Iterator[tuple[Tree, list[psutil.Process]]]:
    """A tree whose slots are full of steps that ignore everything, and all of its processes."""
    with tree(folder, drain_s=drain_s, slots=2, lease_s=30.0) as running:
        for workflow_id in running.start_many(apps.STUBBORN, "stubborn", 4):
            running.entered(workflow_id, "b")
        yield running, running.family()


def order(running: Tree) -> int:
    """SIGTERM to the supervisor; when."""
    at_ms = boot_ms()
    os.kill(running.session.pid, signal.SIGTERM)
    return at_ms


def ended_s(family: list[psutil.Process], since_ms: int) -> float:
    """Seconds until nothing of the family does anything any more."""
    wait_until(lambda: gone(family), "nothing is left", every=0.01)
    return (boot_ms() - since_ms) / 1000


def check_no_zombie(running: Tree, family: list[psutil.Process]) -> None:
    """The supervisor has ended, reaped by us, and left none of its children to init."""
    assert running.session.stop() == 1, "what ignores every order was killed"
    assert not [process.pid for process in family if process.is_running()]


@pytest.mark.bound("L8")
@pytest.mark.case("A70")
@pytest.mark.req("l8", "dc-signal-cascade", "shd-grace")
def test_on_sigterm_all_children_end_within_the_grace_time_and_two_seconds(tmp_path: Path, figure: Figures) -> None:
    seconds = []
    for number in range(ENDS):
        with busy(tmp_path / f"drained{number}", GRACE_S) as (running, family):
            seconds.append(ended_s(family, order(running)))
            check_no_zombie(running, family)

    figure.check("L8", "the end after SIGTERM", seconds, GRACE_S + DRAIN_EXTRA_S, at_least=ENDS)


@pytest.mark.bound("L8")
@pytest.mark.req("l8", "dc-signal-cascade")
def test_on_a_second_sigterm_all_children_end_within_two_seconds(tmp_path: Path, figure: Figures) -> None:
    """The grace time is an hour."""
    seconds = []
    for number in range(ENDS):
        with busy(tmp_path / f"hastened{number}", 3600.0) as (running, family):
            order(running)
            wait_until(lambda running=running: running.log("drain.begin"), "the order is taken")
            seconds.append(ended_s(family, order(running)))
            check_no_zombie(running, family)

    figure.check("L8", "the end after a second SIGTERM", seconds, HASTEN_S, at_least=ENDS)
