"""Signals: stored first, matched by their whole identity, each waking at most one wait (group 21)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import RetryPolicy
from kernel.directives import WaitForSignal
from kernel.ids import workflow_id_for
from kernel.store.tables import SIGNALS
from tests.engine.flows import flow, seconds, step
from tests.engine.signals import (
    GENERATION,
    KEY,
    TYPE,
    asks,
    made,
    matched,
    pending,
    record,
    tell,
    wait_asleep,
    waiting,
)
from tests.support.engine_rig import SteppedRig
from tests.support.engine_store import Write

# --- the way of one signal -------------------------------------------------------------------------------


@pytest.mark.req("sig-wait-durable", "slp-wait-fields", "slp-signal-no-fallback", "sig-fallback-checkpoint")
def test_a_wait_for_a_signal_is_in_the_row_and_holds_nothing(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    worker, workflow_id = waiting(rig)
    row = rig.row(workflow_id)

    assert (row["status"], row["steps"][0]["status"]) == ("waiting", "waiting")
    assert {k: row["wait"][k] for k in ("kind", "signal_type", "wait_key", "generation", "step_index")} == {
        "kind": "signal", "signal_type": TYPE, "wait_key": KEY, "generation": GENERATION, "step_index": 0,
    }  # fmt: skip
    assert {"claim_token", "worker_id", "claimable_time"} & set(row) == set()
    assert "poll_time" not in row["wait"]
    assert "checkpoint" in row["steps"][0]
    assert (worker.busy, worker.held, rig.queue.ids()) == (0, [], set())


@pytest.mark.req("sig-inbox-first", "sig-activate-atomic", "sig-then-queue", "sig-proof", "sig-inbox-record")
@pytest.mark.req("slp-kinds", "rec-wait-resume", "sig-meaning")
def test_a_signal_is_stored_then_activates_then_is_marked_then_queued(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    _, workflow_id = waiting(rig)
    before, wakeups = rig.row(workflow_id), rig.queue.wakeups
    rig.client_store.writes.clear()
    rig.client_store.fault_of = lambda write: queued.append((write.names, rig.queue.ids()))  # type: ignore[func-returns-value]
    queued: list[tuple[tuple[str, ...], set[str]]] = []
    rig.advance(3_000)

    receipt = tell(rig, workflow_id)

    assert (receipt.duplicate, receipt.activated, receipt.target) == (False, True, "waiting")
    assert rig.client_store.names() == ["receive_signal", "activate_signal", "mark_matched"]
    assert all(ids == set() for _, ids in queued)
    row = rig.row(workflow_id)
    woken = {"kind": "signal", "signal_id": "s1"}
    assert (row["status"], row["steps"][0]["status"]) == ("running", "pending")
    assert row["resume"] == row["steps"][0]["resume"] == woken
    assert {"wait", "claim_token"} & {*row, *row["steps"][0]} == set()
    assert row["steps"][0]["external_wait_ms"] == 3_000
    assert row["steps"][0]["checkpoint"] == before["steps"][0]["checkpoint"]
    assert row["revision"] == before["revision"] + 1
    assert (record(rig).status, record(rig).match_time) == ("matched", rig.clock.wall_ms())
    assert rig.queue.ids() == {workflow_id}
    assert rig.queue.wakeups == wakeups + 1
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == ["s1"]


@pytest.mark.req("sig-match", "sig-type-key-text", "sig-old-generation", "id-wait-generation", "s9")
@pytest.mark.parametrize(
    "fields",
    [
        {"generation": 1}, {"generation": 3}, {"generation": 0}, {"signal_type": "read"}, {"signal_type": "ready_"},
        {"wait_key": "Show-1"}, {"wait_key": "show-"}, {"wait_key": "show-10"}, {"wait_key": "show-1 "},
    ],
)  # fmt: skip
def test_a_signal_that_differs_in_one_part_wakes_nobody_and_stays(rig: SteppedRig, fields: dict[str, Any]) -> None:
    worker, workflow_id = waiting(rig)
    before = rig.row(workflow_id)

    receipt = tell(rig, workflow_id, "other", **fields)
    rig.advance(60_000)
    rig.pass_once(worker)

    assert (receipt.activated, receipt.target) == (False, "waiting")
    assert rig.row(workflow_id) == before
    assert pending(rig) == ["other"]
    assert tell(rig, workflow_id, "right").activated
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == ["right"]
    assert pending(rig) == ["other"]


@pytest.mark.req("sig-match")
def test_a_signal_for_another_workflow_wakes_that_one(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition)
    one, two = rig.start(definition, "k1"), rig.start(definition, "k2")
    wait_asleep(rig, worker, one, two)

    tell(rig, two)

    assert (rig.status(one), rig.status(two)) == ("waiting", "running")


@pytest.mark.req("sig-unique", "sig-dup-once", "id-signal-id", "s9")
def test_ten_duplicates_around_a_wake_are_one_wake(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    worker, workflow_id = waiting(rig, times=2)

    receipts = [tell(rig, workflow_id) for _ in range(5)]
    rig.run(lambda: rig.ledger.count("ask") == 2, "the wake", worker)
    wait_asleep(rig, worker, workflow_id)
    receipts += [tell(rig, workflow_id) for _ in range(5)]
    rig.advance(60_000)
    rig.pass_once(worker)

    assert [(r.duplicate, r.activated) for r in receipts] == [(False, True)] + [(True, False)] * 9
    assert rig.ledger.count("ask") == 2
    assert rig.status(workflow_id) == "waiting"
    assert matched(rig) == ["s1"]


@pytest.mark.req("sig-early", "sig-check-after-suspend")
@pytest.mark.case("A46")
def test_an_early_signal_wakes_the_wait_right_after_its_suspension(durable_rig: SteppedRig) -> None:
    """No sweep and no poll: the clock does not move."""
    rig = durable_rig
    definition = flow(rig, "before", step(rig, "ask", asks()))
    rig.worker(definition)
    workflow_id = rig.start(definition)
    receipt = tell(rig, workflow_id)
    began_ms = rig.clock.boot_ms()

    rig.finish(workflow_id)

    assert (receipt.activated, receipt.target) == (False, "running")
    assert rig.output(workflow_id) == ["s1"]
    assert rig.clock.boot_ms() == began_ms
    assert (pending(rig), matched(rig)) == ([], ["s1"])


@pytest.mark.req("flt-early-signal")
@pytest.mark.parametrize(
    ("kind", "wakes"),
    [("early", 1), ("late", 0), ("duplicate", 1), ("wrong generation", 0), ("wrong key", 0)],
)
def test_what_comes_at_the_wrong_time_twice_or_for_another_wait(rig: SteppedRig, kind: str, wakes: int) -> None:
    """Early wakes as soon as its wait is there; a repeat wakes once; what is for another wait wakes never."""
    definition = flow(rig, step(rig, "ask", asks(fallback=seconds(30))), "after")
    worker = rig.worker(definition)
    workflow_id = workflow_id_for("job-1")
    if kind == "early":
        tell(rig, workflow_id)
    rig.start(definition)
    if kind != "early":
        wait_asleep(rig, worker, workflow_id)
    if kind == "late":
        rig.finish(workflow_id)
    told = {"wrong generation": {"generation": GENERATION + 1}, "wrong key": {"wait_key": "other"}}.get(kind, {})
    if kind != "early":
        receipts = [tell(rig, workflow_id, **told) for _ in range(2 if kind == "duplicate" else 1)]
        assert [receipt.activated for receipt in receipts] == [wakes == 1, *[False] * (len(receipts) - 1)]
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    woken = "s1" if wakes else "poll"
    assert rig.ledger.steps() == ["ask", "ask", "after"], "one wake, and no step again for a repeat"
    assert rig.instance(workflow_id).outputs["ask"].endswith(woken.encode())
    assert pending(rig) == ([] if wakes else ["s1"])


@pytest.mark.req("sig-early", "sig-terminal-target", "sig-retention")
def test_a_signal_from_before_its_workflow_exists_wakes_it_when_it_waits(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "ask", asks()))
    rig.worker(definition)
    workflow_id = workflow_id_for("job-1")
    assert tell(rig, workflow_id).target == "unknown"
    rig.advance(10 * 86_400_000)
    rig.start(definition)
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == ["s1"]


@pytest.mark.req("sig-check-after-suspend", "slp-reread")
@pytest.mark.case("A46")
@pytest.mark.parametrize("moment", ["in the activity", "before the write", "after the write"])
def test_a_signal_in_the_window_around_the_suspension_is_not_missed(rig: SteppedRig, moment: str) -> None:
    """Between the activity's look at the business and the suspension, and right behind it."""
    told: list[Any] = []

    def activity(ctx: Context) -> Any:
        if ctx.resume:
            return ctx.resume.signal_id
        if moment == "in the activity":
            told.append(tell(rig, ctx.workflow_id))
        return WaitForSignal(TYPE, KEY, GENERATION)

    definition = flow(rig, step(rig, "ask", activity))
    worker = rig.worker(definition)

    def around(write: Write) -> None:
        if "suspend_step" in write.names and not told and moment == "before the write":
            told.append(tell(rig, workflow_id))

    worker.store.fault_of = around
    if moment == "after the write":
        scan = worker.store.scan

        def scan_of_inbox(query: Any) -> Any:
            if query.table == SIGNALS and query.order == "workflow_id" and not told:
                told.append(tell(rig, workflow_id))
            return scan(query)

        worker.store.scan = scan_of_inbox  # type: ignore[method-assign]
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    rig.finish(workflow_id)

    assert len(told) == 1
    assert rig.output(workflow_id) == "s1"
    assert rig.clock.boot_ms() == began_ms
    assert rig.ledger.count("ask") == 2


@pytest.mark.req("sig-second-signal")
def test_a_second_signal_while_the_step_runs_wakes_its_next_wait_once(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    late: list[Any] = []

    def activity(ctx: Context) -> Any:
        if ctx.resume and not late:
            late.append(tell(rig, ctx.workflow_id, "s2"))
        return asks(3)(ctx)

    definition = flow(rig, step(rig, "ask", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    tell(rig, workflow_id, "s1")
    wait_asleep(rig, worker, workflow_id)
    rig.run(lambda: rig.ledger.count("ask") == 3 and worker.busy == 0, "the second wake", worker)

    assert late[0].activated is False
    assert (rig.status(workflow_id), matched(rig)) == ("waiting", ["s1", "s2"])
    rig.advance(60_000)
    rig.pass_once(worker)
    assert rig.ledger.count("ask") == 3


@pytest.mark.req("sig-second-signal", "s9")
def test_two_signals_for_one_wait_in_one_delivery_wake_two_waits_one_after_the_other(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig, times=2)

    receipts = rig.client.deliver_signals([made(workflow_id, "s1"), made(workflow_id, "s2")])
    assert [r.activated for r in receipts] == [True, False]
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == ["s1", "s2"]
    assert worker.busy == 0


@pytest.mark.req("sig-user-choice", "slp-reread", "sig-meaning", "sig-no-payload")
def test_a_user_chooses_in_the_business_and_the_signal_only_says_look_again(rig: SteppedRig) -> None:
    choices: dict[str, str] = {}

    def choose(ctx: Context) -> Any:
        return choices.get(ctx.biz_key) or WaitForSignal("chosen", ctx.biz_key)

    definition = flow(rig, step(rig, "choose", choose))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "order-7")
    wait_asleep(rig, worker, workflow_id)
    assert rig.client.signal(workflow_id, "chosen", wait_key="order-7", signal_id="c-0").activated
    wait_asleep(rig, worker, workflow_id)
    assert rig.ledger.count("choose") == 2

    choices["order-7"] = "A"
    rig.client.signal(workflow_id, "chosen", wait_key="order-7", signal_id="c-1")
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == "A"


@pytest.mark.req("sig-unlimited-wait", "sig-wait-durable", "slp-no-wait-timeout")
def test_a_wait_lasts_for_days_without_any_worker_alive(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    worker, workflow_id = waiting(rig)
    worker.kill()
    before = rig.row(workflow_id)
    rig.advance(40 * 86_400_000)
    assert rig.row(workflow_id) == before

    tell(rig, workflow_id)
    rig.worker(flow(rig, step(rig, "ask", asks())), worker_id="w9")
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == ["s1"]


@pytest.mark.req("sig-no-queue-needed", "sig-then-queue", "core-redis-loss-latency")
def test_without_a_queue_delivery_and_activation_work_and_the_poll_claims_it(rig: SteppedRig) -> None:
    _, workflow_id = waiting(rig)
    rig.queue.down = True

    assert tell(rig, workflow_id).activated
    assert rig.row(workflow_id)["resume"]["signal_id"] == "s1"
    began_ms = rig.clock.boot_ms()
    rig.finish(workflow_id)

    assert rig.clock.boot_ms() - began_ms <= rig.settings.scan_ms


# --- polls and timers beside it --------------------------------------------------------------------------


@pytest.mark.req("sig-poll-fallback", "sig-two-nets", "sig-fallback-checkpoint")
def test_without_a_signal_the_fallback_wakes_and_the_checkpoint_is_there(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    worker, workflow_id = waiting(rig, times=2, fallback=seconds(10))
    due_ms = rig.row(workflow_id)["wait"]["poll_time"]
    other = rig.worker(flow(rig, step(rig, "ask", asks(2, fallback=seconds(10)))), worker_id="other")
    worker.kill()
    rig.run(lambda: rig.ledger.count("ask") == 2, "the poll", other)

    assert rig.clock.wall_ms() >= due_ms
    tell(rig, workflow_id)
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == ["poll", "s1"]


@pytest.mark.req("dag-wave-two-suspends", "slp-signal-no-fallback")
def test_a_signal_wakes_a_step_beside_one_that_is_to_be_tried_again_later(rig: SteppedRig) -> None:
    """The row rests `running` until the retry's time; nothing else would look at the wait before."""

    def fails(ctx: Context) -> Any:
        raise ValueError("later")

    retry = RetryPolicy(max_attempts=2, initial_interval=seconds(1_800))
    definition = flow(
        rig,
        step(rig, "ask", asks(), depends_on=[]),
        step(rig, "work", fails, retry=retry, depends_on=[], on_failed="skip"),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.step(workflow_id, "work").failures == 1 and worker.busy == 0, "both at rest", worker)
    assert rig.status(workflow_id) == "running"
    began_ms = rig.clock.boot_ms()

    assert tell(rig, workflow_id).activated
    rig.run(lambda: rig.step(workflow_id, "ask").status == "completed", "the woken step", worker)

    assert rig.clock.boot_ms() - began_ms < 60_000
    assert rig.step(workflow_id, "work").failures == 1


@pytest.mark.req("sig-business-first", "sig-two-nets", "sig-poll-fallback")
@pytest.mark.parametrize("dies", [False, True])
def test_the_fact_is_written_before_the_bell_and_is_found_without_it(rig: SteppedRig, dies: bool) -> None:
    """The producer saves, then rings. When it dies in between, for good, the poll finds the fact."""
    facts: dict[str, str] = {}

    def look(ctx: Context) -> Any:
        kind = ctx.resume.kind if ctx.resume else "first"
        return [facts["show"], kind] if "show" in facts else WaitForSignal(TYPE, KEY, poll_fallback=seconds(30))

    worker = rig.worker(flow(rig, step(rig, "look", look)))
    workflow_id = rig.start(flow(rig, step(rig, "look", look)))
    wait_asleep(rig, worker, workflow_id)

    facts["show"] = "recorded"
    if not dies:
        rig.client.signal(workflow_id, TYPE, wait_key=KEY, signal_id="recorded:show")
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == ["recorded", "poll" if dies else "signal"]
