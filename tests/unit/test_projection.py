"""Records as operators see them: where the time went, what is waited for, and how each attempt ended."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.codec import encode
from kernel.observe.events import EVENTS, attempt_of
from kernel.observe.projection import attempts_in, attempts_of, snapshot_of
from kernel.observe.split import step_split
from kernel.observe.views import Attempt, Snapshot, Split
from kernel.records import (
    DeferredRecord,
    ErrorRecord,
    FinalizerRecord,
    Instance,
    ParkedRecord,
    PermitWaitRecord,
    Resume,
    RunRecord,
    StepRecord,
    Wait,
    to_instance,
)
from kernel.states import TERMINAL
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from tests.conformance.walks import KEYS, Walk, random_steps

T = 1_700_000_000_000
ERROR = ErrorRecord(code="no_paper", type="NoPaper", message="no paper", attempt=1, worker_id="w1")
CLAIM: dict[str, Any] = {
    "claim_token": "token",
    "claim_time": T,
    "worker_id": "w1",
    "worker": "host/1/1",
    "claimable_time": T + 30_000,
}


def made(*steps: StepRecord, **fields: Any) -> Instance:
    """A running, unclaimed, due instance."""
    base: dict[str, Any] = {
        "v": 1,
        "workflow_id": "wf-1",
        "type": "job",
        "biz_key": "job-1",
        "definition_fingerprint": "f" * 16,
        "definition_key": "job@" + "f" * 16,
        "status": "running",
        "business_priority": 1,
        "input": encode({"fencing_token": "round-7", "text": "secret words"}, "input", 10_000),
        "steps": steps or (StepRecord(name="a"),),
        "outputs": {},
        "workflow_run": 1,
        "retry_count": 0,
        "revision": 9,
        "deaths": 0,
        "created_time": T,
        "claimable_time": T,
    }
    return Instance(**base | fields)


def timer(poll_time: int, since_time: int = T) -> Wait:
    return Wait(wait_id="w", kind="timer", step="a", step_index=0, poll_time=poll_time, since_time=since_time)


def check_split(split: Split) -> None:
    parts = (split.scheduling_ms, split.traffic_ms, split.execution_ms, split.external_ms)
    assert sum(parts) == split.total_ms
    assert min(parts) >= 0


# --- time ---------------------------------------------------------------------------------------------


@pytest.mark.req("lat-split")
def test_the_parts_sum_to_the_total_in_every_life() -> None:
    """Random transitions, also wild and late ones, looked at when they happen and long after."""
    for seed in range(60):
        manual = ManualClock()
        store = MemoryStore(manual)
        walk = Walk([store], f"life-{seed}")
        for step in random_steps(seed, 60):
            walk.take(step)
            manual.advance(step.variant * 60_000)
            for number in range(KEYS):
                document = store.get(INSTANCES, f"{walk.name}-{number}")
                assert document is not None
                instance = to_instance(document)
                for now_ms in (store.now_ms(), store.now_ms() + 7_200_000, instance.created_time - 5):
                    _check_snapshot(instance, snapshot_of(instance, now_ms))
                _check_attempts(instance)


def _check_snapshot(instance: Instance, snapshot: Snapshot) -> None:
    for view in snapshot.steps:
        check_split(view.split)
    check_split(snapshot.split)
    end_ms = snapshot.updated_time if snapshot.finish_time is None else snapshot.finish_time
    assert snapshot.split.total_ms == max(0, end_ms - snapshot.run_time)
    if instance.status in TERMINAL:
        assert (snapshot.waiting, snapshot.waiting_since, snapshot.waiting_until) == (None, None, None)
    else:
        assert snapshot.waiting is not None and snapshot.waiting_since is not None


def _check_attempts(instance: Instance) -> None:
    rows = list(attempts_in(instance))
    assert len({row.attempt_key for row in rows}) == len(rows)
    for event in EVENTS:
        for index in range(len(instance.steps)):
            attempts_of(event, instance, index, instance.created_time)


@pytest.mark.req("lat-split")
def test_a_graph_whose_steps_run_as_soon_as_they_can_has_no_scheduling() -> None:
    """Whatever runs side by side with what: the critical path has no gap, and nothing of it is counted twice."""
    generator = random.Random(7)
    for _ in range(300):
        steps: list[StepRecord] = []
        for number in range(generator.randint(1, 9)):
            depends_on = [step for step in steps if generator.random() < 0.4]
            ready = max([T, *(step.finish_time or 0 for step in depends_on)])
            took = generator.choice((0, 1, 5, 5, 40))
            steps.append(
                StepRecord(
                    name=f"s{number}",
                    status="completed",
                    attempt=1,
                    executed_ms=took,
                    ready_time=ready,
                    started_time=ready,
                    finish_time=ready + took,
                )
            )
        ended = max(step.finish_time or 0 for step in steps)
        generator.shuffle(steps)
        split = snapshot_of(made(*steps, status="completed", claimable_time=None, finish_time=ended), T + 10**6).split

        assert (split.total_ms, split.execution_ms, split.scheduling_ms) == (ended - T, ended - T, 0)


@pytest.mark.req("lat-split")
def test_of_steps_side_by_side_the_critical_path_counts() -> None:
    """`quick` works all its time and `slow` waits for a permit; `end` follows `slow`, and waits for a worker first."""
    quick = StepRecord(name="quick", status="completed", executed_ms=300, ready_time=T, finish_time=T + 300)
    slow = StepRecord(
        name="slow", status="completed", executed_ms=200, traffic_wait_ms=800, ready_time=T, finish_time=T + 1_000
    )
    end = StepRecord(name="end", status="completed", executed_ms=50, ready_time=T + 1_000, finish_time=T + 1_150)
    instance = made(quick, slow, end, status="completed", claimable_time=None, finish_time=T + 1_170)

    assert snapshot_of(instance, T + 5_000).split == Split(
        total_ms=1_170, scheduling_ms=120, traffic_ms=800, execution_ms=250, external_ms=0
    )


@pytest.mark.req("lat-split")
def test_figures_of_other_clocks_never_make_scheduling_negative() -> None:
    """The worker's clock has measured a little more than has passed by the store's."""
    step = StepRecord(
        name="a", status="completed", executed_ms=1_005, external_wait_ms=10, ready_time=T, finish_time=T + 1_000
    )

    assert step_split(made(step), step, T + 1_000) == Split(
        total_ms=1_000, scheduling_ms=0, traffic_ms=0, execution_ms=1_000, external_ms=0
    )


@pytest.mark.req("lat-split")
def test_what_is_going_on_counts_until_now() -> None:
    begun = StepRecord(name="a", status="running", attempt=1, ready_time=T, started_time=T + 100, worker_id="w1")
    claimed = made(begun, **CLAIM)

    assert step_split(claimed, begun, T + 700).execution_ms == 600
    assert step_split(claimed, begun, T + 90_000).execution_ms == 29_900, "not beyond the lease"
    left = msgspec.structs.replace(claimed, claim_token=None, worker_id=None, claim_time=None, claimable_time=T + 400)
    assert step_split(left, begun, T + 700).scheduling_ms == 700, "nobody holds it: what was done is lost"
    again = msgspec.structs.replace(claimed, claim_time=T + 500)
    assert step_split(again, begun, T + 700).execution_ms == 0, "the present claim has not entered it yet"


# --- what is waited for -------------------------------------------------------------------------------

WAITS: dict[str, tuple[Instance, tuple[Any, ...]]] = {
    "unclaimed and due": (made(claimable_time=T + 5), ("worker", None, T + 5, None, "a")),
    "a lease that has run out": (
        made(StepRecord(name="a", status="running", started_time=T), **CLAIM | {"claimable_time": T + 9}),
        ("worker", None, T + 9, None, "a"),
    ),
    "a step": (
        made(
            *(StepRecord(name="a", status="completed"), StepRecord(name="b", status="running", started_time=T + 3)),
            **CLAIM,
        ),
        ("step", "b", T + 3, None, "b"),
    ),
    "between two steps": (
        made(StepRecord(name="a", status="completed"), StepRecord(name="b"), **CLAIM),
        ("step", None, T, None, "b"),
    ),
    "a timer": (
        made(
            StepRecord(name="a", status="waiting", wait=timer(T + 90)),
            status="waiting",
            wait=timer(T + 90),
            claimable_time=T + 90,
        ),
        ("timer", None, T, T + 90, "a"),
    ),
    "a timer that is due": (
        made(
            StepRecord(name="a", status="waiting", wait=timer(T + 8)),
            status="waiting",
            wait=timer(T + 8),
            claimable_time=T + 8,
        ),
        ("worker", None, T + 8, None, "a"),
    ),
    "a signal": (
        made(
            StepRecord(name="a", status="waiting"),
            status="waiting",
            claimable_time=None,
            wait=Wait(
                wait_id="w", kind="signal", step="a", step_index=0, signal_type="ready", wait_key="k", since_time=T + 1
            ),
        ),
        ("signal", "ready", T + 1, None, "a"),
    ),
    "a permit of a step": (
        made(
            *(StepRecord(name="a"), StepRecord(name="b", traffic_since_time=T + 2)),
            claimable_time=T + 60,
            permit_wait=PermitWaitRecord(resource="printer", step="b", since_time=T + 2),
        ),
        ("permit", "printer", T + 2, T + 60, "b"),
    ),
    "a permit of the whole": (
        made(
            claimable_time=T + 60,
            permit_wait=PermitWaitRecord(resource="tenant_work:acme", step="$workflow", since_time=T + 2),
        ),
        ("permit", "tenant_work:acme", T + 2, T + 60, "a"),
    ),
    "a retry": (
        made(
            *(StepRecord(name="x", status="completed"),),
            StepRecord(name="a", attempt=1, failures=1, due_time=T + 50, failed_time=T + 4, error=ERROR),
            claimable_time=T + 50,
        ),
        ("retry", None, T + 4, T + 50, "a"),
    ),
    "another step's timer": (
        made(
            StepRecord(name="x", due_time=T + 80, failed_time=T),
            StepRecord(name="a", status="waiting", wait=timer(T + 70)),
            claimable_time=T + 70,
            wait=timer(T + 70),
        ),
        ("timer", None, T, T + 70, "x"),
    ),
    "a finalizer": (
        made(
            StepRecord(name="a", status="failed", error=ERROR),
            status="failing",
            error=ERROR,
            finalizer=FinalizerRecord(attempt=2, error=ERROR, next_time=T + 40, since_time=T + 6),
            claimable_time=T + 40,
        ),
        ("finalizer", None, T + 6, T + 40, "a"),
    ),
    "a version": (
        made(
            claimable_time=T + 3_600_000,
            deferred=DeferredRecord(stored="f" * 16, offered=("e" * 16,), since_time=T + 7),
        ),
        ("version", "f" * 16, T + 7, T + 3_600_000, "a"),
    ),
    "help": (
        made(claimable_time=None, parked=ParkedRecord(reason="poison", since_time=T + 2)),
        ("parked", None, T + 2, None, "a"),
    ),
    "a start delay": (made(claimable_time=T + 90, run_time=T + 90), ("timer", None, T, T + 90, "a")),
    "nothing, completed": (
        made(StepRecord(name="a", status="completed"), status="completed", claimable_time=None, finish_time=T + 1),
        (None, None, None, None, None),
    ),
    "nothing, failed": (
        made(
            StepRecord(name="x", status="completed"),
            StepRecord(name="a", status="failed"),
            status="failed",
            claimable_time=None,
            finish_time=T + 1,
        ),
        (None, None, None, None, "a"),
    ),
    "nothing, canceled": (
        made(StepRecord(name="a", status="running"), status="canceled", claimable_time=None, finish_time=T + 1),
        (None, None, None, None, "a"),
    ),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_snapshot_tells_the_one_thing_that_is_waited_for(what: str) -> None:
    instance, expected = WAITS[what]
    shown = snapshot_of(instance, T + 10)

    found = (shown.waiting, shown.waiting_on, shown.waiting_since, shown.waiting_until, shown.current_step)
    assert found == expected


def test_a_snapshot_has_the_summaries_of_all_steps_and_nothing_of_the_user() -> None:
    now_ms = T + 50
    steps = (
        StepRecord(name="a", status="completed", attempt=2, failures=1, takeovers=1, checkpoint=b"\x01\xa9secret la"),
        StepRecord(name="b"),
    )
    shown = snapshot_of(made(*steps, outputs={"a": b"\x01\xa9secret too"}, deaths=1, error=ERROR), now_ms)

    assert [(view.name, view.status, view.attempt, view.takeovers) for view in shown.steps] == [
        *(("a", "completed", 2, 1), ("b", "pending", 0, 0)),
    ]
    assert (shown.round, shown.deaths, shown.newest, shown.updated_time) == ("round-7", 1, -T, now_ms)
    assert b"secret" not in msgspec.msgpack.encode(shown)


# --- attempts -----------------------------------------------------------------------------------------

FAILED = StepRecord(name="a", attempt=2, failures=2, failed_time=T + 9, error=ERROR, started_time=T + 5, worker_id="w1")


@pytest.mark.parametrize(
    ("event", "fields", "attempt", "outcome"),
    [
        ("step.started", {"status": "running", "attempt": 1}, 1, "running"),
        ("step.completed", {"status": "completed", "attempt": 3}, 3, "completed"),
        ("step.suspended", {"status": "waiting", "attempt": 0, "wait": timer(T + 90)}, 1, "suspended"),
        ("step.yielded", {"attempt": 4}, 5, "yielded"),
        ("step.unbegun", {"attempt": 0}, 1, "unbegun"),
        ("step.retried", {"attempt": 1, "error": ERROR}, 1, "failed"),
        ("step.failed", {"status": "failed", "attempt": 1, "error": ERROR}, 1, "failed"),
        ("step.failed", {"attempt": 1, "error": msgspec.structs.replace(ERROR, kind="timeout")}, 1, "timeout"),
        ("step.failed", {"attempt": 1, "error": msgspec.structs.replace(ERROR, kind="panic")}, 1, "panic"),
        ("step.skipped", {"status": "skipped", "attempt": 1, "error": ERROR}, 1, "skipped"),
        ("step.canceled", {"status": "running", "attempt": 1}, 1, "canceled"),
        ("step.stuck", {"status": "running", "attempt": 1, "stuck_attempt": 1}, 1, "stuck"),
        ("step.lost", {"status": "running", "attempt": 1}, 1, "lost"),
    ],
)
def test_an_event_tells_of_the_attempt_that_ran(event: str, fields: dict[str, Any], attempt: int, outcome: str) -> None:
    record = StepRecord(name="a", worker_id="w1", started_time=T + 1, elapsed_ms=7, **fields)
    row = attempts_of(event, made(StepRecord(name="x"), record, workflow_run=3), 1, T + 9)

    assert row is not None
    assert (row.attempt_key, row.attempt, row.outcome) == (f"wf-1/3/a/{attempt}", attempt, outcome)
    assert (row.worker_id, row.started_time, row.elapsed_ms, row.revision) == ("w1", T + 1, 7, 9)
    assert row.error == record.error
    assert attempt == attempt_of(event, record)


def test_an_attempt_does_not_bear_the_error_of_the_one_before() -> None:
    running = msgspec.structs.replace(FAILED, status="running", attempt=2, failed_time=None)
    row = attempts_of("step.started", made(running), 0, T + 9)

    assert row is not None and (row.attempt, row.error) == (2, None)


def test_events_that_tell_of_no_attempt_make_no_row() -> None:
    for event in ("workflow.failed", "step.resumed", "step.deferred", "claim.taken", "permit.granted"):
        assert attempts_of(event, made(), 0, T) is None


def outcomes(rows: list[Attempt]) -> dict[tuple[int, str, int], str]:
    return {(row.workflow_run, row.step, row.attempt): row.outcome for row in rows}


def test_the_record_still_says_how_most_attempts_ended() -> None:
    """Attempt 1 failed, 2 was lost with its worker, 3 timed out, 4 was completed."""
    errors = (ERROR, msgspec.structs.replace(ERROR, attempt=3, kind="timeout"))
    done = StepRecord(
        name="a", status="completed", attempt=4, failures=2, takeovers=1, errors=errors, finish_time=T + 8
    )
    waits = StepRecord(name="b", status="waiting", attempt=0, wait=timer(T + 9))
    rows = list(attempts_in(made(done, waits, StepRecord(name="c"), workflow_run=2)))

    assert outcomes(rows) == {
        (2, "a", 1): "failed", (2, "a", 2): "lost", (2, "a", 3): "timeout", (2, "a", 4): "completed",
        (2, "b", 1): "suspended",
    }  # fmt: skip
    assert [row.error and row.error.attempt for row in rows] == [1, None, 3, None, None]


@pytest.mark.parametrize(
    ("step", "fields", "outcome"),
    [
        (StepRecord(name="a", status="running", attempt=1, started_time=T + 1), CLAIM, "running"),
        (StepRecord(name="a", status="running", attempt=1, started_time=T - 1), CLAIM, "lost"),
        (StepRecord(name="a", status="running", attempt=1, started_time=T), {}, "lost"),
        (StepRecord(name="a", status="running", attempt=1, stuck_attempt=1, started_time=T), {}, "stuck"),
        (StepRecord(name="a", status="running", attempt=1, started_time=T), {"status": "canceled"}, "canceled"),
        (StepRecord(name="a", attempt=0, resume=Resume(kind="timer")), {}, "suspended"),
        (StepRecord(name="a", attempt=0, checkpoint=b"\x01\x01"), {}, "yielded"),
    ],
)
def test_the_last_attempt_of_a_step_that_has_not_ended(step: StepRecord, fields: Any, outcome: str) -> None:
    assert outcomes(list(attempts_in(made(step, **fields)))) == {(1, "a", 1): outcome}


def test_what_an_earlier_run_completed_stays_an_attempt_of_that_run() -> None:
    runs = (
        RunRecord(workflow_run=1, status="failed", finish_time=T + 100),
        RunRecord(workflow_run=2, status="failed", finish_time=T + 200),
    )
    kept = StepRecord(name="a", status="completed", attempt=1, finish_time=T + 150)
    rows = list(attempts_in(made(kept, StepRecord(name="b"), workflow_run=3, runs=runs, run_time=T + 300)))

    assert outcomes(rows) == {(2, "a", 1): "completed"}


def test_attempts_whose_errors_are_forgotten_are_left_out() -> None:
    errors = tuple(msgspec.structs.replace(ERROR, attempt=number) for number in range(25, 41))
    step = StepRecord(name="a", status="failed", attempt=40, failures=40, errors=errors, error=errors[-1])

    assert [row.attempt for row in attempts_in(made(step))] == list(range(25, 41))
