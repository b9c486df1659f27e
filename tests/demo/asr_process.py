"""The speech service as a process of its own, on a socket that the test holds as the supervisor would.

Run as a program, this file plays the supervisor's part inside the child: it hands `main` a listener, a data
folder, a stop event and `ready`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asr_demo import asr_service
from asr_demo.asr_client import AsrClient, Running, Succeeded
from asr_demo.asr_protocol import AsrOptions
from tests.support.wait import wait_until


class AsrProcess:
    """One service, which may be killed and started again; its address stays, because the socket does."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when the service said that it is ready."""
        command = [sys.executable, "-m", "tests.demo.asr_process", str(self.listener.fileno()), str(self.data_dir)]
        self._process = subprocess.Popen(command, pass_fds=[self.listener.fileno()], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        with self._process.stdout as said:
            assert said.readline() == b"ready\n"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self, timeout: float = 60.0) -> int:
        """Ask the service to stop and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout)

    def recognisers(self) -> list[psutil.Process]:
        """The recogniser children that run now, if the service does."""
        try:
            children = psutil.Process(self.pid).children()
            return [child for child in children if "asr_demo.recognizer" in child.cmdline()]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.listener.close()

    def client(self, **options: Any) -> AsrClient:
        return AsrClient(self.url, **options)

    def result(self, task_id: str, options: AsrOptions | None = None, timeout: float = 60.0) -> Succeeded:
        """Poll until the task has ended; it must have succeeded."""
        client = self.client()

        def ended() -> object:
            state = client.poll(task_id, options=options or AsrOptions())
            return None if isinstance(state, Running) else state

        state = wait_until(ended, f"the end of task {task_id}", timeout=timeout, every=0.1)
        assert isinstance(state, Succeeded), state
        return state


@dataclass
class ForkedChild:
    """What the supervisor would hand to the companion. SIGTERM is the order to drain."""

    listener: socket.socket
    data_dir: Path
    stopping: threading.Event

    def ready(self) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    def next_order(self, timeout_s: float) -> Order | None:
        return Order("drain") if self.stopping.wait(timeout_s) else None

    def report(self, status: dict[str, Any]) -> None:
        pass

    def failed(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")


@dataclass
class Order:
    kind: str


def run(descriptor: int, data_dir: Path) -> int:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with socket.socket(fileno=descriptor) as listener:
        return asr_service.main(ForkedChild(listener, data_dir, stopping))


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), Path(sys.argv[2])))
