"""Timing a script against the no-op: in short slices, one of each side by side, many times.

The speed of a machine drifts within a second by more than what is to be seen. Two slices that lie next to each other
see the same machine, so the ratio of a pair holds where neither of its rates does; the median of many pairs is told
(design/REDIS.md §0).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.script_plan import WARM_PAIRS, ScriptPlan
from bench.script_server import Inside

PAIRS_MAX = 20
"""For a row whose slices end early, because few calls would change what is measured: so many times `repeats`."""
COUNTED_CALLS = 200


def _nothing() -> None:
    """For an operation that leaves everything as it was."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operation to be timed, at one depth. `prepare` and `restore` run before and after each slice, untimed."""

    op: str
    n: int
    """How many ids, owners or records one call takes."""
    depth: int
    call: Callable[[], object]
    calls_max: int
    """Of one slice: more would change the depth."""
    prepare: Callable[[int], None] = field(default=lambda calls: None)
    """Told how many calls will follow at most."""
    restore: Callable[[], None] = _nothing
    counts: int = 1
    """What one call counts in `per_s`: n where ids a second are told, else 1."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What was seen: one entry for each pair of slices, and the time of each call in ns, sorted."""

    per_s: list[float]
    noop_per_s: list[float]
    ratios: list[float]
    calls_ns: list[int]
    client_us: list[float]
    """Processor time of this program for one call, in each slice."""
    noop_client_us: list[float]


def timed(case: Case, noop: Callable[[], object], plan: ScriptPlan) -> Timed:
    """Run pairs of slices until `repeats` slices' worth of time was spent in the operation."""
    pairs: list[tuple[_Slice, _Slice]] = []
    calls_ns: list[int] = []
    slice_ns = round(plan.slice_s * 1e9)
    for _ in range(WARM_PAIRS):
        _pair(case, noop, slice_ns, [])
    spent_ns = 0
    while len(pairs) < plan.repeats or (spent_ns < plan.repeats * slice_ns and len(pairs) < PAIRS_MAX * plan.repeats):
        pairs.append(_pair(case, noop, slice_ns, calls_ns))
        spent_ns += pairs[-1][1].ns
    return Timed(
        per_s=[case.counts * own.per_s for _, own in pairs],
        noop_per_s=[idle.per_s for idle, _ in pairs],
        ratios=[case.counts * own.per_s / idle.per_s for idle, own in pairs],
        calls_ns=sorted(calls_ns),
        client_us=[own.client_us for _, own in pairs],
        noop_client_us=[idle.client_us for idle, _ in pairs],
    )


class _Slice(NamedTuple):
    """One slice: how many calls, how long they took together, and how long the processor worked for this program."""

    count: int
    ns: int
    cpu_ns: int

    @property
    def per_s(self) -> float:
        return self.count * 1e9 / self.ns

    @property
    def client_us(self) -> float:
        return self.cpu_ns / 1000 / self.count


def _pair(case: Case, noop: Callable[[], object], slice_ns: int, calls_ns: list[int]) -> tuple[_Slice, _Slice]:
    """A slice of the no-op, then one of the case."""
    case.prepare(case.calls_max)
    noop()  # what prepared has another state of the caches behind it
    idle = _slice(noop, slice_ns, case.calls_max, [])
    own = _slice(case.call, slice_ns, case.calls_max, calls_ns)
    case.restore()
    return idle, own


def _slice(call: Callable[[], object], slice_ns: int, calls_max: int, calls_ns: list[int]) -> _Slice:
    """Call until the time is up or `calls_max` calls are made. Both sides of a pair pay for the same clock."""
    clock = time.perf_counter_ns
    count = 0
    cpu_ns = time.process_time_ns()
    begin_ns = before_ns = clock()
    while count < calls_max:
        call()
        now_ns = clock()
        calls_ns.append(now_ns - before_ns)
        before_ns = now_ns
        count += 1
        if now_ns - begin_ns >= slice_ns:
            break
    return _Slice(count, max(1, before_ns - begin_ns), time.process_time_ns() - cpu_ns)


def counted(case: Case, inside: Callable[[Callable[[], object], int], Inside | None]) -> Inside | None:
    """What one call costs inside, as the server counts it."""
    calls = min(COUNTED_CALLS, case.calls_max)
    case.prepare(calls)
    try:
        return inside(case.call, calls)
    finally:
        case.restore()


def quantile(values: list[float] | list[int], part: float) -> float:
    """Nearest rank, of values in order or not."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(part * len(ordered)))])


def median(values: list[float]) -> float:
    return statistics.median(values)
