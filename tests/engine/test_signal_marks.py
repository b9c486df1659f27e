"""A consumed signal is marked before it can be forgotten, and a store that fails loses none (R-418, detail 11)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import Definition
from kernel.directives import WaitForSignal, Yield
from kernel.errors import OutcomeUnknown, StoreUnavailable
from kernel.signals import SignalReceipt
from kernel.store.conditional import Clear, Put, Transition
from kernel.store.tables import SIGNALS
from tests.engine.flows import flow, step
from tests.engine.signals import (
    GENERATION,
    KEY,
    TYPE,
    asks,
    inbox_row,
    leave,
    made,
    matched,
    pending,
    record,
    tell,
    wait_asleep,
    waiting,
)
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig
from tests.support.engine_store import Write

# --- the mark --------------------------------------------------------------------------------------------


@pytest.mark.req("sig-mark-before-unset", "sig-proof", "s9")
@pytest.mark.parametrize("directive", ["wait", "yield", "retry", "fail"])
def test_an_unmarked_signal_is_marked_before_its_step_forgets_it(rig: SteppedRig, directive: str) -> None:
    """The producer died between activation and mark; the step then waits again for the same identity."""

    def activity(ctx: Context) -> Any:
        if ctx.resume is None or ctx.resume.kind != "signal":
            return WaitForSignal(TYPE, KEY, GENERATION)
        if directive in ("retry", "fail"):
            raise ValueError("no")
        return Yield("again") if directive == "yield" else WaitForSignal(TYPE, KEY, GENERATION)

    definition = flow(rig, step(rig, "ask", activity, max_retry=int(directive == "retry")))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    rig.client_store.fail_once("mark_matched", "unavailable")
    assert tell(rig, workflow_id).activated
    assert pending(rig) == ["s1"]
    cleared_while: list[list[str]] = []
    worker.store.fault_of = lambda write: (
        cleared_while.append(pending(rig))  # type: ignore[func-returns-value]
        if {"suspend_step", "yield_step", "retry_step", "fail_step"} & set(write.names)
        else None
    )

    rig.run(lambda: rig.status(workflow_id) in ("waiting", "failed") and worker.busy == 0, "rest", worker)
    rig.advance(60_000)
    rig.pass_once(worker)
    worker.sweeps.inbox.repair()

    assert cleared_while and all(ids == [] for ids in cleared_while)
    assert matched(rig) == ["s1"]
    assert rig.status(workflow_id) == ("failed" if directive == "fail" else "waiting")
    assert rig.instance(workflow_id).steps[0].last_signal_id == "s1"


@pytest.mark.req("sig-proof")
def test_the_second_guard_holds_when_a_marked_row_becomes_pending_again(rig: SteppedRig) -> None:
    """Somebody deleted the match: `last_signal_id` still keeps it from waking the next wait."""
    worker, workflow_id = waiting(rig, times=2)
    tell(rig, workflow_id)
    wait_asleep(rig, worker, workflow_id)
    row = inbox_row(rig)
    assert row is not None
    changes = (Put("status", "pending"), Put("pending_time", 1), Clear("match_time"))
    rig.store.apply(Transition("damage", SIGNALS, "s1", (), changes))

    worker.sweeps.inbox.repair()
    rig.advance(60_000)
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "waiting"
    assert rig.ledger.count("ask") == 2
    assert record(rig).status == "matched"


@pytest.mark.req("sig-mark-before-unset")
def test_a_suspension_waits_for_the_mark_while_the_store_refuses_it(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig, times=2)
    rig.client_store.fail_once("mark_matched", "unavailable")
    tell(rig, workflow_id)
    failures = iter([True, True])
    worker.store.fault_of = lambda write: (
        "unavailable" if "mark_matched" in write.names and next(failures, False) else None
    )
    worker.store.writes.clear()
    wait_asleep(rig, worker, workflow_id)

    names = [name for name in worker.store.names() if name in ("mark_matched", "suspend_step")]
    assert names == ["mark_matched"] * 3 + ["suspend_step"]
    assert record(rig).status == "matched"


@pytest.mark.req("sig-mark-before-unset", "sor-replay-steps")
def test_a_replay_marks_first_and_keeps_the_last_signal(rig: SteppedRig) -> None:
    def activity(ctx: Context) -> Any:
        return "done" if ctx.workflow_run == 2 and ctx.resume else WaitForSignal(TYPE, KEY, GENERATION)

    definition = flow(rig, step(rig, "ask", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    rig.client_store.fail_once("mark_matched", "unavailable")
    tell(rig, workflow_id)
    set_fields(rig, workflow_id, status="failed")
    assert pending(rig) == ["s1"]

    rig.start(definition)

    assert pending(rig) == []
    assert rig.instance(workflow_id).steps[0].last_signal_id == "s1"
    assert rig.instance(workflow_id).steps[0].resume is None
    wait_asleep(rig, worker, workflow_id)
    rig.advance(60_000)
    rig.pass_once(worker)
    assert rig.status(workflow_id) == "waiting"


@pytest.mark.req("s9", "sig-dup-once")
def test_a_slow_deliverer_does_not_wake_a_later_wait_with_a_signal_that_was_consumed(rig: SteppedRig) -> None:
    """It had read all it needs, then stood still while the same signal, another one and a third wait came by."""
    worker, workflow_id = waiting(rig, times=3)
    leave(rig, workflow_id, "s1")
    slow = rig.make_worker(flow(rig, step(rig, "ask", asks(3))), worker_id="slow")
    rig.workers.remove(slow)
    rounds: list[str] = []

    def meanwhile(write: Write) -> None:
        if "activate_signal" in write.names and not rounds:
            for signal_id in ("s1", "s2"):
                rounds.append(signal_id)
                tell(rig, workflow_id, signal_id)
                rig.run(lambda: worker.busy == 0 and rig.status(workflow_id) == "waiting", "the next wait", worker)

    slow.store.fault_of = meanwhile
    repaired = slow.sweeps.inbox.repair()

    assert rounds == ["s1", "s2"]
    assert repaired.activated == 0
    assert rig.ledger.count("ask") == 3
    assert rig.status(workflow_id) == "waiting"


# --- a store that fails ----------------------------------------------------------------------------------


@pytest.mark.req("sig-inbox-fail")
@pytest.mark.parametrize("fault", ["unavailable", "lose_request", "undecidable"])
def test_a_delivery_that_is_not_known_to_be_stored_fails_and_its_repeat_is_safe(rig: SteppedRig, fault: Any) -> None:
    worker, workflow_id = waiting(rig)
    rig.client_store.fault_of = lambda write: fault if "receive_signal" in write.names else None

    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        tell(rig, workflow_id)
    assert rig.status(workflow_id) == "waiting"
    assert "activate_signal" not in rig.client_store.names()

    rig.client_store.fault_of = lambda write: None
    tell(rig, workflow_id)
    rig.finish(workflow_id)
    assert (rig.output(workflow_id), rig.ledger.count("ask"), matched(rig)) == (["s1"], 2, ["s1"])
    assert worker.busy == 0


@pytest.mark.req("sig-inbox-first", "sig-scan-match", "core-unique-outcome")
@pytest.mark.parametrize("fault", ["unavailable", "lose_request", "lose_reply", "undecidable"])
def test_with_a_broken_activation_the_signal_is_stored_and_a_sweep_goes_on(rig: SteppedRig, fault: Any) -> None:
    worker, workflow_id = waiting(rig)
    rig.client_store.fault_of = lambda write: fault if "activate_signal" in write.names else None

    receipt = tell(rig, workflow_id)

    assert inbox_row(rig) is not None
    assert receipt.duplicate is False
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == ["s1"]
    assert rig.ledger.count("ask") == 2
    worker.sweeps.inbox.repair()
    assert matched(rig) == ["s1"]


@pytest.mark.req("sig-user-choice")
def test_an_activity_signals_another_workflow_and_a_repeat_of_the_step_is_a_duplicate(rig: SteppedRig) -> None:
    """The step fails after it has told: its second attempt tells with the same id."""

    def ring(ctx: Context) -> Any:
        receipts = ctx.deliver_signals([made(ctx.input, f"ring:{ctx.biz_key}")])
        if ctx.attempt == 1:
            raise ValueError("after the bell")
        return [receipts[0].duplicate, receipts[0].activated]

    sleeper = flow(rig, step(rig, "ask", asks()), type="sleeper")
    bell = flow(rig, step(rig, "ring", ring, max_retry=1), type="bell")
    worker = rig.worker(sleeper, bell)
    asleep = rig.start(sleeper, "sleeper")
    wait_asleep(rig, worker, asleep)
    ringing = rig.start(bell, "bell", asleep)
    rig.finish(asleep, ringing)

    assert rig.output(asleep) == ["ring:bell"]
    assert rig.output(ringing) == [True, False]
    assert rig.ledger.count("ask") == 2


@pytest.mark.req("s9", "sig-dup-once")
def test_a_slow_deliverer_does_not_wake_one_step_with_what_another_has_consumed(rig: SteppedRig) -> None:
    """It has chosen step `b`, whose wait stands all the time; meanwhile `a` comes to wait for the same identity, is
    woken by that very signal, and waits again. The write rests on a revision that is gone."""

    def first_another(ctx: Context) -> Any:
        return WaitForSignal(TYPE, KEY, GENERATION if ctx.resume else 77)

    def both() -> Definition:
        ask = step(rig, "b", asks(), depends_on=[])
        return flow(rig, step(rig, "a", first_another, depends_on=[]), ask)

    worker = rig.worker(both())
    workflow_id = rig.start(both())
    wait_asleep(rig, worker, workflow_id)
    leave(rig, workflow_id, "s1")
    slow = rig.make_worker(both(), worker_id="slow")
    rig.workers.remove(slow)
    told: list[SignalReceipt] = []

    def meanwhile(write: Write) -> None:
        if "activate_signal" in write.names and not told:
            told.append(tell(rig, workflow_id, "s0", generation=77))
            rig.run(lambda: rig.ledger.count("a") == 3, "woken by s0, then by what was in the inbox", worker)
            wait_asleep(rig, worker, workflow_id)

    slow.store.fault_of = meanwhile
    repaired = slow.sweeps.inbox.repair()

    assert [receipt.activated for receipt in told] == [True]
    assert repaired.activated == 0
    assert (rig.ledger.count("a"), rig.ledger.count("b")) == (3, 1)
    assert [rig.step(workflow_id, name).last_signal_id for name in "ab"] == ["s1", None]
