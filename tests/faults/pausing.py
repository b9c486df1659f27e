"""Stopping processes with SIGSTOP, as a long pause of the machine or the collector would."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernel.runtime import STORE_FILE
from tests.faults.rig import Tree
from tests.support.wait import wait_until

FREE_S = 0.3


@contextmanager
def paused(tree: Tree, pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes, let them go on after the block. None of them is stopped in the middle of a commit: with the
    store's lock in its hand it would stop everybody else as well, and that is another fault."""
    pids = list(pids)
    try:
        for pid in pids:
            stop_outside_commit(tree.folder, pid)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def stop_outside_commit(folder: Path, pid: int) -> None:
    """SIGSTOP, at a moment at which that process holds no store's lock. Raises ProcessLookupError."""

    def stopped() -> bool:
        stand_still(pid)
        if all(lock_is_free(folder, path.name) for path in folder.glob("*.sqlite")):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped, f"process {pid} stands still outside a commit")


def stand_still(pid: int) -> None:
    """SIGSTOP, and wait for its effect: until a thread has met the signal it may still be given a lock. Raises
    ProcessLookupError."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _stands_still(pid), f"process {pid} stands still", every=0.001)


def _stands_still(pid: int) -> bool:
    """Whether all its threads are stopped, or gone with it."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


def lock_is_free(folder: Path, store: str = STORE_FILE) -> bool:
    """Whether that store's write lock is to be had: nobody is in the middle of a commit for long."""
    with open(folder / f"{store}-lock", "rb") as lock:
        try:
            wait_until(lambda: locked(lock.fileno()), "the store's lock", timeout=FREE_S, every=0.005)
        except AssertionError:
            return False
    return True


def locked(fd: int) -> bool:
    """Take the lock of that descriptor if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
