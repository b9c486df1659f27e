"""kernel.coordination.permits: what the engine calls, and what it costs the server in commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.config import Limit
from kernel.coordination import Granted, Keys, Owner, Permits, Refused
from kernel.errors import CoordinationRejected, CoordinationUnavailable, InvalidId, InvalidName
from kernel.errors import Refused as BadArgument
from kernel.permit_words import WORKFLOW, Permit, Released
from lua import get
from tests.lua_scripts.sent_words import arguments_sent
from tests.lua_scripts.test_script_budget import calls_of
from tests.support.redis_servers import NAMESPACE, RedisTarget
from tests.support.wait import wait_until

BOTH = Limit(max_concurrency=8, max_starts_per_second=1_000)
EIGHT = Limit(max_concurrency=8)
A = Owner("wf-a", "print", "token-a")


def made(target: RedisTarget) -> Permits:
    return Permits(target.runner(), target.keys, lease_ms=30_000, wait_ms=1_000)


@pytest.mark.req("prm-lua-steps", "prm-idempotent")
def test_the_answers_are_typed(redis_target: RedisTarget) -> None:
    desk = made(redis_target)

    first = desk.acquire("printer", A, Limit(max_concurrency=1), lane=1)
    again = desk.acquire("printer", A, Limit(max_concurrency=1), lane=1)
    refused = desk.acquire("printer", Owner("wf-b", "print", "t"), Limit(max_concurrency=1), lane=1)

    assert isinstance(first, Granted) and first.kind == "new"
    assert first.permit == Permit("printer", A, 0, first.permit.epoch)
    assert again == Granted("renewed", first.permit)
    assert refused == Refused("concurrency", 1_000, 1)
    assert [renewal.outcome for renewal in desk.renew([first.permit])] == ["renewed"]
    assert desk.release("printer", [A], Limit(max_concurrency=1)) == Released(freed=1, handed=1)
    taken = desk.acquire("printer", Owner("wf-b", "print", "t2"), Limit(max_concurrency=1), lane=1)
    assert isinstance(taken, Granted) and taken.kind == "handed"


@pytest.mark.req("prm-lost-during-run")
def test_renewal_answers_in_the_order_asked_across_resources(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    kept = desk.acquire("printer", A, EIGHT, lane=1)
    other = desk.acquire("scanner", A, EIGHT, lane=1)
    assert isinstance(kept, Granted) and isinstance(other, Granted)
    unlimited = Permit("free", A, 0, 0)
    gone = Permit("printer", Owner("wf-x", "print", "t"), 0, kept.permit.epoch)
    redis_target.client.delete(redis_target.keys.permit("scanner")["permit_holders"])
    # An epoch is a millisecond: the next one begins in another.
    wait_until(lambda: desk.stats("scanner").server_ms > other.permit.epoch, "the server's clock has moved")

    renewals = desk.renew([other.permit, unlimited, gone, kept.permit])

    assert [renewal.outcome for renewal in renewals] == ["restored", "renewed", "lost", "renewed"]
    assert renewals[0].permit.epoch != 0
    assert [renewal.outcome for renewal in desk.renew([renewals[0].permit])] == ["renewed"]


@pytest.mark.req("prm-fail-closed-unlimited", "prm-zero")
def test_without_a_limit_nothing_is_asked_of_redis_and_with_one_its_silence_is_told(own_redis: RedisTarget) -> None:
    desk = made(own_redis)
    assert own_redis.server is not None
    own_redis.server.kill()

    free = desk.acquire("printer", A, Limit(), lane=1)

    assert free == Granted("unlimited", Permit("printer", A, 0, 0))
    with pytest.raises(CoordinationUnavailable):
        desk.acquire("printer", A, EIGHT, lane=1)
    own_redis.server.start()


@pytest.mark.req("prm-tenant", "prm-unique-owner-parts")
def test_a_tenants_resource_has_its_own_keys_whatever_the_tenant_is_called(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    two = Limit(max_concurrency=2)
    tenants = ("a", "A", "a:b", "a}{b", "ü ber", "printer", "x" * 200)

    for tenant in tenants:
        answers = [
            desk.acquire(f"tenant_work:{tenant}", Owner(f"wf-{n}", WORKFLOW, "t"), two, lane=1) for n in range(3)
        ]
        assert [type(answer) for answer in answers] == [Granted, Granted, Refused]

    keys = [redis_target.keys.permit(f"tenant_work:{tenant}")["permit_holders"] for tenant in tenants]
    assert len(set(keys)) == len(tenants)
    assert all(key.count(b"{") == 1 and key.isascii() for key in keys)


@pytest.mark.parametrize("resource", ["", "Printer", "a.b", "a b", "tenant:", "tenant:\n", ":x", "a" * 65])
def test_a_resource_outside_the_rules_is_refused_before_anything_is_sent(valkey: RedisTarget, resource: str) -> None:
    with pytest.raises((InvalidName, InvalidId)):
        made(valkey).acquire(resource, A, EIGHT, lane=1)

    assert valkey.client.keys() == []


@pytest.mark.parametrize(
    "parts",
    [("", "print", "t"), ("a\x1fb", "print", "t"), ("a", "Print", "t"), ("a", "print", ""), ("a", "$other", "t")],
)
@pytest.mark.req("prm-unique-owner-parts")
def test_no_part_of_an_owner_can_hold_what_separates_them(parts: tuple[str, str, str]) -> None:
    with pytest.raises((InvalidName, InvalidId)):
        Owner(*parts)


def test_a_bad_lane_request_or_limit_is_refused(valkey: RedisTarget) -> None:
    desk = made(valkey)

    with pytest.raises(BadArgument, match="lane: "):
        desk.acquire("printer", A, EIGHT, lane=4)
    with pytest.raises(BadArgument, match="request: "):
        desk.acquire("printer", A, EIGHT, lane=1, request=1_024)
    with pytest.raises(CoordinationRejected, match="BADARG max_concurrency"):
        desk.acquire("printer", A, Limit(max_concurrency=-1), lane=1)


@pytest.mark.req("dc-lua-files")
def test_python_gives_each_argument_in_the_place_that_the_contract_names() -> None:
    limit, keys = Limit(max_concurrency=3, max_starts_per_second=4, paused=True), Keys(NAMESPACE)
    permit, open_limit = Permit("printer", A, 7, 99), Limit(max_starts_per_second=4)

    def sent(script: str, reply: Any, operation: Callable[[Permits], object]) -> dict[str, Any]:
        return arguments_sent(
            get(script), reply, lambda runner: operation(Permits(runner, keys, lease_ms=30_000, wait_ms=1_000))
        )

    owner, channel = b"wf-a\x1fprint\x1ftoken-a", keys.wakeup_channel
    limits = {"max_concurrency": b"3", "max_starts": b"4", "paused": b"1"}
    acquired = {"wakeup_channel": channel, "lease_ms": b"30000", **limits, "owner": owner, "terms": b"7 2 1000"}
    assert sent("permit_acquire", 9, lambda desk: desk.acquire("printer", A, limit, lane=2, request=7)) == acquired
    waited = sent("permit_acquire", 9, lambda desk: desk.acquire("printer", A, limit, lane=2, request=7, wait_ms=5))
    assert waited == acquired | {"terms": b"7 2 5"}
    renewed = {"lease_ms": b"30000", "owners": owner + b"\x1e7\x1e99\x1e"}
    assert sent("permit_renew", b"1", lambda desk: desk.renew([permit])) == renewed
    released = {"wakeup_channel": channel, **limits, "owners": owner + b"\x1e" + owner}
    assert sent("permit_release", 200, lambda desk: desk.release("printer", [A, A], limit)) == released
    started = {"owner": owner, "terms": b"30000 4"}
    assert sent("permit_start", 0, lambda desk: desk.start(permit, open_limit)) == started


@pytest.mark.req("prm-lua-steps")
def test_what_a_grant_a_renewal_and_a_release_cost_in_commands(real_redis: RedisTarget) -> None:
    desk = made(real_redis)
    owners = [Owner(f"wf-{n}", "print", "t") for n in range(40)]
    granted = [desk.acquire("printer", owner, Limit(max_concurrency=100), lane=1) for owner in owners[:20]]
    assert all(isinstance(answer, Granted) for answer in granted)
    desk.acquire("both", owners[0], BOTH, lane=1)
    places = [answer.permit for answer in granted if isinstance(answer, Granted)]
    desk.renew(places)
    desk.release("printer", owners[:1], EIGHT)

    wide = Limit(max_concurrency=100)
    assert sum(calls_of(real_redis, lambda: desk.acquire("printer", owners[20], wide, lane=1)).values()) == 6
    assert sum(calls_of(real_redis, lambda: desk.acquire("both", owners[21], BOTH, lane=1)).values()) == 9
    assert sum(calls_of(real_redis, lambda: desk.acquire("printer", owners[20], wide, lane=1)).values()) == 5
    assert sum(calls_of(real_redis, lambda: desk.renew(places[1:2])).values()) == 4
    assert sum(calls_of(real_redis, lambda: desk.renew(places[1:])).values()) == 4
    assert sum(calls_of(real_redis, lambda: desk.release("printer", owners[20:21], wide)).values()) == 2


@pytest.mark.req("prm-stats")
def test_the_stats_agree_with_the_keys(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    limit = Limit(max_concurrency=2, max_starts_per_second=10)
    owners = [Owner(f"wf-{n}", "print", f"token-{n}") for n in range(4)]
    for owner in owners:
        desk.acquire("printer", owner, limit, lane=2)

    stats = desk.stats("printer", pair=("wf-3", "print"))

    keys = redis_target.keys.permit("printer")
    members = redis_target.client.zrange(keys["permit_holders"], 0, 1)
    assert {holder.owner.text.encode() for holder in stats.holders} == set(members)
    assert stats.held == 2 == redis_target.client.zcard(keys["permit_holders"]) - 1
    assert stats.starts_last_second == redis_target.client.llen(keys["permit_starts"])
    assert (stats.waiting, stats.waiting_by_lane) == (2, (0, 0, 2, 0))
    assert (stats.place, stats.place_lane, stats.handed) == (2, 2, False)
    assert all(0 < holder.expiry_ms - stats.server_ms <= 30_000 for holder in stats.holders)
    assert Keys(NAMESPACE).permit("printer") == keys


@pytest.mark.req("prm-stats")
def test_a_member_that_no_kernel_wrote_is_reported(valkey: RedisTarget) -> None:
    valkey.client.zadd(valkey.keys.permit("printer")["permit_holders"], {"foreign": 4.2e15})
    valkey.client.pexpire(valkey.keys.permit("printer")["permit_holders"], 60_000)

    with pytest.raises(CoordinationRejected, match="foreign"):
        made(valkey).stats("printer")


@pytest.mark.req("prm-raise", "prm-wake-lost")
def test_a_sweep_hands_out_everything_that_is_free(valkey: RedisTarget) -> None:
    desk = made(valkey)
    desk.acquire("printer", A, Limit(max_concurrency=1), lane=1)
    for n in range(50):
        desk.acquire("printer", Owner(f"wf-{n}", "print", "t"), Limit(max_concurrency=1), lane=1, wait_ms=600_000)

    assert desk.sweep("printer", Limit(max_concurrency=41)) == 40
    assert desk.sweep("printer", Limit(max_concurrency=41)) == 0
    assert desk.stats("printer").reserved == 40
    assert desk.deferred("printer", "wf-0", "print", lane=1, in_line=True) is True
    assert desk.deferred("printer", "wf-49", "print", lane=1, in_line=True) is False


@pytest.mark.req("prm-wake-lost", "flt-redis-flush")
def test_who_stands_in_no_line_is_told_in_calls_of_five_hundred(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    desk.acquire("printer", A, Limit(max_concurrency=1), lane=1)
    for number in range(0, 1_001, 3):
        desk.acquire("printer", Owner(f"wf-{number}", "print", "t"), Limit(max_concurrency=1), lane=number % 4)
    pairs = [(f"wf-{number}", "print") for number in range(1_001)]

    assert desk.missing("printer", pairs) == [number % 3 > 0 for number in range(1_001)]
    assert desk.missing("printer", [("wf-0", "scan"), ("wf-0", WORKFLOW), ("wf-0", "print")]) == [True, True, False]
    assert desk.missing("scanner", [("wf-0", "print")]) == [True]
    assert desk.missing("printer", []) == []
    redis_target.client.flushall()
    assert desk.missing("printer", pairs[:1]) == [True]
