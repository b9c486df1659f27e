"""The tree of a data folder as one look finds it: running, silent, left behind by a kill, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kernel.config import Config
from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.ops_lane_verdict import Crew, crew_of
from supervisor.run_dir import read_run_file


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor says of itself (`status`), or why there is no such answer."""

    folder: str
    status: Mapping[str, Any] | None = None
    is_silent: bool = False
    """There is a supervisor, and it does not answer."""
    dead_pid: int | None = None
    """One that was killed has left its files."""

    @property
    def is_there(self) -> bool:
        return self.status is not None or self.is_silent

    @property
    def is_draining(self) -> bool:
        return self._crew is not None and self._crew.draining

    @property
    def workers(self) -> int:
        """So many can take work, from the lanes or from the store."""
        crew = self._crew
        return 0 if crew is None or crew.draining else crew.able

    @property
    def unable(self) -> tuple[str, ...]:
        """Why each worker that can take nothing can not."""
        return () if self._crew is None else self._crew.unable

    @property
    def offered(self) -> frozenset[str] | None:
        """The versions (`kernel.fingerprint.version_shown`) that some worker of this tree can execute now; None when
        one of them has not told, because it has just begun or has too many types."""
        told = [child.get("x_definitions") for child in self._running("worker")]
        if None in told:
            return None
        return frozenset(version for one in told for version in one or ())

    @property
    def dispatchers(self) -> int:
        """So many register accepted work."""
        return len(self._running("dispatcher"))

    def registers(self, source: str) -> bool:
        """Whether a dispatcher of this tree looks after that source, or has not told yet after which."""
        loops = [one["loops"] for one in self._running("dispatcher")]
        return any(not one or f"outbox.{source}" in one for one in loops)

    @property
    def app(self) -> str | None:
        """The application that the tree was started with."""
        return None if self.status is None else self.status["app"]

    def _running(self, role: str) -> list[Mapping[str, Any]]:
        children = [] if self.status is None else self.status["children"]
        return [one for one in children if (one["role"], one["state"], one["silent"]) == (role, "RUNNING", False)]

    @property
    def redis_pid(self) -> int | None:
        """The process of the embedded Redis."""
        children = [] if self.status is None else self.status["children"]
        return next((child["pid"] for child in children if child["kind"] == "embedded"), None)

    @property
    def _crew(self) -> Crew | None:
        if self.status is None:
            return None
        # Without Redis a worker takes work from the store: that is slow, and no reason to say that nobody does.
        children = [{**child, "x_redis": None} for child in self.status["children"]]
        return crew_of({**self.status, "children": children})


def look(config: Config, *, timeout_s: float = 5.0) -> Tree:
    """Ask the supervisor of the data folder. Raises OSError where the folder can not be looked into."""
    folder = config.data_dir
    try:
        with ControlClient(folder, timeout_s=timeout_s) as client:
            return Tree(folder=folder, status=client.request("status"))
    except TimeoutError:
        return Tree(folder=folder, is_silent=True)
    except NoSupervisor:
        absolute = Path(folder).absolute()
        left = read_run_file(absolute)
        return Tree(folder=str(absolute), dead_pid=None if left is None else left.pid)
