"""The circuit breaker, with a clock that the test moves."""

from __future__ import annotations

import threading

from kernel.clock import ManualClock
from kernel.coordination import CircuitBreaker


def opened(clock: ManualClock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, failures=2, cool_down_ms=1_000, cool_down_max_ms=5_000)
    for _ in range(2):
        assert breaker.admit()
        breaker.failed()
    return breaker


def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    breaker = CircuitBreaker(ManualClock(), failures=2)

    for _ in range(5):
        breaker.failed()
        assert breaker.state == "closed"
        breaker.succeeded()
    breaker.failed()
    breaker.failed()

    assert breaker.state == "open"
    assert not breaker.admit()


def test_one_probe_goes_through_after_the_cool_down_and_its_success_closes() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(999)
    assert not breaker.admit()
    clock.advance(1)
    assert breaker.state == "half_open"

    assert [breaker.admit() for _ in range(4)] == [True, False, False, False]
    assert breaker.state == "half_open"
    breaker.succeeded()

    assert breaker.state == "closed"
    assert all(breaker.admit() for _ in range(4))


def test_each_failed_probe_doubles_the_cool_down_up_to_the_cap_and_a_success_resets_it() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    waits = []
    for _ in range(5):
        waited = 0
        while not breaker.admit():
            clock.advance(100)
            waited += 100
        waits.append(waited)
        breaker.failed()

    assert waits == [1_000, 2_000, 4_000, 5_000, 5_000]
    clock.advance(5_000)
    assert breaker.admit()
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    clock.advance(1_000)
    assert breaker.admit()


def test_late_failures_of_calls_from_before_it_opened_do_not_lengthen_the_cool_down() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(900)
    breaker.failed()
    clock.advance(100)

    assert breaker.admit()


def test_an_interrupted_probe_frees_its_place_and_a_lost_one_does_after_a_cool_down() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(1_000)
    assert breaker.admit()
    breaker.abandoned()
    assert breaker.admit(), "the next caller may probe"

    assert not breaker.admit()
    clock.advance(1_000)
    assert breaker.admit(), "the probe never reported back"


def test_many_threads_get_one_probe() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(1_000)
    start, admitted = threading.Barrier(16), []

    def ask() -> None:
        start.wait()
        admitted.append(breaker.admit())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted.count(True) == 1
