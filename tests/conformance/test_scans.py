"""Bounded pages over declared columns: the same rows in the same order from every store, and never a full scan."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from kernel.errors import InvalidTransition
from kernel.records import Document
from kernel.store import sqlite_rows
from kernel.store.conditional import AtMost, Clear, Differs, Equals, Exists, Insert, Missing, OneOf, Put, Transition
from kernel.store.protocol import Query, Store
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES, TABLES
from tests.conformance.instances import claimed, instance_document, put
from tests.support.stores import HOUR_MS

DUE_COLUMNS = ("workflow_id", "status", "definition_key", "claimable_time", "claim_token", "deaths")


def due(at_ms: int, limit: int = 50, after: tuple[Any, str] | None = None, *guards: Any) -> Query:
    """The scan for candidates, as workers and dispatchers make it."""
    wanted = (AtMost("claimable_time", at_ms), OneOf("status", ("running", "failing")), Missing("parked"), *guards)
    return Query(INSTANCES, wanted, "claimable_time", DUE_COLUMNS, limit, after)


def fill(store: Store, documents: list[Document]) -> None:
    store.insert_all([Insert("create", INSTANCES, document["workflow_id"], document) for document in documents])


@pytest.mark.case("A45")
def test_pages_follow_each_other_without_a_gap_or_a_repeat(store: Store) -> None:
    """Also where many rows have the same time, and where rows of a page are left alone."""
    now_ms = store.now_ms()
    rows = [instance_document(f"wf-{n:03d}", now_ms, claimable_time=now_ms - HOUR_MS * (1 + n % 3)) for n in range(25)]
    fill(store, rows)

    found: list[tuple[Any, ...]] = []
    after = None
    while page := store.scan(due(now_ms, 4, after)):
        assert len(page) <= 4
        found += page
        after = (page[-1][3], page[-1][0])

    expected = sorted(rows, key=lambda document: (document["claimable_time"], document["workflow_id"]))
    assert [row[0] for row in found] == [document["workflow_id"] for document in expected]


def test_pages_in_the_order_of_the_key_follow_each_other_too(store: Store) -> None:
    fill(store, [instance_document(f"wf-{n}", store.now_ms()) for n in range(7)])

    first = store.scan(Query(INSTANCES, (), "workflow_id", ("workflow_id",), 4))
    after = (first[-1][0], first[-1][0])

    assert [row[0] for row in first] == ["wf-0", "wf-1", "wf-2", "wf-3"]
    assert store.scan(Query(INSTANCES, (), "workflow_id", ("workflow_id",), 4, after)) == [
        ("wf-4",),
        ("wf-5",),
        ("wf-6",),
    ]


def test_a_page_holds_only_rows_that_have_the_column_of_its_order(store: Store) -> None:
    now_ms = store.now_ms()
    fill(
        store,
        [
            instance_document("due", now_ms),
            instance_document("later", now_ms, claimable_time=now_ms + HOUR_MS),
            instance_document("never", now_ms, without=("claimable_time",)),
            instance_document("parked", now_ms, parked={"reason": "x", "since_time": 1}),
            instance_document("waiting", now_ms, status="waiting"),
        ],
    )

    assert [row[0] for row in store.scan(due(now_ms))] == ["due"]
    assert [row[0] for row in store.scan(due(now_ms + 2 * HOUR_MS))] == ["due", "later"]


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (Equals("definition_key", "sample@b"), ["b"]),
        (Differs("definition_key", "sample@b"), ["a", "c"]),
        (Differs("worker_id", "w"), ["a", "b"]),
        (Equals("worker_id", "w"), ["c"]),
        (OneOf("definition_key", ("sample@a", "sample@c", "zz")), ["a", "c"]),
        (OneOf("definition_key", ()), []),
        (Exists("deferred"), ["b"]),
        (Missing("deferred"), ["a", "c"]),
        (AtMost("deaths", 1), ["a", "b"]),
        (AtMost("status", 9), []),
        (Equals("deaths", True), []),
    ],
)
def test_each_guard_of_a_scan_means_what_it_means_elsewhere(guard: Any, expected: list[str], store: Store) -> None:
    now_ms = store.now_ms()
    deferred = {"stored": "b", "offered": ["x"], "since_time": now_ms}
    fill(
        store,
        [
            instance_document("a", now_ms, definition_key="sample@a"),
            instance_document("b", now_ms, definition_key="sample@b", deaths=1, deferred=deferred),
            instance_document("c", now_ms, definition_key="sample@c", deaths=2, **{**claimed(), "worker_id": "w"}),
        ],
    )

    found = store.scan(Query(INSTANCES, (guard,), "workflow_id", ("workflow_id",), 9))

    assert [row[0] for row in found] == expected


def test_a_scan_gives_the_values_as_they_were_stored_and_none_for_an_absent_one(store: Store) -> None:
    now_ms = store.now_ms()
    parked = {"reason": "$poison", "since_time": now_ms}
    deferred = {"stored": "b", "offered": ["x", "y"], "since_time": now_ms}
    put(store, instance_document("wf", now_ms, parked=parked, deferred=deferred))

    columns = ("parked", "deferred", "deaths", "claim_token", "created_time")

    found = store.scan(Query(INSTANCES, (Exists("parked"),), "created_time", columns, 9))

    assert found == [(parked, deferred, 0, None, now_ms - 60_000)]


def test_a_scan_follows_every_write(store: Store) -> None:
    """The columns beside the document never lag behind it."""
    now_ms = store.now_ms()
    put(store, instance_document("wf", now_ms, **claimed()))
    changes = [
        Put("status", "failing"),
        Clear("claim_token"),
        Put("claimable_time", now_ms - 5),
        Put("parked", {"reason": "x"}),
    ]
    columns = tuple(change.field for change in changes)

    for change in changes:
        store.apply(Transition("change", INSTANCES, "wf", (), (change,)))

    found = store.scan(Query(INSTANCES, (), "workflow_id", columns, 9))
    assert found == [("failing", None, now_ms - 5, {"reason": "x"})]
    store.apply(Transition("change", INSTANCES, "wf", (), (Clear("claimable_time"),)))
    assert store.scan(due(now_ms)) == []


@pytest.mark.parametrize("field", ["steps", "input", "nothing", "wait.kind", "workflow_id; --", '"'])
@pytest.mark.parametrize("kind", ["sqlite", "mongo"])
def test_only_declared_columns_can_be_asked_for(kind: str, field: str, make_store: Callable[..., Store]) -> None:
    store = make_store(kind)
    for query in (
        Query(INSTANCES, (), "workflow_id", (field,), 9),
        Query(INSTANCES, (), field, ("workflow_id",), 9),
        Query(INSTANCES, (Equals(field, 1),), "workflow_id", ("workflow_id",), 9),
    ):
        with pytest.raises(InvalidTransition, match="no declared column"):
            store.scan(query)


@pytest.mark.req("rec-indexes")
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (due(5), "instances_due"),
        (due(5, 50, (3, "wf")), "instances_due"),
        (Query(INSTANCES, (Equals("worker_id", "w"),), "workflow_id", ("workflow_id",), 9), "instances_worker"),
        (Query(INSTANCES, (Exists("deferred"),), "definition_key", ("workflow_id",), 9), "instances_deferred"),
        (Query(INSTANCES, (Exists("parked"),), "created_time", ("workflow_id",), 9), "instances_parked"),
    ],
    ids=["due", "next page", "claims of a worker", "deferred", "parked"],
)
def test_sqlite_answers_the_kernels_scans_from_an_index(
    query: Query, index: str, make_store: Callable[..., Store]
) -> None:
    """No full scan and no sort, however many rows there are that wait for nothing."""
    store = make_store("sqlite")
    assert isinstance(store, SqliteStore)
    statement, values = sqlite_rows.scan_rows(TABLES[INSTANCES], query)

    connection = sqlite3.connect(store.path)
    plan = " | ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values))
    connection.close()

    assert f"USING INDEX {index}" in plan or f"USING COVERING INDEX {index}" in plan, plan
    assert "SCAN workflow_instances USING" in plan or "SCAN" not in plan, plan
    assert "TEMP B-TREE" not in plan, plan
