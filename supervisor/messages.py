"""What supervisor and child say to each other: one JSON object per SOCK_SEQPACKET message, with a version.

A message is at most MESSAGE_BYTES_MAX long, so that the kernel delivers it whole or not at all: a child killed in
the middle of a send leaves no half message behind. A version or kind that this side does not know is refused, never
guessed; the link survives a refused message.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kernel.errors import Refused, TooLarge, UnknownVersion

VERSION = 1
MESSAGE_BYTES_MAX = 60_000

Cause = Literal["death", "ordered"]


class BadMessage(Refused):
    """A message on a link that is no message of this version."""

    code = "bad_message"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    v: int = VERSION


class Ready(_Message, frozen=True, tag="ready"):
    """The role has started: it can be counted as running."""


class Report(_Message, frozen=True, tag="report"):
    """What the child says about itself; the supervisor keeps the last one and the time it came."""

    status: dict[str, Any]


class AskRecycle(_Message, frozen=True, tag="ask_recycle"):
    """The child asks to be replaced: an activity ignored its cancellation (B-40)."""

    reason: str


class Acknowledge(_Message, frozen=True, tag="acknowledge"):
    """The claims of the owner named in that notice are released."""

    notice_id: int


class Failed(_Message, frozen=True, tag="failed"):
    """The last words of a role that ends by an error: one line."""

    text: str


class Drain(_Message, frozen=True, tag="drain"):
    """Take nothing new, end what runs, return within `deadline_s`."""

    deadline_s: float


class Hasten(_Message, frozen=True, tag="hasten"):
    """Give up what still runs and return within `deadline_s`."""

    deadline_s: float


class OwnerDead(_Message, frozen=True, tag="owner_dead"):
    """The process that owned claims as `worker_id` is reaped: they may be released (DECISIONS 27)."""

    notice_id: int
    worker_id: str
    cause: Cause


FromChild = Ready | Report | AskRecycle | Acknowledge | Failed
ToChild = Drain | Hasten | OwnerDead


class _Head(msgspec.Struct, frozen=True):
    v: int


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(_Head)
_from_child_decoder = msgspec.json.Decoder(FromChild)
_to_child_decoder = msgspec.json.Decoder(ToChild)


def encoded(message: FromChild | ToChild) -> bytes:
    """The bytes of one message. Raises TooLarge above MESSAGE_BYTES_MAX, TypeError for what is no JSON."""
    data = _encoder.encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"message to or from a child: {len(data)} bytes, at most {MESSAGE_BYTES_MAX} are allowed")
    return data


def from_child(data: bytes) -> FromChild:
    """Read what a child sent. Raises UnknownVersion or BadMessage."""
    _check_version(data)
    try:
        return _from_child_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadMessage(f"message from a child: {error}") from None


def to_child(data: bytes) -> ToChild:
    """Read what the supervisor sent. Raises UnknownVersion or BadMessage."""
    _check_version(data)
    try:
        return _to_child_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadMessage(f"message from the supervisor: {error}") from None


def _check_version(data: bytes) -> None:
    try:
        head = _head_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadMessage(f"message on a link: {error}") from None
    if head.v != VERSION:
        raise UnknownVersion(f"message on a link: version {head.v} is not {VERSION}")
