"""What one run of `bench workflows` shall do, and how its load is shaped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.app import STEPS

LOG_NAME = "kernel.log"
"""The tree's log, in the run's folder."""
FAULT_PERIODS = 6
"""A run with faults is stretched to about this many of its longer fault period."""
HOLD_MS_MAX = 50


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run, as its report repeats them. Durations in seconds where the name says so."""

    count: int
    workers: int
    slots: int
    durability: Literal["full", "normal"]
    kill_every_s: float | None
    flush_every_s: float | None
    seed: int
    limit_s: float
    """The load has to be done by then; what is not done is a violation."""
    idle_samples: int
    open_limit: int | None = None
    """How many workflows may be open at once; None leaves it to `open_max`."""

    @property
    def faulty(self) -> bool:
        return self.kill_every_s is not None or self.flush_every_s is not None

    @property
    def places(self) -> int:
        """Workflows that can run at once."""
        return self.workers * self.slots

    @property
    def hold_ms(self) -> int:
        """How long each step holds its claim. Nothing without faults; with them long enough that the load outlasts
        several of them, because a worker that is killed with empty hands proves nothing."""
        periods = [period for period in (self.kill_every_s, self.flush_every_s) if period is not None]
        if not periods:
            return 0
        wanted_ms = FAULT_PERIODS * max(periods) * 1000 * self.places / (len(STEPS) * self.count)
        return min(HOLD_MS_MAX, max(1, math.ceil(wanted_ms)))

    @property
    def open_max(self) -> int | None:
        """How many workflows may be open at once. Left alone: all of them without faults, so that the publisher is no
        part of the rate; with faults twice the places, so that no worker is ever out of work nor far behind."""
        if self.open_limit is not None:
            return self.open_limit
        return 2 * self.places if self.faulty else None

    def settings(self) -> dict[str, Any]:
        """For the report."""
        settings = asdict(self)
        del settings["open_limit"]
        return {**settings, "steps": len(STEPS), "hold_ms": self.hold_ms, "open_max": self.open_max}
