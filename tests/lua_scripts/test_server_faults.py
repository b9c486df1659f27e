"""A server that hangs, is full, is busy or says no: a typed error within the time limit, and then it works again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis.exceptions

from kernel.clock import ManualClock, SystemClock
from kernel.coordination import CircuitBreaker, LaneEntry, Lanes, ScriptRunner
from kernel.coordination.scripts import CALL_TIMEOUT_S, kernel_error
from kernel.errors import CoordinationDenied, CoordinationRejected, CoordinationUnavailable, KernelError
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until


def serving(lanes: Lanes) -> bool:
    try:
        lanes.stats()
    except CoordinationUnavailable:
        return False
    return True


@pytest.mark.fault
@pytest.mark.case("A29")
def test_a_hung_server_is_waited_for_twice_less_than_a_second_in_all_and_is_found_again(own_redis: RedisTarget) -> None:
    assert own_redis.server is not None
    clock = ManualClock()
    # As a worker makes it: every default.
    runner = ScriptRunner(own_redis.connector, clock)
    lanes = Lanes(runner, own_redis.keys)
    lanes.pop(1)

    own_redis.server.pause()
    errors = []
    for _ in range(200):
        with pytest.raises(CoordinationUnavailable) as caught:
            lanes.pop(1)
        errors.append(str(caught.value))
    own_redis.server.resume()
    assert own_redis.client.ping(), "it is at work again"

    waited = [error for error in errors if "skipped" not in error]
    assert len(waited) == 2
    assert all("Timeout" in error for error in waited)
    assert len(waited) * CALL_TIMEOUT_S < 1.0
    assert runner.breaker.state == "open"
    clock.advance(1_000)
    assert lanes.pop(1).idle
    assert runner.breaker.state == "closed"
    runner.close()


@pytest.mark.fault
def test_a_refused_connection_opens_the_breaker_and_a_started_server_closes_it(own_redis: RedisTarget) -> None:
    assert own_redis.server is not None
    clock = ManualClock()
    runner = own_redis.runner(breaker=CircuitBreaker(clock))
    lanes = Lanes(runner, own_redis.keys)
    own_redis.server.kill()
    for _ in range(3):
        with pytest.raises(CoordinationUnavailable):
            lanes.pop(1)
    with pytest.raises(CoordinationUnavailable, match="skipped"):
        lanes.pop(1)

    own_redis.server.start()
    clock.advance(1_000)

    assert serving(lanes), "calls go through again"
    assert runner.breaker.state == "closed"


@pytest.mark.case("A35", "A36")
@pytest.mark.parametrize("trouble", ["OOM", "READONLY", "NOREPLICAS", "NOAUTH", "BUSY"])
def test_a_server_that_can_not_serve_now_is_unavailable_and_works_again_afterwards(
    own_redis: RedisTarget, trouble: str
) -> None:
    own_redis.lanes().push([LaneEntry("before", 1, 5)])
    cure = cause(own_redis, trouble)
    # A connection made before a password was set stays let in.
    lanes = own_redis.lanes()

    with pytest.raises(CoordinationUnavailable, match=trouble if trouble != "NOAUTH" else "redis_url: Redis refuses"):
        lanes.push([LaneEntry("id", 0, 5)])
    cure()

    wait_until(lambda: serving(lanes), "calls go through again")
    assert lanes.push([LaneEntry("id", 0, 5)]).raised == 1
    assert [entry.workflow_id for entry in lanes.pop(2).entries] == ["id", "before"]


def cause(target: RedisTarget, trouble: str) -> Callable[[], object]:
    """Bring a server into trouble; returns what ends it."""
    client = target.client
    match trouble:
        case "OOM":
            client.set("filler", b"x" * 4_000_000, ex=600)
            client.config_set("maxmemory", "3mb")
            return lambda: client.config_set("maxmemory", "0")
        case "READONLY":
            client.replicaof("127.0.0.1", 1)
            return lambda: client.replicaof("NO", "ONE")
        case "NOREPLICAS":
            client.config_set("min-replicas-to-write", "1")
            return lambda: client.config_set("min-replicas-to-write", "0")
        case "NOAUTH":
            client.config_set("requirepass", "canary")
            return lambda: client.config_set("requirepass", "")
        case _:
            return _keep_busy(target)


def _keep_busy(target: RedisTarget) -> Callable[[], object]:
    """An endless script of somebody else, which the server answers with BUSY until it is killed."""
    client = target.client
    client.config_set("lua-time-limit", "50")

    def loop() -> None:
        with client.client() as other, pytest.raises(redis.exceptions.ResponseError):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()

    def busy() -> bool:
        try:
            client.ping()
        except redis.exceptions.ResponseError as error:
            return str(error).startswith("BUSY")
        return False

    def end() -> None:
        client.script_kill()
        thread.join()

    wait_until(busy, "the server is busy")
    return end


@pytest.mark.case("A36")
def test_a_full_server_still_hands_out_what_it_holds(own_redis: RedisTarget) -> None:
    lanes = own_redis.lanes()
    lanes.pop(1)
    lanes.push([LaneEntry(f"id-{n}", n % 4, n) for n in range(20)])
    cause(own_redis, "OOM")

    assert len(lanes.pop(8).entries) == 8
    assert len(lanes.pop(11).entries) == 11
    assert lanes.remove([f"id-{n}" for n in range(20)]) == 1
    assert lanes.report().epoch is not None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", CoordinationUnavailable),
        ("MISCONF Redis is configured to save RDB snapshots", CoordinationUnavailable),
        ("MASTERDOWN Link with MASTER is down", CoordinationUnavailable),
        ("CLUSTERDOWN The cluster is down", CoordinationUnavailable),
        ("MOVED 3999 127.0.0.1:6381", CoordinationUnavailable),
        ("NOPERM this user has no permissions to run the 'evalsha' command", CoordinationDenied),
        ("NOAUTH Authentication required.", CoordinationDenied),
        ("ERR Protocol error: unauthenticated multibulk length", CoordinationDenied),
        ("NOPERM ACL failure in script: No permissions to access a channel script: 14cf", CoordinationDenied),
        ("ERR The user executing the script can't publish to the channel mentioned in the command", CoordinationDenied),
        ("ERR max number of clients reached", CoordinationUnavailable),
        ("WRONGPASS invalid username-password pair", CoordinationDenied),
        # Redis 6.2 wraps what failed inside a script.
        (
            "ERR Error running script (call to f_12ab): @user_script:3: @user_script: 3: "
            "-OOM command not allowed when used memory > 'maxmemory'. ",
            CoordinationUnavailable,
        ),
        (
            "ERR Error running script (call to f_12ab): @user_script:3: WRONGTYPE Operation against a key ",
            CoordinationRejected,
        ),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", CoordinationRejected),
        ("BADARG count: OOM READONLY", CoordinationRejected),
        ("ERR wrong number of arguments", CoordinationRejected),
        ("CROSSSLOT Keys in request don't hash to the same slot", CoordinationRejected),
    ],
)
@pytest.mark.case("A35")
def test_the_first_word_of_an_error_decides_what_it_is(text: str, kind: type[KernelError]) -> None:
    error = redis.connection.DefaultParser.parse_error(text)

    found = kernel_error("lane_pop", error)

    assert type(found) is kind
    assert str(found).startswith("redis_url: " if kind is CoordinationDenied else "lane_pop: ")
    assert "lane_pop: " in str(found)
    assert len(str(found)) < 300


def test_a_breaker_of_its_own_can_be_given(valkey: RedisTarget) -> None:
    breaker = CircuitBreaker(SystemClock(), failures=1)

    assert valkey.runner(breaker=breaker).breaker is breaker
