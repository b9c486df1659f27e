"""The pop: due ids in the order of weights, rotation and burst window, on every server (REQUIREMENTS group 8)."""

from __future__ import annotations

import random

import pytest

from kernel.coordination.lanes import DEFAULT_BURST, DEFAULT_WEIGHTS
from kernel.errors import CoordinationRejected
from tests.lua_scripts.raw import RawLanes, lanes_of
from tests.support.redis_servers import RedisTarget

NOW = 1_800_000_000_000
ROUND = "0" * 8 + "1" * 6 + "2" * 4 + "3" * 2


@pytest.fixture
def lanes(redis_target: RedisTarget) -> RawLanes:
    return RawLanes(redis_target)


@pytest.mark.req("lane-four", "lane-member-score")
def test_each_priority_lands_in_its_own_key_with_its_due_time_as_score(lanes: RawLanes) -> None:
    for lane in range(4):
        lanes.push(f"id-{lane}", lane, NOW + lane)

    names = [f"wk1:{{tests}}:lane:{lane}".encode() for lane in range(4)]
    assert sorted(lanes.target.client.keys()) == names
    assert [lanes.lane(lane) for lane in range(4)] == [{f"id-{lane}": NOW + lane} for lane in range(4)]


@pytest.mark.req("lane-earliest-due")
def test_within_a_lane_the_earliest_due_comes_first(lanes: RawLanes) -> None:
    scores = random.Random(7).sample(range(1_000, 9_000), 60)
    for score in scores:
        lanes.push(f"id-{score}", 2, score)

    popped = [entry[2] for _ in range(60) for entry in lanes.pop(1, NOW).entries]

    assert popped == sorted(scores)


@pytest.mark.req("lane-future-stays")
def test_an_entry_is_not_popped_before_its_time(lanes: RawLanes) -> None:
    lanes.push("later", 0, NOW + 2_000)

    assert lanes.pop(1, NOW + 1_999).entries == []
    assert lanes.target.client.zcard(lanes.target.keys.lanes[0]) == 1
    assert lanes.pop(1, NOW + 2_000).entries == [("later", 0, NOW + 2_000)]


@pytest.mark.req("lane-weights")
def test_with_all_lanes_due_a_round_is_eight_six_four_two_in_blocks(lanes: RawLanes) -> None:
    for lane in range(4):
        lanes.fill(lane, 20)

    assert lanes_of(lanes.pop_ids(40, NOW)) == ROUND * 2


@pytest.mark.req("lane-weights")
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (5, 3, 1, 7), (97, 1, 1, 1)])
def test_other_weights_give_other_rounds(redis_target: RedisTarget, weights: tuple[int, ...]) -> None:
    lanes = RawLanes(redis_target, weights)
    for lane in range(4):
        lanes.fill(lane, 2 * weights[lane])

    popped = lanes_of([entry[0] for entry in lanes.pop(2 * sum(weights), NOW).entries])

    assert popped == "".join(str(lane) * weight for lane, weight in enumerate(weights)) * 2


@pytest.mark.req("lane-skip")
def test_a_lane_without_due_entries_is_skipped_in_the_same_pop(lanes: RawLanes) -> None:
    lanes.fill(2, 30)
    lanes.push("later", 0, NOW + 1)

    assert lanes_of(lanes.pop_ids(30, NOW)) == "2" * 30


@pytest.mark.req("lane-skip-forfeit")
def test_turns_of_a_skipped_lane_are_not_saved_up(lanes: RawLanes) -> None:
    for lane in (1, 2, 3):
        lanes.fill(lane, 20)
    assert lanes_of(lanes.pop_ids(8, NOW)) == "1" * 6 + "2" * 2

    lanes.fill(0, 20)

    assert lanes_of(lanes.pop_ids(18, NOW)) == "2" * 2 + "3" * 2 + "0" * 8 + "1" * 6


@pytest.mark.bound("L7")
@pytest.mark.req("lane-p3-progress", "l7")
@pytest.mark.case("A44")
def test_lane_3_gets_two_of_any_twenty_pops_under_endless_load(lanes: RawLanes) -> None:
    for lane in range(3):
        lanes.fill(lane, 80)
    for n in range(10):
        # Half of them become due while the load goes on.
        lanes.push(f"p3-{n:03}", 3, NOW - 1_000 if n < 5 else NOW + 50)
    popped = lanes_of(lanes.pop_ids(50, NOW) + lanes.pop_ids(60, NOW + 50))

    lane_3 = [at for at, lane in enumerate(popped) if lane == "3"]
    assert popped.count("3") == 10
    for start in range(lane_3[0] - 18, lane_3[4] - 18):
        assert popped[max(start, 0) : start + 20].count("3") >= 2, popped


@pytest.mark.req("lane-not-fifo")
def test_a_new_realtime_id_does_not_queue_behind_a_backfill(lanes: RawLanes) -> None:
    for start in range(0, 5_000, 500):
        lanes.push_many([(f"p3-{n}", 3, 1_000 + n) for n in range(start, start + 500)])
    lanes.pop_ids(3, NOW)

    lanes.push("p0-new", 0, NOW)

    assert "p0-new" in lanes.pop_ids(13, NOW)


@pytest.mark.req("lane-burst-arm", "lane-burst-after")
def test_after_an_idle_pop_eight_pops_look_at_lane_0_first_then_the_rotation_goes_on_where_it_stood(
    lanes: RawLanes,
) -> None:
    for lane in (1, 2):
        lanes.fill(lane, 4)
    assert lanes_of(lanes.pop_ids(7, NOW)) == "1111222"
    lanes.pop_ids(2, NOW)
    for lane in range(4):
        lanes.fill(lane, 40, 2_000)

    # The cursor stood inside the block of lane 2: 4 of its 4 turns are used, lane 3 is next.
    assert lanes_of(lanes.pop_ids(8, NOW)) == "0" * 8
    assert lanes_of(lanes.pop_ids(22, NOW)) == "33" + ROUND


@pytest.mark.req("lane-burst-arm")
def test_an_idle_pop_leaves_the_cursor_where_it_was(lanes: RawLanes) -> None:
    lanes.fill(1, 3)
    lanes.pop_ids(3, NOW)
    cursor = (lanes.state() or 0) % 100

    lanes.pop(1, NOW)

    assert cursor == 8 + 3
    assert (lanes.state() or 0) % 10_000 == 8 * 100 + cursor


@pytest.mark.req("lane-burst-early-end")
def test_the_pop_that_finds_lane_0_dry_ends_the_window_and_serves_the_rotation(lanes: RawLanes) -> None:
    lanes.pop(1, NOW)
    lanes.fill(0, 3)
    lanes.fill(1, 20)
    assert lanes_of(lanes.pop_ids(4, NOW)) == "0001"

    lanes.fill(0, 20, 5_000)

    assert lanes_of(lanes.pop_ids(5, NOW)) == "11111"
    assert lanes_of(lanes.pop_ids(1, NOW)) == "0", "the next block of lane 0 comes in its turn only"


@pytest.mark.req("lane-burst-only-idle")
def test_lane_0_being_dry_alone_does_not_open_a_window(lanes: RawLanes) -> None:
    lanes.fill(1, 20)
    lanes.pop_ids(3, NOW)
    assert (lanes.state() or 0) // 100 % 100 == 0

    lanes.fill(0, 20)

    assert lanes_of(lanes.pop_ids(4, NOW)) == "1110"


@pytest.mark.req("lane-burst-delayed")
def test_lanes_with_only_future_entries_count_as_idle(lanes: RawLanes) -> None:
    for lane in range(4):
        lanes.push(f"later-{lane}", lane, NOW + 500 + lane)

    popped = lanes.pop(1, NOW)

    assert popped.entries == []
    assert (lanes.state() or 0) // 100 % 100 == 8


@pytest.mark.req("lane-pop-one")
def test_a_batch_is_as_many_single_pops_and_ends_with_the_first_idle_one(redis_target: RedisTarget) -> None:
    batch, single = RawLanes(redis_target), RawLanes(redis_target)
    for lane, size in ((0, 5), (1, 3), (3, 9)):
        batch.fill(lane, size)
    together = batch.pop(30, NOW)
    state = batch.state()
    redis_target.client.flushall()
    for lane, size in ((0, 5), (1, 3), (3, 9)):
        single.fill(lane, size)

    one_by_one = single.pop_ids(18, NOW)

    assert [entry[0] for entry in together.entries] == one_by_one
    assert together.idle is not None
    assert single.state() == state


def test_an_idle_pop_tells_when_the_next_entry_becomes_due(lanes: RawLanes) -> None:
    assert lanes.pop(1, NOW).idle == (NOW, NOW // 10, -1)
    lanes.push("late", 0, NOW + 900)
    lanes.push("soon", 3, NOW + 300)
    lanes.push("now", 2, NOW)

    assert lanes.pop(1, NOW).idle is None
    assert lanes.pop(1, NOW).idle == (NOW, NOW // 10, NOW + 300)
    # Also when the same pop took something before it found no more.
    lanes.push("now", 2, NOW)
    assert lanes.pop(8, NOW).idle == (NOW, NOW // 10, NOW + 300)


def test_the_epoch_stays_over_hits_and_idle_pops_and_changes_with_a_wipe(lanes: RawLanes) -> None:
    lanes.fill(0, 2)
    lanes.pop_ids(2, NOW)
    for later in (0, 5_000, 90_000):
        lanes.push("one", 0, 1_000)
        assert lanes.pop(2, NOW + later).idle == (NOW + later, NOW // 10, -1)

    lanes.target.client.flushall()
    lanes.push("pushed before the first pop", 1, 1_000)

    assert lanes.pop(1, NOW + 100_000).idle is None
    assert lanes.pop(1, NOW + 200_000).idle == (NOW + 200_000, (NOW + 100_000) // 10, -1)


@pytest.mark.req("dc-lua-time")
def test_time_going_back_hides_entries_and_breaks_nothing(lanes: RawLanes) -> None:
    lanes.push("a", 1, NOW)
    lanes.push("b", 1, NOW - 10_000)

    assert lanes.pop(1, NOW - 20_000).idle == (NOW - 20_000, NOW // 10 - 2_000, NOW - 10_000)
    assert lanes.pop(2, NOW - 5_000).entries == [("b", 1, NOW - 10_000)]
    assert lanes.pop(2, NOW).entries == [("a", 1, NOW)]


@pytest.mark.req("dc-lua-time")
def test_without_a_given_time_the_clock_of_the_server_decides(lanes: RawLanes) -> None:
    seconds, micros = lanes.target.client.time()
    server_ms = seconds * 1_000 + micros // 1_000
    lanes.push("due", 0, server_ms)
    lanes.push("future", 0, server_ms + 3_600_000)

    assert lanes.call("lane_pop", 1) == f"0\x1fdue\x1f{server_ms}".encode()
    now_ms, epoch, next_due_ms = lanes.call("lane_pop", 1)
    assert 0 <= now_ms - server_ms < 60_000
    assert (now_ms // 10 - epoch) < 6_000
    assert next_due_ms == server_ms + 3_600_000


def test_the_policy_that_the_script_assumes_is_the_one_that_python_leaves_out(lanes: RawLanes) -> None:
    def popped(*policy: int) -> str:
        lanes.target.client.flushall()
        lanes.call("lane_pop", 1, *policy)
        for lane in range(4):
            lanes.fill(lane, 40)
        return "".join(lanes.call("lane_pop", 1, *policy)[:1].decode() for _ in range(48))

    explicit = popped(DEFAULT_BURST, *DEFAULT_WEIGHTS)

    assert explicit == "0" * 8 + ROUND * 2
    assert popped() == explicit


@pytest.mark.parametrize(
    "args",
    [(0,), (-1,), (501,), ("1.5",), ("nan",), ("x",), ("",), (1, 8, 8, 6, 4), (1, 8, 0, 6, 4, 2), (1, -1, 8, 6, 4, 2),
     (1, 100, 8, 6, 4, 2), (1, 8, 50, 50, 1, 1), (1, 8, "8.5", 6, 4, 2), (1, 8, 8, 6, 4, 2, "x"), ()],
)  # fmt: skip
def test_a_bad_argument_is_refused_by_name_and_changes_nothing(lanes: RawLanes, args: tuple[int | str, ...]) -> None:
    lanes.fill(0, 2)

    with pytest.raises(CoordinationRejected, match=r"BADARG (count|burst|weight|now_ms): "):
        lanes.call("lane_pop", *args)

    assert lanes.state() is None
    assert len(lanes.lane(0)) == 2
