"""Holding a place: renewal, the two ways to lose one, release by the owner only, and what a wipe of Redis does."""

from __future__ import annotations

import pytest

from kernel.errors import CoordinationRejected
from tests.lua_scripts.permit_raw import START, Limits, RawPermits
from tests.support.redis_servers import RedisTarget

TWO: Limits = (2, 0, False)
A, B = ("a", "print", "t"), ("b", "print", "t")


@pytest.fixture
def permits(redis_target: RedisTarget) -> RawPermits:
    return RawPermits(redis_target)


@pytest.mark.req("prm-lease", "prm-renew-script")
def test_renewal_holds_a_place_for_many_leases(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START, lease=3_000)

    for n in range(1, 10):
        assert permits.renew([(A, 0, START)], 3_000, START + 1_000 * n) == (0, "1")

    assert permits.holders() == {A: (START + 12_000, 0)}
    assert permits.acquire("b", (1, 0, False), START + 11_999)[:2] == [0, b"concurrency"]


@pytest.mark.req("prm-renew-script", "prm-lost-during-run")
@pytest.mark.crash("24")
def test_an_owner_whose_lease_ran_out_is_told_so_and_not_put_back(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START, lease=3_000)
    permits.acquire("x", TWO, START + 3_000)

    assert permits.renew([(A, 0, START)], 3_000, START + 3_001) == (0, "0")

    assert list(permits.holders()) == [("x", "print", "t")]


@pytest.mark.req("prm-renew-script")
def test_a_lease_that_ran_out_is_lost_also_when_nobody_has_swept_it_yet(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START, lease=3_000)

    assert permits.renew([(A, 0, START)], 3_000, START + 3_000) == (0, "0")


@pytest.mark.req("prm-renew-script")
def test_one_call_renews_many_owners_and_answers_for_each(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START)
    permits.acquire("b", TWO, START, request=5)
    nobody = ("c", "print", "t")

    assert permits.renew([(A, 0, START), (nobody, 0, START), (B, 5, START), (B, 4, START)], 30_000, START + 9) == (
        0, "1010",
    )  # fmt: skip
    assert permits.holders() == {A: (START + 30_009, 0), B: (START + 30_009, 5)}


@pytest.mark.req("prm-lost-during-run")
def test_after_a_wipe_every_owner_is_put_back_and_the_overshoot_is_one_limit_at_most(permits: RawPermits) -> None:
    """DECISIONS 9: between the wipe and the last renewal at most twice the limit, and no call is cut."""
    limits: Limits = (4, 0, False)
    old = [(f"old{n}", "print", "t") for n in range(4)]
    for owner in old:
        permits.acquire(owner[0], limits, START)
    permits.target.client.flushall()

    granted = [n for n in range(9) if permits.acquire(f"new{n}", limits, START + 10)[0] == 1]
    epoch = permits.state()[0]
    restored = permits.renew([(owner, 0, START) for owner in old], 30_000, START + 20)

    assert len(granted) == 4
    assert restored == (epoch, "2222")
    assert epoch == START + 10
    assert len(permits.holders()) == 8
    assert permits.renew([(owner, 0, START + 10) for owner in old], 30_000, START + 30) == (0, "1111")
    for owner in old:
        assert permits.acquire("late", limits, START + 40)[:2] == [0, b"concurrency"]
        permits.release([owner], limits, START + 40)
    assert len(permits.holders()) == 4, "back to the limit as the calls end"


@pytest.mark.req("prm-lost-during-run")
def test_a_renewal_that_comes_first_after_a_wipe_starts_the_new_epoch(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START)
    permits.acquire("b", TWO, START)
    permits.target.client.flushall()

    assert permits.renew([(A, 0, START)], 30_000, START + 20) == (START + 20, "2")
    assert permits.renew([(B, 0, START)], 30_000, START + 21) == (START + 20, "2")
    assert permits.renew([(A, 0, START + 20)], 30_000, START + 22) == (0, "1")


@pytest.mark.req("prm-release-owner-only")
@pytest.mark.crash("25")
def test_the_late_release_of_an_old_claim_frees_nothing_of_the_new_owner(permits: RawPermits) -> None:
    permits.acquire("a", (1, 0, False), START, token="old", lease=1_000)
    permits.acquire("a", (1, 0, False), START + 1_000, token="new")

    assert permits.release([("a", "print", "old")], (1, 0, False), START + 1_001) == [0, 0]
    assert list(permits.holders()) == [("a", "print", "new")]
    assert permits.acquire("b", (1, 0, False), START + 1_002)[:2] == [0, b"concurrency"]


@pytest.mark.req("prm-release")
def test_one_call_frees_all_owners_of_a_dead_worker(permits: RawPermits) -> None:
    limits: Limits = (101, 0, False)
    owners = [(f"w{n}", "print", "dead") for n in range(100)]
    for owner in owners:
        permits.acquire(owner[0], limits, START, token="dead")
    permits.acquire("alive", limits, START)

    assert permits.release(owners, limits, START + 1) == [100, 0]
    assert list(permits.holders()) == [("alive", "print", "t")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("permit_renew", ("0", "a\x1fb\x1fc\x1e0\x1e1\x1e")),
        ("permit_renew", ("3600001", "a\x1fb\x1fc\x1e0\x1e1\x1e")),
        ("permit_renew", ("1000", "")),
        ("permit_renew", ("1000", "a\x1e1024\x1e1\x1e")),
        ("permit_renew", ("1000", "a\x1e1\x1e1\x1eleft over")),
        ("permit_renew", ("1000", "a\x1e1\x1e1\x1e" * 501)),
        ("permit_release", ("", "1", "0", "0", "no owner")),
        ("permit_release", ("", "-1", "0", "0", "a\x1fb\x1fc")),
        ("permit_release", ("", "1", "x", "0", "a\x1fb\x1fc")),
        ("permit_release", ("", "1", "0", "2", "a\x1fb\x1fc")),
        ("permit_release", ("", "1", "0", "0", "a\x1fb\x1fc\x1e" * 101)),
        ("permit_deferred", ("a", "1", "")),
        ("permit_deferred", ("a\x1fb", "7", "")),
        ("permit_deferred", ("a\x1fb", "1", "")),
        ("permit_deferred", ("a\x1fb", "1", "", "2")),
        ("permit_missing", ("",)),
        ("permit_missing", ("a",)),
        ("permit_missing", ("a\x1fb\x1fc",)),
        ("permit_missing", ("a\x1fb\x1e" * 501,)),
        ("permit_stats", ("1001", "")),
        ("permit_stats", ("-1", "")),
    ],
)
@pytest.mark.req("prm-lua-steps")
def test_a_bad_argument_of_the_others_is_refused_before_anything_is_written(
    permits: RawPermits, name: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(CoordinationRejected, match="BADARG "):
        permits.call(name, *words)

    assert permits.target.client.keys() == []


@pytest.mark.req("prm-lease", "prm-expiry")
def test_every_key_lives_longer_than_what_it_holds_can_last_and_none_for_ever(permits: RawPermits) -> None:
    limits: Limits = (1, 1, False)
    permits.acquire("a", limits, START, lease=3_600_000)
    for n in range(3):
        permits.acquire(f"w{n}", limits, START, wait=600_000)
    permits.release([A], limits, START + 1)
    permits.acquire("b", (9, 9, False), START + 1, lease=3_600_000)

    lives = {part: permits.target.client.pttl(key) for part, key in permits.keys.items()}

    longest = {"holders": 3_600_000, "waiting": 610_000, "line": 610_000, "reserved": 3_000, "starts": 1_000}
    for part, ms in longest.items():
        assert ms + 30_000 < lives[f"permit_{part}"] <= 3_660_000, part


@pytest.mark.req("prm-stats")
def test_the_stats_tell_holders_starts_reservations_and_places_in_line(permits: RawPermits) -> None:
    limits: Limits = (2, 5, False)
    permits.acquire("a", limits, START, lease=20_000)
    permits.acquire("b", limits, START + 900, lease=30_000)
    for n, lane in enumerate((1, 1, 3)):
        permits.acquire(f"w{n}", limits, START + 950, lane=lane)
    permits.release([A], limits, START + 960)

    now = START + 1_100
    counts = [now, START, 1, 1, 1, 3, 0, 2, 0, 1]
    assert permits.stats(None, now) == [*counts, 0, -1, 0]
    assert permits.stats(("w1", "print"), now)[10:] == [1, 1, 0], "the one who was handed a place stands behind it now"
    assert permits.stats(("w0", "print"), now)[10:] == [2, 1, 1]
    assert permits.stats(("w2", "print"), now)[10:] == [1, 3, 0]
    assert permits.stats(("x", "print"), now)[10:] == [0, -1, 0]
    assert permits.stats(None, now, holders_max=5)[13:] == [b"b\x1fprint\x1ft", START + 30_900]
    assert permits.stats(None, START + 30_900, holders_max=5)[2:4] == [0, 0], "a lease that is over holds nothing"
