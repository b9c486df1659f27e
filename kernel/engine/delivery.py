"""One signal on its way into the inbox, and what a look at its target came to. Values; `inbox` does the work."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kernel.records import Instance
from kernel.signals import Signal, SignalReceipt

UNKNOWN = "unknown"
UNREADABLE = "unreadable"


class Delivery(msgspec.Struct):
    """What is known of one signal so far."""

    signal: Signal
    seen: Instance | None = None
    duplicate: bool = False
    activated: bool = False
    matched: bool = False
    conflict: bool = False
    target: str = UNKNOWN

    def receipt(self) -> SignalReceipt:
        return SignalReceipt(
            signal_id=self.signal.signal_id,
            duplicate=self.duplicate,
            activated=self.activated,
            matched=self.matched,
            conflict=self.conflict,
            target=self.target,
        )


class Match(NamedTuple):
    """What a look at one signal's target came to."""

    activated: bool
    """By this very call."""
    matched: bool
    """By this call, or by another before it."""
    status: str
