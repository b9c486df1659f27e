"""`kernel-supervisor demo` as a stranger runs it: in a folder of its own, and nothing may be left running after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.support.wait import wait_until

TIME_S = 110
LIMIT_S = 200
"""How long a run is waited for on a machine that does much beside it; such tests have `timeout(240)`."""


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with `folder` as its working directory, and see that it left no process behind."""
    command = [sys.executable, "-m", "supervisor", "demo", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    wait_until(lambda: not living_below(folder), "every process of the demo has ended")
    return done


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object of `--json`."""
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def living_below(folder: Path) -> list[str]:
    """Processes whose command line or working folder names `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) or process.cwd().startswith(str(folder)):
                found.append(f"{process.pid} {process.cmdline()}")
        except psutil.Error:
            continue
    return found
