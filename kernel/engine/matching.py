"""Which signal is for which wait, and what an instance proves of it (T-11). Pure: records in, answer out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel.records import Instance, Resume
from kernel.signals import Signal, SignalRecord
from kernel.states import RUNNING, STEP_WAITING, WAITING

IDENTITY = ("signal_id", "workflow_id", "signal_type", "wait_key", "generation")
"""The columns of the inbox that say which notification a row is, and for which wait."""


def waiting_for(instance: Instance, signal: Signal | SignalRecord) -> int | None:
    """The step that this signal may wake: the first that waits for exactly its identity (sig-match), in an instance
    that nobody holds and that no step of which has consumed it."""
    if instance.status not in (WAITING, RUNNING) or instance.claim_token is not None or instance.parked is not None:
        return None
    if instance.workflow_id != signal.workflow_id or consumed(instance, signal.signal_id):
        return None
    for index in signal_waits(instance):
        wait = instance.steps[index].wait
        if wait is not None and (wait.signal_type, wait.wait_key, wait.generation) == identity_of(signal)[1:]:
            return index
    return None


def signal_waits(instance: Instance) -> list[int]:
    """The steps that wait for a signal."""
    return [
        index
        for index, step in enumerate(instance.steps)
        if step.status == STEP_WAITING and step.wait is not None and step.wait.kind == "signal"
    ]


def consumed(instance: Instance, signal_id: str) -> bool:
    """Whether the instance proves that this signal has woken one of its steps (sig-proof)."""
    return any(signal_id in (step.last_signal_id, _resumed_by(step.resume)) for step in instance.steps) or (
        signal_id == _resumed_by(instance.resume)
    )


def proofs(instance: Instance) -> list[str]:
    """The signals that this instance alone may prove to be consumed: marked before a transition clears them."""
    found = [_resumed_by(instance.resume), *(_resumed_by(step.resume) for step in instance.steps)]
    return [signal_id for signal_id in dict.fromkeys(found) if signal_id is not None]


def signal_of(row: Sequence[Any]) -> Signal:
    """The signal in a scanned row of the columns of its identity."""
    return Signal(**dict(zip(IDENTITY, row, strict=False)))


def _resumed_by(resume: Resume | None) -> str | None:
    return None if resume is None else resume.signal_id


def identity_of(signal: Signal | SignalRecord) -> tuple[str, str, str, int]:
    return signal.workflow_id, signal.signal_type, signal.wait_key, signal.generation
