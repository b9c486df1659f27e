"""What a claim writes to its client's stream: a bounded queue, emptied by a thread that lives only while there is work.

Whoever puts a record in never waits for Redis and never sees it fail (core-side-paths-do-not-decide): what does not
fit is dropped and counted, and readers get a `gap` frame in its place. One thread sends at a time, so frames keep
their order; a request whose answer got lost is repeated under its number and stored once (DECISIONS 23).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from kernel.clock import Clock
from kernel.engine.ports import Runner
from kernel.errors import CoordinationRejected, CoordinationUnavailable, KernelError
from kernel.frames import Frame, encode
from kernel.ids import IdSource
from kernel.stream_words import RECORDS_MAX, Appended, Batch, NotAppended, Seniority, StreamId

log = logging.getLogger("kernel.streams")

BATCH_BYTES_MAX = 65_536
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
LINGER_MS = 5_000
"""How long a closed writer still tries: by then the claim has ended, and the result is in the store."""


class StreamPort(Protocol):
    """Client streams where they are kept (`kernel.coordination.streams.Streams`). Each method makes one call and raises
    CoordinationUnavailable or CoordinationRejected when it fails."""

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended: ...

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None: ...

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> int | Literal["stale", "absent"]: ...

    def read(
        self, stream: StreamId, generation: int, offset: int, *, bytes_max: int, count_max: int, watch_ms: int = 0
    ) -> Batch: ...

    def generation(self, stream: StreamId) -> int: ...


class _Begin(msgspec.Struct, frozen=True):
    """From here on frames belong to a generation of their own, or with `keep` to the present one."""

    seniority: Seniority
    reset_id: str
    keep: bool


class _Finish(msgspec.Struct, frozen=True):
    """The round has ended: the last thing that is sent."""

    seniority: Seniority
    record: bytes


_Records = list[bytes]


class StreamWriter:
    """One stream in the hands of one claim. Safe for the threads of a wave; `guard` raises when the claim is lost.

    Threads start through `runner`; none is left when nothing waits to be sent. `tails` bounds how many closed writers
    of the process may still be sending.
    """

    def __init__(
        self,
        port: StreamPort,
        stream: StreamId,
        guard: Callable[[], None],
        *,
        runner: Runner,
        clock: Clock,
        ids: IdSource,
        buffer_bytes: int,
        tails: threading.Semaphore,
        linger_ms: int = LINGER_MS,
    ) -> None:
        self._port = port
        self.stream = stream
        self._guard = guard
        self._runner = runner
        self._clock = clock
        self._ids = ids
        self._buffer_bytes = buffer_bytes
        self._tails = tails
        self._tailing = False
        self._linger_ms = linger_ms
        self._pause = runner.event()
        self._lock = threading.Lock()
        self._queue: deque[bytes | _Begin | _Finish] = deque()
        self._waiting_bytes = 0
        self._sending = False
        self._closed_at_ms: int | None = None
        self._gap = 0
        self._seniority: Seniority | None = None
        self._writer = ids.token()
        # Only the sending thread touches what follows, and there is one at a time.
        self._request = 0
        self._generation: int | None = None
        self._begun: _Begin | None = None
        self.dropped = 0
        """Records that no reader will see: no room while Redis was slow, or nobody's any more."""
        self.sent = 0
        self.failures = 0
        """Calls to Redis that failed."""

    def begin(self, seniority: Seniority, *, keep: bool) -> None:
        """Reset the stream before what is put in next (sse-reset); with `keep` only make sure that it is open."""
        with self._lock:
            # Steps of a wave enter with records of their own: the claim speaks for the latest of them.
            self._seniority = max(seniority, self._seniority or seniority)
        self._push(_Begin(self._seniority, self._ids.token(), keep))

    def put(self, record: bytes) -> bool:
        """Queue one record; whether there was room. Never waits for Redis."""
        with self._lock:
            if self._closed_at_ms is not None or self._waiting_bytes + _size(record) > self._buffer_bytes:
                self.dropped += 1
                self._gap += 1
                return False
            if self._gap:
                self._enter(encode(Frame(msg_type="gap", data={"dropped": self._gap})))
                self._gap = 0
            self._enter(record)
            start, self._sending = not self._sending, True
        if start:
            self._runner.spawn("stream", self._send)
        return True

    def _enter(self, record: bytes) -> None:
        self._queue.append(record)
        self._waiting_bytes += _size(record)

    def finish(self, seniority: Seniority, record: bytes) -> None:
        """Send what waits, then the terminal record (sse-terminal-after-mongo: call it after the commit), and close."""
        self._close([_Finish(seniority, record)])

    def close(self) -> None:
        """Take nothing more; what waits is sent within some seconds or dropped. Returns at once."""
        self._close([])

    def _close(self, last: list[_Finish]) -> None:
        with self._lock:
            if self._closed_at_ms is not None:
                return
            self._closed_at_ms = self._clock.boot_ms()
            self._queue.extend(last)
            if not self._queue and not self._sending:
                return
            # Claims end faster than a dead Redis is given up: only so many may leave something behind at a time.
            if not self._tails.acquire(blocking=False):
                self._clear()
                return
            self._tailing = True
            start, self._sending = not self._sending, True
        self._pause.set()
        if start:
            self._runner.spawn("stream", self._send)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being sent."""
        return not self._sending

    def _push(self, item: _Begin | _Finish) -> None:
        with self._lock:
            if self._closed_at_ms is not None:
                return
            self._queue.append(item)
            start, self._sending = not self._sending, True
        if start:
            self._runner.spawn("stream", self._send)

    # --- the sending thread ----------------------------------------------------------------------------

    def _send(self) -> None:
        """Send until nothing waits. Never raises: a fault here must not look like one of the step."""
        try:
            while (item := self._next()) is not None:
                self._deliver(item)
        except Exception:
            log.exception("the frames of %s could not be sent", self.stream.workflow_id)
            self._give_up()

    def _next(self) -> _Records | _Begin | _Finish | None:
        with self._lock:
            if not self._queue:
                self._stopped()
                return None
            first = self._queue.popleft()
            if not isinstance(first, bytes):
                return first
            records, size = [first], _size(first)
            while self._queue and len(records) < RECORDS_MAX:
                following = self._queue[0]
                if not isinstance(following, bytes) or size + _size(following) > BATCH_BYTES_MAX:
                    break
                records.append(following)
                size += _size(following)
                self._queue.popleft()
            self._waiting_bytes -= size
            return records

    def _deliver(self, item: _Records | _Begin | _Finish) -> None:
        if isinstance(item, list):
            self._request += 1
        delay_s = BACKOFF_FIRST_S
        while True:
            try:
                if self._tried(item):
                    return
            except (CoordinationUnavailable, CoordinationRejected) as error:
                self.failures += 1
                log.debug("frames of %s wait: %s", self.stream.workflow_id, error)
                if isinstance(error, CoordinationRejected):
                    # A key holds what no kernel wrote: a new generation overwrites it.
                    self._generation = None
            except KernelError as error:
                log.debug("frames of %s are nobody's any more: %s", self.stream.workflow_id, error)
                self._give_up(item)
                return
            if self._too_late():
                self._give_up(item)
                return
            self._pause.wait(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)

    def _tried(self, item: _Records | _Begin | _Finish) -> bool:
        """One attempt; whether the item is settled."""
        if isinstance(item, _Finish):
            self._port.finish(self.stream, item.seniority, item.record)
            return True
        if self._closed_at_ms is None:
            self._guard()
        if isinstance(item, _Begin):
            self._begun = item
            self._opened(item.reset_id, keep=item.keep)
            return True
        if self._generation is None:
            self._reopen()
        if self._generation is None:
            self._drop(len(item))
            return True
        return self._appended(item, self._generation)

    def _opened(self, reset_id: str, *, keep: bool) -> None:
        """Sets the generation; None when a later claim has the stream, so that nothing more is to be written."""
        assert self._begun is not None
        self._generation = self._port.reset(self.stream, self._begun.seniority, reset_id=reset_id, keep=keep)
        if self._generation is None:
            self._begun = None

    def _reopen(self) -> None:
        """The stream was lost (Redis was wiped, a key was overwritten): a fresh generation, as long as it is ours."""
        if self._begun is not None:
            self._begun = _Begin(self._begun.seniority, self._ids.token(), False)
            self._opened(self._begun.reset_id, keep=False)

    def _appended(self, records: _Records, generation: int) -> bool:
        answer = self._port.append(self.stream, generation, records, writer=self._writer, request=self._request)
        if isinstance(answer, Appended):
            self._generation = answer.generation
            self.sent += len(records)
            return True
        if answer.why == "generation" and self._begun is not None and self._closed_at_ms is None:
            # Another claim's reset, or a wipe: which of the two, the reset tells.
            self._reopen()
            return False if self._generation is not None else self._drop(len(records))
        return self._drop(len(records))

    def _drop(self, records: int) -> bool:
        with self._lock:
            self.dropped += records
            self._gap += records
        return True

    def _too_late(self) -> bool:
        closed_at_ms = self._closed_at_ms
        if closed_at_ms is None:
            return False
        self._pause.clear()
        return self._clock.boot_ms() - closed_at_ms >= self._linger_ms

    def _give_up(self, item: _Records | _Begin | _Finish | None = None) -> None:
        """Forget everything that waits; the thread ends with its next look."""
        with self._lock:
            self._clear()
            self.dropped += len(item) if isinstance(item, list) else 0
            if item is None:
                self._stopped()

    def _clear(self) -> None:
        self.dropped += sum(isinstance(waiting, bytes) for waiting in self._queue)
        self._queue.clear()
        self._waiting_bytes = 0

    def _stopped(self) -> None:
        self._sending = False
        if self._tailing:
            self._tailing = False
            self._tails.release()


def _size(record: bytes) -> int:
    """What a record takes in memory, about: short ones cost their place, too."""
    return len(record) + 64
