"""What an activity or a finalizer may do to other workflows; the engine hands it in (`kernel.client.Client` is one)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kernel.definition import Plan
from kernel.signals import Signal, SignalReceipt


class Flows(Protocol):
    """Deliver signals, and register other workflows."""

    def deliver_signals(self, signals: Sequence[Signal]) -> list[SignalReceipt]:
        """Store each signal once and wake the waits that match; a repeat is a success (group 21)."""
        ...

    def start_or_resume(self, plan: Plan, *, biz_key: str, input: Any = None, priority: int | str = "async") -> Any:
        """The idempotent entry (group 6); a `kernel.client.Handle`."""
        ...
