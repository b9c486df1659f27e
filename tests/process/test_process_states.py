"""Children in odd states while a tree is looked at or brought to its end (A66): no exception, and the right result."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process.supervised import all_gone, is_zombie
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.case("A66")]


@pytest.mark.parametrize("role", ["worker-0", "dispatcher-0", "valkey", "all"])
def test_a_child_that_is_a_zombie_when_the_order_to_end_comes(supervise: Any, role: str) -> None:
    """The supervisor stands still while it dies, so that its death and the order are found in the same moment."""
    tree = supervise(redis_url=None, drain_s=5.0)
    tree.wait_running()
    family = tree.family()
    names = ["worker-0", "dispatcher-0", "valkey"] if role == "all" else [role]
    dying = [tree.process_of(name) for name in names]
    supervisor = psutil.Process(tree.pid)

    supervisor.suspend()
    for process in dying:
        process.kill()
    wait_until(lambda: all(is_zombie(process) for process in dying), "zombies")
    supervisor.send_signal(signal.SIGTERM)
    supervisor.resume()

    assert tree.wait_end() in (0, 1)
    assert all_gone(family)
    assert "Traceback" not in tree.log_text()


def test_status_is_told_while_children_are_stopped_dead_and_gone(supervise: Any, operate: Any, data_dir: Path) -> None:
    """Each look at processes meets one that is stopped, and one that ends between the list and the look."""
    # A successor that is killed before it is ready has failed to start: as often as this loop is the faster one.
    tree = supervise(workers=3, restart_first_s=0.02, restart_max_s=0.02, restart_give_up=1_000_000)
    tree.wait_running()
    tree.process_of("worker-2").suspend()
    for _ in range(10):
        victim = tree.process_of("worker-1")
        victim.kill()
        said = operate("status", "--json")
        assert said.returncode in (0, 3) and said.stderr == "", said.stderr
        assert "Traceback" not in said.stdout
        tree.wait_replaced("worker-1", victim)
    tree.process_of("worker-2").resume()
    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0
    assert "Traceback" not in tree.log_text()
