"""The lanes in plain Python: what the scripts of lua/v1/lane_*.lua must do, written to be read, not to be fast.

A pop of n is n pops of one that end with the first empty one; a push of many is a push of one for each. Random
tests compare every reply and every key of the scripts with this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Entry = tuple[str, int, int]
"""workflow_id, lane, score_ms."""


@dataclass
class LaneModel:
    """Four lanes with the rotation cursor and the burst window. `epoch` is None until the first pop."""

    weights: tuple[int, int, int, int] = (8, 6, 4, 2)
    burst: int = 8
    lanes: tuple[dict[str, int], ...] = field(default_factory=lambda: ({}, {}, {}, {}))
    epoch: int | None = None
    cursor: int = 0
    burst_left: int = 0

    def push(self, workflow_id: str, lane: int, score_ms: int) -> str:
        """`raised`, `rescored` or `ignored`."""
        if any(workflow_id in self.lanes[higher] for higher in range(lane)):
            return "ignored"
        known = workflow_id in self.lanes[lane]
        for other in self.lanes:
            other.pop(workflow_id, None)
        self.lanes[lane][workflow_id] = score_ms
        return "rescored" if known else "raised"

    def push_many(self, entries: Iterable[Entry]) -> tuple[int, int, int]:
        """Counts of raised, rescored, ignored; lane 0 first, in the given order within a lane."""
        outcomes = [self.push(*entry) for entry in sorted(entries, key=lambda entry: entry[1])]
        return outcomes.count("raised"), outcomes.count("rescored"), outcomes.count("ignored")

    def pop(self, count: int, now_ms: int) -> list[Entry]:
        """At most `count` due entries; fewer means that the last of these pops found nothing due."""
        if self.epoch is None:
            self.epoch = now_ms // 10
        if self.cursor >= sum(self.weights):
            self.cursor = 0
        self.burst_left = min(self.burst_left, self.burst)
        taken: list[Entry] = []
        while len(taken) < count:
            entry = self._pop_one(now_ms)
            if entry is None:
                break
            taken.append(entry)
        return taken

    def _pop_one(self, now_ms: int) -> Entry | None:
        if self.burst_left > 0:
            if entry := self._take(0, now_ms):
                self.burst_left -= 1
                return entry
            self.burst_left = 0
        starts = [sum(self.weights[:lane]) for lane in range(5)]
        current = next(lane for lane in range(4) if self.cursor < starts[lane + 1])
        for step in range(4):
            lane = (current + step) % 4
            if entry := self._take(lane, now_ms):
                # Only the lane where the cursor stands goes on with its block; any other starts a fresh one.
                position = self.cursor if step == 0 else starts[lane]
                self.cursor = (position + 1) % starts[4]
                return entry
        # Coming back to the first lane would find it as dry as before.
        self.burst_left = self.burst
        return None

    def _take(self, lane: int, now_ms: int) -> Entry | None:
        due = [(score, workflow_id) for workflow_id, score in self.lanes[lane].items() if score <= now_ms]
        if not due:
            return None
        score, workflow_id = min(due, key=lambda pair: (pair[0], pair[1].encode()))
        del self.lanes[lane][workflow_id]
        return workflow_id, lane, score

    def next_due_ms(self) -> int | None:
        """When the next entry becomes due, once nothing is due any more."""
        return min((score for lane in self.lanes for score in lane.values()), default=None)

    def remove(self, workflow_ids: Iterable[str]) -> int:
        found = 0
        for workflow_id in set(workflow_ids):
            found += any(lane.pop(workflow_id, None) is not None for lane in self.lanes)
        return found

    def stats(self, now_ms: int) -> list[tuple[int, int, int, int]]:
        """(depth, ready, delayed, oldest wait in ms) of each lane."""
        rows = []
        for lane in self.lanes:
            ready = [score for score in lane.values() if score <= now_ms]
            rows.append((len(lane), len(ready), len(lane) - len(ready), now_ms - min(ready) if ready else 0))
        return rows

    def wipe(self) -> None:
        """What FLUSHALL does."""
        for lane in self.lanes:
            lane.clear()
        self.epoch, self.cursor, self.burst_left = None, 0, 0

    @property
    def state(self) -> int | None:
        """The value of the state key."""
        return None if self.epoch is None else self.epoch * 10_000 + self.burst_left * 100 + self.cursor
