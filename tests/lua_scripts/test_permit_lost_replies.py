"""An answer of Redis gets lost when a place is asked for or given back (A28): one place, one waiter, one start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernel.clock import SystemClock
from kernel.config import Limit
from kernel.coordination import CircuitBreaker, Owner, Permits, ScriptRunner
from kernel.coordination.permits import Granted, Refused
from kernel.errors import CoordinationUnavailable
from tests.lua_scripts.proxy import Proxy, proxied
from tests.support.redis_servers import RedisTarget

LEASE_MS = 60_000
ONE = Limit(max_concurrency=1)
STARTS = Limit(max_starts_per_second=3)


@contextmanager
def desk(target: RedisTarget) -> Iterator[tuple[Proxy, Permits]]:
    assert target.server is not None
    with proxied(target.server.socket) as proxy:
        breaker = CircuitBreaker(SystemClock(), failures=100)
        runner = ScriptRunner(proxy.endpoint.connection, SystemClock(), call_timeout_s=1.0, breaker=breaker)
        yield proxy, Permits(runner, target.keys, lease_ms=LEASE_MS, wait_ms=LEASE_MS)
        runner.close()


def owner(number: int) -> Owner:
    return Owner(f"wf-{number}", "print", "token")


@pytest.mark.case("A28")
@pytest.mark.crash("22")
@pytest.mark.req("prm-idempotent", "prm-release-owner-only")
def test_a_lost_answer_takes_one_place_and_gives_back_one(real_redis: RedisTarget) -> None:
    with desk(real_redis) as (proxy, permits):
        permits.acquire("printer", owner(0), ONE, lane=1)  # loads the scripts
        permits.release("printer", [owner(0)], ONE)
        for number in range(1, 3):
            proxy.lose_replies = 1
            with pytest.raises(CoordinationUnavailable):
                permits.acquire("printer", owner(number), ONE, lane=1)
            assert holders(real_redis) == 1, "the one call took one place"

            again = permits.acquire("printer", owner(number), ONE, lane=1)
            assert isinstance(again, Granted) and again.kind == "renewed"
            assert holders(real_redis) == 1, "the same owner asks again and holds one"

            proxy.lose_replies = 1
            with pytest.raises(CoordinationUnavailable):
                permits.release("printer", [owner(number)], ONE)
            assert holders(real_redis) == 0
            granted = permits.acquire("printer", owner(100 + number), ONE, lane=1)
            assert isinstance(granted, Granted)

            permits.release("printer", [owner(number)], ONE)  # the repeat of a release that took effect
            assert holders(real_redis) == 1, "the place of the next owner is not given back"
            permits.release("printer", [owner(100 + number)], ONE)
        assert holders(real_redis) == 0


@pytest.mark.case("A28")
@pytest.mark.req("prm-idempotent")
def test_a_refusal_that_got_lost_makes_one_waiter_and_a_grant_one_start(real_redis: RedisTarget) -> None:
    with desk(real_redis) as (proxy, permits):
        permits.acquire("printer", owner(0), ONE, lane=1)
        permits.acquire("window", owner(0), STARTS, lane=1)
        proxy.lose_replies = 1
        with pytest.raises(CoordinationUnavailable):
            permits.acquire("printer", owner(1), ONE, lane=1)
        places = [permits.acquire("printer", owner(1), ONE, lane=1) for _ in range(3)]
        assert {place.place for place in places if isinstance(place, Refused)} == {1}, "it has one place in the line"
        assert real_redis.client.zcard(real_redis.keys.permit("printer")["permit_line"]) <= 1

        proxy.lose_replies = 1
        with pytest.raises(CoordinationUnavailable):
            permits.acquire("window", owner(2), STARTS, lane=1, request=7)
        starts = real_redis.client.llen(real_redis.keys.permit("window")["permit_starts"])
        again = permits.acquire("window", owner(2), STARTS, lane=1, request=7)
        assert isinstance(again, Granted) and again.kind == "renewed", "no start of its own"
        assert real_redis.client.llen(real_redis.keys.permit("window")["permit_starts"]) == starts == 2
        real_redis.client.flushall()


def holders(target: RedisTarget) -> int:
    key = target.keys.permit("printer")["permit_holders"]
    members = target.client.hkeys(key) if target.client.type(key) == b"hash" else target.client.zrange(key, 0, -1)
    return sum(b"wf-" in member for member in members)
