"""Runs that are repeated: what a row has of them, and what breaks a promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench import fanout_row, report, workers_plot
from bench.outcome import Entered, Stored
from bench.recovery import Kill
from bench.repeats import median_of, repeated
from bench.workflow_row import findings_of, row_of, shares_of, text_of
from tests.bench_runs.test_counting import measured, plan
from tests.bench_runs.test_fanout_counting import PLAN, told


def stored(completed: int = 2, writes: int = 12) -> Stored:
    return Stored(completed=completed, others={}, writes=writes, writes_whole=True, last_end_ms=500)


def entered(**changes: Any) -> Entered:
    return Entered(**{"step_runs": 6, "missing": 0, "extra": 0, "shares": {"worker pid 7": 1.0}, **changes})


def test_rates_and_times_are_medians_and_the_spread_stands_beside_them() -> None:
    runs = [
        measured(repeat=1, seconds=0.5, bare_per_s=[100.0], idle_ms=[1.0, 9.0]),
        measured(repeat=2, seconds=0.4, bare_per_s=[400.0], idle_ms=[2.0, 8.0]),
        measured(repeat=3, seconds=0.25, bare_per_s=[50.0], idle_ms=[3.0, 7.0]),
    ]

    row = row_of(*runs)

    assert (row["repeats"], row["per_s"], row["per_s_min"], row["per_s_max"]) == (3, 5.0, 4.0, 8.0)
    assert (row["seconds"], row["store_writes_per_s"], row["bare_commits_per_s"]) == (0.4, 30, 100)
    assert row["ratio"] == 0.24, "the median of 0.24, 0.075 and 0.96, each of one run"
    assert (row["p50_ms"], row["p99_ms"]) == (2.0, 8.0)
    assert any("medians of 3 runs" in line and "4 to 8 workflows/s" in line for line in text_of(runs, row))
    assert workers_plot.lines_of([row]) == {"durability full, 8 slots": [(2, 5)]}


def test_counts_are_those_of_the_worst_run_and_faults_those_of_all() -> None:
    faulty = plan(kill_every_s=1.0)
    row = row_of(
        measured(plan=faulty, bare_per_s=[], kills=[Kill(0, 1)], stored=stored(writes=14)),
        measured(plan=faulty, bare_per_s=[], repeat=2, kills=[Kill(0, 2)], stored=stored(completed=1), round_trips=8,
                 worker_cpu_s=None, entered=entered(step_runs=9, extra=3)),
    )  # fmt: skip

    assert (row["completed"], row["step_runs"], row["extra_entries"]) == (1, 9, 3)
    assert (row["store_writes_per_workflow"], row["redis_trips_per_workflow"]) == (7.0, 4.0)
    assert (row["kills"], row["ratio"], row["worker_cpu_us_per_workflow"]) == (2, None, 500)


def test_a_single_run_is_its_own_median() -> None:
    row = row_of(measured())

    assert (row["repeats"], row["per_s"], row["per_s_min"], row["per_s_max"]) == (1, 4.0, 4.0, 4.0)
    assert not any("medians" in line for line in text_of([measured()], row))


def test_a_promise_that_one_repeat_breaks_is_told_with_its_number() -> None:
    runs = [measured(entered=entered()), measured(repeat=2, entered=entered(step_runs=7, extra=1))]

    assert findings_of(runs) == ["run 2: 1 steps were entered again, but nothing was killed"]
    assert shares_of(runs) == {"run 1: worker pid 7": 1.0, "run 2: worker pid 7": 1.0}


def test_of_several_numbers_of_workers_each_repeat_has_both_in_its_name() -> None:
    four = replace(plan(), workers=4)
    runs = [measured(repeat=number, plan=one) for one in (plan(), four) for number in (1, 2)]
    runs[3] = replace(runs[3], entered=entered(missing=1))

    assert findings_of(runs) == ["workers 4, run 2: 1 of 6 steps were never entered"]


def test_a_fanout_has_medians_and_the_worst_counts_and_tells_every_violation() -> None:
    runs = [[told(delivery_s=0.5)], [told(delivery_s=0.25, peak_kib=50 * 1024)], [told(delivery_s=1.0, completed=999)]]

    row = fanout_row.row_of(PLAN, *(run[0] for run in runs))

    assert (row["repeats"], row["signals_per_s"], row["per_s_min"], row["per_s_max"]) == (3, 2_000, 1_000, 4_000)
    assert (row["completed"], row["lost"], row["peak_rss_mib"]) == (999, 1, 50.0)
    assert fanout_row.findings_of(PLAN, runs) == ["run 3: 999 of 1000 subscribers completed"]
    text = "\n".join(fanout_row.text_of(PLAN, [row]))
    assert "3 runs" in text and "1,000" in text and "4,000" in text
    assert "fastest run" not in "\n".join(fanout_row.text_of(PLAN, [fanout_row.row_of(PLAN, told())]))


@pytest.mark.parametrize(
    ("each_s", "numbers"), [(1.0, [1, 2, 3]), (40.0, [1, 2, 3]), (41.0, [1, 2]), (61.0, [1]), (200.0, [1])]
)
def test_nothing_is_repeated_that_would_not_end_within_the_limit(each_s: float, numbers: list[int]) -> None:
    now_s, numbers_seen = [0.0], []
    for number in repeated(3, 120.0, lambda: now_s[0]):
        now_s[0] += each_s
        numbers_seen.append(number)

    assert numbers_seen == numbers


def test_who_asks_for_repeats_gets_them_all() -> None:
    assert list(repeated(3, None, iter(range(0, 9_000, 1_000)).__next__)) == [1, 2, 3]


def test_a_median_has_no_more_digits_than_its_values() -> None:
    assert (median_of([3, 1, 2]), median_of([1, 4]), median_of([0.5, 0.25])) == (2, 2, 0.375)


def test_an_older_report_was_of_one_run_on_embedded_servers_and_lacks_no_column() -> None:
    def made(settings: dict[str, Any], row: dict[str, Any]) -> report.Report:
        return report.made("workflows", server="valkey 9", settings=settings, rows=[row], shares={}, findings=[])

    now = {"repeats": 3, "redis": "embedded", "store": "embedded"}

    lines = report.compared(made({}, {"per_s": 4.0}), made(now, {"per_s": 5.0, "per_s_min": 4.0}))

    assert lines == ["settings.repeats: 1 → 3", "per_s: 4.0 → 5.0 (+25.0%)"]
