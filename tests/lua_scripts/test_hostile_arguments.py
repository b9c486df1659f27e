"""What no caller of ours sends, in every argument of every script: nothing of it runs, and no other key is touched."""

from __future__ import annotations

import random

import pytest

import lua
from kernel.coordination import BoundScript, Keys
from kernel.errors import CoordinationRejected
from kernel.stream_words import StreamId
from tests.support.redis_servers import NAMESPACE, RedisTarget

SENTINEL = "sentinel"
CODE = "redis.call('SET', 'canary', 'fired') return 1"
HOSTILE: tuple[bytes, ...] = (
    *(CODE.encode(), f"]] {CODE} --[[".encode(), f"' .. (function() {CODE} end)() .. '".encode(), b"KEYS[1]"),
    *(b"nan", b"-nan", b"inf", b"-inf", b"1e400", b"1e308", b"-1", b"0x10", b"9007199254740993", b"1.5", b" 1", b""),
    *(b"\x00", b"a\x1fb\x1ec", b"\x1f" * 50, b"%s%d%n", b"\xff\xfe", b"*", b"wk1:{tests}:lane:0", b"x" * 1_000_000),
)
PLAIN: tuple[bytes, ...] = (b"0", b"1", b"1000", b"wf\x1fstep\x1ftoken", b"0 1 1000", b"id", b"")


@pytest.fixture
def served(valkey: RedisTarget) -> RedisTarget:
    valkey.client.set(SENTINEL, "kept", ex=3_600)
    return valkey


def keys_of(script: lua.Script, keys: Keys) -> tuple[bytes, ...]:
    return keys.of(script, "orders", resource="printer", stream=StreamId("object-1", "wf-1", "f1"))


@pytest.mark.req("dc-lua-keys")
@pytest.mark.parametrize("script", lua.scripts(), ids=lambda script: script.name)
def test_no_argument_is_run_or_names_a_key(served: RedisTarget, script: lua.Script) -> None:
    """Each hostile text in each place among plain ones, and 150 mixtures. An answer or one typed refusal."""
    runner, keys = served.runner(), keys_of(script, served.keys)
    called = BoundScript(script, keys)
    places = len(script.args) + len(script.optional) + len(script.repeated)
    chance = random.Random(script.name)
    calls = [
        [text if at == place else chance.choice(PLAIN) for at in range(places)]
        for place in range(places)
        for text in HOSTILE
    ]
    calls += [[chance.choice(HOSTILE[:-1] + PLAIN) for _ in range(chance.randrange(places + 3))] for _ in range(150)]
    refused = 0
    for words in calls:
        try:
            runner.call(called, *words)
        except CoordinationRejected as error:
            refused += 1
            assert "\n" not in str(error)

    assert refused > 0 or places == 0
    known = {SENTINEL.encode(), *keys}
    found = set(served.client.keys())
    assert found <= known, "a key that the script was not given"
    assert served.client.get(SENTINEL) == b"kept"
    for key in found - {SENTINEL.encode()}:
        served.client.delete(key)  # what mixtures have left may lack its time to live, which is no promise for them


@pytest.mark.req("prm-tenant")
def test_two_thousand_tenants_leave_no_key_that_stays(valkey: RedisTarget) -> None:
    """The scripts know no list of tenants: what one has used is gone when its places are given back, or by itself.
    (RELIABILITY §8 says 10^5; each has keys of its own, so that their number changes nothing.)"""
    from kernel.config import Limit
    from kernel.coordination import Owner, Permits

    desk, limit = Permits(valkey.runner(), valkey.keys, lease_ms=1_000, wait_ms=1_000), Limit(max_concurrency=1)
    for number in range(2_000):
        owner = Owner(f"wf-{number}", "print", "t")
        desk.acquire(f"tenant_work:tenant {number}", owner, limit, lane=1)
        if number % 2:
            desk.release(f"tenant_work:tenant {number}", [owner], limit)

    lives = [valkey.client.pttl(key) for key in valkey.client.keys(f"*{{{NAMESPACE}}}*")]
    assert lives and all(0 < life <= 24 * 3_600_000 for life in lives)
