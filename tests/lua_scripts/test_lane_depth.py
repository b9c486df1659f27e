"""A pop reads the head of each lane: how deep the lanes are makes no difference that anybody could notice."""

from __future__ import annotations

import time

import pytest

from kernel.coordination.keys import Keys
from kernel.coordination.lanes import Lanes
from tests.support.redis_servers import RedisTarget

SHALLOW, DEEP, POPS = 100, 100_000, 60
DUE_MS = 1_000


def fill(target: RedisTarget, keys: Keys, members: int) -> Lanes:
    """Lanes that hold `members` ids in all, due long ago; filled as fast as the server takes them."""
    for lane, name in enumerate(keys.lanes):
        with target.client.pipeline(transaction=False) as pipe:
            for start in range(lane, members, 4 * 2_000):
                ids = range(start, min(start + 4 * 2_000, members), 4)
                pipe.zadd(name, {f"wf-{number:032x}": DUE_MS + number for number in ids})
            pipe.execute()
    return Lanes(target.runner(), keys)


def pop_s(lanes: Lanes) -> float:
    """Seconds of one pop of eight."""
    began = time.perf_counter()
    popped = lanes.pop(8)
    elapsed = time.perf_counter() - began
    assert len(popped.entries) == 8
    lanes.push(popped.entries)  # the depth stays
    return elapsed


@pytest.mark.req("lane-bulk-safe")
def test_a_pop_at_100_000_members_takes_no_longer_than_three_pops_at_100(own_redis: RedisTarget) -> None:
    """Turn by turn on one server, and the best of many: what else the machine does meets both alike, or is left out."""
    shallow = fill(own_redis, Keys("shallow"), SHALLOW)
    deep = fill(own_redis, Keys("deep"), DEEP)
    times = [(pop_s(shallow), pop_s(deep)) for _ in range(POPS)]

    assert min(deep for _, deep in times) <= 3 * min(shallow for shallow, _ in times)
    assert sum(lane.depth for lane in deep.stats()) == DEEP
