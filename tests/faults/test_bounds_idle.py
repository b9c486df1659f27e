"""What a worker costs that has nothing to do, on the settings that everybody has by default.

It sleeps until its next poll, scan or renewal, and is woken by Redis in between: half a percent of a core, and less
than 40 MB that it shares with nobody (proportional set size: the parent's pages count in parts).
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kernel.config import Config
from tests.faults import apps
from tests.faults.effects import boot_ms
from tests.faults.rig import tree, wait_for
from tests.support.figures import Figures

IDLE_MS = 20_000
CPU_PERCENT, PSS_MB = 0.5, 40.0
DEFAULTS = Config()


@pytest.mark.fault
@pytest.mark.bound("idle worker")
def test_an_idle_worker_takes_half_a_percent_of_a_core_and_40_mb(tmp_path: Path, figure: Figures) -> None:
    """It has worked before: what is loaded for the first workflow is in its memory."""
    usual = {name: getattr(DEFAULTS, name) for name in ("lease_s", "poll_s", "scan_s", "slots", "durability")}
    with tree(tmp_path / "data", workers=2, **usual) as running:
        ids = running.start_many(apps.STEADY, "before", 20)
        running.finish(*ids)
        workers = [psutil.Process(pid) for pid in running.pids()]
        began_ms, before_s = boot_ms(), [sum(worker.cpu_times()[:2]) for worker in workers]
        wait_for(began_ms + IDLE_MS)
        lasted_s = (boot_ms() - began_ms) / 1000
        percents = [
            100 * (sum(worker.cpu_times()[:2]) - used_s) / lasted_s
            for worker, used_s in zip(workers, before_s, strict=True)
        ]
        pss_mb = [worker.memory_full_info().pss / 1e6 for worker in workers]

    figure.check("idle worker", "CPU of a core", percents, CPU_PERCENT, "%")
    figure.check("idle worker", "PSS", pss_mb, PSS_MB, "MB", slack=1.5)
