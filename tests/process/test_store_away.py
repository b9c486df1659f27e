"""A store that takes no writes while a child starts: the tree waits for it, and only its very first start does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kernel.runtime import STORE_FILE
from supervisor.boot import Program
from tests.process.supervised import LIMIT_S, Supervised
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault

APP = "tests.process.metered_flows:app"
LEASE_S = 6.0
"""A sixth of it is how long a start waits for the write lock."""
ROLES = ("worker-0", "dispatcher-0")


@contextmanager
def written_by_another(path: Path) -> Iterator[None]:
    """Somebody holds the write lock of the store."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LIMIT_S)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.case("A63")
@pytest.mark.req("dc-restart-child")
def test_a_tree_that_has_started_outlasts_an_outage_of_its_store(
    supervise: Callable[..., Supervised], data_dir: Path
) -> None:
    """Every start failure would be the last that is allowed."""
    tree = supervise(Program(), app=APP, lease_s=LEASE_S, restart_give_up=1, restart_first_s=0.05, restart_max_s=0.1)
    tree.wait_running()

    with written_by_another(data_dir / STORE_FILE):
        for name in ROLES:
            tree.process_of(name).kill()
        for name in ROLES:
            wait_until(lambda name=name: tree.child(name)["restarts"] >= 3, f"{name} is forked again and again")

    status = tree.wait_running()
    assert [child["last_exit"]["text"] for child in status["children"]] == ["exit status 69"] * 2
    assert all("lock" in child["last_exit"]["words"] for child in status["children"])


def test_the_first_start_ends_with_one_line(supervise: Callable[..., Supervised], data_dir: Path) -> None:
    tree = supervise(Program(), app=APP, lease_s=LEASE_S)
    tree.wait_running()
    tree.process.terminate()
    assert tree.wait_end() == 0

    with written_by_another(data_dir / STORE_FILE):
        again = supervise(Program(), app=APP, lease_s=LEASE_S)
        assert again.wait_end() == 69

    (line,) = again.log_text().splitlines()
    assert line.startswith("error: ") and "lock" in line
