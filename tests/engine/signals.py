"""What the tests about signals share: steps that wait for one, and the inbox as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kernel import transitions
from kernel.context import Context
from kernel.directives import WaitForSignal
from kernel.records import Document
from kernel.signals import Signal, SignalReceipt, SignalRecord, to_signal_record
from kernel.store.conditional import Inserted
from kernel.store.protocol import Query
from kernel.store.tables import SIGNALS
from tests.engine.flows import flow, step
from tests.support.engine_rig import Rig, RigWorker, SteppedRig

TYPE, KEY, GENERATION = "ready", "show-1", 2


def asks(times: int = 1, *, fallback: timedelta | None = None, generation: int = GENERATION) -> Any:
    """An activity that waits `times` times for the same identity, and returns what woke it each time."""

    def activity(ctx: Context) -> Any:
        woken: list[Any] = list(ctx.checkpoint() or [])
        if ctx.resume is not None:
            woken.append(ctx.resume.signal_id or ctx.resume.kind)
        if len(woken) < times:
            return WaitForSignal(TYPE, KEY, generation, poll_fallback=fallback, checkpoint=woken)
        return woken

    return activity


def made(workflow_id: str, signal_id: str, **fields: Any) -> Signal:
    """A signal for the wait of `asks`; `fields` change parts of its identity."""
    identity = {"signal_type": TYPE, "wait_key": KEY, "generation": GENERATION} | fields
    return Signal(signal_id=signal_id, workflow_id=workflow_id, **identity)


def tell(rig: Rig, workflow_id: str, signal_id: str = "s1", **fields: Any) -> SignalReceipt:
    """Deliver one by the publisher's client."""
    return rig.client.deliver_signals([made(workflow_id, signal_id, **fields)])[0]


def leave(rig: Rig, workflow_id: str, signal_id: str = "s1", *, age_ms: int = 0, **fields: Any) -> None:
    """Only the row in the inbox, as a producer leaves it that dies right after its insert."""
    now_ms = rig.store.now_ms() - age_ms
    answer = rig.store.insert(transitions.receive_signal(made(workflow_id, signal_id, **fields), now_ms=now_ms))
    assert isinstance(answer, Inserted)


def inbox_row(rig: Rig, signal_id: str = "s1") -> Document | None:
    return rig.store.get(SIGNALS, signal_id)


def record(rig: Rig, signal_id: str = "s1") -> SignalRecord:
    document = inbox_row(rig, signal_id)
    assert document is not None, f"{signal_id} is not in the inbox"
    return to_signal_record(document)


def pending(rig: Rig) -> list[str]:
    """The ids that are pending, by age."""
    return [row[0] for row in rig.store.scan(Query(SIGNALS, (), "pending_time", ("signal_id",), 10_000))]


def matched(rig: Rig) -> list[str]:
    return [row[0] for row in rig.store.scan(Query(SIGNALS, (), "match_time", ("signal_id",), 10_000))]


def wait_asleep(rig: SteppedRig, worker: RigWorker, *workflow_ids: str) -> None:
    """Let the worker run until these workflows wait and its claims have ended."""
    asleep: Callable[[], bool] = lambda: all(rig.status(key) == "waiting" for key in workflow_ids)  # noqa: E731
    rig.run(lambda: asleep() and worker.busy == 0, "all waiting", worker)


def waiting(rig: SteppedRig, times: int = 1, **options: Any) -> tuple[RigWorker, str]:
    """A workflow that waits for its first signal, and its worker."""
    definition = flow(rig, step(rig, "ask", asks(times, **options)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    return worker, workflow_id
