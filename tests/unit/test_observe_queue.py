"""The observer that writes: bounded, never waiting, patient with its store and strict with a row (group 26)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel.clock import Clock, SystemClock
from kernel.codec import encode
from kernel.config import Config
from kernel.errors import InvalidConfig, InvalidTransition, OutcomeUnknown, SchemaMismatch, StoreUnavailable, TooLarge
from kernel.observe.bare import INPUT_BYTES_KEPT
from kernel.observe.event_queue import INPUT_BYTES_WAITING, QueueObserver
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import ErrorRecord, StepRecord
from kernel.store.projection import Keep
from kernel.store.protocol import Query
from tests.support.engine_runner import LiveRunner
from tests.support.observations import CREATED_MS, Observed, ended, record
from tests.support.stores import memory_projection
from tests.support.wait import wait_until

Make = Callable[..., QueueObserver]


class Bench:
    """An observer on a store that fails as told, with real threads."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.store = Observed(memory_projection(self.clock))
        self.runner = LiveRunner(self.clock)
        self.opened = 0
        self.made: list[QueueObserver] = []

    def observer(self, **settings: Any) -> QueueObserver:
        config = Config(**({"observe_flush_s": 0.02} | settings))

        def opened() -> Observed:
            self.opened += 1
            return self.store

        observer = QueueObserver(
            opened, threads=self.runner, clock=self.clock, now_ms=self.clock.wall_ms, config=config
        )
        self.made.append(observer)
        return observer

    def snapshots(self) -> list[str]:
        """The keys of all snapshots that are stored."""
        return [str(key) for (key,) in self.store.scan(Query(SNAPSHOTS, (), "biz_key", ("biz_key",), 10_000))]

    def close(self) -> None:
        if self.store.gate is not None:
            self.store.gate.set()
        self.store.fault = None
        for observer in self.made:
            observer.close(30)
        assert self.runner.close() == []
        assert not self.runner.errors


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def counted(observer: QueueObserver, name: str) -> int:
    return observer.counters[f"observation_{name}"]


def settled(observer: QueueObserver) -> None:
    wait_until(lambda: counted(observer, "queue") == 0, "everything is settled")


def key(number: int) -> str:
    return f"job-{number:04}"


@pytest.mark.req("obs-bounded", "obs-nonblocking", "obs-accepted-kept", "obs-counters")
def test_of_1000_events_at_a_dead_store_the_first_100_are_kept_and_900_refused(bench: Bench) -> None:
    """Whoever notes does it on this thread alone: none of the 1000 calls reaches the store, which waits at its gate."""
    bench.store.gate = threading.Event()
    observer = bench.observer(observe_queue=100, observe_batch=64)

    for number in range(1_000):
        observer.note("step.started", instance=record(key(number)), step=0)

    assert (counted(observer, "dropped"), counted(observer, "queue")) == (900, 100)
    assert bench.store.kept == []
    bench.store.gate.set()
    settled(observer)
    assert bench.snapshots() == [key(number) for number in range(100)]
    assert counted(observer, "written") == 100


def test_an_event_in_the_writers_hands_still_takes_its_place(bench: Bench) -> None:
    bench.store.gate = threading.Event()
    observer = bench.observer(observe_queue=2, observe_batch=1)
    for number in range(2):
        observer.note("step.started", instance=record(key(number)), step=0)
    assert bench.store.entered.wait(60)

    observer.note("step.started", instance=record(key(2)), step=0)

    assert counted(observer, "dropped") == 1


@pytest.mark.req("obs-batch")
def test_many_events_are_few_writes_and_of_one_workflow_the_last_stands_for_all(bench: Bench) -> None:
    observer = bench.observer(observe_flush_s=60.0, observe_batch=256)

    for number in range(32):
        for revision in range(1, 9):
            observer.note("step.started", instance=record(key(number), revision), step=0)

    settled(observer)  # the batch is full: nobody waits for the minute
    assert bench.store.calls.count("keep_all") == 1
    assert len([row for row in bench.store.kept if row.table == SNAPSHOTS]) == 32
    assert {row.document["revision"] for row in bench.store.kept} == {8}
    assert counted(observer, "written") == 256


@pytest.mark.req("obs-batch")
def test_a_lonely_event_is_written_when_its_flush_period_is_over(bench: Bench) -> None:
    observer = bench.observer(observe_flush_s=0.05, observe_batch=256)

    observer.note("workflow.completed", instance=ended("lonely"))

    wait_until(lambda: bench.snapshots() == ["lonely"], "it is written though no other event comes")
    wait_until(lambda: not bench.runner.alive(), "no thread is left when nothing waits")
    observer.note("workflow.completed", instance=ended("second"))
    wait_until(lambda: bench.snapshots() == ["lonely", "second"], "another thread writes the next")


@pytest.mark.req("obs-transient-retry")
@pytest.mark.parametrize(
    "fault",
    [StoreUnavailable("away"), OutcomeUnknown("no answer"), InvalidConfig("mongodb_uri: the user lacks the right")],
    ids=["away", "no answer", "no right"],
)
def test_while_the_store_is_away_everything_accepted_waits_and_is_then_written_in_order(
    bench: Bench, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kernel.observe")
    bench.store.fault = fault
    observer = bench.observer(observe_batch=10)
    for number in range(35):
        observer.note("workflow.completed", instance=ended(key(number)))
    wait_until(lambda: counted(observer, "errors") >= 3, "it is tried again and again")
    assert (counted(observer, "queue"), bench.store.kept) == (35, [])

    bench.store.fault = None

    settled(observer)
    assert [row.document["biz_key"] for row in bench.store.kept] == [key(number) for number in range(35)]
    assert (counted(observer, "written"), counted(observer, "dropped"), counted(observer, "poisoned")) == (35, 0, 0)
    assert [line.message for line in caplog.records] == [
        f"observations wait for their store: {fault}",
        "observations are written again",
    ]


def test_a_write_whose_answer_was_lost_is_repeated_without_harm(bench: Bench) -> None:
    class Lossy(Observed):
        def keep_all(self, kept: Any) -> int:
            super().keep_all(kept)
            if self.calls.count("keep_all") == 1:
                raise OutcomeUnknown("the answer was lost")
            return len(kept)

    bench.store = Lossy(bench.store.inner)
    observer = bench.observer()
    observer.note("step.started", instance=record("job"), step=0)

    settled(observer)
    assert bench.snapshots() == ["job"]
    assert len(bench.store.scan(Query(ATTEMPTS, (), "attempt_key", ("attempt_key",), 9))) == 1
    assert bench.store.calls.count("keep_all") == 2


@pytest.mark.req("obs-poison", "obs-counters")
@pytest.mark.parametrize(
    "fault",
    [TooLarge("too big"), InvalidTransition("no"), RuntimeError("unforeseen")],
    ids=["large", "bad", "unforeseen"],
)
def test_of_a_batch_of_64_with_one_bad_63_are_written(
    bench: Bench, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.poison = (key(37), fault)
    observer = bench.observer(observe_batch=64, observe_flush_s=60.0)

    for number in range(64):
        observer.note("workflow.completed", instance=ended(key(number)))

    settled(observer)
    assert bench.snapshots() == [key(number) for number in range(64) if number != 37]
    assert (counted(observer, "written"), counted(observer, "poisoned"), counted(observer, "dropped")) == (63, 1, 0)
    assert bench.store.calls.count("keep_all") <= 1 + 2 * 6, "found by halves, not one by one"
    (line,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert (line.__dict__["row"], str(fault) in line.message) == (key(37), True)


def test_an_outage_in_the_middle_of_the_search_for_a_bad_row_neither_forgets_nor_counts_twice(bench: Bench) -> None:
    class Unsteady(Observed):
        def keep_all(self, kept: Any) -> int:
            if self.calls.count("keep_all") in (2, 5, 6):
                self.calls.append("keep_all")
                raise StoreUnavailable("away for a moment")
            return super().keep_all(kept)

    bench.store = Unsteady(bench.store.inner)
    bench.store.poison = (key(11), TooLarge("too big"))
    observer = bench.observer(observe_batch=16, observe_flush_s=60.0)

    for number in range(16):
        observer.note("workflow.completed", instance=ended(key(number)))

    settled(observer)
    assert bench.snapshots() == [key(number) for number in range(16) if number != 11]
    assert (counted(observer, "written"), counted(observer, "poisoned"), counted(observer, "errors")) == (15, 1, 3)


def test_an_event_that_can_not_be_projected_costs_itself_alone(bench: Bench) -> None:
    observer = bench.observer(observe_batch=3, observe_flush_s=60.0)
    broken = record("broken", created_time=None)

    for instance in (record("a"), broken, record("b")):
        observer.note("step.started", instance=instance, step=0)

    settled(observer)
    assert bench.snapshots() == ["a", "b"]
    assert counted(observer, "poisoned") == 1


def test_a_newer_layout_turns_observation_off_with_one_warning_and_the_events_are_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.fault = SchemaMismatch("store x: schema version 2 is newer than this kernel knows (1): upgrade it")
    observer = bench.observer(observe_batch=2)
    for number in range(5):
        observer.note("workflow.completed", instance=ended(key(number)))
    settled(observer)

    observer.note("workflow.completed", instance=ended("later"))

    assert (counted(observer, "dropped"), counted(observer, "written"), counted(observer, "errors")) == (6, 0, 1)
    assert (bench.opened, bench.store.closed) == (1, True)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.message.startswith("observation is off in this process: store x: schema version 2 is newer")


def test_a_store_whose_file_was_replaced_is_prepared_again(bench: Bench) -> None:
    """Between two writes somebody has removed the file: the tables are made anew, and nothing is off."""
    observer = bench.observer()
    observer.note("workflow.completed", instance=ended("a"))
    settled(observer)
    bench.store.fault = StoreUnavailable("the file was removed")
    observer.note("workflow.completed", instance=ended("b"))
    wait_until(lambda: counted(observer, "errors") >= 1, "the loss is seen")

    bench.store.fault = None

    settled(observer)
    assert bench.store.calls.count("prepare") >= 2
    assert bench.snapshots() == ["a", "b"]


def test_nothing_is_opened_before_the_first_event_and_what_has_no_record_is_not_kept(bench: Bench) -> None:
    observer = bench.observer()

    observer.note("claim.mismatch", workflow_id="wf-1", offered=("a",))

    assert (bench.opened, bench.runner.alive(), observer.silent_ms) == (0, [], 0)
    assert observer.counters == dict.fromkeys(observer.counters, 0)
    assert observer.close(10)
    assert bench.opened == 0


@pytest.mark.req("obs-drain-on-stop")
def test_closing_writes_at_once_what_waits_and_takes_nothing_more(bench: Bench) -> None:
    observer = bench.observer(observe_flush_s=60.0, observe_batch=10)
    for number in range(25):
        observer.note("workflow.completed", instance=ended(key(number)))

    assert observer.close(60)

    assert len(bench.snapshots()) == 25
    assert bench.store.closed
    observer.note("workflow.completed", instance=ended("late"))
    assert (counted(observer, "dropped"), len(bench.snapshots())) == (1, 25)


@pytest.mark.parametrize("how", ["away", "hangs"])
def test_closing_with_a_dead_store_ends_in_time_and_counts_what_is_lost(bench: Bench, how: str) -> None:
    if how == "away":
        bench.store.fault = StoreUnavailable("away")
    else:
        bench.store.gate = threading.Event()
    observer = bench.observer(observe_batch=2)
    for number in range(5):
        observer.note("workflow.completed", instance=ended(key(number)))

    assert not observer.close(0.3 if how == "hangs" else 60)

    assert (counted(observer, "dropped"), counted(observer, "queue")) == (5, 0)


@pytest.mark.req("obs-bounded")
def test_what_waits_holds_nothing_that_users_wrote_but_a_bounded_share_of_inputs(bench: Bench) -> None:
    """Memory is bounded by the number of events: when they are many, those of huge records are small as well."""
    bench.store.gate = threading.Event()
    observer = bench.observer(observe_batch=1, observe_queue=200)
    error = ErrorRecord(code="broken", type="ValueError", message="m" * 2_000)
    step = StepRecord(name="work", status="running", attempt=1, checkpoint=b"c" * 200_000, errors=(error,) * 16)
    big = encode({"fencing_token": "round-7", "text": "i" * 200_000}, "input", 1_000_000)
    huge = {"steps": (step,), "input": big, "outputs": {"a": b"o" * 200_000}, "commit_ids": ("c" * 32,) * 32}

    for number in range(100):
        observer.note("step.started", instance=record(key(number), **huge), step=0)

    held = [one.instance for one in list(observer._queue)]
    assert len(held) >= 99
    for one in held:
        assert (one.outputs, one.commit_ids, one.steps[0].checkpoint, one.steps[0].errors) == ({}, (), None, ())
    assert sum(len(one.input) for one in held) <= INPUT_BYTES_WAITING + 100 * INPUT_BYTES_KEPT
    assert len(held[-1].input) < 100
    bench.store.gate.set()
    settled(observer)
    for number in (0, 99):
        row = bench.store.get(SNAPSHOTS, key(number))
        assert row is not None
        assert row["round"] == "round-7", "the one thing of the input that is shown"
    assert observer._input_bytes == 0


@pytest.mark.req("obs-after-commit")
def test_a_row_tells_of_the_revision_that_the_commit_left(bench: Bench) -> None:
    observer = bench.observer()

    observer.note("step.started", instance=record("job", 17), step=0)

    settled(observer)
    assert {row.table: row.document["revision"] for row in bench.store.kept} == {ATTEMPTS: 17, SNAPSHOTS: 17}


def test_times_are_those_of_the_store_when_the_event_was_noted_however_late_it_is_written(bench: Bench) -> None:
    bench.store.gate = threading.Event()
    ahead_ms = 5_000_000
    config = Config(observe_flush_s=0.02, observe_batch=1)
    observer = QueueObserver(
        lambda: bench.store,
        threads=bench.runner,
        clock=bench.clock,
        now_ms=lambda: bench.clock.wall_ms() + ahead_ms,
        config=config,
    )
    bench.made.append(observer)
    before_ms = bench.clock.wall_ms()
    observer.note("step.started", instance=record("job"), step=0)
    after_ms = bench.clock.wall_ms()
    assert bench.store.entered.wait(60)
    bench.store.gate.set()

    settled(observer)

    row = bench.store.get(SNAPSHOTS, "job")
    assert row is not None
    assert before_ms - 100 <= row["updated_time"] - ahead_ms <= after_ms + 100


def test_rows_of_a_batch_keep_the_order_of_their_events_attempts_before_snapshots(bench: Bench) -> None:
    observer = bench.observer(observe_batch=4, observe_flush_s=60.0)
    for name in ("b", "a", "b", "c"):
        observer.note("step.started", instance=record(name), step=0)

    settled(observer)

    def told(kept: Keep) -> tuple[str, str]:
        return kept.table, kept.document["biz_key"]

    assert [told(row) for row in bench.store.kept] == [
        *((ATTEMPTS, name) for name in "bac"),
        *((SNAPSHOTS, name) for name in "bac"),
    ]
    assert bench.store.kept[0].document["updated_time"] > CREATED_MS
