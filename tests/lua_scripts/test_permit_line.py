"""The line of a resource: who is next, how a place is handed over, and what becomes of one that nobody takes."""

from __future__ import annotations

from collections import Counter

import pytest

from kernel.coordination.permits import HANDED_MAX
from tests.lua_scripts.permit_raw import START, Limits, RawPermits
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

ONE: Limits = (1, 0, False)
HOLDER = ("h", "print", "t")


@pytest.fixture
def permits(redis_target: RedisTarget) -> RawPermits:
    return RawPermits(redis_target)


def fill(permits: RawPermits, size: int, *, limits: Limits = ONE, lane: int = 1, wait: int = 600_000) -> list[str]:
    """The holder `h`, and `size` waiters of one lane behind it, in order."""
    permits.acquire("h", limits, START)
    names = [f"p{lane}-{n:03}" for n in range(size)]
    for name in names:
        assert permits.acquire(name, limits, START + 1, lane=lane, wait=wait)[0] == 0
    return names


def turn(permits: RawPermits, holder: tuple[str, str, str], now: int, *, limits: Limits = ONE) -> str:
    """The holder ends; whoever gets its place comes and takes it. Returns who that was."""
    assert permits.release([holder], limits, now) == [1, 1]
    ((workflow_id, step),) = permits.scores("reserved")
    assert permits.acquire(workflow_id, limits, now + 1, step=step)[0] == 3
    return workflow_id


@pytest.mark.req("prm-release", "prm-retry-delay")
def test_a_release_hands_the_place_to_the_next_in_line(permits: RawPermits) -> None:
    names = fill(permits, 3)

    assert permits.release([HOLDER], ONE, START + 50) == [1, 1]

    assert permits.scores("reserved") == {(names[0], "print"): START + 50 + 2_000}
    assert permits.ready(1) == {names[0]: START + 50}, "its id is in its ready lane, due now"
    assert permits.holders() == {}
    assert permits.acquire("new", ONE, START + 60)[:2] == [0, b"concurrency"], "nobody else gets the place"
    assert permits.acquire(names[1], ONE, START + 61)[:2] == [0, b"concurrency"]
    assert permits.acquire(names[0], ONE, START + 62, token="claim-2") == [3, START]
    assert list(permits.holders()) == [(names[0], "print", "claim-2")]
    assert (names[0], "print") not in permits.line()


@pytest.mark.req("prm-release")
def test_the_wakeup_is_published_in_the_same_step(redis_target: RedisTarget) -> None:
    permits = RawPermits(redis_target)
    fill(permits, 1)
    listener = redis_target.client.pubsub(ignore_subscribe_messages=True)
    channel = redis_target.keys.wakeup_channel
    listener.subscribe(channel)
    heard: list[bytes] = []

    def listen() -> bool:
        message = listener.get_message(timeout=0.1)
        heard.extend([message["data"]] if message else [])
        return bool(heard)

    listener.get_message(timeout=1)
    permits.release([HOLDER], ONE, START + 50, channel=channel)

    wait_until(listen, "the wakeup is heard")
    assert heard == [str(START + 50).encode()]
    listener.close()


@pytest.mark.req("prm-release")
def test_the_line_is_first_come_first_served_within_a_lane(permits: RawPermits) -> None:
    names = fill(permits, 5)

    served = [turn(permits, HOLDER, START + 100)]
    for n in range(4):
        served.append(turn(permits, (served[-1], "print", "t"), START + 200 + 100 * n))

    assert served == names


@pytest.mark.req("prm-release", "lane-weights")
def test_the_four_lanes_are_served_8_6_4_2(permits: RawPermits) -> None:
    for lane in (3, 2, 1, 0):
        fill(permits, 20, lane=lane)

    served = [turn(permits, HOLDER, START + 100)]
    for n in range(39):
        served.append(turn(permits, (served[-1], "print", "t"), START + 110 + 10 * n))

    order = "".join(name[1] for name in served)
    assert order == ("0" * 8 + "1" * 6 + "2" * 4 + "3" * 2) * 2
    assert Counter(order) == {"0": 16, "1": 12, "2": 8, "3": 4}


@pytest.mark.req("prm-refused")
def test_asking_again_keeps_the_place_in_line_and_a_raised_priority_moves_it(permits: RawPermits) -> None:
    names = fill(permits, 3)
    before = permits.line()

    again = permits.acquire(names[1], ONE, START + 500, token="another-claim", wait=600_000)
    assert permits.line() == before
    assert again[3] == 2

    raised = permits.acquire(names[2], ONE, START + 600, lane=0, wait=600_000)
    assert permits.line()[names[2], "print"] == (0, 1)
    assert raised[3] == 1


@pytest.mark.req("prm-lua-steps")
def test_a_newcomer_is_refused_only_while_a_live_entry_waits(permits: RawPermits) -> None:
    fill(permits, 1, wait=1_000)
    permits.release([HOLDER], (1, 0, True), START + 10)

    # The place is free, and the one who waits has until START + 11001 to come for it.
    assert permits.acquire("new", ONE, START + 11_000, wait=1_000)[:2] == [0, b"line"]
    permits = RawPermits(permits.target, resource="another")
    fill(permits, 1, wait=1_000)
    permits.release([HOLDER], (1, 0, True), START + 10)
    assert permits.acquire("new", ONE, START + 11_001)[0] == 1


def stands(permits: RawPermits, pair: tuple[str, str]) -> set[str]:
    """The parts of the line that know this pair."""
    return {part for part in ("line", "waiting", "reserved") if pair in permits.scores(part)}


@pytest.mark.req("prm-release", "can-wait-released")
def test_who_waits_no_longer_leaves_the_line_and_its_place_goes_to_the_next_at_once(permits: RawPermits) -> None:
    names = fill(permits, 3)
    pairs = [(name, "print") for name in names]
    permits.release([HOLDER], ONE, START + 50)
    assert [stands(permits, pair) for pair in pairs[:2]] == [{"line", "waiting", "reserved"}, {"line", "waiting"}]

    assert permits.release([pairs[0], ("unknown", "print")], ONE, START + 60) == [0, 1]

    assert stands(permits, pairs[0]) == set()
    assert permits.scores("reserved") == {pairs[1]: START + 60 + 2_000}
    assert permits.ready(1)[names[1]] == START + 60
    assert permits.release([pairs[2]], ONE, START + 70) == [0, 0], "the place is reserved for another"
    assert stands(permits, pairs[2]) == set()
    assert permits.release([pairs[1]], ONE, START + 80) == [0, 0], "nobody is left"
    assert permits.acquire("new", ONE, START + 81)[0] == 1


@pytest.mark.req("prm-pause", "prm-release")
def test_who_waits_no_longer_leaves_the_line_of_a_paused_resource_too(permits: RawPermits) -> None:
    names = fill(permits, 2)
    paused: Limits = (1, 0, True)
    permits.release([HOLDER], ONE, START + 50)

    assert permits.release([(names[0], "print")], paused, START + 60) == [0, 0]

    assert stands(permits, (names[0], "print")) == set()
    assert stands(permits, (names[1], "print")) == {"line", "waiting"}, "nothing is handed over"
    assert names[1] not in permits.ready(1)


@pytest.mark.req("prm-release", "prm-release-owner-only")
def test_one_call_frees_an_owner_and_takes_a_pair_out_of_the_line(permits: RawPermits) -> None:
    names = fill(permits, 2)

    assert permits.release([HOLDER, (names[0], "print")], ONE, START + 50) == [1, 1]

    assert permits.holders() == {}
    assert stands(permits, (names[0], "print")) == set()
    assert list(permits.scores("reserved")) == [(names[1], "print")]


@pytest.mark.req("prm-release", "prm-wake-lost")
def test_a_reserved_place_that_nobody_takes_passes_on_after_two_seconds(permits: RawPermits) -> None:
    names = fill(permits, 2)
    permits.release([HOLDER], ONE, START + 50)

    assert permits.release([], ONE, START + 2_049) == [0, 0]
    assert permits.release([], ONE, START + 2_050) == [0, 1]
    assert list(permits.scores("reserved")) == [(names[1], "print")]
    assert permits.acquire(names[0], ONE, START + 2_060)[:2] == [0, b"concurrency"], "it came too late"
    assert permits.acquire(names[1], ONE, START + 2_061)[0] == 3


@pytest.mark.req("prm-wake-lost")
def test_who_did_not_come_stands_at_the_end_of_the_line_until_its_entry_expires(permits: RawPermits) -> None:
    """A worker that is busy longer than two seconds loses the place, not the line; dead work drops out of it."""
    names = fill(permits, 2, wait=4_000)
    permits.release([HOLDER], ONE, START)
    offered = []
    for n in range(1, 6):
        permits.release([], ONE, START + 2_000 * n)
        offered += [pair[0] for pair in permits.scores("reserved")]

    assert offered == [names[1], names[0], names[1], names[0], names[1]]
    assert permits.release([], ONE, START + 18_002) == [0, 0]
    assert permits.line() == {}
    assert permits.acquire("new", ONE, START + 18_003)[0] == 1, "and the place is free again"


@pytest.mark.req("prm-release", "prm-no-retry-burn")
def test_busy_workers_that_always_come_too_late_still_use_the_places(permits: RawPermits) -> None:
    """Every id is popped 5 s after its hand-over: no reservation lives that long, and yet the line is served."""
    limits: Limits = (2, 0, False)
    for name in ("h", "i"):
        permits.acquire(name, limits, START)
    names = [f"w{n}" for n in range(6)]
    for name in names:
        permits.acquire(name, limits, START + 1, wait=600_000)
    permits.release([("h", "print", "t"), ("i", "print", "t")], limits, START + 10)
    popped: list[tuple[int, str]] = []
    served: list[str] = []
    for now in range(START + 1_000, START + 60_000, 1_000):
        permits.release([], limits, now)
        known = {name for _, name in popped}
        popped += [(now + 5_000, pair[0]) for pair in permits.scores("reserved") if pair[0] not in known]
        for at, name in popped:
            if at == now and permits.acquire(name, limits, now, wait=600_000)[0] != 0:
                served.append(name)
                permits.release([(name, "print", "t")], limits, now)

    assert len(served) >= 5
    assert permits.acquire("new", limits, START + 700_000)[0] == 1


@pytest.mark.req("prm-release")
def test_a_place_that_was_just_handed_over_is_taken_by_nobody_else(permits: RawPermits) -> None:
    names = fill(permits, 2)
    permits.release([HOLDER], ONE, START + 50)

    assert permits.acquire(names[1], ONE, START + 549)[:2] == [0, b"concurrency"]
    assert permits.acquire("new", ONE, START + 1_500)[:2] == [0, b"concurrency"], "and by a newcomer never"
    assert permits.acquire(names[1], ONE, START + 550)[0] == 1
    assert permits.acquire(names[0], ONE, START + 560)[:2] == [0, b"concurrency"]
    assert permits.scores("reserved") == {}


@pytest.mark.req("prm-expiry")
@pytest.mark.crash("25")
def test_a_place_whose_release_got_lost_goes_to_the_line_when_its_lease_is_over(permits: RawPermits) -> None:
    names = fill(permits, 1)

    assert permits.release([], ONE, START + 29_999) == [0, 0]
    assert permits.release([], ONE, START + 30_000) == [0, 1]
    assert list(permits.scores("reserved")) == [(names[0], "print")]


@pytest.mark.req("prm-raise", "prm-control-point")
def test_a_raised_limit_is_handed_out_to_the_line_in_bounded_steps(permits: RawPermits) -> None:
    fill(permits, 40)

    handed = [permits.release([], (31, 0, False), START + 10)[1] for _ in range(3)]

    assert handed == [HANDED_MAX, 14, 0]
    assert len(permits.scores("reserved")) == 30


@pytest.mark.req("prm-lower")
def test_a_place_reserved_under_a_higher_limit_is_not_granted_above_the_lower_one(permits: RawPermits) -> None:
    limits: Limits = (3, 0, False)
    for name in ("h", "i", "j"):
        permits.acquire(name, limits, START)
    permits.acquire("waiter", limits, START + 1)
    permits.release([HOLDER], limits, START + 2)

    assert permits.acquire("waiter", (2, 0, False), START + 3)[:2] == [0, b"concurrency"]
    assert len(permits.holders()) == 2


@pytest.mark.req("prm-window", "prm-two-limits")
def test_places_are_handed_for_the_moment_at_which_the_start_rate_allows_them(permits: RawPermits) -> None:
    limits: Limits = (4, 2, False)
    for n, at in enumerate((0, 100, 1_000, 1_100)):
        assert permits.acquire(f"h{n}", limits, START + at)[0] == 1
    for n in range(4):
        permits.acquire(f"w{n}", limits, START + 1_150, wait=600_000)

    assert permits.release([(f"h{n}", "print", "t") for n in range(4)], limits, START + 1_200) == [4, 2]

    # Two starts lie in the window; the next ones are possible when they leave it.
    assert permits.ready(1) == {"w0": START + 2_000, "w1": START + 2_100}
    assert permits.acquire("w0", limits, START + 1_999)[1] == b"rate"
    assert permits.acquire("w0", limits, START + 2_000)[0] == 3
    assert permits.ready(1) == {"w0": START + 2_000, "w1": START + 2_100, "w2": START + 3_000}


@pytest.mark.req("prm-zero", "prm-raise")
def test_when_the_limits_are_switched_off_everybody_in_line_is_called(permits: RawPermits) -> None:
    names = fill(permits, 20)

    handed = [permits.release([], (0, 0, False), START + 10)[1] for _ in range(3)]

    assert handed == [16, 4, 0]
    assert permits.ready(1) == dict.fromkeys(names, START + 10)
    assert permits.line() == {}


@pytest.mark.req("prm-pause")
def test_a_paused_resource_hands_nothing_over_and_goes_on_in_the_old_order(permits: RawPermits) -> None:
    names = fill(permits, 2)
    paused: Limits = (1, 0, True)

    assert permits.release([HOLDER], paused, START + 10) == [1, 0]
    assert permits.acquire("late", paused, START + 11, wait=600_000)[:2] == [0, b"paused"]
    assert permits.release([], ONE, START + 20) == [0, 1]

    assert list(permits.scores("reserved")) == [(names[0], "print")]


@pytest.mark.req("prm-release")
def test_a_place_handed_before_the_deferral_was_committed_is_announced_once_more(permits: RawPermits) -> None:
    """Between refusal and commit the claim is still held: whoever popped the id in that time could do nothing."""
    (name,) = fill(permits, 1)
    permits.release([HOLDER], ONE, START + 50)
    permits.target.client.zrem(permits.target.keys.lanes[1], name)

    assert permits.deferred((name, "print"), 1, START + 1_900) == 1

    assert permits.ready(1) == {name: START + 1_900}
    assert permits.acquire(name, ONE, START + 3_899)[0] == 3, "and the two seconds count from there"


@pytest.mark.req("prm-release")
def test_without_a_hand_over_a_committed_deferral_changes_nothing(permits: RawPermits) -> None:
    (name,) = fill(permits, 1)

    assert permits.deferred((name, "print"), 1, START + 20) == 0
    assert permits.ready(1) == {}


@pytest.mark.req("prm-wake-lost", "flt-redis-flush")
def test_who_has_lost_the_place_in_line_before_the_deferral_was_committed_asks_again_at_once(
    permits: RawPermits,
) -> None:
    """Whoever filled the lanes after the wipe could not see that it waits: its claim was still held then."""
    kept, lost = fill(permits, 2)
    assert permits.deferred((kept, "print"), 1, START + 20, in_line=True) == 0

    permits.target.client.flushall()
    assert permits.deferred((lost, "print"), 1, START + 30, in_line=False) == 0, "it comes back soon by itself"
    assert permits.deferred((lost, "print"), 1, START + 31, in_line=True) == 1

    assert permits.ready(1) == {lost: START + 31}


@pytest.mark.req("prm-release", "lane-one-lane", "lane-lower-ignored")
def test_handing_over_keeps_an_id_in_one_lane_and_never_makes_it_later(permits: RawPermits) -> None:
    (name,) = fill(permits, 1, lane=2)
    client, lanes = permits.target.client, permits.target.keys.lanes
    client.zadd(lanes[0], {name: START + 90_000})
    permits.release([HOLDER], ONE, START + 50)
    assert permits.ready(0) == {name: START + 50}, "a higher lane keeps it, due now"
    assert permits.ready(2) == {}

    client.delete(lanes[0])
    client.zadd(lanes[2], {name: START - 5})
    client.zadd(lanes[3], {"other": START})
    permits.release([], ONE, START + 2_050)
    assert permits.ready(2) == {name: START - 5}, "due earlier already"


@pytest.mark.req("prm-tenant-fair")
def test_the_line_of_one_resource_says_nothing_about_another(redis_target: RedisTarget) -> None:
    one = RawPermits(redis_target, resource="tenant_work:a")
    other = RawPermits(redis_target, resource="tenant_work:b")
    for n in range(100):
        one.acquire(f"a{n}", (2, 0, False), START, step="$workflow")

    assert other.acquire("b0", (2, 0, False), START, step="$workflow")[0] == 1
    assert len(one.holders()) == 2
