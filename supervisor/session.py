"""A tree driven by a program: for the demo, the bench and the tests (ARCHITECTURE §10, INTERFACES).

    with running(config) as session:
        session.kill_child(0)
        session.status()

The supervisor is a process of its own, the same as under `kernel-supervisor start`; it is asked through its control
socket. It holds the read end of a pipe whose write end is here: if this process dies, however it dies, the tree drains
and ends. Settings travel through that pipe, so that no password stands on a command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from kernel.config import Config
from kernel.errors import KernelError
from supervisor.boot import Program, boot
from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.embedded import embedded_url
from supervisor.os_signals import SignalPipe
from supervisor.run_dir import read_run_file
from supervisor.status_view import with_usage

_ORDER_BYTES_MAX = 1024 * 1024
_LOOK_EVERY_S = 0.02


class SessionFailed(KernelError):
    """The tree did not start, or ended by itself with `exit_status`; the reason stands on its stderr."""

    code = "session_failed"

    def __init__(self, message: str, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class _Start(msgspec.Struct, frozen=True):
    config: Config
    program: Program


class Session:
    """A running tree."""

    def __init__(self, process: subprocess.Popen[bytes], config: Config) -> None:
        self._process = process
        self._config = config
        self.exit_status: int | None = None
        """Set when the tree has ended: 0 drained, 1 killed past its limit or failed, 2 configuration."""

    @property
    def pid(self) -> int:
        """The supervisor's process number."""
        return self._process.pid

    def status(self, *, usage: bool = False) -> dict[str, Any]:
        """As `kernel-supervisor status --json`; cpu and memory only with `usage`. Raises NoSupervisor."""
        with ControlClient(self._config.data_dir) as client:
            status = client.request("status")
        if status["pid"] != self.pid:
            raise NoSupervisor(f"another supervisor (pid {status['pid']}) runs in {self._config.data_dir}")
        return with_usage(status) if usage else status

    @property
    def redis_url(self) -> str:
        """Where the tree's Redis is: the configured one, or the embedded server's socket. Raises NoSupervisor."""
        if self._config.redis_url is not None:
            return self._config.redis_url
        found = read_run_file(Path(self._config.data_dir).absolute())
        if found is None:
            raise NoSupervisor(f"no supervisor is running in {self._config.data_dir}")
        return embedded_url(found.redis)

    def kill_child(self, slot: int, role: str = "worker") -> int:
        """SIGKILL the child in that place; its process number. Raises Refused when the place is empty."""
        with ControlClient(self._config.data_dir) as client:
            return int(client.request("kill_child", role=role, slot=slot)["pid"])

    def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """The first status for which `condition` holds. Raises TimeoutError, SessionFailed when the tree ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                status = self.status()
                if condition(status):
                    return status
            except (NoSupervisor, TimeoutError):
                pass  # not yet listening, or no more: the process itself tells which
            if self._ended_within(_LOOK_EVERY_S):
                raise SessionFailed(f"the supervisor ended with exit status {self.exit_status}", self.exit_status)
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the tree was not in the wanted state within {timeout_s:g} s")

    def stop(self, timeout_s: float | None = None) -> int:
        """Drain the tree and wait for its end; the exit status. Past `timeout_s` (grace + 10 s) it is killed."""
        limit_s = self._config.drain_s + 10 if timeout_s is None else timeout_s
        if self._process.stdin is not None:
            self._process.stdin.close()  # the end of the lifeline is the order to drain
        if not self._ended_within(limit_s):
            self._process.kill()  # its guardian ends what is left of the tree
            self._ended_within(10)
        return self.exit_status if self.exit_status is not None else 1

    def _ended_within(self, limit_s: float) -> bool:
        try:
            self.exit_status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True


@contextmanager
def running(
    config: Config,
    program: Program | None = None,
    *,
    ready_timeout_s: float = 60.0,
    stderr: IO[bytes] | int | None = None,
) -> Iterator[Session]:
    """A tree that runs inside the block and is gone after it. Raises SessionFailed when it does not start.

    `stderr` is where its log goes (default: this program's stderr). The tree has its own session of the terminal, so
    that Ctrl-C reaches this program only, which then leaves the block.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.session"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    session = Session(process, config)
    try:
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(_Start(config, program or Program())) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already: the wait below says how
        session.wait_until(lambda status: status["state"] == "RUNNING", ready_timeout_s)
        yield session
    finally:
        session.stop()


def _serve() -> int:
    """The process behind a session: one line of settings on stdin, then stdin is the lifeline."""
    signals = SignalPipe()
    received = b""
    while not received.endswith(b"\n"):
        data = os.read(0, 65_536)
        if not data or len(received) > _ORDER_BYTES_MAX:
            return 2
        received += data
    start = msgspec.json.decode(received, type=_Start)
    return boot(start.config, signals, start.program, lifeline_fd=0)


if __name__ == "__main__":
    sys.exit(_serve())
