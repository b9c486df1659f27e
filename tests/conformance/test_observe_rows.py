"""Rows of projections on every store: the newest of each key, whatever came when, how often and beside what."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel.errors import InvalidId, InvalidTransition, KernelError, TooLarge
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document
from kernel.store.conditional import MISSED, REMOVED, AtMost, Equals, Exists, OneOf, Remove
from kernel.store.projection import ROW_BYTES_MAX, Keep, ProjectionStore, Total, Totals
from kernel.store.protocol import Query
from tests.support.observations import CREATED_MS, attempt, ended, record, snapshot


def found(store: ProjectionStore, key: str) -> Document:
    row = store.get(SNAPSHOTS, key)
    assert row is not None
    return row


def everything(store: ProjectionStore, table: str, order: str) -> list[Document]:
    return store.rows(Query(table, (), order, (), 1_000))


@pytest.mark.req("obs-revision-guard")
def test_a_snapshot_never_goes_back_to_an_older_revision(projection: ProjectionStore) -> None:
    """Mutant M14: without the guard the late event of revision 5 would say `running` again."""
    assert projection.keep_all([snapshot(ended("job", 7, "failed"))]) == 1

    assert projection.keep_all([snapshot(record("job", 5))]) == 0

    row = found(projection, "job")
    assert (row["status"], row["revision"], row["error_code"]) == ("failed", 7, "broken")
    assert "claim_token" not in row


@pytest.mark.req("obs-guard-example")
def test_a_held_back_attempt_1_running_changes_nothing_after_attempt_2_failed(projection: ProjectionStore) -> None:
    first = record("job", 2, attempt=1)
    last = ended("job", 6, "failed")
    held = [attempt("step.started", first), snapshot(first)]
    projection.keep_all([attempt("step.retried", record("job", 3, step="pending", attempt=1)), snapshot(last)])

    assert projection.keep_all(held) == 0

    assert (found(projection, "job")["status"], found(projection, "job")["revision"]) == ("failed", 6)
    (row,) = everything(projection, ATTEMPTS, "attempt_key")
    assert (row["attempt"], row["outcome"], row["revision"]) == (1, "failed", 3)


@pytest.mark.req("obs-snapshot-one")
def test_there_is_one_snapshot_of_a_key_whatever_the_order_of_many_events(projection: ProjectionStore) -> None:
    revisions = [revision for revision in range(1, 21) for _ in range(2)]
    random.Random(1).shuffle(revisions)

    for start in range(0, len(revisions), 5):
        projection.keep_all([snapshot(record("job", revision)) for revision in revisions[start : start + 5]])

    (row,) = everything(projection, SNAPSHOTS, "newest")
    assert row["revision"] == 20


@pytest.mark.req("obs-attempt-key")
def test_the_same_event_twice_leaves_one_row_equal_to_the_first(projection: ProjectionStore) -> None:
    event = attempt("step.started", record("job", 2))

    assert (projection.keep_all([event]), projection.keep_all([event, event])) == (1, 2)

    (row,) = everything(projection, ATTEMPTS, "attempt_key")
    assert [row[name] for name in ("biz_key", "workflow_run", "step", "attempt")] == ["job", 1, "work", 1]


@pytest.mark.req("obs-attempt-key")
def test_another_row_with_the_same_four_is_refused_and_costs_the_first_nothing(projection: ProjectionStore) -> None:
    event = attempt("step.started", record("job", 2))
    projection.keep_all([event])

    with pytest.raises(InvalidTransition):
        projection.keep_all([Keep(ATTEMPTS, {**event.document, "attempt_key": "another", "revision": 9})])

    assert [row["attempt_key"] for row in everything(projection, ATTEMPTS, "attempt_key")] == [
        event.document["attempt_key"]
    ]


def test_rows_of_both_tables_are_one_call_and_the_answer_counts_both(projection: ProjectionStore) -> None:
    instance = record("job", 3)

    assert projection.keep_all([attempt("step.started", instance), snapshot(instance)]) == 2

    assert found(projection, "job")["steps"][0]["status"] == "running"
    assert projection.find(SNAPSHOTS, "workflow_id", instance.workflow_id) == found(projection, "job")


def test_a_row_is_replaced_whole_and_what_it_lacks_now_is_absent(projection: ProjectionStore) -> None:
    projection.keep_all([snapshot(record("job", 3))])
    assert found(projection, "job")["waiting"] == "step"

    projection.keep_all([snapshot(ended("job", 4))])

    row = found(projection, "job")
    assert "waiting" not in row and "waiting_since" not in row
    assert row["finish_time"] == CREATED_MS + 1_000, "times are milliseconds, however they are stored"
    assert projection.scan(Query(SNAPSHOTS, (Exists("waiting"),), "newest", ("biz_key",), 10)) == []


def test_first_writes_of_one_key_race_and_the_highest_revision_stands(projection: ProjectionStore) -> None:
    for turn in range(5):
        rows = [snapshot(record(f"job-{turn}", revision)) for revision in (3, 1, 4, 2)]
        start = threading.Barrier(len(rows))

        def race(row: Keep, start: threading.Barrier = start) -> int:
            start.wait()
            return projection.keep_all([row])

        with ThreadPoolExecutor(len(rows)) as pool:
            kept = list(pool.map(race, rows))

        assert found(projection, f"job-{turn}")["revision"] == 4
        assert kept[2] == 1


@pytest.mark.req("obs-poison")
@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (TooLarge, {"error_code": "x" * ROW_BYTES_MAX}),
        (InvalidTransition, {"round": "\ud800"}),
        (InvalidTransition, {"revision": "seven"}),
        (InvalidTransition, {"round": 2**70}),
        ((InvalidTransition, InvalidId), {"biz_key": 7}),
    ],
    ids=["too large", "no text", "no revision", "no number", "no key"],
)
def test_a_row_that_can_never_be_stored_is_refused_and_the_others_can_be_kept_without_it(
    projection: ProjectionStore, fault: type[KernelError] | tuple[type[KernelError], ...], changes: Document
) -> None:
    good, bad = snapshot(record("good", 2)), snapshot(record("bad", 2))

    with pytest.raises(fault):
        projection.keep_all([good, Keep(SNAPSHOTS, {**bad.document, **changes})])

    assert projection.keep_all([good]) == 1
    assert [row["biz_key"] for row in everything(projection, SNAPSHOTS, "newest")] == ["good"]


def test_pages_hold_whole_rows_in_order_and_go_on_after_a_place(projection: ProjectionStore) -> None:
    projection.keep_all([snapshot(record(f"job-{n}", created_time=CREATED_MS + n // 2)) for n in range(7)])

    first = projection.rows(Query(SNAPSHOTS, (), "newest", (), 3))
    after = (first[-1]["newest"], first[-1]["biz_key"])
    rest = projection.rows(Query(SNAPSHOTS, (), "newest", (), 9, after))

    assert [row["biz_key"] for row in (*first, *rest)] == [f"job-{n}" for n in (6, 4, 5, 2, 3, 0, 1)]
    assert all(row["steps"][0]["name"] == "work" for row in first)


def test_totals_group_what_the_guards_let_through_with_the_least_of_each_group(projection: ProjectionStore) -> None:
    rows = [record(f"r{n}", claim_time=CREATED_MS + n) for n in range(3)]
    projection.keep_all([snapshot(one) for one in (*rows, ended("e1"), ended("e2"), ended("f", status="failed"))])

    def totals(*guards: object, limit: int = 10) -> list[Total]:
        return projection.totals(Totals(SNAPSHOTS, guards, ("status", "waiting"), "waiting_since", limit))  # type: ignore[arg-type]

    assert totals() == [
        Total(("running", "step"), 3, CREATED_MS),
        Total(("completed", None), 2, None),
        Total(("failed", None), 1, None),
    ]
    assert totals(Equals("status", "failed")) == [Total(("failed", None), 1, None)]
    assert [total.count for total in totals(OneOf("status", ("failed", "completed")))] == [2, 1]
    assert totals(limit=1) == [Total(("running", "step"), 3, CREATED_MS)]
    with pytest.raises(InvalidTransition):
        projection.totals(Totals(SNAPSHOTS, (), ("split",), "waiting_since", 10))


def test_a_row_is_removed_under_its_guard_and_can_be_kept_again(projection: ProjectionStore) -> None:
    projection.keep_all([snapshot(ended("old")), snapshot(record("live"))])

    answers = projection.remove_all(
        [Remove("forget", SNAPSHOTS, key, (AtMost("finish_time", CREATED_MS + 5_000),)) for key in ("old", "live")]
    )

    assert answers == [REMOVED, MISSED]
    assert [row["biz_key"] for row in everything(projection, SNAPSHOTS, "newest")] == ["live"]
    assert projection.keep_all([snapshot(record("old", 1))]) == 1
