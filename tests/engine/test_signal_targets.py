"""Signals that wake nobody: for workflows that do not wait, rows that do not decode, and input that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.errors import InvalidId, InvalidName, Refused
from kernel.ids import workflow_id_for
from kernel.signals import Signal
from kernel.states import TERMINAL
from tests.engine.flows import flow, seconds, step
from tests.engine.signals import (
    asks,
    made,
    pending,
    tell,
    wait_asleep,
    waiting,
)
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("sig-terminal-target", "can-late-signal")
@pytest.mark.parametrize("status", ["completed", "failed", "canceled", "failing", "running"])
def test_a_signal_to_a_workflow_that_does_not_wait_is_kept_and_changes_nothing(rig: SteppedRig, status: str) -> None:
    """Its step still looks as if it waited."""
    worker, workflow_id = waiting(rig)
    held = {"claim_token": "t"} if status == "running" else {}
    set_fields(rig, workflow_id, status=status, **held)
    before = rig.row(workflow_id)

    receipt = tell(rig, workflow_id)
    worker.sweeps.inbox.repair()

    assert (receipt.activated, receipt.target) == (False, status)
    assert rig.row(workflow_id) == before
    assert pending(rig) == ["s1"]


@pytest.mark.req("can-late-signal", "can-supersede")
def test_a_superseded_workflow_has_no_wait_and_no_signal_or_timer_wakes_it(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig, fallback=seconds(5))
    assert rig.client.supersede(workflow_id).changed
    before = rig.row(workflow_id)
    assert {"wait", "claimable_time", "claim_token", "resume"} & set(before) == set()

    receipt = tell(rig, workflow_id)
    rig.advance(60_000)
    worker.sweep()
    worker.sweeps.inbox.repair()
    rig.pass_once(worker)

    assert (receipt.activated, receipt.target) == (False, "canceled")
    assert rig.row(workflow_id) == before
    assert (pending(rig), rig.ledger.count("ask")) == (["s1"], 1)


@pytest.mark.req("sig-terminal-target")
def test_a_signal_to_an_unknown_workflow_is_kept(rig: SteppedRig) -> None:
    receipt = tell(rig, "wf-nobody")

    assert (receipt.duplicate, receipt.activated, receipt.target) == (False, False, "unknown")
    assert pending(rig) == ["s1"]


@pytest.mark.req("sig-unique")
def test_an_id_that_was_used_for_something_else_is_ignored_and_said(
    rig: SteppedRig, caplog: pytest.LogCaptureFixture
) -> None:
    worker, workflow_id = waiting(rig)
    tell(rig, "wf-other")

    receipt = tell(rig, workflow_id)

    assert (receipt.duplicate, receipt.activated, receipt.conflict) == (True, False, True)
    assert tell(rig, "wf-other").conflict is False
    assert rig.status(workflow_id) == "waiting"
    assert "was used for another signal" in caplog.text
    assert worker.busy == 0


@pytest.mark.req("sig-unique")
def test_two_signals_of_one_delivery_under_one_id_conflict(rig: SteppedRig) -> None:
    _worker, workflow_id = waiting(rig)

    receipts = rig.client.deliver_signals([made("wf-other", "s1"), made(workflow_id, "s1"), made("wf-other", "s1")])

    assert [(one.duplicate, one.conflict) for one in receipts] == [(False, False), (True, True), (True, False)]
    assert rig.status(workflow_id) == "waiting"


@pytest.mark.req("sig-unique", "sig-inbox-fail")
def test_a_lost_answer_does_not_take_the_row_of_another_signal_for_its_own(rig: SteppedRig) -> None:
    """Stored in the same millisecond, under the same id: the row says for whom it is."""
    _worker, workflow_id = waiting(rig)
    tell(rig, "wf-other")
    rig.client_store.fail_once("receive_signal", "lose_reply")

    receipt = tell(rig, workflow_id)

    assert (receipt.duplicate, receipt.conflict, receipt.activated) == (True, True, False)
    assert rig.status(workflow_id) == "waiting"


def test_a_row_that_does_not_decode_costs_only_its_own_signal(rig: SteppedRig) -> None:
    """The others of the same delivery are woken; its own stays in the inbox."""
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition)
    ids = [rig.start(definition, f"k{k}") for k in range(5)]
    wait_asleep(rig, worker, *ids)
    set_fields(rig, ids[2], v=99)

    receipts = rig.client.deliver_signals([made(key, f"s{k}") for k, key in enumerate(ids)])

    assert [r.activated for r in receipts] == [True, True, False, True, True]
    assert receipts[2].target == "unreadable"
    assert pending(rig) == ["s2"]
    assert worker.sweeps.inbox.repair().activated == 0
    set_fields(rig, ids[2], v=1)
    assert worker.sweeps.inbox.repair().activated == 1


BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"signal_id": ""}, InvalidId), ({"signal_id": " "}, InvalidId), ({"signal_id": "a\0b"}, InvalidId),
    ({"signal_id": "x" * 201}, InvalidId), ({"signal_id": None}, InvalidId), ({"workflow_id": ""}, InvalidId),
    ({"workflow_id": "w\n"}, InvalidId), ({"wait_key": ""}, InvalidId), ({"wait_key": "\x7f"}, InvalidId),
    ({"signal_type": ""}, InvalidName), ({"signal_type": "A"}, InvalidName), ({"signal_type": "a.b"}, InvalidName),
    ({"generation": -1}, Refused), ({"generation": 1.5}, Refused), ({"generation": True}, Refused),
    ({"generation": 2**53}, Refused),
]  # fmt: skip


@pytest.mark.case("A22", "A40")
@pytest.mark.parametrize(("field", "error"), BAD)
def test_bad_input_is_refused_by_name_before_any_write(
    rig: SteppedRig, field: dict[str, Any], error: type[Exception]
) -> None:
    given: dict[str, Any] = {"workflow_id": "wf", "signal_type": "go", "wait_key": "k", "signal_id": "s"} | field
    with pytest.raises(error, match=next(iter(field))):
        rig.client.signal(given.pop("workflow_id"), given.pop("signal_type"), **given)

    assert rig.client_store.writes == []


@pytest.mark.req("sig-no-payload")
def test_a_signal_has_no_place_for_a_payload() -> None:
    with pytest.raises(TypeError):
        Signal(signal_id="s", workflow_id="w", signal_type="t", wait_key="k", payload={"a": 1})  # type: ignore[call-arg]


@pytest.mark.req("can-generation-isolation", "can-late-signal", "sig-old-generation")
@pytest.mark.parametrize("crash", ["before", "between", "never"])
def test_a_new_generation_supersedes_the_old_observer_first_and_only_its_own_signals_wake_it(
    rig: SteppedRig, crash: str
) -> None:
    """The resource gets its next generation; whoever dies in between repeats, and two observers never wait at once."""
    old, new = (flow(rig, step(rig, "ask", asks(generation=n)), type=f"observer_{n}") for n in (1, 2))
    worker = rig.worker(old, new)
    first, second = rig.start(old, "show:1"), workflow_id_for("show:2")
    wait_asleep(rig, worker, first)
    linked = {"observer": first}

    def next_generation(dies: str) -> None:
        if dies == "before":
            return
        rig.client.supersede(linked["observer"])
        if dies == "between":
            return
        linked["observer"] = rig.start(new, "show:2")

    for dies in (crash, "never"):
        next_generation(dies)
        live = [key for key in (first, second) if (row := rig.client.get(key)) and row.status not in TERMINAL]
        assert len(live) <= 1
        if linked["observer"] == second:
            break
    wait_asleep(rig, worker, second)

    late = [tell(rig, first, "late", generation=1), tell(rig, second, "stray", generation=1)]
    assert [(r.activated, r.target) for r in late] == [(False, "canceled"), (False, "waiting")]
    assert tell(rig, second, "right", generation=2).activated
    rig.finish(second)
    assert (rig.output(second), rig.status(first)) == (["right"], "canceled")
