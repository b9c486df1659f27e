"""A supervisor under test: a real process, seen from outside and ended with the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil

from supervisor.boot import Program
from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.roles import Companion, Roles
from tests.support.wait import wait_until

STUBS = "tests.process.roles_for_tests"
LIMIT_S = 60.0
"""How long a test waits for what must happen at all."""
DRAIN_S = 20.0
"""A grace time that nobody who ends by himself needs: a child may stand still for seconds on a busy machine."""
PATIENT_S = 20.0
"""A `redis_budget_s` for tests of what Redis says: a server that stands still for a moment is not missed at once."""
NO_REDIS = "redis://127.0.0.1:1/0"
"""Most tests need no Redis: with this address none is embedded, and nobody connects."""


def program(
    worker: str = "worker",
    dispatcher: str = "dispatcher",
    probe: str | None = None,
    companions: tuple[str, ...] = (),
    releaser: str = "releaser",
) -> Program:
    """The stub roles of these names."""
    looks = None if probe is None else f"{STUBS}:{probe}"
    roles = Roles(f"{STUBS}:{worker}", f"{STUBS}:{dispatcher}", looks, f"{STUBS}:{releaser}")
    return Program(roles, None if probe is not None else [Companion(name, f"{STUBS}:companion") for name in companions])


class Supervised:
    """One `start` in its own data folder (or a given one)."""

    def __init__(
        self,
        data_dir: Path,
        log_path: Path,
        what: Program | None = None,
        *,
        environ: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        flags = {"data_dir": str(data_dir), "redis_url": NO_REDIS, "workers": 1, "dispatchers": 1, "drain_s": DRAIN_S}
        arguments = [json.dumps(flags | settings), msgspec.json.encode(what or program()).decode()]
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error::DeprecationWarning", "-m", "tests.process.start_stub", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )
        self.pid = self.process.pid
        self._seen: set[psutil.Process] = set()

    # --- seen from outside ------------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """None while nobody answers."""
        try:
            with ControlClient(self.data_dir) as client:
                return client.request("status")
        except NoSupervisor:
            return None

    def child(self, name: str) -> dict[str, Any]:
        status = self.status()
        assert status is not None, "the supervisor does not answer"
        return next(child for child in status["children"] if child["name"] == name)

    def process_of(self, name: str) -> psutil.Process:
        """The process in that place; never this one, which psutil takes None for."""
        pid = self.child(name)["pid"]
        assert pid is not None, f"{name} is not running"
        return psutil.Process(pid)

    def wait_replaced(self, name: str, old: psutil.Process, timeout: float = LIMIT_S) -> None:
        wait_until(lambda: self.child(name)["pid"] not in (None, old.pid), f"a successor of {name}", timeout)

    def wait_running(self, timeout: float = LIMIT_S) -> dict[str, Any]:
        status = wait_until(self._running, "everything runs", timeout)
        assert status is not None
        return status

    def _running(self) -> dict[str, Any] | None:
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}: {self.log_text()[-2000:]}")
        status = self.status()
        return status if status is not None and status["state"] == "RUNNING" else None

    def heard(self, event: str) -> list[dict[str, Any]]:
        """What stub roles wrote down under this name."""
        try:
            text = (self.data_dir / "heard.jsonl").read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [fact for fact in map(json.loads, whole) if fact["event"] == event]

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log(self, event: str) -> list[dict[str, Any]]:
        """Log lines of that event."""
        return [line for line in self.lines() if line["event"] == event]

    def lines(self) -> list[dict[str, Any]]:
        """All log lines; every complete one must be JSON."""
        text = self.log_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if not line.startswith("error: ")]

    def family(self) -> list[psutil.Process]:
        """The supervisor and everything below it."""
        supervisor = psutil.Process(self.pid)
        family = [supervisor, *supervisor.children(recursive=True)]
        self._seen.update(family)
        return family

    # --- the end ----------------------------------------------------------------------------------

    def wait_end(self, timeout: float = LIMIT_S) -> int:
        return self.process.wait(timeout)

    def destroy(self) -> None:
        """Whatever a test left running ends here, also what outlived its supervisor by a fault."""
        if self.process.poll() is None:
            self.family()
        for process in self._seen:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(LIMIT_S)
        wait_until(lambda: all_gone([*self._seen]), "the tree is gone")


def all_gone(processes: list[psutil.Process]) -> bool:
    """True when none of them does anything any more (an orphan's zombie belongs to init)."""
    return not [process for process in processes if _lives(process)]


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
