"""A start is counted when the call begins: moved there from the grant, and never past the limit (prm-window)."""

from __future__ import annotations

import pytest

from kernel.config import Limit
from kernel.coordination import Granted, Keys, Owner, Permits
from kernel.errors import CoordinationRejected
from tests.lua_scripts.permit_raw import START, Limits, RawPermits
from tests.support.redis_servers import NAMESPACE, RedisTarget

TWO: Limits = (0, 2, False)
LEASE = 30_000


def owner(name: str) -> tuple[str, str, str]:
    return name, "print", "t"


@pytest.fixture
def permits(redis_target: RedisTarget) -> RawPermits:
    return RawPermits(redis_target)


@pytest.mark.req("prm-window")
def test_the_start_moves_to_where_the_call_begins(permits: RawPermits) -> None:
    """The next one may begin a second after the calls, not after the grants."""
    permits.acquire("a", TWO, START)
    permits.acquire("b", TWO, START)
    assert permits.start(owner("a"), LEASE, 2, START + 300) == 0
    assert permits.start(owner("b"), LEASE, 2, START + 400) == 0

    assert permits.starts() == [START + 400, START + 300]
    assert permits.acquire("c", TWO, START + 1_299)[:2] == [0, b"rate"]
    assert permits.acquire("c", TWO, START + 1_300)[0] == 3, "it stood in line"


@pytest.mark.req("prm-window")
def test_a_call_that_comes_too_late_waits_for_room(permits: RawPermits) -> None:
    """Its own start has left the window, and others have begun since."""
    permits.acquire("late", TWO, START)
    for name in ("a", "b"):
        permits.acquire(name, TWO, START + 1_500)

    assert permits.start(owner("late"), LEASE, 2, START + 1_600) == 900
    assert permits.starts() == [START + 1_500, START + 1_500, START]
    assert permits.start(owner("late"), LEASE, 2, START + 2_500) == 0
    assert permits.starts()[0] == START + 2_500


def test_a_place_that_was_renewed_meanwhile_is_counted_where_there_is_room(permits: RawPermits) -> None:
    permits.acquire("a", TWO, START)
    permits.renew([(owner("a"), 0, START)], LEASE, START + 10)

    assert permits.start(owner("a"), LEASE, 2, START + 20) == 0
    assert permits.starts() == [START + 20, START]


@pytest.mark.parametrize(
    "words", [("no owner", "1 1"), ("a\x1fb\x1fc", ""), ("a\x1fb\x1fc", "0 1"), ("a\x1fb\x1fc", "1 0"), ("", "1 1")]
)
def test_bad_arguments_are_refused_by_name(permits: RawPermits, words: tuple[str, str]) -> None:
    with pytest.raises(CoordinationRejected, match=r"BADARG (owner|lease_ms|max_starts): "):
        permits.call("permit_start", *words, START)


def test_without_a_start_limit_nobody_is_asked(valkey: RedisTarget) -> None:
    permits = Permits(valkey.runner(), Keys(NAMESPACE), lease_ms=LEASE, wait_ms=1_000)
    granted = permits.acquire("printer", Owner("a", "print", "t"), Limit(1), lane=1)
    assert isinstance(granted, Granted)
    before = valkey.client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)

    assert permits.start(granted.permit, Limit(1)) == 0
    assert permits.start(granted.permit, Limit(1, 5)) == 0

    after = valkey.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before <= 1
