"""The wakeup listener: told of pushes, comes back after every kind of lost link, never ends by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kernel.clock import SystemClock
from kernel.coordination import Connector, LaneEntry, WakeupListener
from tests.lua_scripts.forker import REFUSED
from tests.lua_scripts.proxy import proxied
from tests.support.program import Program
from tests.support.redis_servers import RedisTarget
from tests.support.wait import stays, wait_until

NOW = 1_800_000_000_000


PATIENT_MS = 30_000
"""A thread that stands still takes its own silence for the server's: where no silence is meant there is time for it."""
SILENT_MS = 1_000


class Ear:
    """A listener on a thread of its own, with short intervals, and what it was told."""

    def __init__(
        self,
        connector: Connector,
        channel: bytes,
        on_wakeup: Callable[[int | None], None] | None = None,
        pong_ms: int = PATIENT_MS,
    ):
        self.heard: list[int | None] = []
        self.stop = threading.Event()
        self.listener = WakeupListener(
            connector, channel, on_wakeup or self.heard.append, SystemClock(), lambda: 0.5,
            block_s=0.02, ping_ms=200, pong_ms=pong_ms, backoff_first_s=0.02, backoff_max_s=0.2,
        )  # fmt: skip
        self.thread = threading.Thread(target=self.listener.run, args=(self.stop,))

    def start(self) -> Ear:
        self.thread.start()
        return self

    def close(self) -> None:
        self.stop.set()
        if self.thread.ident is not None:
            self.thread.join(10)
        assert not self.thread.is_alive(), "the listener stopped"


@pytest.fixture
def ears() -> Iterator[list[Ear]]:
    """Listeners put in here are stopped after the test."""
    made: list[Ear] = []
    yield made
    for ear in made:
        ear.close()


def listening(ears: list[Ear], connector: Connector, target: RedisTarget) -> Ear:
    ears.append(Ear(connector, target.keys.wakeup_channel).start())
    wait_until(lambda: ears[-1].listener.subscribed, "the listener is subscribed")
    return ears[-1]


def test_each_push_is_heard_with_its_due_time(redis_target: RedisTarget, ears: list[Ear]) -> None:
    ear = listening(ears, redis_target.connector, redis_target)
    lanes = redis_target.lanes()

    lanes.push([LaneEntry("a", 0, NOW + 7)])
    lanes.push([LaneEntry("b", 0, NOW + 9), LaneEntry("c", 2, NOW + 5)])
    lanes.push([LaneEntry("d", 0, NOW)], wake=False)
    lanes.wake()
    redis_target.client.publish(redis_target.keys.wakeup_channel, b"junk \xff")

    wait_until(lambda: len(ear.heard) == 5, "all wakeups are heard")
    assert ear.heard == [None, NOW + 7, NOW + 5, 0, None], "first of all: look once after subscribing"


@pytest.mark.case("A27")
def test_a_restarted_server_is_subscribed_to_again(own_redis: RedisTarget, ears: list[Ear]) -> None:
    assert own_redis.server is not None
    ear = listening(ears, own_redis.connector, own_redis)
    for restarts in range(1, 4):
        own_redis.server.kill()
        wait_until(lambda: not ear.listener.subscribed, "the loss is noticed")
        own_redis.server.start()

        wait_until(lambda: ear.listener.subscribed, "subscribed again")
        assert ear.listener.subscriptions == restarts + 1
        each = [None] * (restarts + 1)
        wait_until(lambda each=each: ear.heard == each, "it says that wakeups may have been missed")  # type: ignore[misc]
    own_redis.lanes().push([LaneEntry("a", 0, NOW)])
    wait_until(lambda: ear.heard[-1] == NOW, "pushes are heard again")


@pytest.mark.case("A27")
def test_a_half_open_link_is_noticed_by_ping_and_replaced(real_redis: RedisTarget, ears: list[Ear]) -> None:
    assert real_redis.server is not None
    with proxied(real_redis.server.socket) as proxy:
        ear = listening(ears, proxy.endpoint.connection, real_redis)
        # Long after the first ping was due, an idle but healthy link is still the first one.
        stays(lambda: ear.listener.subscriptions == 1, "an answered ping keeps the link", seconds=0.7)

        proxy.silent = True
        ear.listener._pong_ms = SILENT_MS
        wait_until(lambda: "no answer to a ping" in ear.listener.last_error, "the silence is noticed")
        proxy.silent = False

        # A request that the silence has swallowed is noticed as soon.
        wait_until(lambda: ear.listener.subscribed and ear.listener.subscriptions >= 2, "a new subscription")
        ear.listener._pong_ms = PATIENT_MS
        wait_until(lambda: ear.listener.subscribed, "it stands")
        real_redis.lanes().push([LaneEntry("a", 0, NOW)])
        wait_until(lambda: ear.heard[-1] == NOW, "pushes are heard again")
        ear.close()


@pytest.mark.case("A27")
def test_a_lost_subscription_request_is_noticed_although_the_link_lives(
    real_redis: RedisTarget, ears: list[Ear]
) -> None:
    assert real_redis.server is not None
    with proxied(real_redis.server.socket) as proxy:
        proxy.silent = True
        ears.append(Ear(proxy.endpoint.connection, real_redis.keys.wakeup_channel, pong_ms=SILENT_MS).start())
        wait_until(lambda: proxy.swallowed, "the request is lost")
        proxy.silent = False

        wait_until(lambda: "no answer to SUBSCRIBE" in ears[0].listener.last_error, "the loss is noticed")
        wait_until(lambda: ears[0].listener.subscribed, "subscribed over a new link")
        ears[0].close()


def test_garbage_and_a_cut_link_end_in_a_new_subscription(real_redis: RedisTarget, ears: list[Ear]) -> None:
    assert real_redis.server is not None
    with proxied(real_redis.server.socket) as proxy:
        ear = listening(ears, proxy.endpoint.connection, real_redis)

        proxy.garbage = b"!garbage\r\n"
        real_redis.lanes().wake()
        wait_until(lambda: ear.listener.subscriptions == 2, "subscribed again after garbage")
        wait_until(lambda: ear.listener.subscribed, "the subscription stands")
        proxy.cut()
        wait_until(lambda: ear.listener.subscriptions == 3, "subscribed again after the cut")
        ear.close()


def test_a_refused_login_is_tried_again_with_growing_pauses(own_redis: RedisTarget, ears: list[Ear]) -> None:
    own_redis.client.config_set("requirepass", "canary")
    ears.append(Ear(own_redis.connector, own_redis.keys.wakeup_channel).start())
    wait_until(lambda: ears[0].listener.last_error, "the refusal is noticed")

    own_redis.client.config_set("requirepass", "")

    wait_until(lambda: ears[0].listener.subscribed, "subscribed once the server lets it in")


def test_the_pauses_between_attempts_double_up_to_a_cap_and_carry_jitter() -> None:
    pauses: list[float] = []

    class Stop:
        """Never waits; stops after eight pauses."""

        def is_set(self) -> bool:
            return len(pauses) == 8

        def wait(self, timeout: float) -> bool:
            pauses.append(timeout)
            return False

    class Dead:
        def connect(self) -> None:
            raise OSError("refused")

        def disconnect(self) -> None: ...

    def run(fraction: float) -> list[float]:
        pauses.clear()
        listener = WakeupListener(
            lambda timeout_s: Dead(), b"c", lambda due_ms: None, SystemClock(), lambda: fraction,  # type: ignore[arg-type]
            backoff_first_s=0.1, backoff_max_s=2.0,
        )  # fmt: skip
        listener.run(Stop())
        assert listener.last_error == "OSError: refused"
        return [round(pause, 6) for pause in pauses]

    assert run(1.0) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert run(0.0) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_a_callback_that_raises_does_not_end_the_listener(redis_target: RedisTarget, ears: list[Ear]) -> None:
    heard: list[int | None] = []

    def on_wakeup(due_ms: int | None) -> None:
        heard.append(due_ms)
        raise ValueError("broken callback")

    ears.append(Ear(redis_target.connector, redis_target.keys.wakeup_channel, on_wakeup).start())
    wait_until(lambda: ears[0].listener.subscribed, "the listener is subscribed")

    redis_target.lanes().push([LaneEntry("a", 0, NOW)])

    wait_until(lambda: heard == [None, NOW], "the push is heard")
    assert ears[0].listener.subscriptions == 1
    assert ears[0].listener.last_error == "callback: ValueError: broken callback"


@pytest.mark.case("A55")
def test_a_listener_runs_in_the_process_that_made_it(valkey: RedisTarget) -> None:
    assert valkey.server is not None
    with Program("tests.lua_scripts.forker", "listener", str(valkey.server.socket)) as program:
        assert program.receive() == "ready"

        program.send("fork")
        assert program.receive() == REFUSED

        program.send("run it in the parent")
        assert program.receive() == "served"
