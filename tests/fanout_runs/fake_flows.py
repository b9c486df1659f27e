"""One step of a fan-out without an engine: what a Context gives, an inbox that remembers, and faults on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fanout import Outcome
from kernel import Definition, Signal, SignalReceipt, Sleep, Yield
from kernel.codec import decode, encode

BYTES_MAX = 256 * 1024


class FakeInbox:
    """Stores each signal once, as the real one does; `targets` are the statuses of the workflows that exist."""

    def __init__(self, **targets: str) -> None:
        self.targets = dict(targets)
        self.stored: dict[str, Signal] = {}
        self.calls: list[list[Signal]] = []
        self.fault_of: Callable[[Sequence[Signal]], BaseException | None] = lambda signals: None
        self.fault_after: Callable[[Sequence[Signal]], BaseException | None] = lambda signals: None
        """The same, when the signals have been stored already."""

    def deliver_signals(self, signals: Sequence[Signal]) -> list[SignalReceipt]:
        self.calls.append(list(signals))
        fault = self.fault_of(signals)
        if fault is not None:
            raise fault
        receipts = [self._stored(signal) for signal in signals]
        fault = self.fault_after(signals)
        if fault is not None:
            raise fault
        return receipts

    def _stored(self, signal: Signal) -> SignalReceipt:
        duplicate = signal.signal_id in self.stored
        conflict = duplicate and self.stored[signal.signal_id] != signal
        self.stored.setdefault(signal.signal_id, signal)
        target = self.targets.get(signal.workflow_id, "unknown")
        woken = target == "waiting" and not duplicate
        return SignalReceipt(
            signal_id=signal.signal_id, duplicate=duplicate, activated=woken, conflict=conflict, target=target
        )


class FakeContext:
    """What the step uses of a `kernel.Context`; the checkpoint is what the codec makes of it."""

    def __init__(self, event: Any, inbox: FakeInbox, checkpoint: bytes | None, ports: Any, left_s: float) -> None:
        self.input = event
        self.workflow_id = "wf-fan-out"
        self.type = "notify"
        self._left_s = left_s
        self.ports = ports
        self._inbox = inbox
        self._checkpoint = checkpoint

    def checkpoint(self, type_: Any) -> Any:
        return None if self._checkpoint is None else decode(self._checkpoint, type_, "checkpoint")

    def deliver_signals(self, signals: Sequence[Signal]) -> list[SignalReceipt]:
        return self._inbox.deliver_signals(signals)

    def remaining_s(self) -> float:
        return self._left_s


class StepRun:
    """One fan-out, invocation by invocation."""

    def __init__(self, definition: Definition, event: Any, inbox: FakeInbox, ports: Any = None) -> None:
        self.ports = ports
        self.left_s = 60.0
        """Until the invocation's timeout."""
        self.definition = definition
        self.event = event
        self.inbox = inbox
        self.checkpoint: bytes | None = None
        self.directives: list[Any] = []

    def once(self) -> Any:
        """One invocation, whose directive is kept as the engine would."""
        returned = self.definition.steps[0].activity(
            FakeContext(self.event, self.inbox, self.checkpoint, self.ports, self.left_s)
        )
        if asyncio.iscoroutine(returned):
            returned = asyncio.run(returned)
        self.directives.append(returned)
        if isinstance(returned, Yield | Sleep):
            self.checkpoint = encode(returned.checkpoint, "checkpoint", BYTES_MAX)
        return returned

    def to_the_end(self, limit: int = 1_000) -> Outcome:
        for _ in range(limit):
            returned = self.once()
            if isinstance(returned, Outcome):
                return returned
        raise AssertionError(f"no end after {limit} invocations")
