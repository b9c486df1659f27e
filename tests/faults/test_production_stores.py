"""The same tree on the production stores: MongoDB behind its protocol, and a Redis that is somebody else's."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from kernel.store.tables import INSTANCES
from tests.faults.apps import NAPPING, STEADY
from tests.faults.rig import LIMIT_S, tree
from tests.support.mongo_server import MongoStores
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until


@pytest.mark.fault
@pytest.mark.req("core-roles-swappable", "core-worker-replaceable", "dc-fork-safety", "core-redis-loss-latency")
def test_workflows_survive_kills_and_a_wipe_on_mongodb_and_redis(
    tmp_path: Path, mongo_store: MongoStores, own_redis: RedisTarget
) -> None:
    mongo_store()  # a fresh, prepared database of this test
    (database,) = mongo_store.databases
    assert own_redis.server is not None
    redis_url = f"unix://{quote(own_redis.server.endpoint.path or '')}"
    settings = {"mongodb_uri": mongo_store.server.uri, "mongodb_database": database, "redis_url": redis_url}
    settings["lease_s"] = 30.0  # and with it 5 s for each answer of a stand-in that is slow on a busy machine

    with tree(tmp_path / "data", **settings) as running:
        ids = running.start_many(STEADY, "steady", 12, hold_s=0.05) + running.start_many(NAPPING, "nap", 8, nap_s=0.3)
        wait_until(lambda: running.effects.of(ids[0]), "work has begun", timeout=LIMIT_S)
        running.session.kill_child(0)
        own_redis.client.flushall()
        running.session.kill_child(1)
        wait_until(
            lambda: all(running.row(key)["status"] == "completed" for key in ids), "all complete", timeout=LIMIT_S
        )

        rows = [mongo_store.raw(database)[INSTANCES].find_one({"workflow_id": key}) for key in ids]

    assert [row["status"] for row in rows if row is not None] == ["completed"] * len(ids)
    assert all(row is not None and "claim_token" not in row for row in rows)
    assert not (tmp_path / "data" / "store.sqlite").exists(), "the embedded store is not touched"
    assert not (tmp_path / "data" / "valkey.log").exists(), "and no embedded Redis is started"
