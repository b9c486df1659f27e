"""Reports as files, what changed between two, progress on a terminal, and figures in the documents."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import click
import pytest

from bench import report
from bench.cli import Duration
from bench.progress import LineProgress, Progress, open_progress
from tests.support.requirements_index import CHECKOUT

RESULTS = CHECKOUT / "bench" / "results"
STORED = sorted(RESULTS.glob("workflows*.json"))
_CLAIM = re.compile(r"([\d,]*\d(?:\.\d+)?) workflows/s")


def made(**row: object) -> report.Report:
    settings = {"count": row.get("count", 1)}
    return report.made("workflows", server="valkey 9", settings=settings, rows=[row], shares={}, findings=[])


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report.write(made(per_s=12.5), file)

    assert report.read(file, "workflows") == made(per_s=12.5)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no report of a bench"),
        ("[1]", "is no report of a bench"),
        ('{"v":1,"bench":"workflows"}', "is no report of a bench"),
        ('{"v":2,"bench":"workflows","commit":"","machine":"","python":"","server":"","settings":{},"rows":[],'
         '"shares":{},"violations":0}', "has version 2"),
        ('{"v":1,"bench":"lanes","commit":"","machine":"","python":"","server":"","settings":{},"rows":[],'
         '"shares":{},"violations":0}', "is a report of bench lanes"),
    ],
    ids=["empty", "list", "incomplete", "version", "other"],
)  # fmt: skip
def test_what_is_no_report_of_this_bench_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)

    with pytest.raises(report.BadReport, match=words):
        report.read(file, "workflows")


def test_a_comparison_shows_each_number_that_changed_and_each_setting_that_differs() -> None:
    lines = report.compared(
        made(count=10, per_s=100.0, p50_ms=2.0, ratio=None), made(count=20, per_s=150.0, p50_ms=2.0)
    )

    assert lines == ["settings.count: 10 → 20", "count: 10 → 20 (+100.0%)", "per_s: 100.0 → 150.0 (+50.0%)"]


def test_rows_of_scripts_are_compared_by_operation_and_depth() -> None:
    def of(*rows: tuple[str, int, int, float]) -> report.Report:
        made_rows = [{"op": op, "n": n, "depth": depth, "ratio": ratio} for op, n, depth, ratio in rows]
        return report.made("lanes", server="valkey 9", settings={}, rows=made_rows, shares={}, findings=[])

    before = of(("lane_pop", 1, 1_000, 0.5), ("lane_pop", 1, 10_000, 0.4), ("lane_pop_idle", 0, 0, 0.5))
    now = of(("lane_pop", 1, 10_000, 0.5), ("lane_pop", 8, 1_000, 0.9), ("lane_pop_idle", 0, 0, 0.6))

    assert report.compared(before, now) == [
        "lane_pop(1) at 10,000: ratio: 0.4 → 0.5 (+25.0%)",
        "lane_pop_idle: ratio: 0.5 → 0.6 (+20.0%)",
    ]


@pytest.mark.parametrize(("text", "seconds"), [("1", 1.0), ("2s", 2.0), ("0.5s", 0.5), ("250ms", 0.25)])
def test_durations_are_seconds_or_milliseconds(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1m", "1e3", "0", "49ms", "3601"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nowhere_else() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        with open_progress(stream) as progress:
            progress.phase("workflows", total=10)
            progress.show(lambda: 4)

    assert pipe.getvalue() == ""
    assert "workflows" in terminal.getvalue()


def test_the_plain_line_counts_up_to_its_total() -> None:
    terminal = Terminal()
    progress = LineProgress(terminal)
    progress.phase("workflows", total=10)
    progress.show(lambda: 12)

    assert terminal.getvalue().endswith("workflows 10/10")


def test_nobody_counts_for_a_display_that_does_not_exist() -> None:
    asked: list[int] = []
    progress = Progress()
    progress.phase("workflows", total=10)
    progress.show(lambda: asked.append(1) or 1)

    assert asked == []


def table_line(name: str, row: dict[str, Any]) -> str:
    return (
        f"| {name} | {row['durability']} | {row['per_s']:,.0f} workflows/s | {row['store_writes_per_workflow']:.2f} "
        f"| {row['redis_trips_per_workflow']:.2f} | {row['p50_ms']:.1f} / {row['p99_ms']:.1f} ms |"
    )


def fault_line(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name}: {row['kills']} kills and {row['flushes']} flushes, {row['completed']} of {row['count']} completed, "
        f"{row['extra_entries']} of {row['count'] * 3} steps entered again; work of the killed went on after "
        f"{row['recovered_median_s']:.2f} s (median), {row['recovered_s']:.2f} s at most."
    )


@pytest.mark.req("dc-bench-repeatable", "non-claims")
def test_the_figures_of_the_readme_are_those_of_the_stored_reports() -> None:
    lines = (RESULTS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    reports = {file.name: report.read(file, "workflows") for file in STORED}

    assert len(reports) >= 3
    for name, stored in reports.items():
        (row,) = stored.rows
        assert (fault_line if row["kills"] else table_line)(name, row) in lines
        assert stored.violations == 0


@pytest.mark.req("dc-bench-repeatable", "non-claims")
def test_every_rate_in_any_document_is_that_of_a_stored_report() -> None:
    rates = {f"{row['per_s']:,.0f}" for file in STORED for row in report.read(file, "workflows").rows}
    documents = [path for path in CHECKOUT.rglob("*.md") if not _is_generated(path)]
    claims = {(path.name, claim) for path in documents for claim in _CLAIM.findall(path.read_text(encoding="utf-8"))}

    assert len(claims) >= 2
    assert sorted(claim for claim in claims if claim[1] not in rates) == []


def _is_generated(path: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(CHECKOUT).parts)
