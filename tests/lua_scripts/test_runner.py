"""Calling scripts: reload, one reply for one caller, no second send, one process, one time limit."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import lua
from kernel.clock import ManualClock, SystemClock
from kernel.coordination import BoundScript, CircuitBreaker, LaneEntry, Lanes, ScriptRunner
from kernel.coordination.endpoint import Link
from kernel.errors import CoordinationRejected, CoordinationUnavailable
from tests.lua_scripts.forker import REFUSED
from tests.lua_scripts.proxy import Proxy, proxied
from tests.support.program import Program
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until


def script_of(name: str, code: str, args: int = 0) -> lua.Script:
    """A script without a file, for a test of the runner alone."""
    names = tuple(f"a{n}" for n in range(args))
    return lua.Script(name, 1, "p", (), names, (), (), "r", "c", code, hashlib.sha1(code.encode()).hexdigest())


ECHO = script_of("echo", "return ARGV[1]", 1)


class Interruption(BaseException):
    """What a test raises in the middle of a call."""


@contextmanager
def through_proxy(target: RedisTarget, *, call_timeout_s: float = 1.0) -> Iterator[tuple[Proxy, ScriptRunner]]:
    """Each answer that gets lost costs the time limit; a busy machine must stay within it with all other calls."""
    assert target.server is not None
    with proxied(target.server.socket) as proxy:
        breaker = CircuitBreaker(ManualClock(), failures=1_000)
        runner = ScriptRunner(proxy.endpoint.connection, SystemClock(), breaker=breaker, call_timeout_s=call_timeout_s)
        try:
            yield proxy, runner
        finally:
            runner.close()


@pytest.mark.req("dc-lua-evalsha")
@pytest.mark.case("A32")
def test_a_flush_of_the_script_cache_before_every_call_fails_no_call(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()

    for n in range(50):
        redis_target.client.script_flush()
        assert lanes.push([LaneEntry(f"id-{n}", 1, n)]).raised == 1
        redis_target.client.script_flush()
        assert [entry.workflow_id for entry in lanes.pop(1).entries] == [f"id-{n}"]


@pytest.mark.req("dc-lua-evalsha")
@pytest.mark.case("A32")
def test_flushes_beside_running_calls_fail_none(real_redis: RedisTarget) -> None:
    lanes = real_redis.lanes()
    stop, flushes = threading.Event(), 0

    def flush() -> None:
        nonlocal flushes
        with real_redis.client.client() as client:
            while not stop.is_set():
                client.script_flush()
                flushes += 1

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        pushed = 0
        while pushed < 1_000 or flushes <= 10:  # the other thread may come late
            assert lanes.push([LaneEntry(f"id-{pushed}", 1, pushed)]).raised == 1
            pushed += 1
    finally:
        stop.set()
        thread.join()
    assert lanes.stats()[1].depth == pushed


@pytest.mark.req("dc-lua-evalsha")
def test_a_known_script_is_called_by_its_sha1_alone(real_redis: RedisTarget) -> None:
    lanes = real_redis.lanes()
    lanes.pop(1)
    real_redis.client.config_resetstat()

    for _ in range(5):
        lanes.pop(1)

    commands = real_redis.client.info("commandstats")
    assert commands["cmdstat_evalsha"]["calls"] == 5
    assert "cmdstat_eval" not in commands


@pytest.mark.case("A32")
def test_a_restarted_server_is_used_again_after_one_failed_call_at_most(own_redis: RedisTarget) -> None:
    assert own_redis.server is not None
    runner = own_redis.runner()
    bound = BoundScript(ECHO, ())
    threads = [threading.Thread(target=runner.call, args=(bound, n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    own_redis.server.kill()
    own_redis.server.start()

    failures = 0
    for n in range(10):
        try:
            assert runner.call(bound, n) == str(n).encode()
        except CoordinationUnavailable:
            failures += 1
    assert failures <= 1


@pytest.mark.case("A28")
def test_a_lost_reply_is_never_answered_by_sending_again(real_redis: RedisTarget) -> None:
    with through_proxy(real_redis) as (proxy, runner):
        lanes = Lanes(runner, real_redis.keys)
        lanes.push([LaneEntry("id-0", 1, 0)])
        lanes.push([LaneEntry(f"id-{n}", 1, n) for n in range(1, 10)])
        lanes.pop(1)
        assert lanes.stats()[1].depth == 9

        proxy.lose_replies = 1
        with pytest.raises(CoordinationUnavailable):
            lanes.pop(1)
        assert lanes.stats()[1].depth == 8, "the one pop took one id"

        proxy.lose_replies = 1
        with pytest.raises(CoordinationUnavailable):
            lanes.push([LaneEntry("late", 0, 1)])
        assert lanes.stats()[0].depth == 1
        assert lanes.push([LaneEntry("late", 0, 1)]).rescored == 1, "a push may be repeated"


@pytest.mark.case("A31")
@pytest.mark.parametrize("moment", ["before sending", "between sending and reading", "after reading"])
def test_an_interrupted_call_drops_its_connection(redis_target: RedisTarget, moment: str) -> None:
    armed = False
    opened: list[Link] = []

    class Interrupted:
        """A connection that raises at one moment of a call when armed."""

        def __init__(self, link: Link) -> None:
            self._link = link
            self.dropped = False

        def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None:
            self._raise_at("before sending")
            self._link.send_packed_command(command, check_health)
            self._raise_at("between sending and reading")

        def read_response(self) -> Any:
            reply = self._link.read_response()
            self._raise_at("after reading")
            return reply

        def connect(self) -> None:
            self._link.connect()

        def can_read(self, timeout: float = 0) -> bool:
            return self._link.can_read(timeout)

        def disconnect(self) -> None:
            self.dropped = True
            self._link.disconnect()

        def _raise_at(self, now: str) -> None:
            nonlocal armed
            if armed and now == moment:
                armed = False
                raise Interruption

    def connect(timeout_s: float) -> Link:
        opened.append(Interrupted(redis_target.connector(timeout_s)))
        return opened[-1]

    runner = ScriptRunner(connect, SystemClock(), call_timeout_s=10)
    bound = BoundScript(ECHO, ())
    runner.call(bound, "first")
    for n in range(20):
        armed = True
        with pytest.raises(Interruption):
            runner.call(bound, f"interrupted-{n}")
        assert runner.call(bound, f"next-{n}") == f"next-{n}".encode()
    runner.close()

    assert len(opened) == 21
    assert all(link.dropped for link in opened)  # type: ignore[attr-defined]


# A signal may hit redis-py between making a socket and keeping it; such a socket is closed by the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.case("A31")
def test_five_hundred_signals_into_calls_never_shift_a_reply(valkey: RedisTarget) -> None:
    runner = valkey.runner()
    bound = BoundScript(ECHO, ())
    choose = random.Random(5)
    calling, done = threading.Event(), threading.Event()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt(*_: object) -> None:
        if calling.is_set():
            calling.clear()
            raise Interruption

    def send_signals() -> None:
        while not done.wait(choose.uniform(0, 0.002)):
            signal.pthread_kill(main_thread, signal.SIGUSR2)

    previous = signal.signal(signal.SIGUSR2, interrupt)
    sender = threading.Thread(target=send_signals)
    sender.start()
    interruptions = sent = 0

    def call() -> None:
        nonlocal sent
        sent += 1
        token = f"token-{sent}"
        assert runner.call(bound, token) == token.encode()

    try:
        while interruptions < 500:
            call()  # undisturbed: after each interruption one call at least is answered, however slow they are
            try:
                calling.set()
                while True:
                    call()
            except Interruption:
                interruptions += 1
    finally:
        done.set()
        sender.join()
        signal.signal(signal.SIGUSR2, previous)
    assert sent >= 500


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff\n\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b":12x\r\n", b"$5\r\nabc", b"*1\r\n*1\r\n?\r\n"]
)
def test_garbage_is_unavailability_and_the_next_call_is_right(real_redis: RedisTarget, garbage: bytes) -> None:
    with through_proxy(real_redis) as (proxy, runner):
        bound = BoundScript(ECHO, ())
        assert runner.call(bound, "a") == b"a"

        proxy.garbage = garbage
        with pytest.raises(CoordinationUnavailable):
            runner.call(bound, "b")

        assert runner.call(bound, "c") == b"c"


def test_a_connection_that_the_server_closed_while_idle_is_replaced_unnoticed(real_redis: RedisTarget) -> None:
    clock = ManualClock()
    with proxied(real_redis.server.socket) as proxy:  # type: ignore[union-attr]
        runner = ScriptRunner(proxy.endpoint.connection, clock, call_timeout_s=10)
        bound = BoundScript(ECHO, ())
        assert runner.call(bound, "a") == b"a"
        real_redis.client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: proxy.links_open == 0, "the link is closed")
        clock.advance(1_000)

        assert runner.call(bound, "b") == b"b"

        assert proxy.links_made == 2
        runner.close()


def test_many_threads_each_get_their_own_replies(redis_target: RedisTarget) -> None:
    runner = redis_target.runner()
    bound = BoundScript(ECHO, ())
    wrong: list[object] = []

    def work(name: int) -> None:
        for n in range(100):
            token = f"{name}-{n}"
            reply = runner.call(bound, token)
            if reply != token.encode():
                wrong.append((token, reply))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.req("dc-fork-safety")
@pytest.mark.case("A55")
def test_a_client_used_in_another_process_than_its_maker_raises_at_once(valkey: RedisTarget) -> None:
    assert valkey.server is not None
    with Program("tests.lua_scripts.forker", "runner", str(valkey.server.socket)) as program:
        assert program.receive() == "ready"
        connections = len(valkey.client.client_list())

        program.send("fork")
        assert program.receive() == REFUSED

        program.send("call again")
        assert program.receive() == "served"
        assert len(valkey.client.client_list()) == connections, "the parent's connection still serves"


def test_a_runner_opens_no_connection_before_the_first_call(valkey: RedisTarget) -> None:
    before = len(valkey.client.client_list())

    runner = valkey.runner()
    Lanes(runner, valkey.keys)

    assert len(valkey.client.client_list()) == before
    runner.command("PING")
    assert len(valkey.client.client_list()) == before + 1


def test_a_script_bound_to_the_wrong_number_of_keys_is_refused(valkey: RedisTarget) -> None:
    with pytest.raises(ValueError, match="lane_pop takes 5 keys, got 4"):
        BoundScript(lua.get("lane_pop"), valkey.keys.lanes)


def test_a_rejected_call_leaves_the_connection_in_use(redis_target: RedisTarget) -> None:
    runner = redis_target.runner()
    refusing = BoundScript(script_of("refusing", "return redis.error_reply('BADARG a: no')"), ())
    for _ in range(5):
        with pytest.raises(CoordinationRejected, match="refusing: BADARG a: no"):
            runner.call(refusing)

    assert runner.call(BoundScript(ECHO, ()), "x") == b"x"
    assert runner.breaker.state == "closed"
