"""The producers' processes: started, killed and started again by the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.chaos.producers import STOP
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until


class Staff:
    """One process a role, on a lifeline: it ends when this one does, however that ends. One that ends by itself before
    it was told to has failed, and that is a finding."""

    def __init__(
        self, folder: Path, seed: int, rate: float, listeners: int, stderr: IO[bytes], roles: Sequence[str]
    ) -> None:
        self._folder = folder
        self._arguments = (str(seed), f"{rate:g}", str(listeners))
        self._stderr = stderr
        self._births = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.found: list[str] = []
        self._roles = roles
        self.start_all()

    def start_all(self) -> None:
        """One process a role."""
        for role in self._roles:
            self._start(role)

    def _start(self, role: str) -> None:
        self._births += 1
        module, birth = "tests.chaos.producers", str(self._births)
        command = [sys.executable, "-m", module, role, str(self._folder), birth, *self._arguments]
        self._processes[role] = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=self._stderr, stderr=self._stderr
        )

    def kill_one(self, choice: int) -> str:
        """SIGKILL one of them, and start the next; its role."""
        role = sorted(self._processes)[choice % len(self._processes)]
        _end(self._processes[role])
        self._start(role)
        return role

    def kill_all(self) -> None:
        """SIGKILL all of them; nobody is started in their place."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            _end(process)
        self._processes.clear()

    def look(self) -> None:
        """Who has failed is said once, and replaced."""
        for role, process in list(self._processes.items()):
            if process.poll() is not None:
                self.found.append(f"producer: the {role} ended with status {process.returncode}")
                _end(process)
                self._start(role)

    def stop(self, *roles: str, timeout: float) -> None:
        """Let these end what they are at; one that does not is killed, and that is a finding."""
        for role in roles:
            (self._folder / STOP.format(role)).touch()
        for role in roles:
            process = self._processes.pop(role)
            try:
                wait_until(lambda process=process: process.poll() is not None, f"{role} ends", timeout, every=0.05)
            except AssertionError:
                self.found.append(f"producer: the {role} did not end within {timeout:g} s")
            _end(process)
            if process.returncode not in (0, -signal.SIGKILL):
                self.found.append(f"producer: the {role} ended with status {process.returncode}")

    def close(self) -> None:
        for process in self._processes.values():
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it if it lives, and let go of its lifeline."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
