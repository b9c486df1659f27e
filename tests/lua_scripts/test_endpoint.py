"""URLs and key names: what is understood, what is refused, and that no password is ever shown."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import lua
from kernel.clock import SystemClock
from kernel.coordination import Keys, RedisEndpoint, ScriptRunner, parse_redis_url
from kernel.errors import CoordinationDenied, InvalidConfig, InvalidName
from kernel.stream_words import StreamId
from tests.support.redis_servers import RedisTarget

CANARY = "sEcr3t"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("redis://localhost", RedisEndpoint(host="localhost")),
        ("redis://10.0.0.7:6380/3", RedisEndpoint(host="10.0.0.7", port=6380, db=3)),
        ("redis://[::1]:6380", RedisEndpoint(host="::1", port=6380)),
        ("redis://h?db=4", RedisEndpoint(host="h", db=4)),
        ("redis://:p%2F%23%3F%40@h", RedisEndpoint(host="h", password="p/#?@")),
        ("redis://user:a:b@h:1", RedisEndpoint(host="h", port=1, username="user", password="a:b")),
        ("rediss://h", RedisEndpoint(host="h", tls=True)),
        (
            "rediss://h?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=required",
            RedisEndpoint(
                host="h", tls=True, tls_options=(("ssl_ca_certs", "/etc/ca.pem"), ("ssl_cert_reqs", "required"))
            ),
        ),
        ("unix:///run/redis.sock", RedisEndpoint(path="/run/redis.sock")),
        ("unix://u:p@/run/a%20b.sock?db=2", RedisEndpoint(path="/run/a b.sock", db=2, username="u", password="p")),
    ],
)
def test_a_url_says_where_redis_is(url: str, endpoint: RedisEndpoint) -> None:
    assert parse_redis_url(url) == endpoint


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{CANARY}/x@host:6379/0", f"redis://:{CANARY}#x@host:6379/0", f"redis://:{CANARY}?x@host:6379/0",
        f"redis://user:12/{CANARY}@host", f"redis://user:12?{CANARY}@host", f"redis://user:12#{CANARY}@host",
        f"redis://:12/{CANARY}", f"redis://h/{CANARY}", f"redis://h?{CANARY}", f"redis://h?{CANARY}=1",
        f"redis://h?db={CANARY}", f"redis://:{CANARY}@h:99999", f"redis://:{CANARY}@", f"redis://:[{CANARY}@h",
        f"http://:{CANARY}@h", f":{CANARY}@h", f"unix://:{CANARY}@", f"unix://:{CANARY}@host/sock",
        f"unix://:{CANARY}@relative", f"redis://:{CANARY}@h/1?db=2", f"redis://:{CANARY}@h?db=1&db=2",
        f"redis://:{CANARY}@h?ssl_ca_certs=x", f"redis://:{CANARY}@h/-1", f"redis://:{CANARY}@h/1234567", "",
    ],
)  # fmt: skip
def test_a_url_that_can_not_be_read_is_refused_without_repeating_any_of_it(url: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_redis_url(url)

    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown.replace(repr(url), "")
    assert CANARY.lower() not in str(caught.value).lower()
    assert str(caught.value).startswith("redis_url: ")
    assert "\n" not in str(caught.value)


def test_the_password_shows_neither_in_an_endpoint_nor_in_an_error(own_redis: RedisTarget) -> None:
    own_redis.client.config_set("requirepass", "the right one")
    endpoint = parse_redis_url(f"unix://user:{CANARY}@{own_redis.server.socket}")  # type: ignore[union-attr]
    runner = ScriptRunner(endpoint.connection, SystemClock(), call_timeout_s=10)

    with pytest.raises(CoordinationDenied) as caught:
        runner.command("PING")

    shown = "".join(traceback.format_exception(caught.value)) + repr(endpoint) + str(endpoint)
    assert "Authentication" in shown
    assert CANARY not in shown


def test_user_password_and_database_of_a_url_are_used(own_redis: RedisTarget) -> None:
    own_redis.client.config_set("requirepass", "p/#?@")
    runner = ScriptRunner(
        parse_redis_url(f"unix://:p%2F%23%3F%40@{own_redis.server.socket}?db=5").connection,  # type: ignore[union-attr]
        SystemClock(),
        call_timeout_s=10,
    )

    runner.command("SET", "here", 1, "EX", 60)

    assert b"db=5" in runner.command("CLIENT", "INFO")
    runner.close()


@pytest.mark.case("A28", "A29")
@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "redis://h", "rediss://h"])
def test_a_connection_has_no_retries_and_one_time_limit(url: str) -> None:
    connection: Any = parse_redis_url(url).connection(0.25)

    assert connection.retry.get_retries() == 0
    assert connection.retry_on_error == []
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.25, 0.25)


@pytest.mark.parametrize("name", ["", "A", "a b", "a:b", "a}b", "{a}", "1a", "a" * 65, "a\n", None, 7])
def test_a_namespace_outside_the_pattern_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match="namespace: "):
        Keys(name)  # type: ignore[arg-type]


@pytest.mark.req("dc-lua-keys", "fpr-lua-versions")
def test_all_names_of_a_namespace_share_prefix_and_hash_tag() -> None:
    keys = Keys("orders_7")

    names = {*keys.permanent(), keys.wakeup_channel}
    assert len(names) == 6
    assert all(name.startswith(b"wk1:{orders_7}:") and name.count(b"{") == name.count(b"}") == 1 for name in names)
    for script in lua.scripts():
        built = keys.of(script, "orders", resource="speech", stream=StreamId("order:7", "wf-7", "f1"))
        assert len(set(built)) == len(script.keys)
        assert all(key.startswith(b"wk1:{orders_7}:") and key.count(b"{") == key.count(b"}") == 1 for key in built)
        if script.name.startswith("lane_"):
            assert set(built) <= names, "the lanes' keys are the permanent ones"


def test_namespaces_never_share_a_name() -> None:
    names = [
        name for space in ("a", "a_", "a_b", "ab") for name in (*Keys(space).permanent(), Keys(space).wakeup_channel)
    ]

    assert len(names) == len(set(names))
