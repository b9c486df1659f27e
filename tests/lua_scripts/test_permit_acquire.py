"""permit_acquire, branch by branch in its order: expired, unlimited, same owner, paused, concurrency, rate, line."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.errors import CoordinationRejected
from tests.lua_scripts.permit_raw import START, Limits, RawPermits
from tests.support.redis_servers import RedisTarget

ONE: Limits = (1, 0, False)
EIGHT: Limits = (8, 0, False)
RATE: Limits = (0, 2, False)


@pytest.fixture
def permits(redis_target: RedisTarget) -> RawPermits:
    return RawPermits(redis_target)


@pytest.mark.req("prm-lua-steps", "prm-two-limits")
def test_a_free_place_is_granted_and_owner_start_and_state_are_recorded(permits: RawPermits) -> None:
    assert permits.acquire("a", (8, 2, False), START, token="t1", request=7) == [1, START]

    assert permits.holders() == {("a", "print", "t1"): (START + 30_000, 7)}
    assert permits.starts() == [START]
    assert permits.state() == (START, False, 0)


@pytest.mark.req("prm-idempotent", "prm-lua-steps")
@pytest.mark.crash("22")
def test_the_same_request_again_only_renews_and_counts_no_second_start(permits: RawPermits) -> None:
    """As after a lost reply: the caller does not know, asks once more, and holds one place."""
    limits: Limits = (1, 1, False)
    permits.acquire("a", limits, START)

    assert permits.acquire("a", limits, START + 5) == [2, START]

    assert permits.holders() == {("a", "print", "t"): (START + 5 + 30_000, 0)}
    assert permits.starts() == [START]


@pytest.mark.req("prm-idempotent", "prm-window")
def test_the_next_request_of_an_owner_whose_release_got_lost_is_another_start(permits: RawPermits) -> None:
    limits: Limits = (1, 1, False)
    permits.acquire("a", limits, START, request=1)

    assert permits.acquire("a", limits, START + 400, request=2)[:2] == [0, b"rate"]
    assert permits.acquire("a", limits, START + 1_000, request=2) == [3, START]

    assert permits.holders() == {("a", "print", "t"): (START + 31_000, 2)}
    assert permits.starts() == [START + 1_000, START]


@pytest.mark.req("prm-unique-owner-parts", "prm-new-claim-new-owner")
def test_each_of_the_three_parts_makes_another_owner(permits: RawPermits) -> None:
    for workflow_id, step, token in (("a", "print", "t"), ("a", "scan", "t"), ("b", "print", "t"), ("a", "print", "u")):
        assert permits.acquire(workflow_id, EIGHT, START, step=step, token=token)[0] == 1

    assert len(permits.holders()) == 4


@pytest.mark.req("prm-new-claim-new-owner", "prm-expiry")
@pytest.mark.crash("22")
def test_a_dead_claims_place_is_kept_to_the_end_of_its_lease_and_free_then(permits: RawPermits) -> None:
    permits.acquire("a", ONE, START, token="dead", lease=1_500)

    assert permits.acquire("a", ONE, START + 1_499, token="next")[:2] == [0, b"concurrency"]
    assert permits.acquire("a", ONE, START + 1_500, token="next")[0] in (1, 3)

    assert list(permits.holders()) == [("a", "print", "next")]


@pytest.mark.req("prm-zero")
def test_without_limits_a_hundred_are_granted_and_nothing_is_recorded(permits: RawPermits) -> None:
    for n in range(100):
        assert permits.acquire(f"w{n}", (0, 0, False), START) == [4, 0]

    assert permits.target.client.keys() == []


@pytest.mark.req("prm-one-zero")
@pytest.mark.parametrize(
    ("limits", "granted", "reason"), [((0, 2, False), 2, b"rate"), ((3, 0, False), 3, b"concurrency")]
)
def test_one_zero_switches_off_that_limit_only(
    permits: RawPermits, limits: Limits, granted: int, reason: bytes
) -> None:
    replies = [permits.acquire(f"w{n}", limits, START) for n in range(10)]

    assert [reply[0] for reply in replies] == [1] * granted + [0] * (10 - granted)
    assert {reply[1] for reply in replies[granted:]} == {reason}


@pytest.mark.req("prm-pause")
def test_a_paused_resource_grants_nothing_new_and_its_holders_go_on(permits: RawPermits) -> None:
    permits.acquire("a", EIGHT, START)
    paused: Limits = (8, 0, True)

    assert permits.acquire("b", paused, START + 1)[:2] == [0, b"paused"]
    assert permits.acquire("c", (0, 0, True), START + 1)[:2] == [0, b"paused"], "also without any limit"
    assert permits.acquire("a", paused, START + 2) == [2, START]
    assert permits.renew([(("a", "print", "t"), 0, START)], 30_000, START + 3) == (0, "1")


@pytest.mark.req("prm-lua-steps")
def test_the_reasons_come_in_their_order(permits: RawPermits) -> None:
    """All four hold at once; each is told only when those before it are gone."""
    permits.acquire("a", (1, 1, False), START)
    permits.acquire("b", (1, 1, False), START)

    assert permits.acquire("new", (1, 1, True), START + 1)[1] == b"paused"
    assert permits.acquire("new2", (1, 1, False), START + 1)[1] == b"concurrency"
    assert permits.acquire("new3", (2, 1, False), START + 1)[1] == b"rate"
    assert permits.acquire("new4", (0, 2, False), START + 1)[1] == b"line"


@pytest.mark.req("prm-lower", "prm-raise")
def test_a_lowered_limit_lets_holders_finish_and_grants_again_below_it(permits: RawPermits) -> None:
    owners = [(f"w{n}", "print", "t") for n in range(8)]
    for owner in owners:
        permits.acquire(owner[0], EIGHT, START)
    low: Limits = (2, 0, False)

    for n, owner in enumerate(owners):
        refused = permits.acquire(f"n{n}", low, START + n)
        assert refused[:2] == [0, b"concurrency"], f"{8 - n} in flight"
        assert len(permits.holders()) == 8 - n, "no holder was interrupted"
        if n < 6:
            permits.release([owner], (0, 0, True), START + n)  # paused: nothing is handed over here
        else:
            break
    permits.release(owners[6:7], (2, 0, True), START + 9)

    assert permits.acquire("n0", low, START + 10)[0] == 1


@pytest.mark.req("prm-retry-delay", "prm-window")
def test_a_rate_refusal_tells_the_time_to_the_callers_own_turn(permits: RawPermits) -> None:
    permits.acquire("a", RATE, START)
    permits.acquire("b", RATE, START + 300)

    answers = [permits.acquire(f"w{n}", RATE, START + 400) for n in range(5)]

    # Two a second, each pair a second after the marks before it.
    assert [answer[2] for answer in answers] == [600, 900, 1_600, 1_900, 2_600]
    assert [answer[3] for answer in answers] == [1, 2, 3, 4, 5]


@pytest.mark.req("prm-retry-delay")
def test_a_concurrency_refusal_tells_a_bounded_time_that_grows_with_the_line(permits: RawPermits) -> None:
    limits: Limits = (2, 0, False)
    for n in range(2):
        permits.acquire(f"h{n}", limits, START)

    answers = [permits.acquire(f"w{n}", limits, START + 1, wait=1_000) for n in range(5)]
    far = permits.acquire("far", limits, START + 1, wait=600_000)

    assert [answer[2] for answer in answers] == [1_000, 1_000, 2_000, 2_000, 3_000]
    assert far[2] == 600_000


@pytest.mark.req("prm-window", "prm-two-limits")
def test_no_window_of_a_second_holds_more_starts_than_the_limit(permits: RawPermits) -> None:
    """Somebody asks every 10 ms for 4 s, from just before a second's border on."""
    grants: list[int] = []
    for n in range(400):
        now = START + 990 + 10 * n
        if permits.acquire("w", (0, 3, False), now, token=f"t{n}", request=n % 1024)[0] != 0:
            grants.append(now)

    assert all(sum(at <= other < at + 1_000 for other in grants) <= 3 for at in grants)
    assert len(grants) == 12, "and no start is lost: three for each second"


@pytest.mark.req("prm-window")
def test_a_limit_raised_and_lowered_within_the_second_still_sees_every_start(permits: RawPermits) -> None:
    for n in range(5):
        assert permits.acquire(f"w{n}", (0, 5, False), START + n)[0] == 1

    assert permits.acquire("x", (0, 2, False), START + 10)[1] == b"rate"
    assert permits.acquire("y", (0, 5, False), START + 20)[1] == b"rate"
    assert len(permits.starts()) == 5


@pytest.mark.req("prm-window")
def test_a_clock_that_goes_back_neither_adds_starts_nor_stops_the_resource(permits: RawPermits) -> None:
    for n in range(2):
        permits.acquire(f"w{n}", RATE, START, token="t", request=0)

    assert permits.acquire("back", RATE, START - 500)[:2] == [0, b"rate"], "a little: the starts still count"
    hour_before = START - 3_600_000
    replies = [permits.acquire(f"b{n}", RATE, hour_before, step="scan") for n in range(4)]

    assert [reply[0] for reply in replies].count(0) >= 2, "and the new ones count among themselves"
    assert all(reply[2] <= 3_000 for reply in replies if reply[0] == 0), "nobody waits for the old clock"


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"limits": (-1, 0, False)}, "max_concurrency"),
        ({"limits": (0, -2, False)}, "max_starts"),
        ({"limits": (1.5, 0, False)}, "max_concurrency"),
        ({"limits": (0, 10**7, False)}, "max_starts"),
        ({"limits": (10**7, 0, False)}, "max_concurrency"),
        ({"limits": ("nan", 0, False)}, "max_concurrency"),
        ({"limits": (1, "1.2", False)}, "max_starts"),
        ({"lane": 4}, "lane"),
        ({"request": 1024}, "request"),
        ({"lease": 0}, "lease_ms"),
        ({"lease": 3_600_001}, "lease_ms"),
        ({"wait": 0}, "wait_ms"),
        ({"token": ""}, "owner"),
        ({"token": "a\x1fb"}, "owner"),
        ({"workflow_id": ""}, "owner"),
        ({"workflow_id": "a\x1fb"}, "owner"),
    ],
)
@pytest.mark.req("prm-lua-steps")
def test_a_bad_argument_is_named_and_nothing_is_written(
    permits: RawPermits, change: dict[str, Any], argument: str
) -> None:
    arguments: dict[str, Any] = {"workflow_id": "a", "limits": EIGHT, "now": START, **change}
    arguments["limits"] = tuple(x if isinstance(x, bool) else str(x) for x in arguments["limits"])

    with pytest.raises(CoordinationRejected, match=f"BADARG {argument}: "):
        permits.acquire(**arguments)

    assert permits.target.client.keys() == []


@pytest.mark.req("prm-atomic")
@pytest.mark.parametrize("part", ["holders", "starts", "reserved", "waiting", "line"])
def test_a_key_of_a_wrong_type_grants_nothing(permits: RawPermits, part: str) -> None:
    limits: Limits = (2, 2, False)
    permits.acquire("a", limits, START)
    permits.acquire("b", limits, START)
    permits.acquire("waiter", limits, START)
    permits.release([("a", "print", "t")], (2, 2, True), START + 1)
    client, key = permits.target.client, permits.keys[f"permit_{part}"]
    client.delete(key)
    client.set(key, "foreign", px=60_000)

    with pytest.raises(CoordinationRejected, match="WRONGTYPE"):
        permits.acquire("waiter", limits, START + 1_500)

    if part != "holders":
        assert ("waiter", "print", "t") not in permits.holders()
