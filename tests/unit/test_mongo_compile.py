"""Transitions and queries in MongoDB's words, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from kernel.errors import InvalidId, InvalidTransition
from kernel.store.conditional import (
    Add,
    Append,
    AtLeast,
    AtMost,
    Change,
    Clear,
    Differs,
    Due,
    Equals,
    Exists,
    Guard,
    LowerTo,
    Missing,
    OneOf,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Transition,
)
from kernel.store.mongo_codec import decoded, encoded, stored
from kernel.store.mongo_compile import Write, page_of, write_of
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES, TABLES
from tests.support.mongo_allowlist import indexes_by_collection, refusals

TABLE = TABLES[INSTANCES]
KEY = {"workflow_id": {"$eq": "wf-1"}}
NO_LIST = {"$type": "array"}
TOUCH = Put("status", "running")


def compiled(*words: Guard | Change, key: Any = "wf-1", commit_id: str | None = None) -> Write:
    guards = tuple(word for word in words if isinstance(word, Guard))
    changes = tuple(word for word in words if isinstance(word, Change)) or (TOUCH,)
    return write_of(TABLE, Transition("sample", INSTANCES, key, guards, changes, commit_id))


@pytest.mark.parametrize(
    ("guard", "clause"),
    [
        (Equals("status", "running"), {"status": {"$eq": "running", "$not": NO_LIST}}),
        (Equals("claimable_time", 5), {"claimable_time": {"$eq": DatetimeMS(5), "$not": NO_LIST}}),
        (OneOf("status", ("a", "b")), {"status": {"$in": ["a", "b"], "$not": NO_LIST}}),
        (Differs("steps.1.last_signal_id", "s"), {"$nor": [{"steps.1.last_signal_id": {"$eq": "s", "$not": NO_LIST}}]}),
        (AtMost("deaths", 2), {"deaths": {"$lte": 2, "$not": NO_LIST}}),
        (AtLeast("finish_time", 2), {"finish_time": {"$gte": DatetimeMS(2), "$not": NO_LIST}}),
        (Exists("wait"), {"wait": {"$exists": True}}),
        (Missing("parked"), {"parked": {"$exists": False}}),
        (Exists("wait.wait_id"), {"wait.wait_id": {"$exists": True}, "wait": {"$not": NO_LIST}}),
        (Missing("wait.wait_id"), {"$nor": [{"wait.wait_id": {"$exists": True}, "wait": {"$not": NO_LIST}}]}),
        (
            Differs("steps.0.wait.wait_id", "w"),
            {"$nor": [{"steps.0.wait.wait_id": {"$eq": "w", "$not": NO_LIST}, "steps.0.wait": {"$not": NO_LIST}}]},
        ),
    ],
)
def test_a_guard_is_one_clause_that_does_not_look_into_lists(guard: Guard, clause: dict[str, Any]) -> None:
    assert compiled(guard).filter == KEY | clause


def test_due_is_decided_by_the_clock_of_the_server_and_asks_for_a_date() -> None:
    assert compiled(Due("claimable_time")).filter == KEY | {
        "claimable_time": {"$type": "date", "$not": NO_LIST},
        "$expr": {"$lte": ["$claimable_time", "$$NOW"]},
    }


def test_due_inside_a_step_takes_the_step_by_position_not_by_a_number_in_a_path() -> None:
    found = compiled(Due("steps.2.wait.poll_time"), Due("claimable_time")).filter
    step = {"$arrayElemAt": ["$steps", 2]}
    assert found["$expr"] == {
        "$and": [
            {"$lte": [{"$let": {"vars": {"step": step}, "in": "$$step.wait.poll_time"}}, "$$NOW"]},
            {"$lte": ["$claimable_time", "$$NOW"]},
        ]
    }


def test_guards_on_one_field_all_hold() -> None:
    found = compiled(Exists("deaths"), AtLeast("deaths", 1), AtMost("deaths", 3), AtMost("deaths", 2)).filter
    assert found["deaths"] == {"$exists": True, "$gte": 1, "$lte": 3, "$not": NO_LIST}
    assert found["$and"] == [{"deaths": {"$lte": 2, "$not": NO_LIST}}]


def test_true_and_one_on_one_field_stay_two_clauses() -> None:
    found = compiled(Equals("status", True), Equals("status", 1)).filter
    assert found["status"]["$eq"] is True
    assert found["$and"][0]["status"]["$eq"] == 1


@pytest.mark.parametrize(
    ("change", "update"),
    [
        (Put("worker_id", "$w"), {"$set": {"worker_id": "$w"}}),
        (Put("steps.0.due_time", 7), {"$set": {"steps.0.due_time": DatetimeMS(7)}}),
        (
            Put("wait", {"poll_time": 7, "attempt": 1, "inner": [{"a_time": 8}]}),
            {"$set": {"wait": {"poll_time": DatetimeMS(7), "attempt": 1, "inner": [{"a_time": DatetimeMS(8)}]}}},
        ),
        (Clear("wait"), {"$unset": {"wait": ""}}),
        (Add("revision", 1), {"$inc": {"revision": 1}}),
        (RaiseTo("claimable_time", 7), {"$max": {"claimable_time": DatetimeMS(7)}}),
        (LowerTo("business_priority", 1), {"$min": {"business_priority": 1}}),
        (PutNow("steps.0.finish_time"), {"$currentDate": {"steps.0.finish_time": {"$type": "date"}}}),
        (
            Append("runs", {"finish_time": 9}, 8),
            {"$push": {"runs": {"$each": [{"finish_time": DatetimeMS(9)}], "$slice": -8}}},
        ),
    ],
)
def test_a_change_is_one_classic_operator(change: Change, update: dict[str, Any]) -> None:
    assert compiled(Exists("steps.0"), change).update == update


def test_the_commit_id_is_appended_to_the_last_32() -> None:
    assert compiled(commit_id="c1").update == {
        "$set": {"status": "running"},
        "$push": {"commit_ids": {"$each": ["c1"], "$slice": -32}},
    }


def test_now_plus_n_makes_a_pipeline_with_every_value_a_literal() -> None:
    update = compiled(
        PutNowPlus("claimable_time", 30_000),
        Put("claim_token", "$secret"),
        PutNow("claim_time"),
        Add("revision", 1),
        RaiseTo("deaths", 2),
        LowerTo("business_priority", 1),
        Clear("wait"),
        commit_id="$c",
    ).update
    assert update == [
        {
            "$set": {
                "claimable_time": {"$add": ["$$NOW", {"$literal": 30_000}]},
                "claim_token": {"$literal": "$secret"},
                "claim_time": "$$NOW",
                "revision": {"$add": [{"$ifNull": ["$revision", {"$literal": 0}]}, {"$literal": 1}]},
                "deaths": {"$max": ["$deaths", {"$literal": 2}]},
                "business_priority": {"$min": ["$business_priority", {"$literal": 1}]},
                "commit_ids": {
                    "$slice": [
                        {"$concatArrays": [{"$ifNull": ["$commit_ids", {"$literal": []}]}, {"$literal": ["$c"]}]},
                        -32,
                    ]
                },
            }
        },
        {"$unset": ["wait"]},
    ]


def test_a_change_below_a_step_demands_the_step_unless_a_guard_proves_it() -> None:
    bare = compiled(Missing("steps.3.wait"), Differs("steps.3.status", "x"), Put("steps.3.status", "running"))
    assert bare.filter["steps.3"] == {"$exists": True}
    proved = compiled(Equals("steps.3.status", "pending"), Put("steps.3.status", "running"), Clear("steps.4.wait"))
    assert "steps.3" not in proved.filter
    assert "steps.4" not in proved.filter


@pytest.mark.parametrize(
    "word",
    [
        Equals("status", {"$gt": ""}),
        OneOf("status", (["a"],)),
        Differs("status", None),
        Equals("retry_count", float("nan")),
        AtMost("status", "running"),  # type: ignore[arg-type]
        AtLeast("status", True),
        Due("status"),
        PutNow("status"),
        PutNowPlus("status", 1),
        Add("claimable_time", 1),
        Put("workflow_id", "other"),
        Put("biz_key", "other"),
        Clear("biz_key"),
        Put("claimable_time", 2**63),
    ],
)
def test_what_mongodb_would_answer_otherwise_is_refused_before_it_is_sent(word: Guard | Change) -> None:
    with pytest.raises(InvalidTransition, match=rf"^{word.field}: "):
        compiled(word)


@pytest.mark.case("A76")
@pytest.mark.parametrize("key", [{"$gt": ""}, None, 5, b"wf"])
def test_only_text_is_a_key(key: Any) -> None:
    with pytest.raises(InvalidId, match=r"^workflow_id: expected text"):
        compiled(TOUCH, key=key)


def test_times_become_dates_wherever_they_stand_and_numbers_again_on_the_way_back() -> None:
    row = {
        "claimable_time": 1_800_000_000_123,
        "steps": [{"wait": {"poll_time": -1}, "attempt": 2**40, "errors": ({"next_time": 3},)}],
        "elapsed_ms": 5,
        "is_time": True,
        "text_time": "later",
        "outputs": {"first": b"\x00$x"},
    }
    sent = stored("", row)
    assert sent["claimable_time"] == DatetimeMS(1_800_000_000_123)
    assert sent["steps"][0]["wait"]["poll_time"] == DatetimeMS(-1)
    back = decoded(encoded("row", sent))
    assert back == {**row, "steps": [{**row["steps"][0], "errors": [{"next_time": 3}]}]}  # type: ignore[index]
    assert type(back["claimable_time"]) is int
    assert type(back["steps"][0]["attempt"]) is int


def _query(**changes: Any) -> Query:
    fields: dict[str, Any] = {
        "table": INSTANCES,
        "guards": (AtMost("claimable_time", 9),),
        "order": "claimable_time",
        "columns": ("workflow_id", "claimable_time"),
        "limit": 5,
    }
    return Query(**fields | changes)


def test_a_page_asks_for_rows_after_a_position_in_the_order_of_the_index() -> None:
    page = page_of(TABLE, _query(after=(7, "wf-3")))
    assert page.filter == {
        "claimable_time": {"$exists": True, "$lte": DatetimeMS(9), "$not": NO_LIST, "$gte": DatetimeMS(7)},
        "$or": [
            {"claimable_time": {"$gt": DatetimeMS(7)}},
            {"claimable_time": {"$eq": DatetimeMS(7)}, "workflow_id": {"$gt": "wf-3"}},
        ],
    }
    assert page.projection == {"_id": 0, "workflow_id": 1, "claimable_time": 1}
    assert page.sort == [("claimable_time", 1), ("workflow_id", 1)]


def test_a_page_in_the_order_of_the_key_goes_on_after_the_key() -> None:
    page = page_of(TABLE, _query(guards=(), order="workflow_id", after=("wf-3", "wf-3")))
    assert page.filter == {"workflow_id": {"$exists": True, "$gt": "wf-3"}}
    assert page.sort == [("workflow_id", 1)]


@pytest.mark.parametrize(
    "changes",
    [{"order": "input"}, {"columns": ("steps",)}, {"guards": (Equals("wait.kind", "timer"),)}],
)
def test_a_page_of_undeclared_columns_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTransition, match="is no declared column"):
        page_of(TABLE, _query(**changes))


def test_a_position_is_text_and_numbers_only() -> None:
    with pytest.raises(InvalidId):
        page_of(TABLE, _query(after=(7, {"$gt": ""})))
    with pytest.raises(InvalidTransition):
        page_of(TABLE, _query(after=({"$gt": 0}, "wf")))


EVERY_GUARD = (
    *(Equals("status", "s"), Differs("steps.0.status", "s"), OneOf("type", ("t",)), AtMost("deaths", 1)),
    *(AtLeast("revision", 1), Exists("wait"), Missing("parked"), Due("claimable_time"), Due("steps.1.due_time")),
)
EVERY_CLASSIC_CHANGE = (
    *(Put("worker", "w"), Clear("wait"), Add("revision", 1), RaiseTo("deaths", 1), LowerTo("retry_count", 1)),
    *(PutNow("steps.0.started_time"), Append("runs", {"a": 1}, 8), Put("steps.1.wait", {"poll_time": 1})),
)
EVERY_TOP_CHANGE = (
    *(PutNowPlus("claimable_time", 1), Put("worker", "$w"), Clear("wait"), Add("revision", 1), RaiseTo("deaths", 1)),
    *(LowerTo("retry_count", 1), PutNow("claim_time"), Append("runs", {"a": 1}, 8)),
)


@pytest.mark.parametrize("changes", [EVERY_CLASSIC_CHANGE, EVERY_TOP_CHANGE])
def test_every_word_compiles_to_words_of_the_allow_list(changes: tuple[Change, ...]) -> None:
    write = write_of(TABLE, Transition("all", INSTANCES, "wf", EVERY_GUARD, changes, "c"))
    command = {
        "findAndModify": INSTANCES,
        "query": write.filter,
        "update": write.update,
        "writeConcern": {"w": "majority", "j": True},
    }
    assert list(refusals("findAndModify", command, indexes_by_collection(TABLES.values()))) == []
