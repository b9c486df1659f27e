"""The statistics of the lanes (REQUIREMENTS lane-stats, lane-stats-use)."""

from __future__ import annotations

import pytest

from kernel.coordination import LaneEntry, LaneStats
from tests.lua_scripts.raw import RawLanes
from tests.support.redis_servers import RedisTarget

NOW = 1_800_000_000_000


@pytest.mark.req("lane-stats")
def test_depth_ready_delayed_and_oldest_wait_of_each_lane(redis_target: RedisTarget) -> None:
    lanes = RawLanes(redis_target)
    lanes.push_many([("a", 0, NOW - 700), ("b", 0, NOW), ("c", 0, NOW + 1), ("d", 2, NOW + 9_000), ("e", 3, NOW - 5)])

    assert lanes.call("lane_stats", NOW)[4:] == [3, 2, 1, 700, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 5]


@pytest.mark.req("lane-stats")
def test_the_report_tells_cursor_window_and_epoch_as_well(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    fresh = lanes.report()
    lanes.push([LaneEntry("a", 1, 5), LaneEntry("later", 3, 2**53 - 1)])
    idle = lanes.pop(2)

    report = lanes.report()

    assert (fresh.epoch, fresh.cursor, fresh.burst_left) == (None, 0, 0)
    assert (report.epoch, report.cursor, report.burst_left) == (idle.epoch, 9, 8)
    assert idle.epoch is not None
    assert idle.server_ms is not None
    assert report.server_ms >= idle.server_ms
    assert report.lanes == lanes.stats()
    assert report.lanes[3] == LaneStats(lane=3, depth=1, ready=0, delayed=1, oldest_wait_ms=0)


@pytest.mark.req("lane-stats-use")
def test_a_lane_that_nobody_serves_shows_a_growing_wait_while_others_stay_at_nothing(redis_target: RedisTarget) -> None:
    lanes = RawLanes(redis_target)
    lanes.fill(3, 20, NOW)

    waits = [lanes.call("lane_stats", NOW + later)[4:] for later in (1_000, 2_000, 60_000)]

    assert [numbers[15] for numbers in waits] == [1_000, 2_000, 60_000]
    assert all(numbers[3] == 0 for numbers in waits)


@pytest.mark.req("dc-lua-time")
def test_statistics_change_nothing(real_redis: RedisTarget) -> None:
    lanes = real_redis.lanes()
    lanes.push([LaneEntry("a", 1, 5)])
    lanes.stats()
    writes = real_redis.client.info("persistence")["rdb_changes_since_last_save"]

    for _ in range(5):
        lanes.report()

    assert real_redis.client.info("persistence")["rdb_changes_since_last_save"] == writes
