"""Does a worker that a snapshot names still run? Asked of the tree of this data folder, and of this machine.

A snapshot tells who held the claim at its last event, and a dead worker makes none. Only what is certain is said: of
the worker of another machine, or of another tree beside the same MongoDB, nothing is known here (ops-where-stuck).
"""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

from kernel.config import Config
from kernel.errors import KernelError
from kernel.observe.views import Snapshot
from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.ops_now import Holder
from supervisor.ops_shell import data_folder

_ANSWER_S = 1.0
_CLOCKS_APART_MS = 2_000
"""What the start of a process may lie behind its first claim by rounding and by two clocks."""


class Workers:
    """The workers of one data folder at one moment: the tree is asked at most once, and only when a claim is held."""

    def __init__(self, config: Config) -> None:
        self._folder = data_folder(config)
        # Beside a shared store other trees have workers, too; a file in the folder belongs to this tree alone.
        self._alone = config.mongodb_uri is None and config.observe_mongodb_uri is None
        self._asked = False
        self._running: frozenset[str] | None = None
        self._no_tree = False

    def holder(self, snapshot: Snapshot) -> Holder:
        """Whether the worker that holds the claim in `snapshot` runs; `unknown` where nobody here can tell."""
        if snapshot.waiting != "step" or snapshot.worker_id is None:
            return "unknown"
        if not self._asked:
            self._ask()
        if self._running is not None and snapshot.worker_id in self._running:
            return "runs"
        if not self._alone:
            return "unknown"
        if self._running is not None:
            return "gone"
        return _process(snapshot) if self._no_tree else "unknown"

    def _ask(self) -> None:
        self._asked = True
        self._running, self._no_tree = _running_in(self._folder)


def _running_in(folder: Path) -> tuple[frozenset[str] | None, bool]:
    """The ids of the tree's processes that run, and whether there is no tree; None: nobody has told."""
    try:
        with ControlClient(folder, timeout_s=_ANSWER_S) as client:
            children = client.request("status")["children"]
    except NoSupervisor:
        return None, True
    except (TimeoutError, KernelError):
        return None, False
    return frozenset(one["worker_id"] for one in children if one["pid"] is not None and one["worker_id"]), False


def _process(snapshot: Snapshot) -> Holder:
    """Its process, where its supervisor is gone: a worker may outlive it for as long as it drains.

    The number may belong to somebody else by now: one who began after the claim is not it.
    """
    host, _, rest = (snapshot.worker or "").partition("/")
    pid = rest.partition("/")[0]
    if host != socket.gethostname() or not (pid.isascii() and pid.isdecimal()):
        return "unknown"
    try:
        process = psutil.Process(int(pid))
        if process.status() == psutil.STATUS_ZOMBIE:
            return "gone"
        begun_ms = process.create_time() * 1000
    except (psutil.NoSuchProcess, OverflowError):
        return "gone"
    except psutil.Error:
        return "unknown"
    is_other = snapshot.claim_time is not None and begun_ms > snapshot.claim_time + _CLOCKS_APART_MS
    return "gone" if is_other else "unknown"
