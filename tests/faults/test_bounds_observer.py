"""L12, measured: what a worker pays for telling, when the store of observations hangs and its queue is full.

In a process of its own (`full_observer.py`), with inputs as large as a transcript, which the queue must not keep. Calls
are timed on the thread's own CPU clock: on a shared machine the turns of others, of milliseconds, are the last percent
of the wall clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.figures import Figures
from tests.support.requirements_index import CHECKOUT

QUEUE = 5_000
CALL_US, GROWN_MB = 50.0, 4.0
"""What is promised of a call; and "flat": what was noted beyond the full queue had more than 250 MB of inputs."""


def noted(folder: Path, *options: str) -> dict[str, Any]:
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", "tests.faults.full_observer", str(folder), "--queue", str(QUEUE), *options]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


@pytest.mark.fault
@pytest.mark.bound("L12")
@pytest.mark.req("l12", "obs-nonblocking", "obs-counters")
def test_a_full_queue_of_observations_costs_a_worker_microseconds_and_no_memory(
    tmp_path: Path, figure: Figures
) -> None:
    for shape in ("text", "words"):
        seen = noted(tmp_path / shape, "--shape", shape)
        assert (seen["accepted"], seen["dropped"]) == (QUEUE, seen["full"]["n"])
        assert seen["dropped"] >= QUEUE
        for phase, slack in (("full", 3.0), ("filling", 10.0)):
            what = f"p99 of a call, 54 kB of {shape}, queue {phase}"
            figure.check("L12", what, [seen[phase]["cpu_p99_us"]], CALL_US, "µs", slack=slack)
        grown = max(0, seen["grown_bytes"]) / 1e6
        figure.check("L12", f"memory grown while full, 54 kB of {shape}", [grown], GROWN_MB, "MB")
