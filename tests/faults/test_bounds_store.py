"""L4, measured: the durable store is away, and what that costs each process until it is back.

Three ways of being away: MongoDB refuses connections, MongoDB hangs, and somebody holds the write lock of SQLite. The
outage is shorter than the 60 s of the promise; nothing here gets worse with time, because every loop tries again at
a constant pace.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from kernel.clock import SystemClock
from kernel.store.mongo import MongoStore
from tests.faults import apps
from tests.faults.effects import boot_ms
from tests.faults.rig import LIMIT_S, Tree, store_file, tree, wait_for
from tests.support.figures import Figures
from tests.support.mongo_server import StandIn, stand_in
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.bound("L4"), pytest.mark.req("l4", "dc-tests-fault")]

LONG_MS, SHORT_MS = 9_000, 6_000
HELD = 16
LOOPS = ("scheduler", "scan", "sweeps")
CPU_SHARE, LINES_PER_S, BACK_S = 0.2, 5.0, 10.0
"""What is promised: of a core per process, log lines a second per process, until all loops work again."""

Away = Callable[[], AbstractContextManager[None]]


def refused(server: StandIn) -> Away:
    @contextmanager
    def away() -> Iterator[None]:
        server.kill()
        try:
            yield
        finally:
            server.start()

    return away


def hanging(server: StandIn) -> Away:
    @contextmanager
    def away() -> Iterator[None]:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(server.pid, signal.SIGCONT)

    return away


def locked(folder: Path) -> Away:
    @contextmanager
    def away() -> Iterator[None]:
        with open(f"{store_file(folder)}-lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    return away


def all_work(running: Tree) -> bool:
    """Every child reaches the store again, and each of its loops has moved within its period and two reports."""
    children = running.session.status()["children"]
    ages = [age for child in children for name, age in child["loops"].items() if name in LOOPS]
    return {child.get("x_store", "up") for child in children} == {"up"} and max(ages) < running.config.scan_s + 2.5


def check_outage(running: Tree, figure: Figures, name: str, away: Away, lasts_ms: int) -> None:
    """All slots hold steps, more work is queued behind them; then the store is away, and comes back."""
    held = running.start_many(apps.GATED, f"held {name}", HELD)
    for workflow_id in held:
        running.entered(workflow_id, "only")
    queued = running.start_many(apps.STEADY, f"queued {name}", HELD)
    wait_until(lambda: all_work(running), "all loops work", LIMIT_S)
    pids = [child["pid"] for child in running.session.status()["children"]]
    processes = [psutil.Process(pid) for pid in (running.session.pid, *pids)]
    with away():
        lines, cpu_s, began_ms = len(running.lines()), list(map(used_s, processes)), boot_ms()
        wait_for(began_ms + lasts_ms)
        lasted_s = (boot_ms() - began_ms) / 1000
        shares = [(used_s(process) - before_s) / lasted_s for process, before_s in zip(processes, cpu_s, strict=True)]
        told = Counter(line["pid"] for line in running.lines()[lines:])
    back_ms = boot_ms()
    running.open_gate(*held)
    wait_until(lambda: all_work(running), "all loops work again", LIMIT_S)
    back_s = (boot_ms() - back_ms) / 1000
    running.finish(*held, *queued)

    lines_per_s = [told[process.pid] / lasted_s for process in processes]
    assert [child["pid"] for child in running.session.status()["children"]] == pids, "no process was lost"
    figure.check("L4", f"CPU of a process, {name}", shares, CPU_SHARE, "cores", at_least=4)
    figure.check("L4", f"log lines of a process, {name}", lines_per_s, LINES_PER_S, "/s")
    figure.check("L4", f"all loops work again, {name}", [back_s], BACK_S)


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_mongodb_refuses_or_hangs_and_no_process_is_lost_or_busy(tmp_path: Path, figure: Figures) -> None:
    """The lease is long enough for a stand-in that is slow on a busy machine: an answer has a sixth of it."""
    with stand_in() as server:
        store = MongoStore(server.uri, "kernel_bounds", SystemClock(), timeout_ms=20_000)
        store.prepare()
        store.close()
        settings = {"mongodb_uri": server.uri, "mongodb_database": "kernel_bounds", "lease_s": 12.0}
        with tree(tmp_path / "data", slots=8, **settings) as running:
            check_outage(running, figure, "MongoDB refuses", refused(server), LONG_MS)
            check_outage(running, figure, "MongoDB hangs", hanging(server), SHORT_MS)


def test_the_write_lock_of_sqlite_is_held_and_no_process_is_lost_or_busy(tmp_path: Path, figure: Figures) -> None:
    with tree(tmp_path / "data", slots=8) as running:
        check_outage(running, figure, "SQLite is locked", locked(running.folder), SHORT_MS)
