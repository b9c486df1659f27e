"""One place in the tree and the child that holds it at the moment. A successor keeps role and number."""

from __future__ import annotations

import socket
from collections import Counter
from typing import Any, Literal

import msgspec

from supervisor.channels import Channels
from supervisor.forking import Exit, Process
from supervisor.health import Health
from supervisor.loop import Timer
from supervisor.messages import Cause, ToChild
from supervisor.restart import Death, RestartHistory, RestartPolicy
from supervisor.roles import EXIT_UNAVAILABLE

State = Literal["STARTING", "RUNNING", "DRAINING", "BACKOFF", "FATAL", "STOPPED"]
Kind = Literal["worker", "dispatcher", "probe", "companion", "embedded", "releaser"]


class LastExit(msgspec.Struct, frozen=True):
    """How the last child of a slot ended: `text` says what the system saw, `words` what the child said."""

    cause: Cause
    text: str
    words: str


class Slot:
    """Facts and state of one place; what happens when is decided by the tree.

    STARTING: forked, not yet ready. RUNNING: ready. DRAINING: told to end. BACKOFF: dead, a successor will come.
    FATAL: given up. STOPPED: ended for good. `ends_last`: others may need it until they have ended.
    """

    def __init__(
        self,
        kind: Kind,
        role: str,
        number: int,
        policy: RestartPolicy,
        *,
        function: str = "",
        listener: socket.socket | None = None,
        ends_last: bool = False,
    ) -> None:
        self.kind = kind
        self.role = role
        self.number = number
        self.function = function
        self.listener = listener
        self.ends_last = ends_last
        self.state: State = "STOPPED"
        self.process: Process | None = None
        self.channels: Channels | None = None
        self.worker_id = ""
        self.restarts = -1
        self.restart_causes: Counter[str] = Counter()
        """How the children before the present one had ended: `exit`, `signal`, or `wedged` when one asked for it."""
        self._end: str | None = None
        self.forked_ms = 0
        self.last_exit: LastExit | None = None
        self.health = Health()
        self.history = RestartHistory(policy)
        self.words = ""
        self.was_ready = False
        self.kill_requested = False
        self.killed_by_order = False
        self.timer: Timer | None = None
        """The one thing that waits for this slot: its restart, its kill at the drain limit, or its next PING."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}" if self.kind in ("worker", "dispatcher") else self.role

    @property
    def url(self) -> str | None:
        """Where a companion is reached."""
        if self.listener is None:
            return None
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def owns_claims(self) -> bool:
        return self.kind in ("worker", "dispatcher")

    def began(self, process: Process, channels: Channels | None, now_ms: int) -> None:
        """A child was forked for this slot."""
        self.process, self.channels, self.forked_ms = process, channels, now_ms
        self.state = "STARTING"
        self.restarts += 1
        if self._end is not None:
            self.restart_causes[self._end] += 1
        self.health = Health()
        self.words = ""
        self.was_ready = self.kill_requested = self.killed_by_order = False
        self.history.forked()

    def became_ready(self, now_ms: int) -> None:
        self.was_ready = True
        self.history.ready(now_ms)
        if self.state == "STARTING":
            self.state = "RUNNING"

    def ended(self, found: Exit, cause: Cause) -> Death:
        """The child was reaped: what the restart policy must know."""
        self.process = self.channels = None
        self._end = "wedged" if self.state == "DRAINING" else "exit" if found.signal is None else "signal"
        self.last_exit = LastExit(cause, str(found), self.words)
        return Death(
            committed=self.health.has_committed,
            ordered=self.state == "DRAINING" and cause == "ordered",
            requested=self.kill_requested,
            by_sigkill=found.signal == 9,
            store_away=found.code == EXIT_UNAVAILABLE,
        )

    def send(self, message: ToChild) -> bool:
        return self.channels is not None and self.channels.send(message)

    def kill(self) -> None:
        """End the child and its process group by the supervisor's order."""
        self.rest()
        self.killed_by_order = True
        if self.process is not None:
            self.process.kill_group()

    def rest(self) -> None:
        """Nothing waits for this slot any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def shown(self, now_ms: int) -> dict[str, Any]:
        """The row of `status`, without what only the operating system knows."""
        alive = self.process is not None
        return {
            "name": self.name,
            "role": self.role,
            "kind": self.kind,
            "slot": self.number,
            "pid": self.process.pid if self.process is not None else None,
            "state": self.state,
            "silent": alive and self.health.is_silent(now_ms),
            "worker_id": self.worker_id if self.owns_claims else None,
            "url": self.url,
            "uptime_s": round((now_ms - self.forked_ms) / 1000, 3) if alive else None,
            "restarts": max(self.restarts, 0),
            "restart_causes": dict(self.restart_causes),
            "last_exit": msgspec.to_builtins(self.last_exit),
            **self.health.shown(now_ms),
        }
