"""The net beneath the inbox: what is pending and matches is found, marks are completed, and rows end (group 21)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import Definition
from kernel.directives import WaitForSignal
from kernel.store.conditional import Insert
from kernel.store.tables import INSTANCES, SIGNALS
from kernel.transitions import mark_matched
from tests.engine.flows import flow, seconds, step
from tests.engine.signals import (
    GENERATION,
    KEY,
    TYPE,
    asks,
    inbox_row,
    leave,
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

DAY_MS = 86_400_000


@pytest.mark.req("sig-repair-in-schedule", "sch-order", "sig-scan-match")
def test_a_scheduling_round_repairs_before_it_pops(rig: SteppedRig) -> None:
    """Rows put there by hand, one round of a fresh worker: activated before any pop in the trace."""
    sleeper, workflow_id = waiting(rig)
    sleeper.kill()
    leave(rig, workflow_id)
    fresh = rig.make_worker(flow(rig, step(rig, "ask", asks())), worker_id="fresh")
    trace: list[str] = []
    fresh.store.fault_of = lambda write: trace.extend(write.names)  # type: ignore[func-returns-value]
    pop = fresh.queue.pop
    fresh.queue.pop = lambda n: (trace.append("pop"), pop(n))[1]  # type: ignore[method-assign,func-returns-value]

    fresh.scheduler.schedule_runnable_workflows()
    rig.base_runner.run_all()

    assert trace[:3] == ["activate_signal", "mark_matched", "pop"]
    assert rig.output(workflow_id) == ["s1"]


@pytest.mark.req("sig-repair-in-schedule")
def test_rounds_between_two_scans_do_not_ask_the_inbox(rig: SteppedRig) -> None:
    """A round of a busy worker costs no reading for signals; within a scan period the inbox is asked again."""
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    rig.pass_once(worker)
    worker.store.scans.clear()
    for k in range(20):
        rig.start(definition, f"k{k}")
        rig.pass_once(worker)
    assert [query for query in worker.store.scans if query.table == SIGNALS] == []

    rig.advance(rig.settings.scan_ms - rig.settings.poll_ms)
    rig.pass_once(worker)
    assert [query.order for query in worker.store.scans if query.table == SIGNALS] == ["pending_time", "match_time"]


@pytest.mark.req("sig-scan-match", "sig-crash-insert", "l6")
@pytest.mark.parametrize("by", ["worker", "dispatcher"])
def test_what_a_dead_producer_left_in_the_inbox_wakes_within_a_scan(durable_rig: SteppedRig, by: str) -> None:
    rig = durable_rig
    definition = flow(rig, step(rig, "ask", asks()))
    worker, workflow_id = waiting(rig)
    leave(rig, workflow_id)
    began_ms = rig.clock.boot_ms()
    if by == "dispatcher":
        _, loop = rig.dispatcher(definition)
        loop.pass_once()
        assert rig.status(workflow_id) == "running"
        assert loop.counters["activated"] == 1
    rig.finish(workflow_id)

    assert rig.clock.boot_ms() - began_ms <= rig.settings.scan_ms
    assert (rig.output(workflow_id), matched(rig), worker.busy) == (["s1"], ["s1"], 0)


@pytest.mark.req("sig-crash-between", "sig-proof", "s9")
@pytest.mark.parametrize("later", ["activated", "running", "completed"])
def test_a_signal_that_was_consumed_and_not_marked_is_marked_and_wakes_nobody(rig: SteppedRig, later: str) -> None:
    """The producer died after the activation: `resume.signal_id` is the proof."""
    worker, workflow_id = waiting(rig)
    rig.client_store.fail_once("mark_matched", "unavailable")
    tell(rig, workflow_id)
    assert pending(rig) == ["s1"]
    if later == "running":
        set_fields(rig, workflow_id, claim_token="somebody's", claimable_time=rig.clock.wall_ms() + 5_000)
    elif later == "completed":
        worker.scheduler.repair = lambda: None
        rig.run(lambda: rig.ended(workflow_id), "the end", worker)
        assert pending(rig) == ["s1"]
    before = rig.row(workflow_id)
    other = rig.make_worker(flow(rig, step(rig, "ask", asks())), worker_id="other")

    repaired = other.sweeps.inbox.repair()

    assert (repaired.looked_at, repaired.activated) == (1, 0)
    assert record(rig).status == "matched"
    assert record(rig).match_time == rig.clock.wall_ms()
    assert rig.row(workflow_id) == before


@pytest.mark.req("sig-scan-match", "sig-early")
@pytest.mark.case("A45")
def test_signals_that_match_nothing_hide_nobody(rig: SteppedRig) -> None:
    """Two hundred early ones before it, of live, ended and unknown workflows, in pages of ten, two pages a pass."""
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition, scan_page=10)
    early, ended, workflow_id = (rig.start(definition, key) for key in ("early", "ended", "late"))
    wait_asleep(rig, worker, early, ended, workflow_id)
    rig.client.supersede(ended)
    for n in range(200):
        target = (early, ended, "wf-nobody")[n % 3]
        leave(rig, target, f"early-{n:03}", age_ms=1_000 + n, generation=99)
    leave(rig, workflow_id, "late")

    passes = 0
    while rig.status(workflow_id) == "waiting":
        worker.sweeps.inbox.repair()
        passes += 1

    assert passes <= 1 + 200 // (10 * worker.engine.services.settings.scan_pages)
    assert len(pending(rig)) == 200
    assert rig.status(early) == "waiting"


def test_a_pass_is_bounded_and_the_next_goes_on_and_wraps(make_rig: Any) -> None:
    rig = make_rig(scan_page=5, scan_pages=2)
    for n in range(23):
        leave(rig, "wf-nobody", f"s{n:02}", age_ms=1_000 - n)
    worker = rig.make_worker(flow(rig, "a"))
    sweep = worker.sweeps.inbox

    assert [sweep.repair().looked_at for _ in range(4)] == [10, 10, 3, 10]


@pytest.mark.req("sig-scan-match")
def test_an_ended_workflow_is_looked_at_once_for_each_end(rig: SteppedRig) -> None:
    """Pending signals of workflows that are over cost a look at their columns only."""
    worker, workflow_id = waiting(rig)
    rig.client.supersede(workflow_id)
    leave(rig, workflow_id, "s1", generation=9)
    reads: list[str] = []
    get = worker.store.get
    worker.store.get = lambda table, key: (reads.append(key), get(table, key))[1]  # type: ignore[method-assign,func-returns-value]

    for _ in range(5):
        worker.sweeps.inbox.repair()

    assert reads == [workflow_id]


def test_an_inbox_row_that_does_not_decode_is_left_alone_and_hides_nobody(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig)
    document = {"signal_id": "odd", "workflow_id": workflow_id, "signal_type": "Not A Name", "pending_time": 1}
    rig.store.insert(Insert("odd", SIGNALS, "odd", document))
    damaged = {"signal_id": "v9", "workflow_id": workflow_id, "pending_time": 2, "v": 9}
    identity = {"signal_type": TYPE, "wait_key": KEY, "generation": GENERATION, "status": "pending"}
    rig.store.insert(Insert("odd", SIGNALS, "v9", damaged | identity))
    leave(rig, workflow_id, "s1")

    assert worker.sweeps.inbox.repair().activated == 1
    assert rig.row(workflow_id)["resume"]["signal_id"] == "s1"
    assert pending(rig) == ["odd", "v9"]


# --- retention ----------------------------------------------------------------------------------------------


@pytest.mark.req("sig-retention")
def test_matched_rows_end_after_seven_days(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    worker, workflow_id = waiting(rig)
    tell(rig, workflow_id)
    rig.advance(7 * DAY_MS - 1)
    assert worker.sweeps.inbox.pass_once().removed == 0
    assert matched(rig) == ["s1"]

    rig.advance(1)

    assert worker.sweeps.inbox.pass_once().removed == 1
    assert inbox_row(rig) is None


@pytest.mark.req("sig-retention", "sig-early")
def test_a_pending_signal_of_a_live_workflow_is_never_removed(rig: SteppedRig) -> None:
    """An early one, for a wait that comes after a sleep of two years."""

    def activity(ctx: Context) -> Any:
        return "woken" if ctx.resume else WaitForSignal(TYPE, KEY, GENERATION)

    definition = flow(rig, step(rig, "other", asks(generation=1)), step(rig, "ask", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    leave(rig, workflow_id, "early")
    rig.advance(730 * DAY_MS)
    assert worker.sweeps.inbox.pass_once().removed == 0

    tell(rig, workflow_id, "go", generation=1)
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == "woken"


@pytest.mark.req("sig-retention", "sig-terminal-target")
def test_a_pending_row_ends_thirty_days_after_its_workflow_or_if_there_is_none(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig)
    leave(rig, workflow_id, "ended", generation=9)
    leave(rig, "wf-nobody", "nobody")
    rig.advance(20 * DAY_MS)
    rig.client.supersede(workflow_id)
    leave(rig, "wf-nobody", "later")

    rig.advance(10 * DAY_MS)
    assert worker.sweeps.inbox.pass_once().removed == 1
    assert pending(rig) == ["ended", "later"]

    rig.advance(20 * DAY_MS - 1)
    assert worker.sweeps.inbox.pass_once().removed == 0
    rig.advance(1)
    assert worker.sweeps.inbox.pass_once().removed == 2
    assert pending(rig) == []


@pytest.mark.req("sig-retention")
def test_a_workflow_that_comes_back_just_then_keeps_its_signal(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig)
    set_fields(rig, workflow_id, status="failed", finish_time=rig.clock.wall_ms())
    leave(rig, workflow_id, "kept", generation=9)
    rig.advance(31 * DAY_MS)
    scan, seen = worker.store.scan, [0]

    def replayed_meanwhile(query: Any) -> Any:
        rows = scan(query)
        if query.table == INSTANCES:
            seen[0] += 1
            if seen[0] == 1:
                rig.start(flow(rig, step(rig, "ask", asks())))
        return rows

    worker.store.scan = replayed_meanwhile  # type: ignore[method-assign]

    assert worker.sweeps.inbox.pass_once().removed == 0
    assert pending(rig) == ["kept"]


@pytest.mark.req("sig-retention")
def test_the_ages_are_settings(rig: SteppedRig) -> None:
    worker = rig.make_worker(flow(rig, "a"), signal_matched_keep_ms=1_000, signal_pending_keep_ms=2_000)
    leave(rig, "wf-nobody", "p")
    leave(rig, "wf-nobody", "m")
    rig.store.apply(mark_matched("m"))
    rig.advance(1_000)
    assert worker.sweeps.inbox.pass_once().removed == 1
    rig.advance(1_000)
    assert worker.sweeps.inbox.pass_once().removed == 1


# --- versions -----------------------------------------------------------------------------------------------


@pytest.mark.req("sig-activate-atomic", "fpr-mismatch-defer")
def test_a_signal_for_a_step_that_no_live_definition_has_is_kept_in_the_row(rig: SteppedRig) -> None:
    """The wait is in the row and needs no Definition: it is woken, and waits as `running` for a worker that has its
    version; the worker of the other version leaves it alone."""
    old = flow(rig, step(rig, "ask", asks()))
    worker, workflow_id = waiting(rig)
    worker.kill()
    other: Definition = flow(rig, step(rig, "asks_no_more"))
    stranger = rig.worker(other, worker_id="stranger")

    assert tell(rig, workflow_id).activated
    for _ in range(20):
        rig.pass_once(stranger)
        rig.advance(1_000)

    row = rig.row(workflow_id)
    assert (row["status"], row["resume"]) == ("running", {"kind": "signal", "signal_id": "s1"})
    assert (rig.ledger.count("ask"), rig.ledger.count("asks_no_more")) == (1, 0)
    rig.worker(old, worker_id="matching")
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == ["s1"]


@pytest.mark.req("sig-compete", "sig-poll-fallback", "s9")
@pytest.mark.case("A47")
@pytest.mark.parametrize("order", ["signal first", "poll first", "poll during the signal", "signal during the poll"])
def test_signal_poll_and_takeover_in_one_tick_are_one_resume(rig: SteppedRig, order: str) -> None:
    worker, workflow_id = waiting(rig, times=1, fallback=seconds(10))
    definition = flow(rig, step(rig, "ask", asks(1, fallback=seconds(10))))
    other = rig.make_worker(definition, worker_id="other")
    rig.advance(10_000)
    before = rig.row(workflow_id)
    done: list[str] = []

    def once(name: str, act: Any) -> Any:
        def during(write: Write) -> None:
            if name in write.names and not done:
                done.append(name)
                act()

        return during

    if order == "signal first":
        tell(rig, workflow_id)
        other.sweep()
    elif order == "poll first":
        other.sweep()
        tell(rig, workflow_id)
    elif order == "poll during the signal":
        rig.client_store.fault_of = once("activate_signal", other.sweep)
        tell(rig, workflow_id)
    else:
        other.store.fault_of = once("activate_timer", lambda: tell(rig, workflow_id))
        other.sweep()

    after = rig.row(workflow_id)
    won = "signal" if order in ("signal first", "signal during the poll") else "poll"
    assert (after["revision"], after["resume"]["kind"]) == (before["revision"] + 1, won)
    assert (pending(rig) == ["s1"]) is (won == "poll")
    worker.kill()
    rig.workers.append(other)
    rig.finish(workflow_id)
    assert rig.ledger.count("ask") == 2
