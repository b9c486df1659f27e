"""Indexes and schema version in MongoDB: made once by whoever comes first, compared by all, dropped by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel.errors import SchemaMismatch
from kernel.store.conditional import Insert
from kernel.store.mongo_schema import META, SCHEMA_VERSION
from kernel.store.tables import INSTANCES, TABLES
from tests.conformance.instances import instance_document
from tests.support.mongo_server import MongoStores


def indexes(mongo_store: MongoStores, collection: str = INSTANCES) -> dict[str, dict[str, Any]]:
    """What MongoDB says of the indexes, without what it adds of its own accord."""
    own = {"v", "ns", "name"}
    return {
        index["name"]: {option: _plain(value) for option, value in index.items() if option not in own}
        for index in mongo_store.raw()[collection].list_indexes()
        if index["name"] != "_id_"
    }


def _plain(value: Any) -> Any:
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value


@pytest.mark.req("rec-indexes", "id-biz-key", "id-workflow-id")
def test_every_index_of_the_tables_is_made_under_its_name(mongo_store: MongoStores) -> None:
    mongo_store()
    expected: dict[str, dict[str, Any]] = {"workflow_instances_key": {"key": {"workflow_id": 1}, "unique": True}}
    for index in TABLES[INSTANCES].indexes:
        expected[index.name] = {"key": dict.fromkeys(index.columns, 1)}
        if index.unique:
            expected[index.name]["unique"] = True
        if index.present is not None:
            expected[index.name]["partialFilterExpression"] = {index.present: {"$exists": True}}
    assert expected["instances_biz_key"] == {"key": {"biz_key": 1}, "unique": True}, "permanent: unique and not partial"
    assert indexes(mongo_store) == expected


@pytest.mark.case("A51")
def test_many_clients_may_prepare_at_once_and_again(mongo_store: MongoStores) -> None:
    name = mongo_store.fresh_name()
    stores = [mongo_store(database=name, prepare=False) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda store: store.prepare(), stores))
    before = indexes(mongo_store)
    stores[0].prepare()
    assert indexes(mongo_store) == before
    assert list(mongo_store.raw()[META].find({}, {"_id": 0})) == [{"name": "schema", "version": SCHEMA_VERSION}]


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ([("claimable_time", 1)], {"name": "instances_due"}),
        ([("claimable_time", 1), ("workflow_id", 1)], {"name": "instances_due"}),
        ([("biz_key", 1)], {"name": "instances_biz_key"}),
        ([("biz_key", 1)], {"name": "made by hand", "unique": True}),
        ([("biz_key", -1)], {"name": "instances_biz_key", "unique": True}),
        (
            [("biz_key", 1)],
            {"name": "instances_biz_key", "unique": True, "partialFilterExpression": {"status": {"$exists": True}}},
        ),
    ],
)
def test_an_index_that_differs_is_told_and_left_alone(
    mongo_store: MongoStores, keys: list[tuple[str, int]], options: dict[str, Any]
) -> None:
    name = mongo_store.fresh_name()
    mongo_store.raw()[INSTANCES].create_index(keys, **options)
    before = indexes(mongo_store)[options["name"]]
    with pytest.raises(
        SchemaMismatch, match=r"^collection workflow_instances: schema differs: .*instances_(due|biz_key)"
    ):
        mongo_store(database=name)
    assert indexes(mongo_store)[options["name"]] == before


@pytest.mark.req("id-biz-key")
@pytest.mark.case("A50")
def test_without_a_possible_unique_biz_key_nothing_starts(mongo_store: MongoStores) -> None:
    name = mongo_store.fresh_name()
    twice = [instance_document(key, 0, biz_key="twice") for key in ("wf-1", "wf-2")]
    mongo_store.raw()[INSTANCES].insert_many(twice)
    with pytest.raises(SchemaMismatch, match="instances_biz_key can not be made: two rows have the same biz_key"):
        mongo_store(database=name)
    assert mongo_store.raw()[META].count_documents({}) == 0, "no process may take this database for prepared"


def test_an_index_that_went_missing_is_made_again(mongo_store: MongoStores) -> None:
    store = mongo_store()
    store.insert(Insert("create", INSTANCES, "wf", instance_document("wf", 0)))
    before = indexes(mongo_store)
    mongo_store.raw()[INSTANCES].drop_index("instances_biz_key")
    store.prepare()
    assert indexes(mongo_store) == before


@pytest.mark.parametrize(
    ("version", "reason"), [(SCHEMA_VERSION + 1, "newer kernel"), (0, "no known version"), ("1", "no known version")]
)
def test_a_database_of_another_version_is_refused_and_not_touched(
    mongo_store: MongoStores, version: Any, reason: str
) -> None:
    name = mongo_store.fresh_name()
    mongo_store.raw()[META].insert_one({"name": "schema", "version": version})
    with pytest.raises(SchemaMismatch, match=reason):
        mongo_store(database=name)
    assert INSTANCES not in mongo_store.raw().list_collection_names()
