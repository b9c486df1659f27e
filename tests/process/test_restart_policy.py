"""When a child comes back, as a table (DECISIONS detail 23)."""

from __future__ import annotations

import pytest

from kernel.config import Config
from supervisor.forking import Exit, cause_of
from supervisor.restart import Death, RestartHistory, RestartPolicy, Verdict

POLICY = RestartPolicy(first_ms=200, max_ms=3_000, give_up=5, stable_ms=10_000)


@pytest.fixture
def history() -> RestartHistory:
    return RestartHistory(POLICY)


def die_after(history: RestartHistory, alive_ms: int | None, death: Death | None = None) -> Verdict:
    """One life: ready at 1,000 and dead `alive_ms` later; None: never ready."""
    history.forked()
    if alive_ms is not None:
        history.ready(1_000)
    return history.died(death or Death(), 1_000 + (alive_ms or 0))


def test_the_settings_are_the_policy() -> None:
    config = Config(restart_first_s=0.1, restart_max_s=7, restart_give_up=3, restart_stable_s=2)

    assert RestartPolicy.of(config) == RestartPolicy(first_ms=100, max_ms=7_000, give_up=3, stable_ms=2_000)


def test_the_delay_doubles_up_to_its_limit(history: RestartHistory) -> None:
    delays = [die_after(history, 5_000).delay_ms for _ in range(7)]

    assert delays == [200, 400, 800, 1600, 3000, 3000, 3000]


@pytest.mark.req("dc-restart-child")
def test_five_deaths_before_ready_in_a_row_are_the_verdict(history: RestartHistory) -> None:
    verdicts = [die_after(history, None) for _ in range(5)]

    assert [verdict.give_up for verdict in verdicts] == [False] * 4 + [True]
    assert history.start_failures == 5


@pytest.mark.parametrize(
    ("alive_ms", "death", "counts"),
    [
        (None, Death(), True),
        (None, Death(by_sigkill=True), True),
        (None, Death(requested=True), True),
        (1_999, Death(), True),
        (2_000, Death(), False),
        (1_999, Death(committed=True), False),
        (1_999, Death(by_sigkill=True), False),
        (1_999, Death(requested=True, by_sigkill=True), False),
        (1_999, Death(ordered=True), False),
        (None, Death(store_away=True), False),
        (1_999, Death(store_away=True), False),
    ],
)
def test_which_deaths_are_failed_starts(history: RestartHistory, alive_ms, death, counts) -> None:
    assert any(die_after(history, alive_ms, death).give_up for _ in range(20)) is counts


def test_a_later_life_forgives_failed_starts(history: RestartHistory) -> None:
    for alive_ms in (None, None, None, None, 5_000, None, None, None, None):
        assert not die_after(history, alive_ms).give_up


@pytest.mark.case("A63")
def test_an_outage_of_the_store_neither_counts_nor_forgives(history: RestartHistory) -> None:
    verdicts = [die_after(history, None, Death(store_away=away)) for away in (False, True, True, False, False, False)]
    assert not any(verdict.give_up for verdict in verdicts)
    assert [verdict.delay_ms for verdict in verdicts[:4]] == [200, 400, 800, 1600], "nor is it a hot loop"

    assert die_after(history, None).give_up, "the fifth failed start in a row but for the outage"


@pytest.mark.case("A63")
@pytest.mark.parametrize(
    ("alive_ms", "death"),
    [
        (10_000, Death()),
        (50, Death(committed=True)),
        (10_000, Death(requested=True, by_sigkill=True)),
        (50, Death(committed=True, requested=True, by_sigkill=True)),
    ],
)
def test_a_slot_that_once_proved_itself_is_never_given_up(history: RestartHistory, alive_ms, death) -> None:
    die_after(history, alive_ms, death)

    verdicts = [die_after(history, None) for _ in range(50)]

    assert not any(verdict.give_up for verdict in verdicts)
    assert verdicts[-1].delay_ms == POLICY.max_ms


def test_a_stable_life_or_a_commit_resets_the_delay(history: RestartHistory) -> None:
    assert [die_after(history, 5_000).delay_ms for _ in range(3)] == [200, 400, 800]
    assert die_after(history, 10_000).delay_ms == 200
    assert die_after(history, 5_000).delay_ms == 400
    assert die_after(history, 50, Death(committed=True)).delay_ms == 200


def test_an_ordered_death_is_followed_at_once_and_counts_nothing(history: RestartHistory) -> None:
    assert die_after(history, 5_000).delay_ms == 200
    assert die_after(history, 5_000, Death(ordered=True)).delay_ms == 0
    assert die_after(history, 5_000).delay_ms == 400


@pytest.mark.parametrize(
    ("ended", "draining", "killed_by_order", "cause"),
    [
        (Exit(signal=9), False, False, "death"),
        (Exit(code=0), False, False, "death"),
        (Exit(code=0), True, False, "ordered"),
        (Exit(code=1), True, False, "ordered"),
        (Exit(signal=9), True, True, "ordered"),
        (Exit(signal=11), True, False, "death"),
    ],
)
def test_which_deaths_the_supervisor_ordered(ended, draining, killed_by_order, cause) -> None:
    assert cause_of(ended, draining=draining, killed_by_order=killed_by_order) == cause
