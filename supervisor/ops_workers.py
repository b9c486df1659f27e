"""Does a worker that a snapshot names still run? Asked of the tree of this data folder, and of this machine.

A snapshot tells who held the claim at its last event, and a dead worker makes none. Only what is certain is said: of
the worker of another machine, or of another tree beside the same MongoDB, nothing is known here (ops-where-stuck).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from kernel.config import Config
from kernel.errors import KernelError
from kernel.observe.views import Snapshot
from supervisor.ops_now import Holder
from supervisor.ops_shell import data_folder
from supervisor.ops_tree import Tree, look

_ANSWER_S = 1.0
_CLOCKS_APART_MS = 2_000
"""What the start of a process may lie behind its first claim by rounding and by two clocks."""


class Workers:
    """The workers of one data folder at one moment: the tree is asked at most once, and only when that is needed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        data_folder(config)
        # Beside a shared store other trees have workers, too; a file in the folder belongs to this tree alone.
        self._alone = config.mongodb_uri is None and config.observe_mongodb_uri is None
        self._tree: Tree | None = None

    @property
    def owns_store(self) -> bool:
        """Whether nobody else works in the durable store of this tree."""
        return self._config.mongodb_uri is None

    @property
    def tree(self) -> Tree:
        """The tree as it is found at the first question; one that answers strangely counts as silent."""
        if self._tree is None:
            try:
                self._tree = look(self._config, timeout_s=_ANSWER_S)
            except (KernelError, OSError):
                self._tree = Tree(folder=self._config.data_dir, is_silent=True)
        return self._tree

    def names(self, snapshot: Snapshot) -> dict[str, str]:
        """By worker_id, what is known of workers as others see them: machine, process, slot."""
        here = socket.gethostname()
        names = {child["worker_id"]: f"{here}/{child['pid']}/{child['name']}" for child in self._running()}
        if snapshot.worker_id is not None and snapshot.worker is not None:
            names[snapshot.worker_id] = snapshot.worker
        return names

    def holder(self, snapshot: Snapshot) -> Holder:
        """Whether the worker that holds the claim in `snapshot` runs; `unknown` where nobody here can tell."""
        if snapshot.waiting != "step" or snapshot.worker_id is None:
            return "unknown"
        for child in self._running():
            if child["worker_id"] == snapshot.worker_id:
                return "silent" if child.get("silent") else "runs"
        if not self._alone or self.tree.is_silent:
            return "unknown"
        return "gone" if self.tree.status is not None else _process(snapshot)

    def _running(self) -> Iterator[Mapping[str, Any]]:
        for child in [] if self.tree.status is None else self.tree.status["children"]:
            if child["pid"] is not None and child["worker_id"]:
                yield child


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
