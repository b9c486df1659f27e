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


class FanOutEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a fan-out. `event_id` and `generation` together say which event it is.

    `signal_type`, `wait_key` and `generation` are what the subscribers wait for, unless a subscriber names its own key
    or generation. `identities` are ids of the author's data (tenant, recording, list): `read_page` finds them in
    `ctx.input`; no content belongs there. Raises InvalidId, InvalidName or Refused when it is made.
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
    return _short(f"fan:{type_}:{event.generation}:{event.event_id}", "fan", type_, event.generation, event.event_id)


def signal_id_for(event: FanOutEvent, workflow_id: str, wait_key: str, generation: int) -> str:
    """The id of the one signal that tells `workflow_id` of this event: event, generation and target (B-14).

    A subscriber with a wait key of its own may be in the list once per key; the key then belongs to the identity.
    """
    plain = f"fan:{generation}:{workflow_id}:{event.event_id}"
    own = (event.event_id, event.generation, workflow_id, wait_key, generation)
    if ":" in workflow_id or (wait_key, generation) != (event.wait_key, event.generation):
        return _digest("fan", *own)
    return _short(plain, "fan", *own)


def _short(plain: str, prefix: str, *parts: str | int) -> str:
    return plain if len(plain) <= _ID_CHARACTERS_MAX else _digest(prefix, *parts)


def _digest(prefix: str, *parts: str | int) -> str:
    # An encoded tuple and not joined text: ("a:b", "c") and ("a", "b:c") are two identities.
    return f"{prefix}-{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()}"
