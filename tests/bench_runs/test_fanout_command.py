"""`kernel-supervisor bench fanout`: what it measures on a real tree, and that it ends clean however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench_runs.command import BENCH, LIMIT_S, complaints
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)


def run_fanout(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*BENCH, "fanout", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]:
    """60 subscribers, and 6 in the smaller parts."""
    folder = tmp_path_factory.mktemp("bench")
    ended = run_fanout(folder, "--count", "60", "--json", "report.json")
    report = folder / "report.json"
    return ended, json.loads(report.read_text()) if report.is_file() else {}, folder


Small = tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]


@pytest.mark.req("fan-page-signals", "dc-bench-repeatable")
def test_everybody_is_told_once_and_completes(small: Small) -> None:
    ended, report, _ = small

    assert ended.returncode == 0, ended.stderr
    shapes = [(row["subscribers"], row["workers"], row["slots"]) for row in report["rows"]]
    assert shapes == [(6, 1, 1), (6, 2, 8), (60, 2, 8)]
    assert all(row["completed"] == row["subscribers"] for row in report["rows"])
    assert [(row["duplicates"], row["lost"]) for row in report["rows"]] == [(0, 0)] * 3
    assert (report["v"], report["bench"], report["violations"], report["findings"]) == (1, "fanout", 0, [])


def test_a_signal_costs_three_writes_and_its_subscriber_seven(small: Small) -> None:
    """Inbox, wake, mark; and insert, claim, begin, wait, claim, begin, end. Fewer would mean that some are not seen."""
    _, report, _ = small
    row = report["rows"][-1]

    assert 3.0 < row["store_writes_per_signal"] <= 3.2
    assert 7.0 <= row["subscriber_writes_each"] < 8.0
    assert row["redis_trips_per_signal"] > 0


def test_the_report_says_how_fast_and_how_large(small: Small) -> None:
    ended, report, folder = small
    for row in report["rows"]:
        assert 0 < row["signals_per_s"] <= row["telling_per_s"]
        assert row["last_completed_s"] > 0
        assert row["peak_rss_mib"] > 10

    expected = {"count": 60, "workers": 2, "slots": 8, "durability": "normal", "page_size": 200}
    assert expected.items() <= report["settings"].items()
    assert "signals/s" in ended.stdout and "\x1b" not in ended.stdout + ended.stderr
    assert complaints(ended.stderr) == []
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_it_is_repeated_on_fresh_trees_when_that_is_asked_for(tmp_path: Path) -> None:
    ended = run_fanout(tmp_path, "--count", "10", "--repeats", "2", "--workers", "1", "--json", "report.json")

    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(row["subscribers"], row["completed"], row["repeats"]) for row in report["rows"]] == [
        (1, 1, 2), (1, 1, 2), (10, 10, 2)
    ]  # fmt: skip
    assert all(row["per_s_min"] <= row["signals_per_s"] <= row["per_s_max"] for row in report["rows"])
    assert "2 runs" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_it_compares_with_a_report_of_its_own_kind_only(small: Small, tmp_path: Path) -> None:
    _, _, folder = small
    other = tmp_path / "other.json"
    other.write_text((folder / "report.json").read_text().replace('"bench": "fanout"', '"bench": "workflows"'))

    refused = run_fanout(tmp_path, "--compare", str(other))

    assert refused.returncode == 2
    assert "is a report of bench workflows, not of fanout" in refused.stderr


@pytest.mark.fault
def test_ctrl_c_ends_the_tree_and_removes_its_folder(tmp_path: Path) -> None:
    command = [*BENCH, "fanout", "--count", "100000"]  # far from done when it is interrupted
    bench = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: list(tmp_path.glob(".kernel/bench-*/*/entries/*")), "workers that run")
        family = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(signal.SIGINT)
        bench.communicate(timeout=LIMIT_S)
    finally:
        if bench.poll() is None:
            bench.kill()
            bench.communicate()

    assert bench.returncode == 130
    assert family and psutil.wait_procs(family, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--count", "0"], "--count"),
        (["--count", "100001"], "--count"),
        (["--slots", "0"], "--slots"),
        (["--durability", "half"], "--durability"),
        (["--limit", "soon"], "--limit"),
        (["--json", "missing/report.json"], "--json"),
        (["--compare", "missing.json"], "--compare"),
        (["surplus"], "surplus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_is_one_line_and_exit_2(tmp_path: Path, options: list[str], words: str) -> None:
    ended = run_fanout(tmp_path, *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and words in line
    assert list(tmp_path.iterdir()) == []
