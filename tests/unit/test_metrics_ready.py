"""The verdicts of `/livez` and `/readyz` on facts, and how facts grow old."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernel.config import Config
from supervisor.metrics_facts import Look, Seen
from supervisor.metrics_ready import is_live, verdict

FINE = Seen[Any]("fine", 0.3, None)


def status(*children: tuple[str, str], state: str = "RUNNING", age_s: float = 0.2, silent: bool = False) -> Seen[Any]:
    rows = [
        {"name": f"{role}-0", "role": role, "kind": role, "state": of_child, "silent": silent}
        for role, of_child in children
    ]
    return Seen({"state": state, "children": rows}, age_s, None)


ALL = (("worker", "RUNNING"), ("dispatcher", "RUNNING"))


def wrong(*facts: Seen[Any], config: Config | None = None) -> list[str]:
    found = verdict(config or Config(), *facts)
    assert found.ready == all(check.ok for check in found.checks if check.name != "redis")
    return [check.name for check in found.checks if not check.ok]


def test_a_tree_is_ready_when_all_its_facts_are_fresh_and_good() -> None:
    found = verdict(Config(), status(*ALL), FINE, FINE)
    assert found.ready and found.degraded == []
    assert [check.age_s for check in found.checks if check.name == "store"] == [0.3]


def test_redis_costs_latency_only() -> None:
    found = verdict(Config(), status(*ALL), FINE, Seen(None, None, "CoordinationUnavailable: refused"))
    assert found.ready and found.degraded == ["redis"]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ((status(*ALL, state="DRAINING"), FINE, FINE), ["not draining"]),
        ((status(*ALL), Seen("fine", 0.3, "StoreUnavailable: refused"), FINE), ["store"]),
        ((status(*ALL), Seen("fine", 2.1, None), FINE), ["store"]),
        ((status(*ALL), Seen(None, None, None), FINE), ["store"]),
        ((status(("worker", "BACKOFF"), ALL[1]), FINE, FINE), ["worker running"]),
        ((status(ALL[0], ("dispatcher", "STARTING")), FINE, FINE), ["dispatcher running"]),
        ((status(*ALL, silent=True), FINE, FINE), ["worker running", "dispatcher running"]),
        (
            (status(*ALL, age_s=2.1), FINE, FINE),
            ["supervisor", "not draining", "worker running", "dispatcher running"],
        ),
    ],
)
def test_what_is_missing_is_named(facts: tuple[Seen[Any], ...], names: list[str]) -> None:
    assert wrong(*facts) == names


def test_a_role_that_the_settings_do_not_ask_for_is_not_missed() -> None:
    assert wrong(status(ALL[0]), FINE, FINE, config=Config(dispatchers=0)) == []
    assert wrong(status(ALL[0]), FINE, FINE) == ["dispatcher running"]


def test_one_worker_of_several_is_enough() -> None:
    assert wrong(status(("worker", "BACKOFF"), *ALL), FINE, FINE) == []


def test_a_supervisor_is_alive_while_it_has_answered_within_five_seconds() -> None:
    assert is_live(status(age_s=4.9))
    assert not is_live(status(age_s=5.0))
    assert not is_live(Seen(None, None, "NoSupervisor: none"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_look_keeps_what_it_saw_last_and_tells_its_age_and_what_is_wrong_now() -> None:
    clock, answers = Clock(), iter(["up", ZeroDivisionError("it is away"), "up again"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    look: Look[str] = Look("it", call, period_s=0.5, monotonic=clock)
    assert look.seen() == Seen(None, None, None)
    assert look.take() == 0.5
    clock.now_s += 3
    look.take()
    assert look.seen() == Seen("up", 3.0, "ZeroDivisionError: it is away")
    look.take()
    assert look.seen() == Seen("up again", 0.0, None)


def test_an_answer_is_as_old_as_its_question() -> None:
    clock = Clock()
    look: Look[str] = Look("it", passing(clock, 4), period_s=0.5, monotonic=clock)
    look.take()
    assert look.seen().age_s == 4.0


def test_what_takes_long_is_looked_at_rarely_where_it_may_have_a_share_of_the_time() -> None:
    clock = Clock()
    look: Look[str] = Look("it", passing(clock, 3), period_s=2.0, share=0.1, monotonic=clock)
    assert look.take() == pytest.approx(27.0)


def test_a_stopped_look_ends() -> None:
    stop = threading.Event()
    stop.set()
    look: Look[int] = Look("it", lambda: 1, period_s=3600)
    look.run(stop)
    assert look.seen().value == 1


def passing(clock: Clock, seconds: float) -> Callable[[], str]:
    def call() -> str:
        clock.now_s += seconds
        return "seen"

    return call
