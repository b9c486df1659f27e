"""Memory and descriptors of each process over time: what rises steadily for an hour does not stop rising.

A process counts once it has lived for a while: what it takes in its first minute is what it needs. The slope is the
median of the slopes between any two of its samples, so that a moment at which much was under way, or at which pages
were shared with fewer siblings, does not make one. Over a few minutes also what is bounded still fills (caches, arenas,
pools): there a rise must be more than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import psutil

EVERY_S = 5.0
WARM_UP_S = 60.0
LIVED_S = 150.0
"""How long beyond its warm-up a process must have been watched before its slope says anything."""
KIB_PER_MINUTE_MAX, FDS_PER_MINUTE_MAX = 512.0, 1.0
KIB_FILLED, FDS_FILLED = 40_960.0, 24.0
"""What may still fill behind the warm-up, once: of three embedded stores the five connections of each, every one with a
cache of SQLite's 2 MiB and its descriptors, and the arenas of the threads. On a busy machine that takes ten minutes."""
SHORT_MIN = 40.0
"""Of a longer watch the filling does not move the median. So five minutes find what grows by 10 MiB a minute, an hour
what grows by half a MiB."""
_POINTS_MAX = 120


class Sample(NamedTuple):
    at_s: float
    pss_kib: float
    fds: int


class Slopes(NamedTuple):
    """Of one process behind its warm-up."""

    minutes: float
    kib: float
    """Of PSS, a minute."""
    fds: float
    """A minute."""


def slope_per_minute(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two of these points (seconds, value); 0 where no two moments are."""
    few = points[:: max(1, len(points) // _POINTS_MAX)]
    slopes = [60 * (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(few, 2) if x2 > x1]
    return median(slopes) if slopes else 0.0


class Growth:
    """The samples of all processes by name and pid."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)

    def note(self, name: str, pid: int, sample: Sample) -> None:
        self._samples[name, pid].append(sample)

    def look(self, named: Iterable[tuple[str, int]], at_s: float) -> None:
        """Sample these processes now; one that has gone is left out."""
        for name, pid in named:
            try:
                process = psutil.Process(pid)
                pss_kib = process.memory_full_info().pss / 1024
                self.note(name, pid, Sample(at_s, pss_kib, process.num_fds()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue

    def curves(self) -> dict[str, list[Sample]]:
        """All samples by `name pid`."""
        return {f"{name} {pid}": samples for (name, pid), samples in self._samples.items()}

    def judged(self) -> dict[tuple[str, int], Slopes]:
        """Those that were watched for long enough."""
        found = {}
        for process, samples in self._samples.items():
            warm = [sample for sample in samples if sample.at_s - samples[0].at_s >= WARM_UP_S]
            if warm and warm[-1].at_s - warm[0].at_s >= LIVED_S:
                found[process] = Slopes(
                    minutes=(warm[-1].at_s - warm[0].at_s) / 60,
                    kib=slope_per_minute([(sample.at_s, sample.pss_kib) for sample in warm]),
                    fds=slope_per_minute([(sample.at_s, float(sample.fds)) for sample in warm]),
                )
        return found

    def findings(self) -> Iterator[str]:
        """Every process that grew too fast after its warm-up; a watch of which none can be judged proves nothing."""
        judged = self.judged()
        if not judged:
            yield f"soak: none of {len(self._samples)} processes was watched for {WARM_UP_S + LIVED_S:.0f} s"
        for (name, pid), slopes in judged.items():
            is_short = slopes.minutes < SHORT_MIN
            if slopes.kib > max(KIB_PER_MINUTE_MAX, is_short * KIB_FILLED / slopes.minutes):
                yield f"soak: {name} (pid {pid}) grew by {slopes.kib:.0f} KiB of PSS a minute"
            if slopes.fds > max(FDS_PER_MINUTE_MAX, is_short * FDS_FILLED / slopes.minutes):
                yield f"soak: {name} (pid {pid}) opened {slopes.fds:.1f} descriptors a minute more than it closed"

    def summary(self) -> Iterator[str]:
        """One line a process that was watched for more than a moment, with its slopes where they say something."""
        judged = self.judged()
        for (name, pid), samples in sorted(self._samples.items()):
            if len(samples) > 1:
                first, last = samples[0], samples[-1]
                lived_s = last.at_s - first.at_s
                memory = f"{first.pss_kib / 1024:.1f} → {last.pss_kib / 1024:.1f} MiB"
                slopes = judged.get((name, pid))
                told = "" if slopes is None else f"  {slopes.kib:+.0f} KiB and {slopes.fds:+.1f} fds a minute"
                yield f"{name:14} pid {pid:7} {lived_s:6.0f} s  PSS {memory}  fds {first.fds} → {last.fds}{told}"
