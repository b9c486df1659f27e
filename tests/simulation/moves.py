"""What happened in a run, in order: the last moves to read, and a hash of all of them to compare two runs by."""

from __future__ import annotations

import zlib
from collections import deque

SHOWN = 200


class Trace:
    """The moves of one run."""

    def __init__(self) -> None:
        self.steps = 0
        self.hash = 0
        self._last: deque[tuple[int, int, str, str]] = deque(maxlen=SHOWN)

    def note(self, now_ms: int, who: str, what: str) -> None:
        """One move. Counts as a step of the simulation."""
        self.steps += 1
        self.add(now_ms, who, what)

    def add(self, now_ms: int, who: str, what: str) -> None:
        """Something worth reading that is no move of its own."""
        self.hash = zlib.crc32(f"{now_ms} {who} {what}".encode(), self.hash)
        self._last.append((self.steps, now_ms, who, what))

    def lines(self, start_ms: int) -> list[str]:
        """The last moves: number, simulated seconds since the start, who, what."""
        return [f"{n:6} {(ms - start_ms) / 1000:10.3f} {who:28} {what}" for n, ms, who, what in self._last]
