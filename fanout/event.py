"""The event that is told, and what is derived from it: the fan-out's one biz_key, and one signal_id a subscriber.

Both are pure functions of the event's identity, so that whoever repeats (a finalizer, a page, another worker) says the
same thing again and is recognised (fan-start-idempotent, fan-rerun-dedup).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from kernel import Signal, check_id

_ID_CHARACTERS_MAX = 200

IDENTITY = ("event_id", "generation", "signal_type", "wait_key")
"""The fields that say which event it is. Each is in the fan-out's biz_key and in the ids of its signals."""


class FanOutEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a fan-out. `event_id`, `generation`, `signal_type` and `wait_key` together say which event it is.

    The last three are what the subscribers wait for, unless a subscriber names its own key or generation. `identities`
    are ids of the author's data (tenant, recording, list): `read_page` finds them in `ctx.input`; no content belongs
    there. Raises InvalidId, InvalidName or Refused when it is made.
    """

    event_id: str
    signal_type: str
    wait_key: str
    generation: int = 0
    identities: dict[str, str] = {}
    v: Literal[1] = 1
    """The layout. One that this program does not know is refused when the fan-out is started, before any write."""

    def __post_init__(self) -> None:
        check_id(self.event_id, "event_id")
        # A signal knows the rules of the fields that every one of this event's will have.
        Signal(
            signal_id=self.event_id,
            workflow_id=self.event_id,
            signal_type=self.signal_type,
            wait_key=self.wait_key,
            generation=self.generation,
        )
        for name, value in self.identities.items():
            check_id(name, "identities: name")
            check_id(value, f"identities[{name!r}]")


def fan_out_key(type_: str, event: FanOutEvent) -> str:
    """The biz_key of the one fan-out of type `type_` that this event will ever have."""
    own = (type_, event.generation, event.signal_type, event.wait_key, event.event_id)
    return _digest("fan", *own) if ":" in event.wait_key else _short("fan", *own)


def signal_id_for(event: FanOutEvent, workflow_id: str, wait_key: str, generation: int) -> str:
    """The id of the one signal that tells `workflow_id` of this event: the event's identity and the target (B-14).

    The identity holds what the subscribers wait for: "paid" and "shipped" of one order are two events, also where an
    author gives both the order's number as `event_id`, and neither takes the other's signal for its own repeat. The
    type of the fan-out is no part of it: one event told from two lists reaches a subscriber of both once.
    A subscriber with a wait key of its own may be in the list once per key; the key then belongs to the identity.
    """
    own = (event.generation, event.signal_type, event.wait_key, workflow_id, event.event_id)
    if (wait_key, generation) != (event.wait_key, event.generation):
        return _digest("fan", *own, wait_key, generation)
    return _digest("fan", *own) if ":" in event.wait_key or ":" in workflow_id else _short("fan", *own)


def _short(prefix: str, *parts: str | int) -> str:
    """Readable where it fits. At most the last part may hold a colon, so that two identities never read alike."""
    plain = ":".join((prefix, *map(str, parts)))
    return plain if len(plain) <= _ID_CHARACTERS_MAX else _digest(prefix, *parts)


def _digest(prefix: str, *parts: str | int) -> str:
    # An encoded tuple and not joined text: ("a:b", "c") and ("a", "b:c") are two identities.
    return f"{prefix}-{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()}"
