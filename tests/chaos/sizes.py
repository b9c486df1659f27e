"""How much a run was: the sizes of RELIABILITY §3.3 that are this run's to reach in an hour, and what it reached."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.checker import Evidence
from tests.chaos.producers import LARGE

HOUR_S = 3_600.0
ACKNOWLEDGED = 100
KILL_EVERY_S = 3


class Size(NamedTuple):
    """`wanted` in an hour."""

    what: str
    reached: int
    wanted: int


def sizes(e: Evidence) -> list[Size]:
    """Each of them; counted is what happened, not what was asked for."""
    matched = sum(signal["match_time"] is not None for signal in e.inbox)
    return [
        Size("workflows", len(e.rows), 5_000),
        Size("pairs of signal and wait", matched, 1_000),
        Size(f"fan-outs to {LARGE}", _large_fan_outs(e), 20),
        Size("kills", e.hits.kills, round(HOUR_S / KILL_EVERY_S)),
        Size("pauses past the lease", len(e.hits.pauses), 200),
        Size("wipes of Redis", e.hits.flushes, 200),
        Size(f"store restarts after {ACKNOWLEDGED} acknowledged writes", _restarts(e), 50),
        Size("children killed", e.hits.deaths, 1_000),
    ]


def _large_fan_outs(e: Evidence) -> int:
    """How many stories have so many listeners who were woken by its end."""
    woken = Counter(
        row["biz_key"].split(":")[1] for row in e.rows if row["type"] == "listens" and row["status"] == "completed"
    )
    return sum(count >= LARGE for count in woken.values())


def _restarts(e: Evidence) -> int:
    """Of the restarts of the stores, how many came after so many writes that were told to have been made since the one
    before: a start, a signal, an object each."""
    told = sorted(word.at_ms for word in e.words if word.told and word.what in ("start", "signal", "object"))
    places = [bisect_right(told, at_ms) for at_ms in (0, *e.hits.store_restarts)]
    return sum(after - before >= ACKNOWLEDGED for before, after in pairwise(places))


def table(found: Iterable[Size], seconds: float) -> Iterator[str]:
    """One line each: reached, what an hour at this pace reaches, wanted."""
    yield f"{'size':45} {'reached':>8} {'an hour':>8} {'wanted':>8}"
    for size in found:
        yield f"{size.what:45} {size.reached:8} {_in_an_hour(size, seconds):8.0f} {size.wanted:8}"


def too_small(found: Iterable[Size], seconds: float) -> Iterator[str]:
    """A finding for each size that a run of an hour has not reached; a shorter one need not."""
    if seconds >= HOUR_S:
        for size in found:
            if size.reached < size.wanted:
                yield f"size: {size.reached} {size.what}, {size.wanted} are wanted of an hour"


def _in_an_hour(size: Size, seconds: float) -> float:
    return size.reached * HOUR_S / max(seconds, 1.0)
