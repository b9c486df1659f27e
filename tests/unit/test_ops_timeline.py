"""Where time went: bars and figures, by exact text."""

from __future__ import annotations

import click
import msgspec
import pytest

from kernel.observe.views import Snapshot, Split
from supervisor.ops_timeline import KINDS, as_of, bar_lines, bars, painted, table
from tests.support.snapshots import BEGIN_MS, snapshot, split, step_view

DONE = snapshot(
    status="completed",
    waiting=None,
    current_step=None,
    updated_time=BEGIN_MS + 4_800,
    finish_time=BEGIN_MS + 4_800,
    split=split(scheduling=600, traffic=1_200, execution=1_800, external=1_200),
    steps=(
        step_view(
            "pack", "completed", ready_time=BEGIN_MS, attempt=1,
            split=split(execution=600, external=1_200, scheduling=600),
        ),
        step_view(
            "ship",
            "completed",
            ready_time=BEGIN_MS + 2_400,
            attempt=3,
            failures=2,
            takeovers=1,
            traffic_wait_count=2,
            split=split(traffic=1_200, execution=1_200),
        ),
        step_view("never_begun"),
    ),
)  # fmt: skip


def sums(part: Split) -> bool:
    return part.total_ms == part.scheduling_ms + part.traffic_ms + part.execution_ms + part.external_ms


@pytest.mark.req("lat-split")
def test_each_step_has_a_bar_where_it_lay_in_segments_of_four_glyphs() -> None:
    lines = [click.unstyle(line) for line in bar_lines(DONE, plain=False)]

    assert lines == [
        "  pack         ▏░░░░░░────────────██████                          completed",
        "  ship         ▏                        ▒▒▒▒▒▒▒▒▒▒▒▒████████████  "
        "completed, attempt 3, 2 failed, 1 taken over, 2 permit waits",
        "  never_begun  ▏                                                  pending",
        "                ░░ scheduling   ▒▒ permit   ── external   ██ execution",
    ]


def test_where_only_ascii_can_be_shown_the_kinds_are_still_four() -> None:
    lines = [click.unstyle(line) for line in bar_lines(DONE, plain=True)]

    assert lines[0].isascii() and lines[0].split()[1] == "|......------------######"
    assert len({kind.ascii for kind in KINDS}) == len({kind.glyph for kind in KINDS}) == 4


def test_colour_comes_on_top_of_the_glyphs_and_never_alone() -> None:
    assert painted("░░█") == "\x1b[34m░░\x1b[0m\x1b[32m█\x1b[0m"
    assert len({kind.colour for kind in KINDS}) == 4


@pytest.mark.req("lat-split", "lat-fields")
def test_the_four_columns_of_every_row_sum_to_its_total() -> None:
    lines = table(DONE)

    assert lines == [
        "            scheduling      permit    external   execution       total",
        "  pack           0.600       0.000       1.200       0.600       2.400",
        "  ship           0.000       1.200       0.000       1.200       2.400",
        "  workflow       0.600       1.200       1.200       1.800       4.800",
    ]
    for line in lines[1:]:
        figures = [round(float(figure) * 1000) for figure in line.split()[1:]]
        assert sum(figures[:4]) == figures[4]


@pytest.mark.parametrize(
    ("waiting", "status", "claim", "grows"),
    [
        ("worker", "pending", None, "scheduling_ms"),
        ("retry", "pending", None, "scheduling_ms"),
        ("permit", "pending", None, "traffic_ms"),
        ("signal", "waiting", None, "external_ms"),
        ("timer", "waiting", None, "external_ms"),
        ("step", "running", "token", "execution_ms"),
        ("worker", "running", None, "scheduling_ms"),
        ("parked", "pending", None, "scheduling_ms"),
    ],
)
def test_what_has_lasted_since_the_last_event_is_counted_to_what_goes_on(
    waiting: str, status: str, claim: str | None, grows: str
) -> None:
    """A workflow that waits for ten minutes has had no event for ten minutes."""
    seen = snapshot(
        waiting=waiting,
        claim_token=claim,
        updated_time=BEGIN_MS + 1_000,
        split=split(scheduling=1_000),
        steps=(step_view("pack", status, ready_time=BEGIN_MS, split=split(scheduling=1_000)), step_view("ship")),
    )

    shown = as_of(seen, BEGIN_MS + 601_000)

    for before, after in ((seen.split, shown.split), (seen.steps[0].split, shown.steps[0].split)):
        assert getattr(after, grows) == getattr(before, grows) + 600_000
        assert sums(after) and after.total_ms == 601_000
    assert shown.steps[1] == seen.steps[1]


def test_what_an_earlier_run_has_completed_takes_no_place_in_this_one() -> None:
    old = step_view(
        "pack", "completed", ready_time=BEGIN_MS - 9_000, finish_time=BEGIN_MS, split=split(execution=9_000)
    )
    new = step_view("ship", "running", ready_time=BEGIN_MS, split=split(execution=500))
    seen = snapshot(steps=(old, new), split=split(execution=500), updated_time=BEGIN_MS + 500)

    first, second, *_ = [click.unstyle(line) for line in bar_lines(seen, plain=False)]

    assert first.split() == ["pack", "▏", "completed,", "in", "an", "earlier", "run"]
    assert "█" * 48 in second
    assert [line.split()[0] for line in table(seen)[1:]] == ["ship", "workflow"]


def test_what_has_ended_and_what_comes_from_the_future_stays_as_it_is() -> None:
    assert as_of(DONE, BEGIN_MS + 10_000_000) == DONE
    assert as_of(snapshot(), BEGIN_MS - 1) == snapshot()


@pytest.mark.parametrize("total", [0, 1, 7, 4_800, 10**9])
@pytest.mark.parametrize("parts", [(1, 1, 1, 1), (1, 0, 0, 0), (999, 1, 1, 1), (0, 3, 0, 5)])
def test_a_bar_never_leaves_its_space(total: int, parts: tuple[int, int, int, int]) -> None:
    step = step_view("pack", "running", ready_time=BEGIN_MS + total // 2, split=split(*parts))
    seen = snapshot(steps=(step,), split=split(total), updated_time=BEGIN_MS + total)

    (bar,) = bars(seen, plain=False, cells=20)

    assert bar.offset >= 0 and bar.offset + len(bar.cells) <= 20


def test_a_tampered_snapshot_moves_no_cursor() -> None:
    step = step_view("\x1b[2Jpack", ready_time=BEGIN_MS, split=split(execution=5))
    seen: Snapshot = msgspec.structs.replace(DONE, steps=(step,))

    assert "\x1b[2J" not in "".join([*bar_lines(seen, plain=False), *table(seen)])
