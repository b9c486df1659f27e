"""Client streams in Redis: a list of frames per stream, its generation, its end (requirement group 23).

Frames are opaque records here; `kernel.frames` says what they mean. Nothing in this module waits, retries or keeps a
frame: who writes (`kernel.streams`) and who reads (`kernel.forwarder`) decide what a failure means to them.

Every method raises CoordinationUnavailable when Redis does not answer, after which an append or reset may have happened
and may be repeated with the same request or reset_id, and CoordinationRejected when a key holds what no kernel wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from kernel.config import Config
from kernel.coordination.keys import Keys
from kernel.coordination.scripts import BoundScript, ScriptRunner, Word
from kernel.errors import CoordinationRejected, Refused, TooLarge
from kernel.stream_words import (
    RECORD_BYTES_MAX,
    RECORDS_MAX,
    Appended,
    Batch,
    NotAppended,
    Seniority,
    StreamId,
    TerminalReference,
    Why,
)
from lua import get

_WORD = re.compile(r"[A-Za-z0-9]{1,64}")
_REQUEST_MAX = 10**15 - 1
_BOUND_MAX = 4096
_SCRIPTS = ("stream_append", "stream_reset", "stream_finish", "stream_read")


class StreamTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How long the keys of a stream live, in ms, and how large one may get, in bytes (each frame counts 64 more)."""

    running_ms: int = 21_600_000
    """Frames, after the last append (sse-ttl-running)."""
    read_out_ms: int = 60_000
    """Frames, after the end."""
    kept_ms: int = 240_000
    """Everything else, after the end (sse-ttl-terminal)."""
    bytes_max: int = 4 * 1024 * 1024

    @property
    def open_ms(self) -> int:
        """Everything else, before the end: the generation must outlive the frames that it tells the age of."""
        return 4 * self.running_ms

    @staticmethod
    def of(config: Config) -> StreamTerms:
        """Of the settings `stream_*`. `kept_ms` is always above `read_out_ms`: frames never outlive it."""
        read_out_ms = max(1, round(config.stream_read_out_s * 1000))
        return StreamTerms(
            running_ms=max(1, round(config.stream_running_s * 1000)),
            read_out_ms=read_out_ms,
            kept_ms=max(round(config.stream_kept_s * 1000), read_out_ms + 1),
            bytes_max=config.stream_bytes_max,
        )


class Streams:
    """The streams of one namespace. Shared by all threads of the process that made its runner."""

    def __init__(self, runner: ScriptRunner, keys: Keys, terms: StreamTerms | None = None) -> None:
        self._runner = runner
        self._keys = keys
        self._channel = keys.stream_channel
        self.terms = terms or StreamTerms()
        self._bound: dict[StreamId, tuple[BoundScript, ...]] = {}

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended:
        """Append records to a generation (sse-append-lua). Everybody who writes has a word of its own, `writer`, and
        numbers its requests upwards from 1: a repeat of the last one is recognised and appends nothing.

        Raises Refused or TooLarge for what is no frame, before anything is sent.
        """
        terms = _append_terms(generation, records, writer, request)
        reply = self._runner.call(self._of(stream)[0], terms, *records)
        if type(reply) is int:
            return Appended(generation, reply)
        return NotAppended(cast(Why, reply.decode())) if isinstance(reply, bytes) else Appended(reply[1], reply[0])

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None:
        """Begin a new generation and return it (sse-reset); with `keep`, go on with one that has not ended.

        None: somebody who speaks for a later state of the workflow was first, so the caller has nothing to write there.
        """
        reply = self._runner.call(
            self._of(stream)[1], *_reset_words(seniority, reset_id, keep, self.terms, stream.tag, self._channel)
        )
        return reply if isinstance(reply, int) else None

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> int | Literal["stale", "absent"]:
        """Append the terminal record, store it as reference, shorten the lives of the keys; the frame's offset.

        To be called after the end is committed in the store (sse-terminal-after-mongo). May be repeated. `stale`: a
        later state of the workflow counts; `absent`: Redis has nothing of this stream that could end.
        """
        reply = self._runner.call(
            self._of(stream)[2], *_finish_words(seniority, record, self.terms, stream.tag, self._channel)
        )
        if isinstance(reply, int):
            return reply
        return "stale" if reply == b"stale" else "absent"

    def read(
        self, stream: StreamId, generation: int, offset: int, *, bytes_max: int, count_max: int, watch_ms: int = 0
    ) -> Batch:
        """Frames from `offset` of `generation` on (0: of whatever is there), and the end if there is one, read in one
        step. `watch_ms`: tell changes on the wakeup channel for so long."""
        reply = self._runner.call(self._of(stream)[3], *_read_words(generation, offset, bytes_max, count_max, watch_ms))
        found, at, length, terminal, *records = reply
        return Batch(found, at, length, _reference(terminal) if terminal else None, records)

    def generation(self, stream: StreamId) -> int:
        """The present generation, 0 when there is none: what a reader compares after a batch (sse-double-check)."""
        value = self._runner.command("GET", self._keys.stream(stream)["stream_generation"])
        if value is None:
            return 0
        if not value.isdigit():
            raise CoordinationRejected("GET: a stream's generation is no number")
        return int(value)

    def _of(self, stream: StreamId) -> tuple[BoundScript, ...]:
        found = self._bound.get(stream)
        if found is None:
            if len(self._bound) >= _BOUND_MAX:
                # Streams come and go: what is bound again costs some microseconds.
                self._bound.clear()
            first = {"stream_append": _append_first(self.terms, stream.tag, self._channel)}
            found = tuple(
                BoundScript(script, self._keys.of(script, stream=stream), first.get(script.name, ()))
                for script in map(get, _SCRIPTS)
            )
            self._bound[stream] = found
        return found


# The functions below build ARGV as the contracts in lua/v1 say.


def _append_first(terms: StreamTerms, tag: int, channel: bytes) -> tuple[Word, ...]:
    """What all appends to one stream begin with."""
    return channel, tag, terms.bytes_max, terms.running_ms, terms.open_ms


def _append_terms(generation: int, records: Sequence[bytes], writer: str, request: int) -> str:
    """What stands between that and the records. Raises Refused or TooLarge for what no append takes."""
    if not 1 <= len(records) <= RECORDS_MAX:
        raise Refused(f"records: 1 to {RECORDS_MAX} in one append, not {len(records)}")
    for record in records:
        _check_record(record)
    if type(request) is not int or not 1 <= request <= _REQUEST_MAX:
        raise Refused(f"request: a whole number from 1 on, not {request!r}")
    return f"{generation} {_word(writer, 'writer')} {request}"


def _reset_words(
    seniority: Seniority, reset_id: str, keep: bool, terms: StreamTerms, tag: int, channel: bytes
) -> tuple[str, bytes]:
    age = f"{seniority.created_ms} {seniority.revision}"
    return f"{age} {_word(reset_id, 'reset_id')} {int(keep)} {terms.open_ms} {tag}", channel


def _finish_words(
    seniority: Seniority, record: bytes, terms: StreamTerms, tag: int, channel: bytes
) -> tuple[str, bytes, bytes]:
    _check_record(record)
    age = f"{seniority.created_ms} {seniority.revision}"
    return f"{age} {terms.read_out_ms} {terms.kept_ms} {tag}", record, channel


def _read_words(generation: int, offset: int, bytes_max: int, count_max: int, watch_ms: int) -> tuple[str]:
    return (f"{generation} {offset} {bytes_max} {count_max} {watch_ms}",)


def _check_record(record: bytes) -> None:
    if not record:
        raise Refused("record: must not be empty")
    if len(record) > RECORD_BYTES_MAX:
        raise TooLarge(f"record: {len(record)} bytes, at most {RECORD_BYTES_MAX} are allowed")


def _word(text: str, field: str) -> str:
    if _WORD.fullmatch(text) is None:
        raise Refused(f"{field}: 1 to 64 letters and digits, not {text!r}")
    return text


def _reference(text: bytes) -> TerminalReference:
    generation, _, rest = text.partition(b" ")
    offset, blank, record = rest.partition(b" ")
    if not (generation.isdigit() and offset.isdigit() and blank and record):
        raise CoordinationRejected("stream_read: a terminal reference that no kernel wrote")
    return TerminalReference(int(generation), int(offset), record)
