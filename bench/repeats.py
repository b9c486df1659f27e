"""Repeating a measurement: how often in what time, and what becomes of its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

REPEATS = 3
"""Runs of `bench workflows` where nothing else is asked for and nothing is broken on purpose."""


def repeated(most: int, within_s: float | None, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """1, 2, … up to `most`, as long as another repeat, if it takes as long as the longest so far, ends within so many
    seconds from the begin of the first, which comes in any case: nobody who did not ask for repeats waits long for
    them. None is no such limit."""
    begun_s = before_s = clock()
    longest_s = 0.0
    for number in range(1, most + 1):
        if number > 1:
            now_s = clock()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
            if within_s is not None and now_s - begun_s + longest_s > within_s:
                return
        yield number


def median_of(values: Sequence[float]) -> float:
    """The median, whole where all values are, else to three digits as they are."""
    middle = median(values)
    return round(middle) if all(isinstance(value, int) for value in values) else round(middle, 3)
