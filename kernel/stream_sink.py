"""`ctx.stream`: what an activity writes to its client while it works (sse-sink).

Text is gathered until a frame's worth is there or a moment has passed (100 ms or 1 KiB, sse-aggregate); anything else
flushes it first, so that order is kept (sse-flush-order). Writing is a step into memory: whatever Redis does, the
activity is neither slowed nor failed, and nothing that is lost changes its result.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from kernel.clock import Clock
from kernel.engine.ports import Runner
from kernel.errors import InvalidName, Refused, TooLarge
from kernel.frames import TERMINAL_TYPE, Frame, encode, encode_text
from kernel.ids import check_name
from kernel.stream_words import RECORD_BYTES_MAX

TEXT_BYTES_MAX = 1024 * 1024
"""Text of one write: more is no progress but a document, and has its place in a business table."""


class Sink(Protocol):
    """What an activity may do with its stream. Raises Refused, InvalidName or TooLarge for what can not be a frame, and
    nothing else."""

    def write(self, text: str) -> None:
        """Show more text. Many small writes become few frames."""
        ...

    def send(self, msg_type: str, data: Any = None, *, code: int = 0, retry: int = 0) -> None:
        """Show anything else: a state, an error (`code` not 0), a page of results. `data` is what JSON can say."""
        ...

    def flush(self) -> None:
        """Show at once what is gathered."""
        ...

    @property
    def dropped(self) -> int:
        """Frames that found no room, or no Redis, and will not be seen."""
        ...


class NoSink:
    """The stream of a step that has none: takes everything, shows nothing."""

    dropped = 0

    def write(self, text: str) -> None:
        _checked(text)

    def send(self, msg_type: str, data: Any = None, *, code: int = 0, retry: int = 0) -> None:
        _record(msg_type, data, code, retry)

    def flush(self) -> None:
        """Nothing is gathered."""


class Outlet(Protocol):
    """Where finished records go (`kernel.stream_writer.StreamWriter`)."""

    dropped: int

    def put(self, record: bytes) -> bool: ...


class StreamSink:
    """The sink of one invocation, bound to the writer of its claim. `closed`: what comes later is dropped."""

    def __init__(self, outlet: Outlet, *, runner: Runner, clock: Clock, flush_ms: int, flush_bytes: int) -> None:
        self._outlet = outlet
        self._runner = runner
        self._clock = clock
        self._flush_ms = flush_ms
        self._flush_bytes = flush_bytes
        self._lock = threading.Lock()
        self._parts: list[bytes] = []
        self._size = 0
        self._since_ms = 0
        self._timed = False
        self._closed = False
        self._late = 0

    @property
    def dropped(self) -> int:
        return self._outlet.dropped + self._late

    def write(self, text: str) -> None:
        data = _checked(text)
        if not data:
            return
        with self._lock:
            if self._closed:
                self._late += 1
                return
            if not self._size:
                self._since_ms = self._clock.boot_ms()
            self._parts.append(data)
            self._size += len(data)
            if self._size >= self._flush_bytes:
                self._cut()
            time_it = self._size > 0 and not self._timed
            self._timed = self._timed or time_it
        if time_it:
            self._runner.call_at(self._since_ms + self._flush_ms, self._due)

    def send(self, msg_type: str, data: Any = None, *, code: int = 0, retry: int = 0) -> None:
        record = _record(msg_type, data, code, retry)
        with self._lock:
            if self._closed:
                self._late += 1
                return
            self._out()
            self._outlet.put(record)

    def flush(self) -> None:
        with self._lock:
            self._out()

    def close(self) -> None:
        """The invocation has ended: what is gathered goes out, and what comes later is dropped."""
        with self._lock:
            self._out()
            self._closed = True

    def _due(self) -> None:
        """On the timer thread: short, and nothing here waits for Redis."""
        with self._lock:
            self._timed = False
            if not self._size:
                return
            due_ms = self._since_ms + self._flush_ms
            again = self._clock.boot_ms() < due_ms
            if again:
                self._timed = True
            else:
                self._out()
        if again:
            self._runner.call_at(due_ms, self._due)

    def _cut(self) -> None:
        """Whole frames go out; what is left begins a frame now."""
        data = b"".join(self._parts)
        start = 0
        while len(data) - start >= self._flush_bytes:
            end = _character_end(data, start + self._flush_bytes, start)
            self._outlet.put(encode_text_bytes(data[start:end]))
            start = end
        rest = data[start:]
        self._parts, self._size = ([rest] if rest else []), len(rest)
        self._since_ms = self._clock.boot_ms()

    def _out(self) -> None:
        if self._size:
            self._outlet.put(encode_text_bytes(b"".join(self._parts)))
            self._parts, self._size = [], 0


def encode_text_bytes(data: bytes) -> bytes:
    """The text record of text that is UTF-8 already."""
    return _TEXT_HEADER + data


_TEXT_HEADER = encode_text("")


def _character_end(data: bytes, at: int, start: int) -> int:
    """The last place up to `at` where a character ends; one character always goes out."""
    end = at
    while end > start and end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    if end > start:
        return end
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _checked(text: str) -> bytes:
    if not isinstance(text, str):
        raise Refused(f"stream: write takes text, not {type(text).__name__}; use send for anything else")
    # An early look: encoding something huge only to refuse it would cost what the limit is to save.
    if len(text) > TEXT_BYTES_MAX:
        raise TooLarge(f"stream: {len(text)} characters in one write, at most {TEXT_BYTES_MAX} bytes are allowed")
    data = text.encode("utf-8", "replace")
    if len(data) > TEXT_BYTES_MAX:
        raise TooLarge(f"stream: {len(data)} bytes in one write, at most {TEXT_BYTES_MAX} are allowed")
    return data


def _record(msg_type: str, data: Any, code: int, retry: int) -> bytes:
    if check_name(msg_type, "stream: msg_type") == TERMINAL_TYPE:
        raise InvalidName(f"stream: msg_type: {TERMINAL_TYPE!r} is the kernel's own")
    for field, number in (("code", code), ("retry", retry)):
        if type(number) is not int or not -(2**53) < number < 2**53:
            raise Refused(f"stream: {field}: a whole number, not {number!r}")
    record = encode(Frame(code=code, retry=retry, msg_type=msg_type, data=data))
    if len(record) > RECORD_BYTES_MAX:
        raise TooLarge(f"stream: a frame of {len(record)} bytes, at most {RECORD_BYTES_MAX} are allowed")
    return record
