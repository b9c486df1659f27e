"""Client streams in one process: writers for claims, resets and ends, and readers that follow (requirement group 23).

Built by `kernel.runtime` for workers and for publishers' clients. Without Redis `NoStreams` stands in: sinks take
everything, readers wait for the end in the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from kernel.clock import Clock
from kernel.config import Config
from kernel.engine.ports import Event, Runner
from kernel.errors import CoordinationRejected, CoordinationUnavailable, StoreUnavailable
from kernel.forwarder import Forwarder, Outcome, ReaderTimes
from kernel.frames import Terminal, encode_terminal
from kernel.ids import IdSource
from kernel.records import Instance
from kernel.stream_events import StreamEvent
from kernel.stream_sink import StreamSink
from kernel.stream_words import Appended, Batch, NotAppended, Position, Seniority, StreamId
from kernel.stream_writer import StreamPort, StreamWriter

log = logging.getLogger("kernel.streams")

TAILS_MAX = 64
"""Writers of ended claims that may still be sending. Who finds no place drops what is left: its readers end by the
store."""


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How text becomes frames, what may wait for Redis, and how readers look; ms and bytes (sse-thresholds-config)."""

    flush_ms: int = 100
    flush_bytes: int = 1024
    buffer_bytes: int = 256 * 1024
    times: ReaderTimes = ReaderTimes()

    @staticmethod
    def of(config: Config) -> StreamSettings:
        return StreamSettings(
            flush_ms=max(1, round(config.stream_flush_s * 1000)),
            flush_bytes=config.stream_flush_bytes,
            buffer_bytes=config.stream_buffer_bytes,
            times=ReaderTimes(
                poll_ms=max(1, round(config.stream_poll_s * 1000)),
                check_ms=max(1, round(config.stream_check_s * 1000)),
                heartbeat_ms=max(1, round(config.stream_heartbeat_s * 1000)),
            ),
        )


class News(Protocol):
    """Who tells readers of changes (`kernel.coordination.stream_news.StreamNews`)."""

    @property
    def heard(self) -> bool: ...

    def register(self, tag: int, listener: Callable[[], None]) -> Callable[[], None]: ...


class NoNews:
    """Nobody tells: readers look by themselves."""

    heard = False

    def register(self, tag: int, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class NoStreams:
    """The streams of a process without Redis. Reading raises CoordinationUnavailable, which readers expect."""

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended:
        return NotAppended("generation")

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None:
        return None

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> Literal["absent"]:
        return "absent"

    def read(
        self, stream: StreamId, generation: int, offset: int, *, bytes_max: int, count_max: int, watch_ms: int = 0
    ) -> Batch:
        raise CoordinationUnavailable("no Redis is configured")

    def generation(self, stream: StreamId) -> int:
        raise CoordinationUnavailable("no Redis is configured")


class ClientStreams:
    """What the engine and a publisher's client do with streams. Nothing here fails a workflow or a registration."""

    def __init__(
        self,
        port: StreamPort,
        *,
        runner: Runner,
        clock: Clock,
        ids: IdSource,
        settings: StreamSettings | None = None,
        news: News | None = None,
    ) -> None:
        self._port = port
        self._runner = runner
        self._clock = clock
        self._ids = ids
        self._settings = settings or StreamSettings()
        self._news = news or NoNews()
        self._tails = threading.Semaphore(TAILS_MAX)
        self._closed = runner.event()
        self.available = not isinstance(port, NoStreams)
        """Whether there is a Redis at all."""

    # --- writing -----------------------------------------------------------------------------------------

    def writer(self, instance: Instance, guard: Callable[[], None]) -> StreamWriter:
        """The writer of one claim; `guard` raises when the claim is lost (sse-stale-writer)."""
        return StreamWriter(
            self._port,
            StreamId.of(instance),
            guard,
            runner=self._runner,
            clock=self._clock,
            ids=self._ids,
            buffer_bytes=self._settings.buffer_bytes,
            tails=self._tails,
        )

    def sink(self, writer: StreamWriter) -> StreamSink:
        """The sink of one invocation."""
        settings = self._settings
        return StreamSink(
            writer,
            runner=self._runner,
            clock=self._clock,
            flush_ms=settings.flush_ms,
            flush_bytes=settings.flush_bytes,
        )

    def reset(self, instance: Instance) -> bool:
        """Before an activated run is queued: what an earlier run left goes (sor-stream-reset). One bounded call; its
        failure affects the display only (sse-reset-best-effort). Whether it was made."""
        if not self.available:
            return False
        try:
            reset_id = self._ids.token()
            self._port.reset(StreamId.of(instance), Seniority.of(instance), reset_id=reset_id)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            log.debug("the stream of %s was not reset: %s", instance.workflow_id, error)
            return False
        return True

    def finish(self, instance: Instance, writer: StreamWriter | None = None) -> None:
        """After the end of a round is committed: the terminal frame, behind what `writer` still holds, on a thread of
        its own; best effort (sse-terminal-after-mongo)."""
        if not self.available:
            return
        writer = writer or self.writer(instance, lambda: None)
        writer.finish(Seniority.of(instance), encode_terminal(terminal_of(instance)))

    def finish_now(self, instance: Instance) -> bool:
        """As `finish`, in one bounded call, for a caller who may be gone in a moment. Whether it was made."""
        if not self.available:
            return False
        try:
            record = encode_terminal(terminal_of(instance))
            self._port.finish(StreamId.of(instance), Seniority.of(instance), record)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            log.debug("the stream of %s was not ended: %s", instance.workflow_id, error)
            return False
        return True

    # --- reading -----------------------------------------------------------------------------------------

    def forwarder(
        self, stream: StreamId, outcome: Callable[[], Outcome | None], last_event_id: str | None = None
    ) -> Forwarder:
        """A read cursor that the caller polls: for a web process with an event loop of its own. Raises InvalidId for a
        Last-Event-ID that none of ours was."""
        return Forwarder(
            self._port,
            stream,
            outcome,
            self._clock,
            times=self._settings.times,
            heard=lambda: self._news.heard,
            after=None if last_event_id is None else Position.parse(last_event_id),
        )

    def follow(
        self,
        stream: StreamId,
        outcome: Callable[[], Outcome | None],
        last_event_id: str | None = None,
        stop: Event | None = None,
    ) -> Iterator[StreamEvent]:
        """Every event until the terminal one, waiting for news in between, on the caller's thread. Closing the iterator
        ends the reader and nothing else (sse-disconnect); setting `stop` ends it within a poll interval, and so does
        the end of its client, with StoreUnavailable: nobody would ever answer it again."""
        return self._followed(self.forwarder(stream, outcome, last_event_id), stop)

    def on_news(self, stream: StreamId, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from another thread, on changes of a stream; returns what ends it."""
        return self._news.register(stream.tag, listener)

    def close(self) -> None:
        """Whoever follows a stream ends. The connections are others' to close."""
        self._closed.set()

    def _followed(self, forwarder: Forwarder, stop: Event | None) -> Iterator[StreamEvent]:
        changed = self._runner.event()
        # First listen, then read: a change between the two would wait for the poll interval otherwise.
        forget = self.on_news(forwarder.stream, changed.set)
        try:
            while not forwarder.ended and not (stop is not None and stop.is_set()):
                if self._closed.is_set():
                    raise StoreUnavailable(f"the client that reads {forwarder.stream.workflow_id} was closed")
                changed.clear()
                yield from forwarder.poll()
                wait_ms = forwarder.wait_ms()
                if wait_ms:
                    changed.wait(wait_ms / 1000)
        finally:
            forget()


def terminal_of(instance: Instance) -> Terminal:
    """The summary of how a run ended."""
    error = instance.error
    return Terminal(
        status=instance.status,
        workflow_run=instance.workflow_run,
        revision=instance.revision,
        code=None if error is None else error.code,
        message=None if error is None else error.message,
    )
