"""Observations are rebuilt from the instances when an operator asks, and removed when their time is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.errors import CorruptRecord, Refused, StoreUnavailable, UnknownVersion, UnknownWorkflow
from kernel.observe.reading import Observations, Wanted
from kernel.observe.repair import Repair
from kernel.observe.retention import PAGE_ROWS, PAGES_MAX, Retention
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document, ErrorRecord, Instance, ParkedRecord, RunRecord, StepRecord, to_document
from kernel.store.conditional import Equals, Insert, Inserted, Remove
from kernel.store.memory import MemoryStore
from kernel.store.projection import ProjectionStore
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES
from tests.support.observations import CREATED_MS, Observed, attempt, ended, record, snapshot
from tests.support.stores import memory_projection, sqlite_store

KEEP_MS = 3_600_000


@pytest.fixture(params=["memory", "sqlite"])
def instances(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    clock = ManualClock(wall_ms=CREATED_MS + 10_000)
    folder = tmp_path / "durable"
    folder.mkdir()
    store: Store = MemoryStore(clock) if request.param == "memory" else sqlite_store(folder, clock)
    yield store
    store.close()


def put(store: Store, *rows: Instance) -> list[Document]:
    """Insert instances; the rows as they are stored."""
    for row in rows:
        document = to_document(row)
        assert isinstance(store.insert(Insert("new", INSTANCES, row.workflow_id, document)), Inserted)
    return stored(store)


def stored(store: Store) -> list[Document]:
    query = Query(INSTANCES, (), "workflow_id", ("workflow_id",), 1_000)
    found = [store.get(INSTANCES, workflow_id) for (workflow_id,) in store.scan(query)]
    return [row for row in found if row is not None]


def keys(store: ProjectionStore) -> list[str]:
    return [str(key) for (key,) in store.scan(Query(SNAPSHOTS, (), "biz_key", ("biz_key",), 1_000))]


@pytest.mark.req("obs-repair", "obs-repair-finished")
def test_a_deleted_snapshot_of_finished_work_is_restored_and_the_instance_is_untouched(
    projection: ProjectionStore, instances: Store
) -> None:
    done = ended("done", 7, "failed")
    before = put(instances, done)
    repair = Repair(instances, projection, KEEP_MS)
    projection.keep_all([snapshot(done), attempt("step.failed", done)])
    told = Observations(projection).get("done")
    projection.remove_all([Remove("lose", SNAPSHOTS, "done", (Equals("biz_key", "done"),))])
    assert Observations(projection).get("done") is None

    repaired = repair.repair(biz_key="done")

    assert (repaired.workflow_id, repaired.status, repaired.revision, repaired.attempts) == (
        done.workflow_id,
        "failed",
        7,
        1,
    )
    found = Observations(projection).get("done")
    assert found is not None and told is not None
    assert (found.status, found.revision, found.error, found.finish_time, found.steps) == (
        told.status,
        told.revision,
        told.error,
        told.finish_time,
        told.steps,
    )
    (row,) = Observations(projection).attempts("done").rows
    assert (row.step, row.attempt, row.outcome) == ("work", 1, "failed")
    assert stored(instances) == before
    assert repair.repair(workflow_id=done.workflow_id) == repaired, "again without harm"


@pytest.mark.req("obs-repair-finished")
def test_running_work_is_written_under_the_guard_whether_anything_is_known_of_it_or_not(
    projection: ProjectionStore, instances: Store
) -> None:
    live = record("live", 5)
    before = put(instances, live)
    repair = Repair(instances, projection, KEEP_MS)

    assert repair.repair(workflow_id=live.workflow_id).revision == 5
    assert keys(projection) == ["live"]

    assert repair.repair(biz_key="live").revision == 5
    newer = snapshot(record("live", 6))
    projection.keep_all([newer])
    repair.repair(biz_key="live")
    found = Observations(projection).get("live")
    assert found is not None and found.revision == 6, "what an event wrote meanwhile stays"
    assert stored(instances) == before


@pytest.mark.req("obs-repair", "ops-where-stuck")
def test_repair_tells_that_the_lease_of_a_worker_that_was_killed_with_its_tree_ran_out(
    projection: ProjectionStore, instances: Store
) -> None:
    """No event comes of it: the view that its last one left says "executed" for ever."""
    over_ms = CREATED_MS + 4_000
    held = record("live", 5, claim_token="t", claim_time=CREATED_MS, worker_id="w", claimable_time=over_ms)
    put(instances, held)
    projection.keep_all([snapshot(held)])
    told = Observations(projection).get("live")
    assert told is not None and (told.waiting, told.lease_until) == ("step", over_ms)

    Repair(instances, projection, KEEP_MS).repair(biz_key="live")

    found = Observations(projection).get("live")
    assert found is not None and (found.waiting, found.waiting_since) == ("worker", over_ms)


@pytest.mark.req("obs-repair")
def test_repair_takes_no_times_from_earlier_attempts_and_ends_those_that_were_left_open(
    projection: ProjectionStore, instances: Store
) -> None:
    """The record has forgotten when its earlier attempts ran; an event that was kept has not."""
    error = ErrorRecord(code="broken", type="ValueError", message="no", attempt=1)
    projection.keep_all([attempt("step.started", record("live", 4, attempt=2))])
    step = StepRecord(
        name="work", status="running", attempt=3, started_time=CREATED_MS, failures=1, error=error, errors=(error,)
    )  # fmt: skip
    first = record("live", 3, steps=(msgspec.structs.replace(step, attempt=1, status="pending", failed_time=1),))
    projection.keep_all([attempt("step.retried", first)])
    put(instances, record("live", 7, steps=(step,)))

    Repair(instances, projection, KEEP_MS).repair(biz_key="live")

    rows = {row.attempt: (row.outcome, row.started_time) for row in Observations(projection).attempts("live").rows}
    assert rows == {1: ("failed", CREATED_MS), 2: ("lost", None), 3: ("running", CREATED_MS)}


def test_a_parked_workflow_counts_as_ended_for_repair(projection: ProjectionStore, instances: Store) -> None:
    put(instances, record("parked", 8, parked=ParkedRecord(reason="deaths", since_time=CREATED_MS)))
    projection.keep_all([snapshot(record("parked", 6))])

    Repair(instances, projection, KEEP_MS).repair(biz_key="parked")

    found = Observations(projection).get("parked")
    assert found is not None
    assert (found.revision, found.waiting) == (8, "parked")


def test_what_can_not_be_repaired_is_said_in_one_line(projection: ProjectionStore, instances: Store) -> None:
    newer = {**to_document(ended("newer")), "v": 2}
    instances.insert(Insert("new", INSTANCES, newer["workflow_id"], newer))
    repair = Repair(instances, projection, KEEP_MS)

    with pytest.raises(UnknownWorkflow, match=r"^no workflow is known as 'nobody'$"):
        repair.repair(biz_key="nobody")
    with pytest.raises(UnknownVersion, match="layout version 2"):
        repair.repair(biz_key="newer")
    for names in ({}, {"workflow_id": "a", "biz_key": "b"}):
        with pytest.raises(Refused, match="one of the two"):
            repair.repair(**names)
    assert keys(projection) == []


@pytest.mark.req("obs-repair")
def test_the_repair_of_all_finds_attempts_that_are_missing_or_left_open_behind_a_snapshot_that_is_right(
    projection: ProjectionStore, instances: Store
) -> None:
    """The store was away while they worked, and the last event of each was the first that was written again."""
    lost = ErrorRecord(code="broken", type="ValueError", message="no", attempt=1)
    twice = StepRecord(name="work", status="completed", attempt=2, started_time=CREATED_MS, failures=1, errors=(lost,))
    whole, gone, left, slept = ended("whole"), ended("gone"), ended("left"), ended("slept", steps=(twice,))
    kept = StepRecord(name="work", status="completed", attempt=1, finish_time=CREATED_MS + 2_000)
    failed = RunRecord(workflow_run=1, status="failed", finish_time=CREATED_MS + 3_000)
    replayed = ended("replayed", run_time=CREATED_MS + 5_000, workflow_run=2, runs=(failed,), steps=(kept,))
    every = (whole, gone, left, slept, replayed)
    put(instances, *every, record("live", 4))
    projection.keep_all([snapshot(one) for one in (*every, record("live", 4))])
    projection.keep_all(
        [
            attempt("step.completed", whole),
            attempt("step.started", record("left", 2)),
            attempt("step.suspended", record("slept", 2, step="waiting", attempt=0)),
            attempt("step.completed", slept),
            attempt("step.completed", record("replayed", 3, step="completed")),
        ]
    )
    repair = Repair(instances, projection, KEEP_MS)

    assert sorted(one.biz_key for one in repair.repair_all().repaired) == ["gone", "left", "slept"]

    read = Observations(projection)
    for one in (whole, gone, left, replayed):
        assert [(row.attempt, row.outcome) for row in read.attempts(one.biz_key).rows] == [(1, "completed")]
    assert sorted((row.attempt, row.outcome) for row in read.attempts("slept").rows) == [
        (1, "failed"),
        (2, "completed"),
    ]
    assert read.attempts("live").rows == (), "what lives makes its own events"
    assert repair.repair_all().repaired == ()


@pytest.mark.req("obs-repair", "obs-repair-finished")
def test_the_repair_of_all_writes_what_is_missing_or_older_page_by_page(
    projection: ProjectionStore, instances: Store
) -> None:
    rows = [ended(f"done-{n}", 7) for n in range(6)]
    ago = ended("ago", 7, finish_time=CREATED_MS - KEEP_MS)
    newer = {**to_document(ended("newer")), "v": 2}
    instances.insert(Insert("new", INSTANCES, newer["workflow_id"], newer))
    before = put(instances, *rows, record("live", 4), record("dark", 4), ago)
    known = [snapshot(record("done-0", 3)), snapshot(rows[1]), snapshot(record("live", 2))]
    projection.keep_all([*known, attempt("step.completed", rows[1])])
    repair = Repair(instances, projection, KEEP_MS)

    repaired, unreadable, looked, after = list[str](), list[str](), 0, None
    for _ in range(20):
        page = repair.repair_all(after, limit=3)
        repaired += [one.biz_key for one in page.repaired]
        unreadable += page.unreadable
        looked += page.looked
        after = page.next
        if after is None:
            break

    assert sorted(repaired) == ["dark", "done-0", "done-2", "done-3", "done-4", "done-5"]
    assert (unreadable, looked) == ([newer["workflow_id"]], 10)
    assert stored(instances) == before
    assert keys(projection) == sorted(["dark", "live", *(f"done-{n}" for n in range(6))])
    assert repair.repair_all(limit=100).repaired == (), "nothing is left to do"
    with pytest.raises(Refused, match="limit"):
        repair.repair_all(limit=0)


def test_what_ended_long_ago_goes_with_its_attempts_and_nothing_else_does(projection: ProjectionStore) -> None:
    clock = ManualClock(wall_ms=CREATED_MS + 1_000 + KEEP_MS)
    over, just = ended("over"), ended("just", finish_time=CREATED_MS + 1_001)
    rows = [over, just, record("live")]
    projection.keep_all([snapshot(row) for row in rows])
    projection.keep_all([attempt("step.completed", row) for row in rows])
    projection.keep_all([attempt("step.retried", record("over", 2, attempt=number)) for number in range(2, 5)])
    retention = Retention(lambda: projection, clock, KEEP_MS)
    clock.advance(2_000)  # attempts were told of up to a second after the end

    assert retention.turn(projection) == 2

    assert keys(projection) == ["live"]
    left = projection.scan(Query(ATTEMPTS, (), "attempt_key", ("biz_key",), 100))
    assert left == [("live",)]
    assert (retention.turn(projection), retention.removed) == (0, 2)


def test_a_workflow_that_was_started_over_is_kept(projection: ProjectionStore) -> None:
    clock = ManualClock(wall_ms=CREATED_MS + 10 * KEEP_MS)
    projection.keep_all([snapshot(ended("job", 7, "failed")), attempt("step.failed", ended("job", 7, "failed"))])
    projection.keep_all([snapshot(record("job", 8, workflow_run=2, retry_count=1))])

    assert Retention(lambda: projection, clock, KEEP_MS).turn(projection) == 0

    assert len(Observations(projection).attempts("job").rows) == 1


def test_a_workflow_that_is_started_over_while_a_page_is_removed_is_kept() -> None:
    clock = ManualClock(wall_ms=CREATED_MS + 10 * KEEP_MS)

    class Replayed(Observed):
        def scan(self, query: Query) -> list[tuple[Any, ...]]:
            found = super().scan(query)
            if query.table == SNAPSHOTS:
                self.inner.keep_all([snapshot(record("job", 8, workflow_run=2, retry_count=1))])
            return found

    store = Replayed(memory_projection(clock))
    store.keep_all([snapshot(ended("job", 7, "failed"))])

    assert Retention(lambda: store, clock, KEEP_MS).turn(store) == 0

    assert keys(store) == ["job"]


def test_one_turn_is_bounded_and_the_next_ones_take_the_rest() -> None:
    store, clock = memory_projection(), ManualClock(wall_ms=CREATED_MS + 10 * KEEP_MS)
    store.keep_all([snapshot(ended(f"job-{n}")) for n in range(PAGE_ROWS * PAGES_MAX + 5)])
    retention = Retention(lambda: store, clock, KEEP_MS)

    assert [retention.turn(store) for _ in range(3)] == [PAGE_ROWS * PAGES_MAX, 5, 0]
    assert Observations(store).page(Wanted()).rows == ()


class Minutes:
    """A stop that comes after so many turns, without any waiting."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def wait(self, timeout: float | None = None) -> bool:
        self.turns -= 1
        return self.turns < 0

    def is_set(self) -> bool:
        return False


def test_a_store_that_fails_is_closed_and_opened_again_the_next_time() -> None:
    clock = ManualClock(wall_ms=CREATED_MS + 10 * KEEP_MS)
    inner = memory_projection(clock)
    inner.keep_all([snapshot(ended("job"))])
    opened: list[Observed] = []

    def open_store() -> Observed:
        opened.append(Observed(inner))
        opened[-1].fault = StoreUnavailable("away") if len(opened) < 3 else None
        return opened[-1]

    Retention(open_store, clock, KEEP_MS).run(Minutes(5))

    assert [store.closed for store in opened] == [True, True, True]
    assert keys(inner) == []


def test_a_stop_is_heard_in_the_middle_of_a_page() -> None:
    clock = ManualClock(wall_ms=CREATED_MS + 10 * KEEP_MS)
    store, stop = memory_projection(clock), threading.Event()
    store.keep_all([snapshot(ended(f"job-{n}")) for n in range(5)])
    stop.set()

    assert Retention(lambda: store, clock, KEEP_MS).turn(store, stop) == 0
    assert len(keys(store)) == 5


def test_a_damaged_instance_stops_no_repair_of_others(projection: ProjectionStore) -> None:
    instances = MemoryStore(ManualClock(wall_ms=CREATED_MS))
    put(instances, ended("good"))
    bad = {**to_document(ended("bad")), "steps": "none"}
    instances.insert(Insert("new", INSTANCES, bad["workflow_id"], bad))
    repair = Repair(instances, projection, KEEP_MS)

    page = repair.repair_all()

    assert ([one.biz_key for one in page.repaired], page.unreadable) == (["good"], (bad["workflow_id"],))
    with pytest.raises(CorruptRecord):
        repair.repair(biz_key="bad")
