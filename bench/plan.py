"""What one run of `bench workflows` shall do, and how its load is shaped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bench.app import STEPS
from bench.servers import ALL_EMBEDDED, Durability, Servers

LOG_NAME = "kernel.log"
"""The tree's log, in the run's folder."""
FAULT_PERIODS = 6
"""A run with faults is stretched to about this many of its longer fault period."""
HOLD_MS_MAX = 50
OUTAGE_PARTS = 1.5
"""A load around an outage takes at least so many times as long."""
STEP_MS = 10
"""About what a trivial step takes of a slot when all are busy: a shorter hold would say nothing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run, as its report repeats them. Durations in seconds where the name says so."""

    count: int
    workers: int
    slots: int
    durability: Durability
    kill_every_s: float | None
    flush_every_s: float | None
    seed: int
    limit_s: float
    """The load has to be done by then; what is not done is a violation."""
    idle_samples: int
    servers: Servers = ALL_EMBEDDED
    """Instead of the embedded store and Redis."""
    repeats: int = 1
    """How often it is measured, each time on a fresh tree."""
    open_limit: int | None = None
    """How many workflows may be open at once; None leaves it to `open_max`."""
    around_outage_s: float | None = None
    """The load is to be seen around an outage of so many seconds of the store of observations: it outlasts that, and
    what was observed is compared with what is. None: it is not looked at."""
    outage: bool = False
    """Whether there is that outage in this run, or none, to compare with."""

    @property
    def faulty(self) -> bool:
        return self.kill_every_s is not None or self.flush_every_s is not None

    @property
    def outage_s(self) -> float:
        """How long the store of observations is stopped in this run."""
        return self.around_outage_s or 0.0 if self.outage else 0.0

    @property
    def places(self) -> int:
        """Workflows that can run at once."""
        return self.workers * self.slots

    @property
    def hold_ms(self) -> int:
        """How long each step holds its claim. Nothing without faults; with them long enough that the load outlasts
        several of them, because a worker that is killed with empty hands proves nothing. Around an outage long enough
        for one and a half times that outage, where the work itself does not take as long."""
        if self.around_outage_s is not None:
            each_ms = OUTAGE_PARTS * self.around_outage_s * 1000 * self.places / (len(STEPS) * self.count)
            return math.ceil(each_ms) if each_ms > STEP_MS else 0
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
        for name in (
            "servers",
            "open_limit",
            "outage",
            *(() if self.around_outage_s is not None else ("around_outage_s",)),
        ):
            del settings[name]
        return {**settings, "steps": len(STEPS), "hold_ms": self.hold_ms, "open_max": self.open_max}
