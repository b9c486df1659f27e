"""Lists of a million snapshots: every combination of filters is answered from an index, in the order that it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.errors import SchemaMismatch
from kernel.observe.reading import BY, Column, Observations, Wanted, guards_of
from kernel.observe.tables import ATTEMPTS, OBSERVE_TABLES, SNAPSHOTS
from kernel.store import mongo_schema, sqlite_rows
from kernel.store.conditional import Equals
from kernel.store.mongo_projection import MongoProjection
from kernel.store.projection import ProjectionStore, Totals
from kernel.store.protocol import Query
from kernel.store.sqlite_projection import SqliteProjection
from tests.support.mongo_server import MongoStores
from tests.support.observations import CREATED_MS, record, snapshot
from tests.support.stores import sqlite_projection

FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    # As `workflow list` names them: what is asked, and the index that leads to those who have the value.
    "--type": ({"type": "report"}, "snapshots_type"),
    "--status": ({"statuses": ("failed",)}, "snapshots_status"),
    "--waiting": ({"waiting": "signal"}, "snapshots_awaited"),
    "--on": ({"waiting_on": "paid"}, "snapshots_awaited_on"),
    "--step": ({"step": "work"}, "snapshots_step"),
    "--lane": ({"lane": 3}, "snapshots_lane"),
    "--error": ({"error_code": "broken"}, "snapshots_error"),
    "--older-than": ({"created_before_ms": CREATED_MS}, "snapshots_by_time"),
    "--since": ({"created_after_ms": CREATED_MS}, "snapshots_by_time"),
}
COMBINATIONS = [names for count in range(len(FILTERS) + 1) for names in combinations(FILTERS, count)]
BY_VALUE = [index for _, index in FILTERS.values() if index != "snapshots_by_time"]
COUNTED = {
    "COVERING INDEX snapshots_counts",
    *(f"INDEX snapshots_{few}" for few in ("step", "awaited", "awaited_on", "error")),
}
LIVE = ("running", "waiting", "failing")


class Asked(SqliteProjection):
    """Keeps the questions that it is asked, and answers with a page of rows when it is told to."""

    questions: list[Query]
    answer: list[tuple[Any, ...]]

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        self.questions.append(query)
        return self.answer[: query.limit]

    def rows(self, query: Query) -> list[dict[str, Any]]:
        self.questions.append(query)
        return []


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    store = Asked(tmp_path_factory.mktemp("asked") / "observe.sqlite", ManualClock(), tables=OBSERVE_TABLES)
    store.prepare()
    store.questions, store.answer = [], []
    yield store
    store.close()


def wanted_of(names: tuple[str, ...]) -> Wanted:
    wanted = Wanted()
    for name in names:
        wanted = msgspec.structs.replace(wanted, **FILTERS[name][0])
    return wanted


def plan_of(store: Asked, query: Query) -> str:
    statement, values = sqlite_rows.scan_rows(OBSERVE_TABLES[query.table], query)
    connection = sqlite3.connect(store.path)
    try:
        return " | ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values))
    finally:
        connection.close()


def questions_of(store: Asked, wanted: Wanted) -> list[Query]:
    """What is sent for the first page of a list, and for the second one."""
    row = snapshot(record("job")).document
    place = [tuple(row.get(column) for column in OBSERVE_TABLES[SNAPSHOTS].columns)]
    store.questions, store.answer = [], [(f"job-{n}", *place[0][1:]) for n in range(2)]
    page = Observations(store).page(wanted, limit=1)
    assert page.next is not None
    Observations(store).page(wanted, after=page.next, limit=1)
    return store.questions


def is_from_index(plan: str, indexes: list[str]) -> bool:
    """It walks one of these indexes from a place on, looks at no other row, and sorts nothing."""
    used = [index for index in indexes if f"USING INDEX {index} (" in plan or f"USING COVERING INDEX {index} (" in plan]
    return bool(used) and plan.startswith("SEARCH") and "TEMP B-TREE" not in plan


@pytest.mark.req("ops-aggregate", "rec-indexes")
@pytest.mark.parametrize("size", range(len(FILTERS) + 1))
def test_every_combination_of_filters_is_a_walk_along_an_index_of_one_of_them(asked: Asked, size: int) -> None:
    for names in (names for names in COMBINATIONS if len(names) == size):
        indexes = [FILTERS[name][1] for name in names if FILTERS[name][1] in BY_VALUE] or ["snapshots_by_time"]
        first, second = questions_of(asked, wanted_of(names))
        assert is_from_index(plan_of(asked, second), indexes), (names, plan_of(asked, second))
        if names:  # the very first page of everything begins at the one end of its index
            assert is_from_index(plan_of(asked, first), indexes), (names, plan_of(asked, first))
        else:
            assert plan_of(asked, first).split(" USING ")[1].startswith("INDEX snapshots_by_time")
            assert "TEMP B-TREE" not in plan_of(asked, first)


@pytest.mark.parametrize("names", [(), ("--type",), ("--lane", "--step"), ("--since", "--older-than")], ids=" ".join)
def test_several_statuses_are_a_walk_for_each_and_no_sort_of_all(asked: Asked, names: tuple[str, ...]) -> None:
    questions = questions_of(asked, msgspec.structs.replace(wanted_of(names), statuses=LIVE))

    assert len(questions) == 2 * len(LIVE)
    for question in questions:
        indexes = ["snapshots_status", *(FILTERS[name][1] for name in names if FILTERS[name][1] in BY_VALUE)]
        assert is_from_index(plan_of(asked, question), indexes), plan_of(asked, question)


@pytest.mark.req("ops-aggregate")
@pytest.mark.parametrize("by", [BY, ("current_step", "error_code"), ("business_priority",)], ids=" ".join)
def test_counts_walk_over_an_index_whatever_they_are_asked_for(asked: Asked, by: tuple[Column, ...]) -> None:
    connection = sqlite3.connect(asked.path)
    for names in COMBINATIONS:
        wanted = Totals(SNAPSHOTS, guards_of(wanted_of(names)), by, "waiting_since", 100)
        statement, values = sqlite_rows.total_rows(OBSERVE_TABLES[SNAPSHOTS], wanted)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        # Or over those alone that have a step, wait or error at all: an index that holds no others.
        assert plan[0].split(" USING ")[1] in COUNTED, (names, plan)
    connection.close()


def test_attempts_are_found_by_their_workflow(asked: Asked) -> None:
    asked.questions = []
    for step in (None, "work"):
        Observations(asked).attempts("job", step=step)
    for question in asked.questions:
        # Those of one instant are sorted among themselves; all others lie in order.
        plan = plan_of(asked, question).removesuffix(" | USE TEMP B-TREE FOR RIGHT PART OF ORDER BY")
        assert is_from_index(plan, ["attempts_of_key"]), plan


def test_a_plan_that_walks_over_everything_is_told_from_one_that_does_not(asked: Asked) -> None:
    """The check above can fail: without an index of its own a filter makes a walk along the time, or a sort."""
    by_time = Query(SNAPSHOTS, (Equals("current_step", "work"),), "finish_time", ("biz_key",), 9)
    by_key = Query(SNAPSHOTS, (), "biz_key", ("biz_key",), 9)

    assert not is_from_index(plan_of(asked, by_time), BY_VALUE)
    assert not is_from_index(plan_of(asked, by_key), ["snapshots_by_time"])


@pytest.mark.req("ops-aggregate")
def test_mongodb_has_an_index_for_each_filter_in_the_order_of_lists(mongo_store: MongoStores) -> None:
    """Its planner needs what SQLite's does: equality first, then the order of the page."""
    store = mongo_store(tables=OBSERVE_TABLES, kind=MongoProjection)
    assert isinstance(store, MongoProjection)
    made = {index["name"]: index for index in mongo_store.raw()[SNAPSHOTS].list_indexes()}
    filters = {
        "snapshots_type": "type", "snapshots_status": "status", "snapshots_lane": "business_priority",
        "snapshots_step": "current_step", "snapshots_awaited": "waiting", "snapshots_awaited_on": "waiting_on",
        "snapshots_error": "error_code",
    }  # fmt: skip

    assert set(filters) == set(BY_VALUE)
    for name, column in filters.items():
        assert list(made[name]["key"].items()) == [(column, 1), ("newest", 1), ("biz_key", 1)]
    assert list(made["snapshots_by_time"]["key"].items()) == [("newest", 1), ("biz_key", 1)]
    every = {index.name for index in mongo_schema.indexes_of(OBSERVE_TABLES[SNAPSHOTS])}
    assert every <= set(made)
    assert {index.name for index in mongo_schema.indexes_of(OBSERVE_TABLES[ATTEMPTS])} <= {
        index["name"] for index in mongo_store.raw()[ATTEMPTS].list_indexes()
    }


@pytest.mark.req("ops-aggregate")
@pytest.mark.parametrize("statuses", [("running", "completed"), LIVE, ("running", "running")])
def test_several_statuses_come_in_one_order_and_each_workflow_once(
    projection: ProjectionStore, statuses: tuple[Any, ...]
) -> None:
    for number in range(9):
        status = ("running", "completed", "failed")[number % 3]
        row = record(f"job-{number}", created_time=CREATED_MS + number, status=status)
        projection.keep_all([snapshot(row)])
    expected = [f"job-{n}" for n in reversed(range(9)) if ("running", "completed", "failed")[n % 3] in statuses]
    wanted, seen, token = Wanted(statuses=statuses), list[str](), None
    while True:
        page = Observations(projection).page(wanted, after=token, limit=2)
        seen += [line.biz_key for line in page.rows]
        token = page.next
        if token is None:
            break

    assert seen == expected


def test_one_that_changes_its_status_between_two_questions_is_told_once_as_it_is_then(tmp_path: Path) -> None:
    store = sqlite_projection(tmp_path)
    store.keep_all([snapshot(record("job", 1, status="waiting"))])
    plain = store.scan

    def changing(query: Query) -> list[tuple[Any, ...]]:
        rows = plain(query)
        store.keep_all([snapshot(record("job", 2, status="failing"))])
        return rows

    store.scan = changing  # type: ignore[method-assign]
    (line,) = Observations(store).page(Wanted(statuses=("waiting", "failing"))).rows
    store.close()

    assert (line.status, line.revision) == ("failing", 2)


def test_a_file_of_an_older_kernel_gets_the_indexes_that_it_lacks_and_not_the_unique_ones(tmp_path: Path) -> None:
    store = sqlite_projection(tmp_path)
    store.keep_all([snapshot(record("job"))])
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("DROP INDEX snapshots_error")
    assert store.examine().lacking == ('INDEX "snapshots_error" ON "workflow_snapshots"',)

    store.prepare()

    assert store.examine().lacking == ()
    assert [line.biz_key for line in Observations(store).page(Wanted()).rows] == ["job"]
    connection.execute("DROP INDEX snapshots_workflow")
    connection.close()
    with pytest.raises(SchemaMismatch, match="lacks an index that correctness rests on"):
        store.prepare()
    store.close()
