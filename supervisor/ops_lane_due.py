"""Is there due work that no lane knows of? Right after Redis lost its memory all lanes are empty and look healthy.

Asked of the snapshots, which may be late or have gaps, so that a view never reads the instances (obs-never-instances).
A timer that has come since its snapshot was written is not among them: what is told is a lower bound.
"""

from __future__ import annotations

from kernel.clock import Clock
from kernel.config import Config
from kernel.errors import KernelError
from kernel.observe.reading import Wanted
from supervisor.ops_lane_verdict import Unqueued
from supervisor.ops_snapshots import snapshots


def unqueued(config: Config, config_file: str | None, clock: Clock) -> dict[int, Unqueued]:
    """Lane -> its work that waits for a worker by the snapshots; empty where they tell of none, or can not be read:
    the lanes are shown in any case."""
    try:
        with snapshots(config.data_dir, config_file) as found:
            counts = found.read.counts(Wanted(waiting="worker"), by=("business_priority",))
    except KernelError:
        return {}
    now_ms = clock.wall_ms()
    return {
        count.business_priority: Unqueued(count.n, now_ms - (count.oldest_waiting_since or now_ms))
        for count in counts
        if count.business_priority is not None
    }
