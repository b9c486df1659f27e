"""The blows follow from the seed, and no kind of them is left out."""

from __future__ import annotations

import pytest

from tests.chaos.schedule import AFTER_S, DECK, SOAK_DECK, YOUNGEST, drawn
from tests.chaos.soak import Growth, Sample, slope_per_minute
from tests.chaos.strikes import Striker


@pytest.mark.req("dc-tests-fault")
def test_a_seed_is_a_schedule() -> None:
    assert drawn(7, 600) == drawn(7, 600)
    assert drawn(7, 600) != drawn(8, 600)
    assert drawn(7, 600)[:50] == drawn(7, 300)[:50], "a shorter run of a seed is the beginning of the longer one"


def test_every_kind_falls_within_one_deck_and_every_kind_has_a_hand() -> None:
    blows = drawn(1, 3600)
    assert {blow.kind for blow in blows[: len(DECK)]} == set(DECK)
    assert all(AFTER_S[0] <= blow.after_s <= AFTER_S[1] for blow in blows)
    assert set(Striker.BLOWS) == set(DECK) | set(SOAK_DECK)


def test_a_soak_has_few_blows_and_kills_only_the_youngest() -> None:
    """So most of its processes live from its begin to its end: those are watched."""
    blows = drawn(1, 3600, soak=True)
    assert len(drawn(1, 3600)) / 12 < len(blows) < len(drawn(1, 3600)) / 8
    assert {blow.choice for blow in blows} == {YOUNGEST}
    assert not {"kill_supervisor", "kill_everybody", "roll"} & {blow.kind for blow in blows}


def test_the_slope_is_that_of_the_line_and_a_few_samples_beside_it_do_not_bend_it() -> None:
    line = [(10.0 * n, 5.0 + n / 3) for n in range(30)]
    assert slope_per_minute(line) == pytest.approx(2.0)
    assert slope_per_minute([(x, 900.0 if n in (3, 28, 29) else y) for n, (x, y) in enumerate(line)]) < 3.0
    assert slope_per_minute([(0, 5.0)]) == slope_per_minute([]) == 0.0


def grown(minutes: int, kib: float, fds: float, fills_min: float = 1.0) -> Growth:
    """One process that fills and then rises steadily."""
    growth = Growth()
    for number in range(minutes * 12 + 1):
        minute = number / 12
        warm, filled = max(0.0, minute - fills_min), min(minute / fills_min, 1)
        growth.note("worker-0", 7, Sample(60 * minute, 30_000 * filled + kib * warm, 30 + round(fds * warm)))
    return growth


@pytest.mark.parametrize("minutes", [5, 11, 20, 41, 60])
def test_what_fills_for_ten_minutes_is_no_growth_however_long_the_watch_is(minutes: int) -> None:
    assert list(grown(minutes, 0.0, 0.0, fills_min=10).findings()) == []


@pytest.mark.parametrize(
    ("minutes", "kib", "fds", "words"),
    [
        (60, 0.0, 0.0, ""),
        (60, 600.0, 0.0, "600 KiB of PSS a minute"),
        (60, 0.0, 2.0, "2.0 descriptors a minute more"),
        (5, 5_000.0, 5.0, ""),
        (5, 11_000.0, 0.0, "11000 KiB of PSS a minute"),
        (5, 0.0, 7.0, "7.0 descriptors a minute more"),
        (3, 0.0, 0.0, "none of 1 processes was watched for 210 s"),
    ],
)
def test_what_grows_by_the_minute_is_found(minutes: int, kib: float, fds: float, words: str) -> None:
    """A rise in the first minute is what the process needs; what fills within a few minutes more is no growth yet; and
    where nobody was watched for long enough nothing is proved."""
    found = "\n".join(grown(minutes, kib, fds).findings())
    assert (words in found) if words else (found == "")
