"""The lanes as the engine sees them: candidates on the store's clock.

Scores are times of the Redis clock. The difference to the store's clock is measured at every pop that tells the
server's time, so that a candidate pushed for "T on the store's clock" is popped then (DECISIONS detail 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel.candidates import Candidate, Popped
from kernel.coordination.lanes import LaneEntry, Lanes
from kernel.coordination.lanes import Popped as LanesPopped


class LaneQueue:
    """Pushes and pops candidates. Every call may raise CoordinationUnavailable, at once while the breaker is open."""

    def __init__(self, lanes: Lanes, store_now_ms: Callable[[], int]) -> None:
        self._lanes = lanes
        self._store_now_ms = store_now_ms
        self._ahead_ms = 0
        self._epoch: int | None = None
        self.trips = 0
        """Round trips made, for the counted cost per workflow."""

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None:
        """Enter candidates and wake sleeping workers in the same round trip."""
        self.trips += 1
        entries = [LaneEntry(c.workflow_id, c.lane, max(0, c.at_ms + self._ahead_ms)) for c in candidates]
        self._lanes.push(entries, wake=wake)

    def pop(self, n: int) -> Popped:
        """Take up to `n` due candidates."""
        self.trips += 1
        popped = self._lanes.pop(n)
        if popped.server_ms is not None:
            self._ahead_ms = popped.server_ms - self._store_now_ms()
        candidates = tuple(Candidate(e.workflow_id, e.lane, e.score_ms - self._ahead_ms) for e in popped.entries)
        return Popped(candidates, self._next_in_ms(popped), self._wiped(popped))

    def _next_in_ms(self, popped: LanesPopped) -> int | None:
        if popped.next_due_ms is None or popped.server_ms is None:
            return None
        return max(0, popped.next_due_ms - popped.server_ms)

    def _wiped(self, popped: LanesPopped) -> bool:
        """Whether the queue lost its memory since the last idle pop. The first look of a process counts as one: the
        queue may be empty because of a wipe that nobody saw."""
        if not popped.idle or popped.epoch == self._epoch:
            return False
        self._epoch = popped.epoch
        return True
