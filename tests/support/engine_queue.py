"""The ready queue of one process as plain Python, on the lane model, with the faults that a Redis has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kernel.candidates import Candidate, Popped
from kernel.errors import CoordinationUnavailable
from tests.support.lane_model import LaneModel


class MemoryQueue:
    """The lanes that all workers of a rig share. Scores are times of the store's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.model = LaneModel()
        self.lock = threading.Lock()
        self.down = False
        """Every call raises CoordinationUnavailable."""
        self.forgets = False
        """Pushes are accepted and forgotten."""
        self.deaf = False
        """Wakeups get lost."""
        self.hang: Callable[[], None] | None = None
        """Called at the start of every call: a test may block in it."""
        self.listeners: list[Callable[[], object]] = []
        self.pushed: list[Candidate] = []
        self.popped: list[Candidate] = []
        self.wakeups = 0
        self.pops = 0
        self.lives = 1

    def wipe(self) -> None:
        """What FLUSHALL does."""
        with self.lock:
            self.model.wipe()
            self.lives += 1

    def ids(self) -> set[str]:
        """All workflow_ids that are queued."""
        with self.lock:
            return {workflow_id for lane in self.model.lanes for workflow_id in lane}

    def lane_of(self, workflow_id: str) -> int | None:
        with self.lock:
            return next((k for k, lane in enumerate(self.model.lanes) if workflow_id in lane), None)

    def due_of(self, workflow_id: str) -> int | None:
        """The time at which a queued id may be popped."""
        with self.lock:
            return next((lane[workflow_id] for lane in self.model.lanes if workflow_id in lane), None)

    def wake(self) -> None:
        """Publish a wakeup."""
        self.wakeups += 1
        for listener in [] if self.deaf else list(self.listeners):
            listener()

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None:
        self._fail()
        with self.lock:
            self.pushed.extend(candidates)
            if not self.forgets:
                self.model.push_many((c.workflow_id, c.lane, c.at_ms) for c in candidates)
        if wake:
            self.wake()

    def pop(self, n: int) -> tuple[list[Candidate], int | None]:
        """Up to `n` candidates, and the milliseconds until the next one when fewer were due."""
        self._fail()
        with self.lock:
            self.pops += 1
            now_ms = self._now_ms()
            found = [Candidate(*entry) for entry in self.model.pop(n, now_ms)]
            self.popped.extend(found)
            due_ms = self.model.next_due_ms()
            return found, None if len(found) == n or due_ms is None else max(0, due_ms - now_ms)

    def _fail(self) -> None:
        if self.hang is not None:
            self.hang()
        if self.down:
            raise CoordinationUnavailable("the ready queue is away")


class QueueView:
    """The ReadyQueue of one worker: it knows which life of the queue it has seen last."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._seen = 0
        self.asked: list[int] = []
        """How many candidates each pop asked for."""

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None:
        self._queue.push(candidates, wake=wake)

    def pop(self, n: int) -> Popped:
        self.asked.append(n)
        found, next_in_ms = self._queue.pop(n)
        wiped = len(found) < n and self._seen != self._queue.lives
        if wiped:
            self._seen = self._queue.lives
        return Popped(tuple(found), next_in_ms, wiped)
