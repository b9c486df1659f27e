"""One reader of a stream: what there is, then what comes, until the end (sse-reconnect, sse-follow).

`poll` makes a few bounded calls and returns; it never waits, keeps no frame, and starts nothing, so that a slow reader
holds nothing and one who vanished costs nothing (A79, A80). `wait_ms` says when to poll next unless news come.

Frames of two generations never meet in one answer (S14): a read is one step in Redis, and before its frames are shown
the generation is looked at once more; when it has moved, the batch is dropped and the reader begins again from 0, told
by a `reset` event. What ended is decided by the durable record alone, which is asked at intervals, too: so a reader
also ends when Redis lost the terminal frame, or everything (sse-terminal-retry, layer-business-answers).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.errors import CoordinationRejected, CoordinationUnavailable, CorruptRecord, Refused, Unavailable
from kernel.frames import Terminal, decode, terminal_frame
from kernel.stream_events import (
    StreamEvent,
    error_event,
    frame_event,
    heartbeat_event,
    reset_event,
    terminal_event,
)
from kernel.stream_words import Batch, Position, StreamId, TerminalReference
from kernel.stream_writer import StreamPort

log = logging.getLogger("kernel.streams")

BATCH_BYTES_MAX = 65_536
BATCH_FRAMES_MAX = 128
BLIND_POLL_MS = 250
"""Without wakeups a reader looks so often."""
GRACE_MS = 1_000
"""How long a reader waits for the last frames of a round that the store says has ended."""


class Outcome(msgspec.Struct, frozen=True):
    """How the round of a stream ended, as the durable store says, and its result where there is one."""

    terminal: Terminal
    result: Any = None


class ReaderTimes(msgspec.Struct, frozen=True, kw_only=True):
    """In ms: the net beneath wakeups, the period of the look at the store, and that of heartbeats."""

    poll_ms: int = 1_000
    check_ms: int = 5_000
    heartbeat_ms: int = 15_000


class Forwarder:
    """The read cursor of one connection. Not for several threads at once.

    `outcome` asks the durable store: None while the round goes on. `heard` says whether wakeups are being received.
    """

    def __init__(
        self,
        port: StreamPort,
        stream: StreamId,
        outcome: Callable[[], Outcome | None],
        clock: Clock,
        *,
        times: ReaderTimes,
        heard: Callable[[], bool] = lambda: False,
        after: Position | None = None,
    ) -> None:
        self._port = port
        self.stream = stream
        self._outcome = outcome
        self._clock = clock
        self._times = times
        self._heard = heard
        self._generation = 0 if after is None else after.generation
        self._offset = 0 if after is None else after.offset + 1
        self._shown = after is not None
        """Whether the reader has frames of `_generation` that a reset would take back."""
        self._first = True
        self._ended = False
        self._more = False
        self._graced = False
        self._doubted: TerminalReference | None = None
        """A reference that the store did not confirm: of an earlier round, whose reset got lost."""
        self._watched_until_ms = 0
        self._check_at_ms = 0
        self._spoke_at_ms = clock.boot_ms()

    @property
    def ended(self) -> bool:
        """Whether the terminal event was given out: nothing will follow."""
        return self._ended

    def wait_ms(self) -> int:
        """How long to wait for news before the next poll."""
        if self._ended or self._more:
            return 0
        now_ms = self._clock.boot_ms()
        look_ms = self._times.poll_ms if self._heard() else min(BLIND_POLL_MS, self._times.poll_ms)
        due_ms = min(now_ms + look_ms, self._check_at_ms, self._spoke_at_ms + self._times.heartbeat_ms)
        return max(0, due_ms - now_ms)

    def poll(self) -> list[StreamEvent]:
        """What is new, at most one batch. A Redis or a store that does not answer raises nothing: it is asked again."""
        if self._ended:
            return []
        first, self._first = self._first, False
        events: list[StreamEvent] = []
        reference, alive = None, False
        try:
            batch = self._read()
            reference = batch.terminal
            if first:
                # Finished already: the result, and not the whole way to it once more (sse-finished-direct).
                events = self._end(reference)
            if not self._ended:
                events += self._batch(batch)
                alive = batch.generation != 0 and not first
        except (CoordinationUnavailable, CoordinationRejected) as error:
            self._more = False
            self._watched_until_ms = 0
            log.debug("the stream of %s can not be read now: %s", self.stream.workflow_id, error)
        reached = reference is not None and reference != self._doubted
        if not self._ended and not self._more and (reached or self._clock.boot_ms() >= self._check_at_ms):
            events += self._end(reference, alive=alive)
        return self._spoken(events)

    # --- frames ------------------------------------------------------------------------------------------

    def _read(self) -> Batch:
        now_ms = self._clock.boot_ms()
        life_ms = max(4 * self._times.poll_ms, 10_000)
        watch_ms = life_ms if now_ms >= self._watched_until_ms - life_ms // 2 else 0
        batch = self._port.read(
            self.stream,
            self._generation,
            self._offset,
            bytes_max=BATCH_BYTES_MAX,
            count_max=BATCH_FRAMES_MAX,
            watch_ms=watch_ms,
        )
        if watch_ms:
            self._watched_until_ms = now_ms + watch_ms
        return batch

    def _batch(self, batch: Batch) -> list[StreamEvent]:
        expired = batch.terminal is not None and not batch.records
        moved = (batch.generation, batch.offset) != (self._generation, self._offset) and not expired
        if batch.records and self._port.generation(self.stream) != batch.generation:
            # Reset while we looked: what we hold is of the past, and nobody sees it (sse-double-check).
            self._more = True
            return []
        events: list[StreamEvent] = []
        if moved and batch.generation:
            if self._shown:
                events.append(reset_event(batch.generation))
            self._shown = False
            self._generation, self._offset = batch.generation, batch.offset
        for record in batch.records:
            position = Position(batch.generation, self._offset)
            try:
                frame = decode(record)
            except (Refused, CorruptRecord) as error:
                log.warning("frame %s of %s can not be shown: %s", position, self.stream.workflow_id, error)
                events.append(error_event(error.code, str(error)))
            else:
                if isinstance(frame, Terminal):
                    break  # told by the durable record, below
                events.append(frame_event(frame, position))
                self._shown = True
            self._offset += 1
        # Frames whose generation is gone are nobody's: there is nothing more to read until the next one begins.
        self._more = batch.generation != 0 and self._offset < batch.length - (batch.terminal is not None)
        return events

    # --- the end -----------------------------------------------------------------------------------------

    def _end(self, reference: TerminalReference | None, *, alive: bool = False) -> list[StreamEvent]:
        """Ask the store whether the round has ended. Only when it does not answer, the reference is believed: it is
        written after the end was committed (layer-business-answers)."""
        self._check_at_ms = self._clock.boot_ms() + self._times.check_ms
        try:
            outcome = self._outcome()
        except Unavailable as error:
            log.debug("whether %s has ended can not be asked now: %s", self.stream.workflow_id, error)
            outcome = _told_by(reference)
        else:
            self._doubted = reference if outcome is None else None
        if outcome is None:
            return []
        if reference is None and alive and not self._graced:
            # Just ended: what the writer still holds, and the terminal frame, are most likely on their way.
            self._graced = True
            self._check_at_ms = self._clock.boot_ms() + min(GRACE_MS, self._times.check_ms)
            return []
        self._ended = True
        return [terminal_event(terminal_frame(outcome.terminal, outcome.result))]

    def _spoken(self, events: list[StreamEvent]) -> list[StreamEvent]:
        now_ms = self._clock.boot_ms()
        if not events and now_ms - self._spoke_at_ms >= self._times.heartbeat_ms:
            events = [heartbeat_event()]
        if events:
            self._spoke_at_ms = now_ms
        return events


def _told_by(reference: TerminalReference | None) -> Outcome | None:
    if reference is None:
        return None
    try:
        found = decode(reference.record)
    except (Refused, CorruptRecord) as error:
        log.warning("a terminal reference can not be read: %s", error)
        return None
    return Outcome(found) if isinstance(found, Terminal) else None
