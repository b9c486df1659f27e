"""What the run did to its processes, and what the machine did to all of them: moments of the boot clock, in ms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from kernel.store.sqlite_clock import NOISE_MS

CLOCK_NEAR_MS = 1_000
"""How far from a moment a change of the store's clock may have been noticed."""
CLOCK_MS = NOISE_MS + 5
"""The store takes a smaller difference of clocks for no step: two processes tell its time differently by as much."""


class Span(msgspec.Struct, frozen=True):
    """From then to then."""

    from_ms: int
    to_ms: int

    def meets(self, from_ms: int, to_ms: int) -> bool:
        return self.from_ms <= to_ms and from_ms <= self.to_ms


class Pause(msgspec.Struct, frozen=True):
    """A process stood still."""

    pid: int
    span: Span


class Hits(msgspec.Struct):
    """Counts, and what the checker excuses."""

    kills: int = 0
    deaths: int = 0
    """Children of the tree that were killed; those that end with their supervisor are not counted."""
    pauses: list[Pause] = []
    flushes: int = 0
    restarts: int = 0
    """Of the supervisor, by death, and of the workers, one after the other, by SIGTERM."""
    store_restarts: list[int] = []
    """When the last process had died that had the stores open, and the next one opened them."""
    processes: int = 0
    """Workers that were killed, stopped, or told to end."""
    wipes: list[Span] = []
    """From the wipe, or the death of Redis, until it answered again."""
    stalls: list[Span] = []
    """Nobody of the run's own moved for that long: the machine was busy with something else."""

    clock: list[tuple[int, int]] = []
    """(boot clock, store's clock minus boot clock) whenever the difference had changed: the store follows small steps
    of the wall clock and absorbs large ones, so the wall says nothing about its time."""

    def store_ms(self, at_ms: int) -> Span:
        """The store's time at that moment of the boot clock: not before, not after."""
        first = bisect_left(self.clock, (at_ms - CLOCK_NEAR_MS, 0))
        last = bisect_right(self.clock, (at_ms + CLOCK_NEAR_MS, 0))
        # The one before is still in force where the first of these changes it.
        near = [base for _, base in self.clock[max(0, first - 1) : max(1, last)]] or [0]
        return Span(at_ms + min(near), at_ms + max(near))

    def excuses(self, pid: int, from_ms: int, to_ms: int) -> bool:
        """Whether that process, or everything, stood still at some moment in between."""
        spans = [pause.span for pause in self.pauses if pause.pid == pid]
        return any(span.meets(from_ms, to_ms) for span in (*spans, *self.stalls))
