"""Stopping processes with SIGSTOP, as a long pause of the machine or the collector would."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from tests.faults.rig import Tree, store_file
from tests.support.wait import wait_until

FREE_S = 0.3


@contextmanager
def paused(tree: Tree, pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes, let them go on after the block. None of them is stopped in the middle of a commit: with the
    store's lock in its hand it would stop everybody else as well, and that is another fault."""
    pids = list(pids)
    try:
        for pid in pids:
            _stop(tree, pid)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _stop(tree: Tree, pid: int) -> None:
    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        if lock_is_free(tree):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped, f"process {pid} stands still outside a commit")


def lock_is_free(tree: Tree) -> bool:
    """Whether the store's write lock is to be had: nobody is in the middle of a commit for long."""
    with open(f"{store_file(tree.folder)}-lock", "rb") as lock:
        try:
            wait_until(lambda: _locked(lock.fileno()), "the store's lock", timeout=FREE_S, every=0.005)
        except AssertionError:
            return False
    return True


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
