"""The page's web process as the supervisor runs it, on a socket that the test holds.

Run as a program, this file plays the supervisor's part inside the child: it hands the role a link.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernel.config import Config
from tests.demo.asr_process import ForkedChild

REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 1\r\n\r\n"
SETTINGS = "PAGE_SETTINGS"


class PageProcess:
    """One web process, which may be killed and started again; its address stays, because the socket does.

    `role` is the function of `asr_demo.page.companion`: notes or subscriptions.
    """

    def __init__(self, config: Config, role: str = "notes") -> None:
        self.config = config
        self.role = role
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Return when it said that it is ready."""
        settings = msgspec.json.encode(self.config).decode()
        command = [sys.executable, "-m", "tests.demo.page_process", self.role, str(self.listener.fileno())]
        # Not as an argument: settings may hold a password, and command lines are everybody's to read.
        environ = {**os.environ, SETTINGS: settings}
        self._process = subprocess.Popen(
            command, pass_fds=[self.listener.fileno()], stdout=subprocess.PIPE, env=environ
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            assert said.readline() == b"ready\n"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self, timeout: float = 60.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout)

    @contextmanager
    def refusing(self) -> Iterator[list[bytes]]:
        """While nobody else listens: every request gets a 503. The requests."""
        seen: list[bytes] = []
        over = threading.Event()
        self.listener.settimeout(0.05)

        def refuse() -> None:
            while not over.is_set():
                try:
                    connection, _ = self.listener.accept()
                except OSError:
                    continue
                with connection:
                    connection.settimeout(5)
                    try:
                        seen.append(connection.recv(4096))
                        connection.sendall(REFUSAL)
                    except OSError:
                        continue

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()
        self.listener.close()


@dataclass
class PageLink(ForkedChild):
    """As the speech service's, with the settings of which the page reads more."""

    config: Config

    @property
    def redis_url(self) -> str | None:
        return self.config.redis_url


def run(role: str, descriptor: int, settings: str) -> int:
    from asr_demo.page import companion

    functions = {"notes": companion.notes, "subscriptions": companion.subscriptions}
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with socket.socket(fileno=descriptor) as listener:
        config = msgspec.json.decode(settings, type=Config)
        return functions[role](PageLink(listener, Path(config.data_dir), stopping, config))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), os.environ.pop(SETTINGS)))
