"""Durable waits: one write suspends, one activates, a claim runs; nothing is early, lost or held (group 19)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from kernel import transitions
from kernel.clock import ManualClock
from kernel.context import Context
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.engine.activation import activate_all_due
from kernel.engine.telling import silent
from kernel.store.conditional import Applied, Missed
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


def nap(interval: float, checkpoint: Any = None) -> Any:
    """Sleeps once, and returns what woke it."""
    return lambda ctx: ctx.resume.kind if ctx.resume else Sleep(seconds(interval), checkpoint)


@pytest.mark.req(
    "slp-atomic", "slp-attempt", "rec-sample", "rec-wait-resume", "slp-wait-fields", "rec-claimable-double"
)
def test_one_write_suspends_step_and_workflow_and_ends_the_claim(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    definition = flow(rig, "preprocess", step(rig, "poll", nap(15, {"task": "t-77", "poll_failures": 0})), "compose")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    row, instance = rig.row(workflow_id), rig.instance(workflow_id)
    due_ms = rig.clock.wall_ms() + 15_000
    assert worker.store.names()[-1] == "suspend_step" or worker.store.names()[-2] == "suspend_step"
    assert [(s.status, s.attempt) for s in instance.steps] == [("completed", 1), ("waiting", 0), ("pending", 0)]
    assert (row["status"], row["claimable_time"]) == ("waiting", due_ms)
    assert {"claim_token", "worker_id", "worker", "claim_time", "resume"} & set(row) == set()
    assert row["wait"] == row["steps"][1]["wait"]
    assert {k: v for k, v in row["wait"].items() if k not in ("wait_id", "since_time")} == {
        "kind": "timer", "step": "poll", "step_index": 1, "poll_time": due_ms,
    }  # fmt: skip
    assert b"t-77" in row["steps"][1]["checkpoint"]
    assert worker.busy == 0


@pytest.mark.req("slp-lost", "core-inv-token")
def test_a_suspension_under_an_old_token_changes_nothing(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        step(rig, "a", lambda ctx: set_fields(rig, ctx.workflow_id, claim_token="another's") or Sleep(seconds(1))),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    row = rig.row(workflow_id)
    assert (row["status"], row["claim_token"], row["steps"][0]["status"]) == ("running", "another's", "running")
    assert rig.recorder.names()[-1] == "claim.lost"


@pytest.mark.req("slp-activate", "slp-kinds", "rec-wait-resume")
def test_a_due_timer_activates_and_does_not_run(rig: SteppedRig) -> None:
    """Between activation and claim the row shows running, pending, resume; only then the queue has it."""
    definition = flow(rig, step(rig, "nap", nap(5, "cursor")))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    before = rig.row(workflow_id)
    rig.queue.wipe()
    rig.advance(5_000)

    swept = worker.sweep()

    row = rig.row(workflow_id)
    assert swept.activated == 1
    assert (row["status"], row["steps"][0]["status"], row["resume"]) == ("running", "pending", {"kind": "timer"})
    assert row["steps"][0]["resume"] == {"kind": "timer"}
    assert {"wait", "claim_token"} & set(row) == set()
    assert "wait" not in row["steps"][0]
    assert row["steps"][0]["checkpoint"] == before["steps"][0]["checkpoint"]
    assert row["steps"][0]["external_wait_ms"] == 5_000
    assert row["revision"] == before["revision"] + 1
    assert rig.queue.ids() == {workflow_id}
    assert rig.ledger.count("nap") == 1
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == "timer"


@pytest.mark.req("slp-activate-once", "sch-activation-roles", "s10")
def test_of_racing_scanners_one_activates(rig: SteppedRig) -> None:
    """They have read the same row; a hundred times; with real threads."""
    clock = ManualClock()
    store = MemoryStore(clock)
    once = SteppedRig(store, clock)
    definition = flow(once, step(once, "nap", nap(5)))
    worker = once.worker(definition)
    ids = [once.start(definition, f"k{k}") for k in range(100)]
    once.run(lambda: all(once.status(workflow_id) == "waiting" for workflow_id in ids), "all asleep")
    clock.advance(6_000)
    instances = [once.instance(workflow_id) for workflow_id in ids]
    barrier = threading.Barrier(4)

    def scan(k: int) -> list[bool]:
        barrier.wait(10)
        now_ms = clock.wall_ms()
        return [
            activate_all_due(store, [i], now_ms, partial("{}-{}".format, k, i.workflow_id), silent)[0] is not None
            for i in instances
        ]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(scan, range(4)))

    assert [sum(column) for column in zip(*answers, strict=True)] == [1] * 100
    assert all(once.instance(i.workflow_id).revision == i.revision + 1 for i in instances)
    assert worker.busy == 0


@pytest.mark.req("slp-activate-once")
def test_an_activation_of_an_older_wait_of_the_same_step_misses(rig: SteppedRig) -> None:
    """Status and due time look alike; the wait has another id (DECISIONS detail 2)."""
    definition = flow(rig, step(rig, "nap", lambda ctx: Sleep(seconds(1), (ctx.checkpoint() or 0) + 1)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    old = rig.instance(workflow_id)
    late = transitions.activate_timer(old, 0, now_ms=rig.clock.wall_ms(), commit_id="late")
    rig.advance(1_000)
    rig.pass_once(worker)
    assert rig.instance(workflow_id).steps[0].wait != old.steps[0].wait
    rig.advance(1_000)

    assert isinstance(rig.store.apply(late), Missed)
    newer = transitions.activate_timer(rig.instance(workflow_id), 0, now_ms=rig.clock.wall_ms(), commit_id="new")
    assert isinstance(rig.store.apply(newer), Applied)


@pytest.mark.parametrize("status", ["running", "failing", "completed", "failed", "canceled"])
@pytest.mark.req("slp-activate", "can-stale-ready")
def test_an_activation_misses_when_the_workflow_does_not_wait_any_more(rig: SteppedRig, status: str) -> None:
    """The step still looks as it was read: waiting, due, with the same wait."""
    definition = flow(rig, step(rig, "nap", nap(1)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    read = rig.instance(workflow_id)
    rig.advance(1_000)
    set_fields(rig, workflow_id, status=status)
    before = rig.row(workflow_id)

    late = transitions.activate_timer(read, 0, now_ms=rig.clock.wall_ms(), commit_id="late")

    assert isinstance(rig.store.apply(late), Missed)
    assert rig.row(workflow_id) == before


@pytest.mark.req("slp-not-early", "s10", "slp-clock")
@pytest.mark.parametrize("ahead_ms", [0, 2_000])
def test_no_timer_fires_before_its_time(rig: SteppedRig, ahead_ms: int) -> None:
    """By the store's clock, whatever a process believes: one whose clock is two seconds fast wakes nothing early."""
    early: list[int] = []

    def activity(ctx: Context) -> Any:
        if ctx.resume:
            early.append(rig.clock.wall_ms() - ctx.checkpoint(int))
            return None
        interval_ms = int(ctx.biz_key)
        return Sleep(timedelta(milliseconds=interval_ms), rig.clock.wall_ms() + interval_ms)

    definition = flow(rig, step(rig, "nap", activity))
    rig.worker(definition)
    fast = rig.worker(definition)
    fast.store.ahead_ms = ahead_ms
    ids = [rig.start(definition, str(17 * k)) for k in range(1, 101)]
    rig.finish(*ids)

    assert len(early) == 100
    assert min(early) >= 0
    assert len(rig.recorder.of("claim.lost")) == 0
    assert rig.ledger.overlaps() == []


@pytest.mark.req("slp-no-pubsub", "core-redis-loss-latency")
def test_without_a_queue_a_sleep_ends_within_a_scan_interval(rig: SteppedRig) -> None:
    rig.queue.down = True
    definition = flow(rig, step(rig, "nap", nap(2)))
    rig.worker(definition)
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    rig.finish(workflow_id)

    assert 2_000 <= rig.clock.boot_ms() - began_ms <= 2_000 + rig.settings.scan_ms + rig.settings.poll_ms


def test_with_a_queue_a_sleep_ends_precisely(rig: SteppedRig) -> None:
    """The idle worker sleeps until the next entry is due, and not until its next poll."""
    definition = flow(rig, step(rig, "nap", nap(2)))
    rig.worker(definition, poll_ms=60_000, scan_ms=60_000)
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    rig.finish(workflow_id)

    assert 2_000 <= rig.clock.boot_ms() - began_ms <= 2_010


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(seconds=-5), timedelta(days=-3_000)])
@pytest.mark.req("slp-sleep-bounds")
def test_a_sleep_of_nothing_or_less_is_due_at_once_and_still_waits(rig: SteppedRig, interval: timedelta) -> None:
    statuses: list[str] = []
    definition = flow(rig, step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(interval)))
    worker = rig.worker(definition)
    worker.store.fault_of = lambda call: statuses.append(rig.status(workflow_id))
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    rig.finish(workflow_id)

    assert "waiting" in statuses
    assert rig.clock.boot_ms() - began_ms <= rig.settings.poll_ms
    assert rig.output(workflow_id) == "rested"


@pytest.mark.req("slp-attempt", "stp-attempt-suspend", "slp-retry-budget")
def test_twenty_polls_are_one_attempt_and_cost_no_retry(rig: SteppedRig) -> None:
    attempts: list[int] = []

    def poll(ctx: Context) -> Any:
        attempts.append(ctx.attempt)
        polls = ctx.checkpoint() or 0
        return Sleep(seconds(15), polls + 1) if polls < 20 else polls

    workflow_id = rig.drive(flow(rig, step(rig, "poll", poll, max_retry=0)))

    record = rig.step(workflow_id, "poll")
    assert (rig.output(workflow_id), record.attempt, record.failures, record.takeovers) == (20, 1, 0, 0)
    assert attempts == [1] * 21
    assert record.external_wait_ms >= 20 * 15_000


@pytest.mark.req("slp-wait-fields", "slp-kinds", "slp-reread")
def test_a_wait_for_a_signal_with_a_fallback_is_woken_by_its_poll_time(rig: SteppedRig) -> None:
    """The activity looks at the business data, finds nothing, and waits again."""
    ready: list[str] = []
    kinds: list[str] = []

    def activity(ctx: Context) -> Any:
        kinds.append(ctx.resume.kind if ctx.resume else "first")
        if ready:
            return "found"
        return WaitForSignal("answer", "key-1", generation=3, poll_fallback=seconds(10), checkpoint="c")

    definition = flow(rig, step(rig, "ask", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    wait = rig.row(workflow_id)["wait"]
    assert {k: wait[k] for k in ("kind", "signal_type", "wait_key", "generation", "step_index", "step")} == {
        "kind": "signal", "signal_type": "answer", "wait_key": "key-1", "generation": 3, "step_index": 0, "step": "ask",
    }  # fmt: skip
    assert wait["poll_time"] == rig.row(workflow_id)["claimable_time"] == rig.clock.wall_ms() + 10_000
    rig.run(lambda: len(kinds) == 3, "two polls")
    assert rig.status(workflow_id) == "waiting"
    ready.append("now")
    rig.finish(workflow_id)

    assert kinds == ["first", "poll", "poll", "poll"]
    assert rig.output(workflow_id) == "found"


@pytest.mark.req("slp-resume-unset")
def test_what_woke_a_step_is_cleared_by_the_next_suspension_yield_or_replay(rig: SteppedRig) -> None:
    entries = iter(["sleep", "sleep", "yield", "sleep", "fail"])
    resumes: list[tuple[str, Any]] = []

    def activity(ctx: Context) -> Any:
        turn = next(entries, "end")
        resumes.append((turn, ctx.resume.kind if ctx.resume else None))
        if turn == "fail":
            raise ValueError("no")
        return {"sleep": Sleep(seconds(1)), "yield": Yield("c")}.get(turn, "end")

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    cleared: list[bool] = []

    def watch(call: Any) -> None:
        row = rig.row(workflow_id)
        if row["steps"][0]["status"] == "waiting" or (
            call.names == ("claim",) and resumes[-1:] == [("yield", "timer")]
        ):
            cleared.append("resume" not in row and "resume" not in row["steps"][0])

    worker.store.fault_of = watch
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)
    rig.start(definition)
    assert {"resume"} & {*rig.row(workflow_id), *rig.row(workflow_id)["steps"][0]} == set()
    rig.finish(workflow_id)

    assert cleared and all(cleared)
    assert resumes == [
        ("sleep", None), ("sleep", "timer"), ("yield", "timer"), ("sleep", None), ("fail", "timer"), ("end", None),
    ]  # fmt: skip


@pytest.mark.req("slp-checkpoint-roundtrip")
@pytest.mark.parametrize(
    "value", [0, "", False, [], {}, {"ä": [1, None, b"\xff", 2.5, {"deep": [True]}]}, b"", "x" * 9_000]
)
def test_a_checkpoint_comes_back_unchanged(sqlite_rig: SteppedRig, value: Any) -> None:
    rig = sqlite_rig
    definition = flow(rig, step(rig, "a", lambda ctx: [ctx.checkpoint()] if ctx.resume else Sleep(seconds(1), value)))
    workflow_id = rig.drive(definition)

    assert rig.output(workflow_id) == [value]


@pytest.mark.req("slp-attempt", "stp-attempt-suspend")
def test_a_yield_goes_on_from_its_cursor_at_once_and_is_one_attempt(rig: SteppedRig) -> None:
    pages: list[tuple[str, Any, int]] = []

    def page(ctx: Context) -> Any:
        cursor = ctx.checkpoint() or 0
        pages.append((ctx.worker_id, cursor, ctx.attempt))
        return Yield(cursor + 1) if cursor < 5 else cursor

    definition = flow(rig, step(rig, "page", page))
    workers = [rig.worker(definition) for _ in range(2)]
    workflow_id = rig.start(definition)
    began_ms = rig.clock.boot_ms()
    while not rig.ended(workflow_id):
        for worker in workers:
            rig.pass_once(worker)

    record = rig.step(workflow_id, "page")
    assert [cursor for _, cursor, _ in pages] == [0, 1, 2, 3, 4, 5]
    assert {attempt for _, _, attempt in pages} == {1}
    assert {worker for worker, _, _ in pages} == {"w1", "w2"}
    assert rig.clock.boot_ms() == began_ms
    assert (record.attempt, record.failures, rig.output(workflow_id)) == (1, 0, 5)
