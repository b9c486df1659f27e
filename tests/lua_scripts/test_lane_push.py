"""Push and remove: one id in one lane, priority only rises, one wakeup (REQUIREMENTS group 8)."""

from __future__ import annotations

import pytest

from kernel.coordination import LaneEntry
from kernel.errors import CoordinationRejected
from tests.lua_scripts.raw import RawLanes
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

NOW = 1_800_000_000_000


@pytest.fixture
def lanes(redis_target: RedisTarget) -> RawLanes:
    return RawLanes(redis_target)


@pytest.mark.req("lane-lower-ignored", "lane-enqueue-ignored-time")
def test_a_push_to_a_lower_lane_is_ignored_with_its_score(lanes: RawLanes) -> None:
    lanes.push("id", 0, NOW + 60_000)

    assert lanes.push("id", 2, NOW) == "ignored"
    assert lanes.push_many([("id", 1, NOW), ("id", 3, NOW)]) == (0, 0, 2)
    assert [lanes.lane(lane) for lane in range(4)] == [{"id": NOW + 60_000}, {}, {}, {}]
    assert lanes.push("id", 0, NOW) == "rescored"
    assert lanes.lane(0) == {"id": NOW}


@pytest.mark.req("lane-raise-moves", "lane-one-lane")
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("many", [False, True])
def test_a_push_to_a_higher_lane_moves_the_id(lanes: RawLanes, before: int, many: bool) -> None:
    lanes.push("id", before, NOW + 5)
    lanes.push("other", before, NOW + 6)

    if many:
        assert lanes.push_many([("id", 0, NOW), ("new", 0, NOW)]) == (2, 0, 0)
    else:
        assert lanes.push("id", 0, NOW) == "raised"

    assert lanes.lane(0)["id"] == NOW
    assert [lane for lane in range(4) if "id" in lanes.lane(lane)] == [0]
    assert lanes.lane(before) == {"other": NOW + 6}


@pytest.mark.req("lane-same-lane-score")
def test_a_push_to_the_same_lane_sets_the_new_due_time_earlier_or_later(lanes: RawLanes) -> None:
    lanes.push("id", 1, NOW + 9_000)

    assert lanes.push("id", 1, NOW + 10) == "rescored"
    assert lanes.pop(1, NOW).entries == []
    assert lanes.push_many([("id", 1, NOW + 20), ("x", 3, NOW + 99)]) == (1, 1, 0)
    assert lanes.pop(1, NOW + 19).entries == []
    assert lanes.pop(1, NOW + 20).entries == [("id", 1, NOW + 20)]


@pytest.mark.req("lane-one-lane")
def test_pushes_of_one_id_in_every_order_leave_it_in_its_highest_lane(lanes: RawLanes) -> None:
    orders = [(3, 1, 2, 0), (0, 1, 2, 3), (2, 2, 3, 1), (3, 3, 2, 2)]
    for n, order in enumerate(orders):
        for lane in order:
            lanes.push(f"id-{n}", lane, NOW)
        assert [lane for lane in range(4) if f"id-{n}" in lanes.lane(lane)] == [min(order)]


def test_an_id_twice_in_one_batch_counts_as_two_pushes(lanes: RawLanes) -> None:
    batch = [("a", 2, 5), ("a", 2, 7), ("a", 0, 9), ("b", 1, 1), ("b", 3, 2)]

    assert lanes.push_many(batch) == (2, 0, 3)
    assert [lanes.lane(lane) for lane in range(4)] == [{"a": 9}, {"b": 1}, {}, {}]
    assert lanes.push_many([("c", 2, 5), ("c", 2, 7)]) == (1, 1, 0)
    assert lanes.lane(2) == {"c": 7}


def test_a_removal_takes_ids_out_of_any_lane_and_counts_them(lanes: RawLanes) -> None:
    for lane in range(4):
        lanes.push(f"id-{lane}", lane, NOW)
    lanes.push("stays", 2, NOW)

    assert lanes.call("lane_remove", "id-0", "id-2", "id-3", "unknown") == 3
    assert [lanes.lane(lane) for lane in range(4)] == [{}, {"id-1": NOW}, {"stays": NOW}, {}]


def test_large_batches_are_split_and_counted_together(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    entries = [LaneEntry(f"id-{n}", n % 4, NOW + n) for n in range(1_203)]

    assert lanes.push(entries).raised == 1_203
    assert lanes.push(entries[:700]).rescored == 700
    assert [lane.depth for lane in lanes.stats()] == [301, 301, 301, 300]
    assert lanes.remove([entry.workflow_id for entry in entries[:1_100]]) == 1_100
    assert sum(lane.depth for lane in lanes.stats()) == 103
    assert lanes.push([]).raised == 0
    assert lanes.remove([]) == 0


def test_a_push_publishes_its_earliest_due_time_once_unless_silent_or_ignored(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    heard: list[bytes] = []
    with redis_target.client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(redis_target.keys.wakeup_channel)

        def listen() -> int:
            message = pubsub.get_message(timeout=0.1)
            if message:
                heard.append(message["data"])
            return len(heard)

        wait_until(lambda: pubsub.subscribed and listen() == 0, "the subscription stands")
        lanes.push([LaneEntry("a", 0, NOW)])
        lanes.push([LaneEntry("b", 0, NOW)], wake=False)
        lanes.push([LaneEntry("a", 3, NOW - 5)])
        lanes.push([LaneEntry("c", 2, NOW + 7), LaneEntry("d", 1, NOW + 3), LaneEntry("e", 3, NOW + 5)])
        lanes.push([LaneEntry("f", 1, NOW), LaneEntry("g", 1, NOW)], wake=False)
        lanes.push([LaneEntry("a", 1, NOW), LaneEntry("b", 2, NOW)])
        lanes.wake()
        wait_until(lambda: listen() and heard[-1] == b"0", "the last wakeup is heard")

    assert heard == [str(NOW).encode(), str(NOW + 3).encode(), b"0"]


@pytest.mark.parametrize(
    ("name", "args", "word"),
    [
        ("lane_push", ("", 4, 5, "id"), "lane"),
        ("lane_push", ("", -1, 5, "id"), "lane"),
        ("lane_push", ("", "1.5", 5, "id"), "lane"),
        ("lane_push", ("", "return 1", 5, "id"), "lane"),
        ("lane_push", ("", 0, "nan", "id"), "score_ms"),
        ("lane_push", ("", 0, "inf", "id"), "score_ms"),
        ("lane_push", ("", 0, "1e400", "id"), "score_ms"),
        ("lane_push", ("", 0, "-1", "id"), "score_ms"),
        ("lane_push", ("", 0, "0x10", "id"), "score_ms"),
        ("lane_push", ("", 0, 2**53, "id"), "score_ms"),
        ("lane_push", ("", 0, "9" * 1_000_000, "id"), "score_ms"),
        ("lane_push", ("", 0, 5, ""), "workflow_id"),
        ("lane_push", ("", 0, 5), "workflow_id"),
        ("lane_push", (), "lane"),
        ("lane_push_many", ("", 0, "", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", ""), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1fnan"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f-1"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f 5"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f0x10"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f" + "9" * 17), "score_ms"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f" + "9" * 1_000_000), "score_ms"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "b\x1f"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5", "", "", "\x1f5"), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5\x1f", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, "\x1fa\x1f5", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5\x1f\x1f6", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5b\x1f6\x1f", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, "a\x1f5\x1fb", "", "", ""), "entries"),
        ("lane_push_many", ("", 0, *["\x1f".join(f"{n}\x1f{n}" for n in range(126))] * 4), "entries"),
        ("lane_remove", (), "workflow_id"),
        ("lane_remove", tuple(str(n) for n in range(501)), "workflow_id"),
    ],
)
def test_a_bad_argument_is_refused_by_name_before_anything_is_written(
    lanes: RawLanes, name: str, args: tuple[int | str, ...], word: str
) -> None:
    with pytest.raises(CoordinationRejected, match=f"BADARG {word}: "):
        lanes.call(name, *args)

    assert lanes.target.client.dbsize() == 0
