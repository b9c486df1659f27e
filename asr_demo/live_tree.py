"""The process tree of a demo run: started, looked at, and, when its supervisor was killed, started again."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from asr_demo.live_page import kept_port
from kernel import Client, KernelError
from kernel.config import Config
from kernel.runtime import open_client
from supervisor.session import Session, running

_WIPE_LIMIT_S = 2.0


class Tree:
    """A tree with the settings `config`, from entering this context to leaving it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stack = ExitStack()
        self._session: Session | None = None
        self.births = 0
        """How many supervisors this tree has had."""
        self.names: dict[str, str] = {}
        """worker_id → `worker-1`, of every child that `children` has seen."""
        self._titles: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def client(self) -> Client:
        """A publisher's client on this tree's stores, closed before the tree ends or its supervisor is replaced."""
        return self._stack.enter_context(open_client(self.config, self.config.data_dir, self.session.redis_url))

    def children(self) -> list[dict[str, Any]]:
        """The rows of `status`, whose names are learnt; none while the supervisor does not answer."""
        try:
            found: list[dict[str, Any]] = self.session.status()["children"]
        except (KernelError, TimeoutError):
            return []
        for child in found:
            if child.get("worker_id") and child["pid"]:
                self.names[child["worker_id"]] = child["name"]
                self._titles[child["worker_id"]] = f"{child['name']} (pid {child['pid']})"
        return found

    def titles(self) -> dict[str, str]:
        """worker_id → `worker-1 (pid 4127)`, of every child seen so far."""
        return self._titles

    def kill_supervisor(self) -> int:
        """SIGKILL the supervisor and start another on the same data folder; the pid killed.

        What is left of the old tree ends by itself meanwhile; until then both work, and the claims keep them apart.
        """
        pid = self.session.pid
        os.kill(pid, signal.SIGKILL)
        self._stack.close()
        self._begin()
        return pid

    def _begin(self) -> None:
        self._session = self._stack.enter_context(running(self.config))
        self.config = kept_port(self.config, self._session)
        self.births += 1

    def wipe_redis(self) -> bool:
        """Empty the embedded Redis; whether it answered."""
        try:
            path = unquote(self.session.redis_url.removeprefix("unix://"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_WIPE_LIMIT_S)
                connection.connect(path)
                connection.sendall(b"FLUSHALL\r\n")
                return connection.recv(64).startswith(b"+OK")
        except (OSError, KernelError):
            return False
