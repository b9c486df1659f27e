"""Each rule of the allow-list finds the command that breaks it, and nothing in the commands that keep them."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.observe.tables import OBSERVE_TABLES, SNAPSHOTS
from kernel.store.tables import INSTANCES, TABLES
from tests.support.mongo_allowlist import indexes_by_collection, refusals

INDEXES = indexes_by_collection(TABLES.values())
PROMISED = {"w": "majority", "j": True}
GOOD_FILTER = {"workflow_id": {"$eq": "wf"}, "$expr": {"$lte": ["$claimable_time", "$$NOW"]}}
GOOD_UPDATE = {"$set": {"steps.0.status": "running"}}


def found(name: str, command: dict[str, Any]) -> list[str]:
    return list(refusals(name, command, INDEXES))


def write(**changes: Any) -> list[str]:
    command = {"findAndModify": INSTANCES, "query": GOOD_FILTER, "update": GOOD_UPDATE, "writeConcern": PROMISED}
    return found("findAndModify", command | changes)


def read(wanted: dict[str, Any], **changes: Any) -> list[str]:
    return found("find", {"find": INSTANCES, "filter": wanted, "readConcern": {"level": "majority"}, **changes})


def test_what_the_store_says_is_allowed() -> None:
    assert write() == []
    assert write(update=[{"$set": {"worker": {"$literal": "$w"}}}, {"$unset": ["wait"]}]) == []
    assert read({"workflow_id": {"$eq": "wf"}}) == []
    assert read({"claimable_time": {"$exists": True, "$lte": 5, "$not": {"$type": "array"}}}) == []
    assert found("insert", {"insert": INSTANCES, "documents": [{}], "ordered": True, "writeConcern": PROMISED}) == []
    assert found("hello", {"hello": 1, "lsid": {}, "$db": "x"}) == []


@pytest.mark.parametrize("concern", [None, {"w": 1}, {"w": "majority"}, {"w": "majority", "j": False}, {"j": True}])
def test_a_write_without_majority_and_journal_is_refused(concern: dict[str, Any] | None) -> None:
    assert any("write concern" in line for line in write(writeConcern=concern or {}))
    insert = {"insert": INSTANCES, "documents": [{}], "writeConcern": concern or {}}
    assert any("write concern" in line for line in found("insert", insert))


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ({"update": {"$rename": {"a": "b"}}}, "update: operator $rename"),
        ({"update": {"$setOnInsert": {"a": 1}}}, "update: operator $setOnInsert"),
        ({"update": {"$set": {}}}, "update: without a change"),
        ({"update": {"$set": {"steps.$[].x": 1}}}, "update: $set on steps.$[].x"),
        ({"update": {"$push": {"runs": {"$each": [1], "$sort": 1}}}}, "update: $push with ['$each', '$sort']"),
        ({"update": {"$currentDate": {"claim_time": {"$type": "timestamp"}}}}, "$currentDate"),
        ({"update": [{"$replaceWith": {"a": 1}}]}, "pipeline: stage $replaceWith"),
        ({"update": [{"$set": {"steps.1.status": {"$literal": 1}}}]}, "steps.1.status is a field name"),
        ({"update": [{"$unset": ["steps.1.wait"]}]}, "steps.1.wait is a field name"),
        ({"update": [{"$set": {"worker": "w"}}]}, "'w' without $literal"),
        ({"update": [{"$set": {"deaths": 1}}]}, "1 without $literal"),
        ({"update": [{"$set": {"a": {"$dateAdd": {}}}}]}, "expression: $dateAdd"),
        ({"update": [{"$set": {"a": "$steps.0.status"}}]}, "$steps.0.status is a field name"),
        ({"update": [{"$set": {"a": "$$ROOT"}}]}, "variable $$ROOT"),
        ({"query": {**GOOD_FILTER, "$expr": {"$lte": ["$steps.0.due_time", "$$NOW"]}}}, "$steps.0.due_time"),
        ({"query": {**GOOD_FILTER, "$expr": {"$gt": ["$a", "$$NOW"]}}}, "expression: $gt"),
        ({"query": {**GOOD_FILTER, "$where": "1"}}, "filter: operator $where"),
        ({"query": {**GOOD_FILTER, "status": {"$regex": "r"}}}, "operator $regex on status"),
        ({"query": {**GOOD_FILTER, "$nor": [{"status": {"$ne": "r"}}]}}, "operator $ne on status"),
        ({"query": {**GOOD_FILTER, "status": "running"}}, "status is compared without an operator"),
        ({"query": {**GOOD_FILTER, "wait": {"$eq": {"kind": "x"}}}}, "wait is compared with dict"),
        ({"query": {"biz_key": {"$gt": ""}}}, "does not name one row"),
        ({"query": {"workflow_id": {"$eq": {"$gt": ""}}}}, "does not name one row"),
        ({"query": {"_id": {"$eq": "x"}}}, "does not name one row"),
        ({"upsert": True}, "upsert with $expr"),
        ({"arrayFilters": []}, "option arrayFilters"),
        ({"sort": {"a": 1}}, "option sort"),
    ],
)
def test_a_write_outside_the_list_is_refused(part: dict[str, Any], line: str) -> None:
    assert any(line in refusal for refusal in write(**part)), write(**part)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"status": {"$eq": "running"}},
        {"created_time": {"$exists": True}},  # its index holds parked rows only
        {"claimable_time": {"$exists": False}},
        {"_id": {"$eq": "x"}},
        {"$or": [{"workflow_id": {"$eq": "wf"}}]},
    ],
)
def test_a_read_that_no_index_serves_is_refused(wanted: dict[str, Any]) -> None:
    assert any("no index" in line for line in read(wanted))


def test_one_row_is_read_as_a_majority_has_it_and_a_page_as_it_is() -> None:
    local = {"level": "local"}
    assert any("read concern" in line for line in read({"workflow_id": {"$eq": "wf"}}, readConcern=local))
    assert read({"claimable_time": {"$lte": 5, "$exists": True}}, sort={"claimable_time": 1}, readConcern=local) == []


def test_other_commands_and_options_are_refused() -> None:
    assert found("aggregate", {"aggregate": INSTANCES}) == ["command aggregate"]
    assert found("getMore", {"getMore": 1}) == ["command getMore"]
    assert read({"workflow_id": {"$eq": "wf"}}, hint="x") == ["find: option hint"]
    indexes = [{"key": {"a": 1}, "name": "a", "sparse": True, "partialFilterExpression": {"a": {"$gt": 1}}}]
    assert found("createIndexes", {"createIndexes": INSTANCES, "indexes": indexes, "writeConcern": PROMISED}) == [
        "createIndexes: option sparse",
        "createIndexes: partial filter a: {'$gt': 1}",
    ]


def test_whole_rows_and_groups_are_for_observations_alone() -> None:
    own = indexes_by_collection(OBSERVE_TABLES.values())

    def kept(table: str = SNAPSHOTS, row: Any = None, **changes: Any) -> list[str]:
        query = {"biz_key": {"$eq": "job"}, "revision": {"$lte": 7, "$not": {"$type": "array"}}}
        row = {"biz_key": "job", "revision": 7} if row is None else row
        update = {"q": query, "u": row, "upsert": True, "multi": False} | changes
        return list(refusals("update", {"update": table, "updates": [update], "writeConcern": PROMISED}, own))

    def groups(table: str = SNAPSHOTS, *, count: Any = 1, by: str = "$type", last: str = "$limit") -> list[str]:
        group = {"_id": {"c0": by}, "count": {"$sum": count}, "least": {"$min": "$waiting_since"}}
        stages = [{"$match": {}}, {"$group": group}, {"$sort": {"count": -1, "_id": 1}}, {last: 9}]
        return list(refusals("aggregate", {"aggregate": table, "pipeline": stages, "cursor": {}}, own))

    assert (kept(), groups()) == ([], [])
    assert kept(INSTANCES) == ["command update"]
    assert groups(INSTANCES) == ["command aggregate"]
    assert kept(row={"$set": {"biz_key": "job"}}) == ["update: something else than a whole row"]
    assert kept(row={"biz_key": "other"}) == ["update: the row is not the one that the filter names"]
    assert any("does not name one row" in line for line in kept(multi=True))
    assert any("does not name one row" in line for line in kept(q={"revision": {"$lte": 7}}))
    assert kept(hint="x") == ["update: option hint"]
    assert groups(count=2) == ["aggregate: $group with ['_id', 'count', 'least']"]
    assert groups(by="type") == ["aggregate: 'type' is no path"]
    assert groups(last="$out") == ["aggregate: stages [['$match'], ['$group'], ['$sort'], ['$out']]"]


def test_a_removal_names_one_row_and_takes_one() -> None:
    def remove(wanted: dict[str, Any], **changes: Any) -> list[str]:
        command = {"delete": "workflow_signals", "deletes": [{"q": wanted, "limit": 1} | changes], "ordered": True}
        return found("delete", command | {"writeConcern": PROMISED})

    one = {"signal_id": {"$eq": "s"}, "match_time": {"$lte": 5, "$not": {"$type": "array"}}}
    assert remove(one) == []
    assert remove({"match_time": {"$lte": 5}}) == [
        "delete: the filter does not name one row: {'match_time': {'$lte': 5}}"
    ]
    assert any("does not name one row" in line for line in remove(one, limit=0))
    assert remove(one, collation={}) == ["delete: option collation"]
    assert remove(one | {"status": {"$ne": "x"}}) == ["filter: operator $ne on status"]
