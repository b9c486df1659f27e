"""The observer that writes: a bounded queue beside the path, emptied by a thread that lives only while events wait.

Whoever notes an event pays a few microseconds and never waits: not for the store, and not for the thread that writes
(obs-nonblocking). An event that was accepted is written before any later one, however long the store is away; when
there is no room it is the new one that is refused and counted (obs-accepted-kept). An event in the hands of the writer
still takes its place, so that the limit holds for all that is accepted and not yet written.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kernel.clock import Clock
from kernel.config import Config
from kernel.observe.bare import bare
from kernel.observe.batch import Noted, rows_of
from kernel.observe.events import attempt_of
from kernel.observe.writer import Batch, RowWriter
from kernel.records import Instance
from kernel.store.projection import ProjectionStore

log = logging.getLogger("kernel.observe")

INPUT_BYTES_WAITING = 4 * 1024 * 1024
"""Inputs that the waiting events may hold together; beyond it a long one is cut down to its round at once."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0
CLOSING_BACKOFF_S = 0.1
CLOSING_TRIES_S = 1.0
"""How long a closed queue tries a store that fails: nobody's end is held up for what does not come back at once."""


class Flag(Protocol):
    """As threading.Event."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Threads(Protocol):
    """What starts threads (`kernel.engine.ports.Runner`)."""

    def spawn(self, name: str, body: Callable[[], None]) -> None: ...

    def event(self) -> Flag: ...


class QueueObserver:
    """The observations of one process. `now_ms` is the durable store's clock, asked by the writing thread alone."""

    def __init__(
        self,
        open_store: Callable[[], ProjectionStore],
        *,
        threads: Threads,
        clock: Clock,
        now_ms: Callable[[], int],
        config: Config,
    ) -> None:
        self._writer = RowWriter(open_store)
        self._threads = threads
        self._clock = clock
        self._now_ms = now_ms
        self._capacity = config.observe_queue
        self._batch = min(config.observe_batch, config.observe_queue)
        self._flush_ms = round(config.observe_flush_s * 1000)
        self._lock = threading.Lock()
        self._queue: deque[Noted] = deque()
        self._accepted = 0
        """Events in the queue, and those that the writing thread has taken and not settled."""
        self._input_bytes = 0
        """Of the inputs that these events hold."""
        self._writing = False
        self._closed = False
        self._off = False
        self._give_up_ms: int | None = None
        self._wake = threads.event()
        self._idle = threads.event()
        self._idle.set()
        self._offset_ms: int | None = None
        self._moved_ms = clock.boot_ms()
        self._dropped = 0
        self._forgotten = 0
        """Of the dropped those that had been accepted."""
        self._written = 0
        self._unshown = 0

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Take one event, or refuse it; O(1), whatever the store does. What has no record is for the log alone."""
        if instance is None:
            return
        if self._accepted >= self._capacity:
            with self._lock:  # what is refused is not even looked at
                self._dropped += 1
            return
        attempt = 0 if step is None else attempt_of(event, instance.steps[step])
        with_input = self._input_bytes + len(instance.input) <= INPUT_BYTES_WAITING
        noted = Noted(event, bare(instance, with_input=with_input), step, attempt, self._clock.boot_ms())
        with self._lock:
            if self._closed or self._off or self._accepted >= self._capacity:
                self._dropped += 1
                return
            self._queue.append(noted)
            self._accepted += 1
            self._input_bytes += len(noted.instance.input)
            start, full = not self._writing, len(self._queue) == self._batch
            if start:
                self._writing = True
                self._moved_ms = noted.at_ms
                self._idle.clear()
        if start:
            self._threads.spawn("observations", self._run)
        if full:
            self._wake.set()

    @property
    def counters(self) -> dict[str, int]:
        """What tells "the work did not run" from "the side path is incomplete" (obs-counters)."""
        return {
            "observation_queue": self._accepted,
            "observation_written": self._written,
            "observation_dropped": self._dropped,
            "observation_errors": self._writer.errors,
            "observation_poisoned": self._writer.poisoned + self._unshown,
        }

    @property
    def silent_ms(self) -> int:
        """For how long the writing thread has settled nothing; 0 while nothing waits."""
        return self._clock.boot_ms() - self._moved_ms if self._writing else 0

    def close(self, limit_s: float) -> bool:
        """Take nothing more and write what waits: for at most `limit_s`, and to a store that fails for CLOSING_TRIES_S.
        Whether all of it was written.

        What is left then is dropped and counted. Call it when nothing is left that could note (obs-drain-on-stop).
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._forgotten = 0
                self._give_up_ms = self._clock.boot_ms() + round(min(limit_s, CLOSING_TRIES_S) * 1000)
        self._wake.set()
        # The thread gives up by itself at the same time, unless the store holds it in a call.
        ended = self._idle.wait(limit_s + 0.1)
        with self._lock:
            self._forget()
        if ended:
            self._writer.close()
        return self._forgotten == 0

    # --- the writing thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Write until nothing waits. Never raises."""
        try:
            while batch := self._next():
                self._deliver(batch)
        except Exception:
            log.exception("observations could not be written")
            with self._lock:
                self._forget()
                self._stopped()

    def _next(self) -> list[Noted]:
        """The next batch, when it is full, the oldest event is due, or this process ends; empty: the thread ends."""
        with self._lock:
            oldest_ms, waiting = (self._queue[0].at_ms, len(self._queue)) if self._queue else (0, 0)
        left_ms = oldest_ms + self._flush_ms - self._clock.boot_ms()
        if 0 < waiting < self._batch and left_ms > 0 and not self._closed:
            self._wake.wait(left_ms / 1000)
        self._wake.clear()
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            if not batch:
                self._stopped()
            return batch

    def _deliver(self, noted: list[Noted]) -> None:
        rows = rows_of(noted, self._clock_offset_ms())
        self._unshown += rows.poisoned
        batch, delay_s, poisoned = Batch(rows.kept), BACKOFF_FIRST_S, self._writer.poisoned
        while (answer := self._writer.write(batch)) == "again":
            if self._too_late():
                break
            self._pause(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)
        self._off = answer == "off"
        bad = rows.poisoned + self._writer.poisoned - poisoned
        self._settle(noted, bad if answer == "done" else None)

    def _settle(self, noted: list[Noted], bad: int | None) -> None:
        """These events are done with, `bad` of them dropped; None: nothing is written any more."""
        self._moved_ms = self._clock.boot_ms()
        with self._lock:
            if bad is None:
                self._forget()
                return
            # A `close` that did not wait for this call has counted these events already.
            self._accepted = max(0, self._accepted - len(noted))
            self._input_bytes = max(0, self._input_bytes - sum(len(one.instance.input) for one in noted))
            self._written += max(0, len(noted) - bad)

    def _forget(self) -> None:
        """Everything that is accepted is dropped; the lock is held."""
        self._dropped += self._accepted
        self._forgotten += self._accepted
        self._queue.clear()
        self._accepted = self._input_bytes = 0

    def _stopped(self) -> None:
        self._writing = False
        self._idle.set()

    def _pause(self, delay_s: float) -> None:
        """Consumption rests before the next try; `close` ends the rest, and then there is no time for a long one."""
        if self._give_up_ms is not None:
            delay_s = min(delay_s, CLOSING_BACKOFF_S)
        self._wake.wait(delay_s)
        self._wake.clear()

    def _too_late(self) -> bool:
        return self._give_up_ms is not None and self._clock.boot_ms() >= self._give_up_ms

    def _clock_offset_ms(self) -> int:
        """What makes a time of the store's clock out of one of the boot clock. While the store does not tell, the last
        one that it told; before it has told any, this machine's wall clock."""
        try:
            self._offset_ms = self._now_ms() - self._clock.boot_ms()
        except Exception as error:
            log.debug("the store's clock is not known: %s", error)
        return self._clock.wall_ms() - self._clock.boot_ms() if self._offset_ms is None else self._offset_ms
