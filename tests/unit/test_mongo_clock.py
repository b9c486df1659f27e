"""The estimate of the server's clock: offset from the best sample, on a clock that nobody sets."""

from __future__ import annotations

import pytest

from kernel.clock import ManualClock
from kernel.errors import StoreUnavailable
from kernel.store.mongo_clock import SAMPLES, SYNC_AGAIN_MS, SYNC_PERIOD_MS, ServerClock


class Server:
    """A server whose clock stands `ahead_ms` before the client's, with a round trip for each call."""

    def __init__(self, clock: ManualClock, ahead_ms: int = 0) -> None:
        self.clock = clock
        self.ahead_ms = ahead_ms
        self.trips_ms: list[tuple[int, int]] = []
        self.calls = 0
        self.down = False

    def true_ms(self) -> int:
        return 1_800_000_000_000 + self.clock.boot_ms() + self.ahead_ms

    def ask(self) -> int:
        self.calls += 1
        there_ms, back_ms = self.trips_ms.pop(0) if self.trips_ms else (0, 0)
        self.clock.advance(there_ms)
        if self.down:
            raise StoreUnavailable("down")
        answer = self.true_ms()
        self.clock.advance(back_ms)
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


@pytest.mark.req("slp-clock")
def test_it_follows_the_server_and_not_the_wall_clock_of_this_machine(clock: ManualClock, server: Server) -> None:
    estimate = ServerClock(clock, server.ask)
    assert estimate.now_ms() == server.true_ms()
    clock.jump_wall(3_600_000)
    clock.advance(500)
    assert estimate.now_ms() == server.true_ms()


def test_the_sample_with_the_shortest_round_trip_counts(clock: ManualClock, server: Server) -> None:
    server.trips_ms = [(80, 0), (0, 300), (1, 1), (40, 90), (200, 0)]
    estimate = ServerClock(clock, server.ask)
    assert estimate.now_ms() == server.true_ms()
    assert server.calls == SAMPLES


def test_it_is_measured_again_every_thirty_seconds(clock: ManualClock, server: Server) -> None:
    estimate = ServerClock(clock, server.ask)
    estimate.now_ms()
    server.ahead_ms += 700
    clock.advance(SYNC_PERIOD_MS - 1)
    assert estimate.now_ms() == server.true_ms() - 700
    clock.advance(1)
    assert estimate.now_ms() == server.true_ms()
    assert server.calls == 2 * SAMPLES


def test_it_is_measured_again_when_the_server_changed(clock: ManualClock, server: Server) -> None:
    estimate = ServerClock(clock, server.ask)
    estimate.now_ms("a:27017")
    server.ahead_ms -= 5_000
    assert estimate.now_ms("b:27017") == server.true_ms()


def test_it_is_measured_again_after_a_lost_connection(clock: ManualClock, server: Server) -> None:
    estimate = ServerClock(clock, server.ask)
    estimate.now_ms()
    server.ahead_ms -= 5_000
    estimate.distrust()
    assert estimate.now_ms() == server.true_ms()


def test_an_outage_keeps_the_old_offset_and_is_not_asked_about_at_every_call(
    clock: ManualClock, server: Server
) -> None:
    estimate = ServerClock(clock, server.ask)
    estimate.now_ms()
    server.down = True
    estimate.distrust()
    for _ in range(10):
        assert estimate.now_ms() == server.true_ms()
        estimate.distrust()
    assert server.calls == SAMPLES + 1
    clock.advance(SYNC_AGAIN_MS)
    server.down = False
    server.ahead_ms += 9
    assert estimate.now_ms() == server.true_ms()


def test_a_clock_that_was_never_measured_is_not_guessed(clock: ManualClock, server: Server) -> None:
    server.down = True
    with pytest.raises(StoreUnavailable):
        ServerClock(clock, server.ask).now_ms()
