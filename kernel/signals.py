"""A signal: "what you wait for may have changed, look again". It carries no result and no payload (sig-no-payload).

Two identities answer two questions (T-11): `signal_id` says whether it is the same notification, and
workflow_id + signal_type + wait_key + generation whether it is for this wait. The inbox row is written before
anybody is woken, and stays pending until a wait of exactly that identity takes it, however long that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kernel.errors import CorruptRecord, Refused, UnknownVersion
from kernel.ids import check_id, check_name

SIGNAL_VERSION = 1
GENERATION_MAX = 2**53 - 1

SignalStatus = Literal["pending", "matched"]


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One notification. `signal_id` must be stable: a producer that does not know whether it delivered repeats the
    same id, and the second is ignored (sig-unique). `generation` is the wait generation, default 0.

    Raises InvalidId, InvalidName or Refused when it is made, naming the field.
    """

    signal_id: str
    workflow_id: str
    signal_type: str
    wait_key: str
    generation: int = 0

    def __post_init__(self) -> None:
        check_id(self.signal_id, "signal_id")
        check_id(self.workflow_id, "workflow_id")
        check_name(self.signal_type, "signal_type")
        check_id(self.wait_key, "wait_key")
        check_generation(self.generation, "generation")


class SignalReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one delivery: stored now or `duplicate` of an earlier one, `activated` when this call woke a wait,
    and `matched` when a wait has taken it, by this call or by a sweep that was faster.

    None of them says that a wait will ever match: a signal to an unknown or ended workflow is kept and wakes nobody
    (sig-terminal-target). `conflict`: the signal_id was used for another signal before, so this one is not stored and
    reaches nobody; it needs an id of its own. `target` tells how the workflow stood: its status, `unknown`, or
    `unreadable` when its row can not be read now: the signal is stored, and a sweep goes on with it.
    """

    signal_id: str
    duplicate: bool = False
    activated: bool = False
    matched: bool = False
    conflict: bool = False
    target: str = "unknown"


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the inbox (sig-inbox-record). `pending_time` is its create time for as long as it is pending."""

    v: int
    signal_id: str
    workflow_id: str
    signal_type: str
    wait_key: str
    generation: int
    status: SignalStatus
    created_time: int
    pending_time: int | None = None
    match_time: int | None = None


def to_signal_record(document: Mapping[str, Any]) -> SignalRecord:
    """Decode an inbox row. Raises UnknownVersion or CorruptRecord naming the signal."""
    key = document.get("signal_id")
    if document.get("v") != SIGNAL_VERSION:
        raise UnknownVersion(
            f"signal {key!r}: layout version {document.get('v')!r}, this kernel knows {SIGNAL_VERSION}"
        )
    try:
        return msgspec.convert(document, SignalRecord)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CorruptRecord(f"signal {key!r}: {error}") from None


def check_generation(value: object, field: str) -> int:
    """Return `value` if it is a whole number from 0 to 2^53 − 1, else raise Refused naming `field`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= GENERATION_MAX:
        raise Refused(f"{field}: {value!r} is no whole number from 0 to 2^53 − 1")
    return value
