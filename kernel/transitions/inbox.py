"""The inbox of signals: stored once, marked once, removed when it can be missed (group 21)."""

from __future__ import annotations

from kernel.records import to_document
from kernel.signals import SIGNAL_VERSION, Signal, SignalRecord
from kernel.store.conditional import AtMost, Clear, Equals, Insert, Put, PutNow, Remove, Transition
from kernel.store.tables import SIGNALS

PENDING = "pending"
MATCHED = "matched"


def receive_signal(signal: Signal, *, now_ms: int) -> Insert:
    """A new row, pending; the same signal_id a second time is a Duplicate (sig-unique, sig-inbox-first)."""
    record = SignalRecord(
        v=SIGNAL_VERSION,
        signal_id=signal.signal_id,
        workflow_id=signal.workflow_id,
        signal_type=signal.signal_type,
        wait_key=signal.wait_key,
        generation=signal.generation,
        status="pending",
        created_time=now_ms,
        pending_time=now_ms,
    )
    return Insert("receive_signal", SIGNALS, signal.signal_id, to_document(record))


def mark_matched(signal_id: str) -> Transition:
    """pending → matched. Only for a signal that an instance proves to have been woken by (sig-proof).

    No commit_id: a second mark misses and changes nothing, so an unknown one is just made again.
    """
    changes = (Put("status", MATCHED), PutNow("match_time"), Clear("pending_time"))
    return Transition("mark_matched", SIGNALS, signal_id, (Equals("status", PENDING),), changes)


def forget_matched(signal_id: str, *, until_ms: int) -> Remove:
    """Retention: the row was matched at `until_ms` or before (DECISIONS 14)."""
    guards = (Equals("status", MATCHED), AtMost("match_time", until_ms))
    return Remove("forget_matched", SIGNALS, signal_id, guards)


def forget_pending(signal_id: str, workflow_id: str, *, until_ms: int) -> Remove:
    """Retention of a signal that nobody can take any more; whoever removes has seen that its workflow is unknown, or
    was terminal at `until_ms` already (DECISIONS 14)."""
    guards = (Equals("status", PENDING), Equals("workflow_id", workflow_id), AtMost("pending_time", until_ms))
    return Remove("forget_pending", SIGNALS, signal_id, guards)
