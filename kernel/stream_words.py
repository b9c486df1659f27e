"""The words of client streams: which stream, whose word counts, and the answers that Redis gives (group 23).

A stream is what one round of one workflow shows its client while it works. It lives in Redis, may be lost at any time,
and decides nothing (core-side-paths-do-not-decide).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kernel.codec import decode
from kernel.dispatch import ROUND_FIELD
from kernel.errors import CheckpointError, InvalidId, UnknownVersion
from kernel.ids import check_id
from kernel.records import Instance

OBJECT_FIELD = "object_id"
"""The field of an input that names the business object it is about."""
RECORD_BYTES_MAX = 65_536
RECORDS_MAX = 100
"""Records that one append takes."""

Why = Literal["generation", "terminal", "full", "request"]
"""Why frames were refused: reset meanwhile or gone, after the terminal frame, no room, or a later request was first."""

_EVENT_ID = re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})")


class StreamId(msgspec.Struct, frozen=True):
    """Which stream: the business object, its workflow, and the business round (id-stream-identity).

    All three are needed: who knows an object alone reads nothing, and a round never sees the frames of another
    (sse-identity, sse-round-isolation). Raises InvalidId.
    """

    object_id: str
    workflow_id: str
    round: str

    def __post_init__(self) -> None:
        check_id(self.object_id, "object_id")
        check_id(self.workflow_id, "workflow_id")
        check_id(self.round, ROUND_FIELD)

    @property
    def tag(self) -> int:
        """A number that stands for the stream in a wakeup. Two streams that share one wake each other in vain."""
        text = "\0".join((self.object_id, self.workflow_id, self.round))
        return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)

    @staticmethod
    def of(instance: Instance) -> StreamId:
        """The stream of an instance's present round.

        Object and round are `object_id` and `fencing_token` of its input. Where it names no object, the biz_key stands
        for it, whose last part it is (id-biz-key); where it names no round, each run is one, `run-<n>`.
        """
        try:
            value: Any = decode(instance.input, Any, "input")
        except (CheckpointError, UnknownVersion):
            value = None
        fields: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
        object_id = _text(fields.get(OBJECT_FIELD)) or instance.biz_key
        round_ = _text(fields.get(ROUND_FIELD)) or f"run-{instance.workflow_run}"
        return StreamId(object_id, instance.workflow_id, round_)


class Seniority(msgspec.Struct, frozen=True, order=True):
    """How new the workflow record is that somebody speaks for: of two who reset or finish a stream, the later record
    counts. `created_ms` comes first: a store that was begun anew is later than what an old one left in Redis."""

    created_ms: int
    revision: int

    @staticmethod
    def of(instance: Instance) -> Seniority:
        return Seniority(instance.created_time, instance.revision)


class Appended(msgspec.Struct, frozen=True):
    """The records are in: `offset` is that of the first. `generation` is another than that asked for when the list had
    been lost and these records began a new one."""

    generation: int
    offset: int


class NotAppended(msgspec.Struct, frozen=True):
    """The records were refused and left no trace."""

    why: Why


class TerminalReference(msgspec.Struct, frozen=True):
    """The end of a stream: where its terminal frame is or was, and the record itself (kernel.frames)."""

    generation: int
    offset: int
    record: bytes


class Batch(msgspec.Struct, frozen=True):
    """What one read saw, at one instant. `generation` 0: there is no such stream now, or nothing was written yet."""

    generation: int
    offset: int
    """Of the first record; another than asked for when the generation is another or has no such offset."""
    length: int
    terminal: TerminalReference | None
    records: list[bytes]


class Position(msgspec.Struct, frozen=True):
    """The last frame that a reader has: what `Last-Event-ID: <generation>-<offset>` says (DECISIONS 24)."""

    generation: int
    offset: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.offset}"

    @staticmethod
    def parse(text: object) -> Position:
        """Read a Last-Event-ID. Raises InvalidId for anything but two whole numbers joined by a hyphen."""
        found = _EVENT_ID.fullmatch(text) if isinstance(text, str) and len(text) <= 33 else None
        if found is None:
            raise InvalidId("last_event_id: must be <generation>-<offset>, as the id of an event that was sent")
        return Position(int(found[1]), int(found[2]))


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return check_id(value, "part of a stream")
    except InvalidId:
        return None
