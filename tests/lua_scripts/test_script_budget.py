"""What a call costs the server, in commands: the noise-free measure (REDIS.md §8). No test here reads a clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel.coordination import LaneEntry, Lanes
from tests.support.redis_servers import RedisTarget

FAR = 2**53 - 1


def calls_of(target: RedisTarget, operation: Callable[[], object]) -> dict[str, int]:
    """Commands that the scripts of `operation` ran, by name, once their text is known to the server."""
    target.client.config_resetstat()
    operation()
    stats = target.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    return {name: count for name, count in calls.items() if name not in ("evalsha", "info", "config|resetstat")}


@pytest.fixture
def lanes(real_redis: RedisTarget) -> Lanes:
    """Lanes whose scripts the server knows, all of them holding due entries, in the middle of a round."""
    lanes = real_redis.lanes()
    lanes.push([LaneEntry("warm", 0, 1)])
    lanes.push([LaneEntry("warm", 0, 1), LaneEntry("warm2", 0, 1)])
    lanes.remove(["warm", "warm2"])
    lanes.report()
    lanes.push([LaneEntry(f"p{lane}-{n}", lane, n) for lane in range(4) for n in range(100)], wake=False)
    lanes.pop(1)
    return lanes


def test_a_pop_that_hits_runs_five_commands(real_redis: RedisTarget, lanes: Lanes) -> None:
    for _ in range(45):
        calls = calls_of(real_redis, lambda: lanes.pop(1))
        assert calls == {"time": 1, "get": 1, "zrange": 1, "zremrangebyrank": 1, "incrby": 1}


def test_a_pop_whose_lane_is_dry_looks_at_each_lane_once(real_redis: RedisTarget, lanes: Lanes) -> None:
    lanes.remove([f"p{lane}-{n}" for lane in range(3) for n in range(100)])

    calls = calls_of(real_redis, lambda: lanes.pop(1))

    assert calls == {"time": 1, "get": 1, "zrange": 4, "zremrangebyrank": 1, "incrby": 1}


def test_a_batch_runs_two_commands_per_lane_that_it_takes_from(real_redis: RedisTarget, lanes: Lanes) -> None:
    # The cursor stands at 1: seven of lane 0, then one of lane 1.
    assert sum(calls_of(real_redis, lambda: lanes.pop(8)).values()) == 3 + 2 * 2
    assert sum(calls_of(real_redis, lambda: lanes.pop(100)).values()) <= 3 + 4 + 20 * 4


def test_a_batch_from_the_only_lane_with_due_entries_takes_them_at_once(real_redis: RedisTarget, lanes: Lanes) -> None:
    lanes.remove([f"p{lane}-{n}" for lane in range(3) for n in range(100)])

    assert sum(calls_of(real_redis, lambda: lanes.pop(90)).values()) <= 3 + 4 + 1 + 1


def test_an_idle_pop_runs_six_commands_and_writes_nothing_once_the_window_is_open(
    real_redis: RedisTarget, lanes: Lanes
) -> None:
    lanes.pop(500)
    lanes.push([LaneEntry(f"later-{n}", n % 4, FAR) for n in range(40)], wake=False)

    for count in (1, 8, 500):
        calls = calls_of(real_redis, lambda count=count: lanes.pop(count))  # type: ignore[misc]
        assert calls == {"time": 1, "get": 1, "zrange": 4}


def test_the_first_idle_pop_writes_once(real_redis: RedisTarget, lanes: Lanes) -> None:
    lanes.remove([f"p{lane}-{n}" for lane in range(4) for n in range(100)])

    assert calls_of(real_redis, lambda: lanes.pop(1)) == {"time": 1, "get": 1, "zrange": 4, "incrby": 1}


@pytest.mark.parametrize("lane", range(4))
def test_a_push_runs_four_commands_and_one_to_wake(real_redis: RedisTarget, lanes: Lanes, lane: int) -> None:
    new, same = [LaneEntry("new", lane, 5)], [LaneEntry("new", lane, 6)]

    assert sum(calls_of(real_redis, lambda: lanes.push(new, wake=False)).values()) == 4
    assert sum(calls_of(real_redis, lambda: lanes.push(same, wake=False)).values()) == lane + 1
    calls = calls_of(real_redis, lambda: lanes.push([LaneEntry("new2", lane, 5)]))
    assert calls.pop("publish") == 1
    assert sum(calls.values()) == 4


def test_a_push_of_five_hundred_runs_ten_commands_and_one_to_wake(real_redis: RedisTarget, lanes: Lanes) -> None:
    entries = [LaneEntry(f"new-{n}", n % 4, n) for n in range(500)]

    assert calls_of(real_redis, lambda: lanes.push(entries)) == {"zadd": 4, "zmscore": 3, "zrem": 3, "publish": 1}
    assert calls_of(real_redis, lambda: lanes.push(entries)) == {"zadd": 4, "zmscore": 3, "publish": 1}


@pytest.mark.parametrize("lane", range(4))
def test_a_push_of_many_to_one_lane_runs_four_commands(real_redis: RedisTarget, lanes: Lanes, lane: int) -> None:
    entries = [LaneEntry(f"new-{n}", lane, n) for n in range(100)]

    assert sum(calls_of(real_redis, lambda: lanes.push(entries, wake=False)).values()) == 4


def test_a_pop_from_lanes_of_a_hundred_thousand_runs_as_few_commands(real_redis: RedisTarget, lanes: Lanes) -> None:
    for start in range(0, 100_000, 500):
        lanes.push([LaneEntry(f"deep-{n}", 3, n) for n in range(start, start + 500)], wake=False)

    assert sum(calls_of(real_redis, lambda: lanes.pop(1)).values()) <= 5
