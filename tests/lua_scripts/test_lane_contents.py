"""Strange ids and broken keys: fully working, or one clear refusal; never a crash, never another id's business."""

from __future__ import annotations

import pytest

from kernel.coordination import Keys, LaneEntry, LanePolicy, Lanes
from kernel.errors import CoordinationRejected, InvalidConfig, InvalidId, InvalidPriority, Refused
from tests.lua_scripts.raw import RawLanes
from tests.support.redis_servers import RedisTarget

HOSTILE = (
    "a:b", "a", "b", "{x}", "}{", "*", "?", "[a-z]", "\\", "\"'`", "a b", " a", "\U0001f600", "é", "e\u0301",
    "x" * 200, "0", "-1", "inf", "nan", "1e400", "1796000000000", "nil", "%s%d%n", "; redis.call('FLUSHALL')",
    "return 1", "KEYS[1]", "../../etc", "<img src=x onerror=alert(1)>", "$where", "a.b", "wk1:{tests}:lane:0",
    "LIMIT", "WITHSCORES", "NX", "--",
)  # fmt: skip
REFUSED = (
    "",
    " ",
    "a\nb",
    "a\0",
    "\x1f",
    "a\x1f5\x1fb",
    "a\x1eb",
    "a\r",
    "\u2028",
    "\ud800",
    "\x7f",
    "x" * 201,
    "x" * 10_240,
    7,
    None,
    b"a",
)


@pytest.mark.case("A39")
def test_hostile_ids_work_like_any_other(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    entries = [LaneEntry(workflow_id, n % 4, 1_000 + n) for n, workflow_id in enumerate(HOSTILE)]
    assert lanes.push(entries).raised == len(HOSTILE)
    for entry in entries:
        assert lanes.push([entry], wake=False).rescored == 1
    assert sorted(redis_target.client.keys()) == sorted(redis_target.keys.lanes)

    popped = lanes.pop(len(HOSTILE) + 1)

    assert sorted(popped.entries, key=lambda entry: entry.score_ms) == entries
    assert popped.dropped == 0
    assert lanes.push(popped.entries, wake=False).raised == len(HOSTILE), "what was not tried goes back as it came"
    for workflow_id in HOSTILE:
        assert lanes.remove([workflow_id]) == 1


@pytest.mark.case("A39", "A40")
@pytest.mark.parametrize("workflow_id", REFUSED, ids=repr)
def test_other_ids_are_refused_before_anything_is_sent(redis_target: RedisTarget, workflow_id: object) -> None:
    lanes = redis_target.lanes()
    bad = LaneEntry(workflow_id, 1, 5)  # type: ignore[arg-type]

    with pytest.raises(InvalidId, match=r"^workflow_id: "):
        lanes.push([bad])
    with pytest.raises(InvalidId, match=r"^workflow_id: "):
        lanes.push([LaneEntry("good", 1, 5), bad])
    with pytest.raises(InvalidId, match=r"^workflow_id: "):
        lanes.remove([workflow_id])  # type: ignore[list-item]

    assert redis_target.client.dbsize() == 0


@pytest.mark.parametrize(
    ("entry", "error", "field"),
    [
        (LaneEntry("id", 4, 5), InvalidPriority, "lane"),
        (LaneEntry("id", -1, 5), InvalidPriority, "lane"),
        (LaneEntry("id", True, 5), InvalidPriority, "lane"),
        (LaneEntry("id", "1", 5), InvalidPriority, "lane"),  # type: ignore[arg-type]
        (LaneEntry("id", 1, -5), Refused, "score_ms"),
        (LaneEntry("id", 1, 2**53), Refused, "score_ms"),
        (LaneEntry("id", 1, 5.0), Refused, "score_ms"),  # type: ignore[arg-type]
        (LaneEntry("id", 1, float("nan")), Refused, "score_ms"),  # type: ignore[arg-type]
        (LaneEntry("id", 1, "5"), Refused, "score_ms"),  # type: ignore[arg-type]
        (LaneEntry("id", 1, True), Refused, "score_ms"),
    ],
)
def test_a_bad_entry_is_refused_by_field(
    redis_target: RedisTarget, entry: LaneEntry, error: type[Refused], field: str
) -> None:
    with pytest.raises(error, match=f"^{field}: "):
        redis_target.lanes().push([entry])
    with pytest.raises(error, match=f"^{field}: "):
        redis_target.lanes().push([LaneEntry(f"good-{n}", n % 4, 5) for n in range(1_000)] + [entry])

    assert redis_target.client.dbsize() == 0


@pytest.mark.parametrize(
    ("weights", "burst"),
    [
        ((0, 1, 1, 1), 8),
        ((8, 6, 4), 8),
        ((50, 49, 1, 1), 8),
        ((8, 6, 4, 2.0), 8),
        ((8, 6, 4, 2), -1),
        ((8, 6, 4, 2), 100),
    ],
)
def test_a_policy_that_would_starve_a_lane_or_not_fit_is_refused(weights: tuple[int, ...], burst: int) -> None:
    with pytest.raises(InvalidConfig, match=r"^lane_(weights|burst): "):
        LanePolicy(weights, burst)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 501])
def test_a_pop_takes_one_to_five_hundred(redis_target: RedisTarget, count: int) -> None:
    with pytest.raises(Refused, match=r"^count: "):
        redis_target.lanes().pop(count)


@pytest.mark.req("lane-stale-tolerated")
def test_a_hundred_junk_members_cost_nothing_but_their_pops(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    junk = [bytes([0xFF, n]) for n in range(40)] + [b"", b"\xe2\x28\xa1"] + [b"\x00%d" % n for n in range(40)]
    junk += [b"x" * 300, b"a\nb", b" ", b"\x7f"]
    lanes.push([LaneEntry(f"real-{n}", n % 4, 500 + n) for n in range(40)])
    for n, member in enumerate(junk):
        redis_target.client.zadd(redis_target.keys.lanes[n % 4], {member: 480 + n})

    popped, dropped = [], 0
    while not (batch := lanes.pop(7)).idle:
        popped += batch.entries
        dropped += batch.dropped
    popped += batch.entries

    assert sorted(entry.workflow_id for entry in popped) == sorted(f"real-{n}" for n in range(40))
    numbers = [entry.score_ms - 500 for entry in popped]
    assert popped == [LaneEntry(f"real-{n}", n % 4, 500 + n) for n in numbers]
    assert dropped + batch.dropped == len(junk)
    assert redis_target.client.dbsize() == 1, "only the lanes' state is left"


def test_a_member_that_holds_the_separators_is_dropped_and_its_neighbours_are_kept(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    for member in ("a\x1fb", "\x1f", "\x1f\x1f", "nan\x1fnan", "tail\x1f"):
        redis_target.client.zadd(redis_target.keys.lanes[1], {member: 10})
    lanes.push([LaneEntry("before", 1, 9), LaneEntry("after", 1, 11)])

    popped = lanes.pop(8)

    assert [entry.workflow_id for entry in popped.entries] == ["before", "after"]
    assert popped.dropped == 5


@pytest.mark.parametrize(
    ("score", "popped_ms", "next_due_ms"),
    [("-inf", 0, None), ("-5", 0, None), ("1.5", 1, None), ("1e3", 1_000, None), ("inf", None, None),
     ("1e15", None, 10**15), ("1000000000000000.5", None, 10**15 + 1), ("1e300", None, None)],
)  # fmt: skip
def test_a_score_that_no_push_wrote_is_brought_into_range(
    redis_target: RedisTarget, score: str, popped_ms: int | None, next_due_ms: int | None
) -> None:
    lanes = redis_target.lanes()
    redis_target.client.execute_command("ZADD", redis_target.keys.lanes[2], score, "odd")

    popped = lanes.pop(2)
    report = lanes.report()

    assert [entry.score_ms for entry in popped.entries] == ([] if popped_ms is None else [popped_ms])
    assert popped.next_due_ms == next_due_ms
    assert report.lanes[2].depth == (popped_ms is None)
    assert report.lanes[2].ready == 0


def test_the_oldest_wait_is_never_longer_than_time_itself(redis_target: RedisTarget) -> None:
    redis_target.client.execute_command("ZADD", redis_target.keys.lanes[2], "-inf", "odd")

    report = redis_target.lanes().report()

    assert report.lanes[2].oldest_wait_ms == report.server_ms


@pytest.mark.parametrize("broken", [0, 1, 2, 3, "state"])
def test_a_key_of_a_wrong_type_is_a_typed_refusal_that_costs_no_id(
    redis_target: RedisTarget, broken: int | str
) -> None:
    keys, client, lanes = redis_target.keys, redis_target.client, redis_target.lanes()
    for lane in range(4):
        if lane != broken:
            client.zadd(keys.lanes[lane], {f"id-{lane}": 5})
    client.rpush(keys.lane_state if broken == "state" else keys.lanes[int(broken)], b"no")
    before = sum(client.zcard(key) for key in keys.lanes if client.type(key) == b"zset")

    for operation in (lambda: lanes.pop(20), lanes.stats, lanes.report):
        with pytest.raises(CoordinationRejected, match="WRONGTYPE"):
            operation()

    assert sum(client.zcard(key) for key in keys.lanes if client.type(key) == b"zset") == before
    client.delete(keys.lane_state if broken == "state" else keys.lanes[int(broken)])
    assert len(lanes.pop(20).entries) == before


@pytest.mark.parametrize(
    "value", ["", "abc", "-5", "0x10", " 17", "17 ", "1.5", "1e15", "007", "9" * 30, "9007199254740992", "nan", "\xff"]
)
def test_a_state_that_no_pop_wrote_counts_as_lost_and_is_replaced(redis_target: RedisTarget, value: str) -> None:
    lanes = RawLanes(redis_target)
    redis_target.client.set(redis_target.keys.lane_state, value)
    lanes.push("id", 2, 5)

    assert lanes.pop(1, 1_800_000_000_000).entries == [("id", 2, 5)]
    assert lanes.state() == 180_000_000_000 * 10_000 + 15
    assert lanes.pop(1, 1_800_000_000_500).idle == (1_800_000_000_500, 180_000_000_000, -1)


def test_a_cursor_or_window_of_other_weights_is_brought_into_range(redis_target: RedisTarget) -> None:
    now = 1_800_000_000_000
    wide, narrow = RawLanes(redis_target, (70, 10, 10, 10), 90), RawLanes(redis_target, (1, 1, 1, 1), 2)
    wide.push("id", 3, 5)
    wide.pop(2, now)
    assert (wide.state() or 0) % 10_000 == 90 * 100 + 91

    narrow.push_many([(f"p0-{n}", 0, n) for n in range(6)] + [(f"p1-{n}", 1, n) for n in range(6)])

    popped = [entry[0][:2] for _ in range(6) for entry in narrow.pop(1, now).entries]
    assert popped == ["p0", "p0", "p0", "p1", "p0", "p1"]


def test_the_lanes_of_two_namespaces_never_meet(redis_target: RedisTarget) -> None:
    runner = redis_target.runner()
    one, two = Lanes(runner, Keys("one")), Lanes(runner, Keys("one_two"))
    one.push([LaneEntry("of-one", 0, 5)])
    two.push([LaneEntry("of-two", 0, 5)])

    assert [entry.workflow_id for entry in one.pop(8).entries] == ["of-one"]
    assert [entry.workflow_id for entry in two.pop(8).entries] == ["of-two"]
