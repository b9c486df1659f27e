"""What `bench fanout` calls a broken promise, from figures made here; and the figures in the documents."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.fanout_app import FAN_OUT, PAGE, PAGE_DONE, biz_key, event
from bench.fanout_row import GROWTH_KIB_MAX, row_of, text_of, violations_of
from bench.fanout_run import FanOutPlan, Part, Told
from bench.ledger import Ledger, read_entries
from fanout import Tally
from kernel import workflow_id_for
from tests.bench_runs.test_reports import RESULTS
from tests.fanout_runs.fake_flows import FakeInbox, StepRun

PLAN = FanOutPlan(count=1_000, workers=2, slots=8, durability="normal", limit_s=60.0)


def told(count: int = 1_000, **changes: Any) -> Told:
    """A part that kept every promise, but for `changes`."""
    facts: dict[str, Any] = {
        "part": Part(count, 2, 8), "server": "valkey 9", "in_time": True, "completed": count, "signals": count,
        "tally": Tally(pages=5, told=count, woken=count), "woken_again": 0, "delivery_s": 0.5, "telling_s": 0.4,
        "last_s": 1.25, "signal_writes": 3 * count + 16, "subscriber_writes": 7 * count, "round_trips": count // 2,
        "peak_before_kib": 39 * 1024, "peak_kib": 40 * 1024,
    }  # fmt: skip
    return Told(**{**facts, **changes})


def test_a_good_run_breaks_no_promise() -> None:
    assert violations_of(PLAN, [told(100), told()]) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"completed": 999}, "999 of 1000 subscribers completed"),
        ({"completed": 0, "in_time": False}, "completed within 60 s"),
        ({"signals": 998}, "998 of 1000 subscribers have a signal in the inbox"),
        ({"woken_again": 2}, "2 duplicates"),
        ({"tally": None}, "the fan-out to 1000 did not complete"),
        ({"tally": Tally(told=990, unknown=10)}, "it told 990 of 1000"),
        ({"signal_writes": 4_100}, "4.10 store writes per signal, more than 4"),
        ({"peak_kib": 40 * 1024 + GROWTH_KIB_MAX + 1}, "memory is not flat: 40 MiB for 100 subscribers, 64 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_promise_is_told(changes: dict[str, Any], words: str) -> None:
    (violation,) = violations_of(PLAN, [told(100), told(**changes)])

    assert words in violation


def test_memory_is_compared_between_trees_of_one_shape() -> None:
    alone = told(100, part=Part(100, 1, 1), peak_kib=1024)

    assert violations_of(PLAN, [alone, told(100), told()]) == []


def test_one_who_is_told_twice_is_counted_by_both_witnesses() -> None:
    twice = told(tally=Tally(told=999, duplicates=1), woken_again=1)

    assert row_of(PLAN, twice)["duplicates"] == 2
    assert any("2 duplicates" in line for line in violations_of(PLAN, [twice]))


def test_the_row_divides_what_was_counted() -> None:
    row = row_of(PLAN, told())

    assert (row["signals_per_s"], row["telling_per_s"], row["last_completed_s"]) == (2_000, 2_500, 1.25)
    assert (row["store_writes_per_signal"], row["subscriber_writes_each"]) == (3.016, 7.0)
    assert (row["redis_trips_per_signal"], row["peak_rss_mib"], row["lost"]) == (0.5, 40.0, 0)


def test_what_is_not_known_is_not_invented() -> None:
    nothing = told(tally=None, in_time=False, delivery_s=0.0, telling_s=0.0, peak_kib=None, completed=0)
    row = row_of(PLAN, nothing)

    assert (row["signals_per_s"], row["peak_rss_mib"], row["lost"]) == (None, None, 1_000)
    assert any("memory with it      unknown" in line for line in text_of(PLAN, [row]))


def test_a_run_has_a_tenth_alone_a_tenth_and_the_whole() -> None:
    def parts(**changes: int) -> list[Part]:
        return dataclasses.replace(PLAN, **changes).parts

    assert parts(count=20_000) == [Part(2_000, 1, 1), Part(2_000, 2, 8), Part(20_000, 2, 8)]
    assert parts(count=1, workers=1, slots=1) == [Part(1, 1, 1)]


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (200, [200]), (450, [200, 200, 50])])
def test_the_benchs_list_gives_everybody_once(count: int, sizes: list[int], tmp_path: Path) -> None:
    inbox = FakeInbox()
    StepRun(FAN_OUT, event(count), inbox, Ledger(tmp_path)).to_the_end()
    notes = [entry.step for entry in read_entries(tmp_path)]

    assert [len(call) for call in inbox.calls] == sizes
    assert notes == [PAGE, PAGE_DONE] * len(sizes)
    assert {signal.workflow_id for signal in inbox.stored.values()} == {
        workflow_id_for(biz_key(number)) for number in range(count)
    }


def summary_line(row: dict[str, Any]) -> str:
    cells = [
        f"{row['subscribers']:,}", f"{row['workers']} × {row['slots']}", f"{row['signals_per_s']:,} signals/s",
        f"{row['store_writes_per_signal']:.2f}", f"{row['redis_trips_per_signal']:.2f}",
        f"{row['last_completed_s']:.1f} s", f"{row['peak_rss_mib']:.0f} MiB",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


@pytest.mark.req("dc-bench-repeatable", "non-claims")
def test_the_readme_claims_exactly_the_figures_of_stored_reports() -> None:
    lines = (RESULTS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    stored = [report.read(file, "fanout") for file in sorted(RESULTS.glob("fanout*.json"))]

    claimed = [line for line in lines if re.search(r"\d signals/s", line)]
    assert claimed == [summary_line(row) for found in stored for row in found.rows]
    assert [found.violations for found in stored] == [0] * len(stored)
