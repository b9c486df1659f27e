"""`/livez` and `/readyz` of a real tree: what each of them says when something is away, hangs, or ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from supervisor.boot import Program
from tests.process.scraper import Scraper
from tests.process.supervised import LIMIT_S, Supervised, program
from tests.support.mongo_server import stand_in
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

APP = "tests.process.metered_flows:app"
LEASE_S = 24.0
"""A call of MongoDB may take a sixth of it; where the first one takes longer a start ends with 69."""


def wrong(found: dict[str, Any]) -> list[str]:
    return [check["name"] for check in found["checks"] if not check["ok"]]


def test_a_tree_without_redis_is_ready_and_says_so(supervise: Callable[..., Supervised]) -> None:
    tree = supervise(Program(), app=APP, metrics=0)  # its Redis does not exist
    tree.wait_running()
    scraper = Scraper(tree)

    def told() -> dict[str, Any] | None:
        """Once Redis, too, was looked at."""
        found = scraper.wait_ready(200)
        redis = next(check for check in found["checks"] if check["name"] == "redis")
        return found if "CoordinationUnavailable" in redis["error"] else None

    found = wait_until(told, "it is said why Redis is missed", LIMIT_S)
    assert found is not None and found["degraded"] == ["redis"] == wrong(found)
    assert all(check["age_s"] <= 2 for check in found["checks"] if check["ok"])


def test_a_store_that_does_not_answer_is_named_with_its_error(supervise: Callable[..., Supervised]) -> None:
    tree = supervise(program(), metrics=0, mongodb_uri="mongodb://127.0.0.1:1/")
    tree.wait_running()
    scraper = Scraper(tree)

    def told() -> dict[str, Any] | None:
        status, found = scraper.ready()
        store = next(check for check in found["checks"] if check["name"] == "store")
        return store if status == 503 and store["error"].startswith("StoreUnavailable") else None

    store = wait_until(told, "the store is said to be away", LIMIT_S)
    assert store is not None and store["age_s"] is None
    assert scraper.get("/livez")[0] == 200


@pytest.mark.fault
@pytest.mark.stand_in
def test_stores_that_go_away_and_come_back_are_told_within_seconds(
    supervise: Callable[..., Supervised], own_redis: RedisTarget
) -> None:
    """MongoDB and a Redis of our own, killed one after the other."""
    assert own_redis.server is not None
    redis_url = f"unix://{quote(own_redis.server.endpoint.path or '')}"
    with stand_in() as mongo:
        tree = supervise(Program(), app=APP, metrics=0, mongodb_uri=mongo.uri, redis_url=redis_url, lease_s=LEASE_S)
        tree.wait_running()
        scraper = Scraper(tree)
        wait_until(lambda: scraper.wait_ready(200)["degraded"] == [], "all is well", LIMIT_S)
        wait_until(lambda: scraper.value("kernel_permit_limit", resource="desk") == 4, "limits are read", LIMIT_S)

        own_redis.server.kill()
        wait_until(lambda: scraper.wait_ready(200)["degraded"] == ["redis"], "Redis is missed", LIMIT_S)
        wait_until(lambda: scraper.value("kernel_store_up", store="redis") == 0, "a worker misses it", LIMIT_S)

        mongo.kill()
        wait_until(lambda: "store" in wrong(scraper.wait_ready(503)), "the store is missed", LIMIT_S)
        wait_until(lambda: scraper.value("kernel_store_up", store="truth") == 0, "a worker misses it", LIMIT_S)
        assert scraper.value("kernel_store_errors_total", store="truth") > 0
        assert scraper.get("/livez")[0] == 200

        mongo.start()
        assert scraper.wait_ready(200)["degraded"] == ["redis"]
        wait_until(lambda: scraper.value("kernel_store_up", store="truth") == 1, "it is back for all", LIMIT_S)


def test_a_draining_tree_is_not_ready_until_its_end(supervise: Callable[..., Supervised], data_dir: Path) -> None:
    tree = supervise(program("gated"), metrics=0, drain_s=LIMIT_S)
    tree.wait_running()
    scraper = Scraper(tree)
    tree.process.send_signal(signal.SIGTERM)

    def draining() -> bool:
        status, found = scraper.ready()
        return status == 503 and "not draining" in wrong(found)

    wait_until(draining, "/readyz says that the tree drains", LIMIT_S)
    assert scraper.get("/livez")[0] == 200
    assert scraper.get("/metrics")[0] == 200
    (data_dir / "worker-may-end").touch()
    assert tree.wait_end() == 0


@pytest.mark.fault
def test_a_supervisor_that_hangs_is_not_alive_until_it_goes_on(supervise: Callable[..., Supervised]) -> None:
    tree = supervise(program(), metrics=0)
    tree.wait_running()
    scraper = Scraper(tree)
    wait_until(lambda: scraper.get("/livez")[0] == 200, "/livez says 200", LIMIT_S)
    tree.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: scraper.get("/livez")[0] == 503, "/livez says 503", LIMIT_S)
    finally:
        tree.process.send_signal(signal.SIGCONT)
    wait_until(lambda: scraper.get("/livez")[0] == 200, "/livez says 200 again", LIMIT_S)


@pytest.mark.fault
def test_the_server_is_replaced_on_the_same_socket(supervise: Callable[..., Supervised]) -> None:
    tree = supervise(program(), metrics=0)
    tree.wait_running()
    scraper = Scraper(tree)
    killed = tree.process_of("metrics")
    killed.kill()
    tree.wait_replaced("metrics", killed)
    assert tree.child("metrics")["url"] == scraper.url
    assert scraper.get("/metrics")[0] == 200
