"""`kernel-supervisor bench workflows`: what it measures on a real tree, and that it ends clean however it ends."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.bench_runs.command import BENCH, LIMIT_S, Run, complaints, run_workflows
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)
ROW_OF_INTERFACES = {
    "workers", "durability", "per_s", "bare_commits_per_s", "ratio", "store_writes_per_workflow",
    "redis_trips_per_workflow", "p50_ms", "p99_ms", "step_runs", "recovered_s",
}  # fmt: skip


def test_all_complete_and_each_step_runs_exactly_once(small_run: Run) -> None:
    assert small_run.status == 0, small_run.stderr
    assert small_run.row["completed"] == 60
    assert small_run.row["step_runs"] == 180
    assert small_run.row["extra_entries"] == 0
    assert small_run.report["violations"] == 0


def test_a_workflow_of_three_steps_costs_at_most_six_writes_and_three_round_trips(small_run: Run) -> None:
    # One insert, one claim, one begin, three completions: fewer would mean that something is not counted.
    assert 5 <= small_run.row["store_writes_per_workflow"] <= 6
    assert 0 < small_run.row["redis_trips_per_workflow"] <= 3


@pytest.mark.req("dc-bench-repeatable")
def test_the_report_names_commit_machine_versions_and_settings(small_run: Run) -> None:
    report = small_run.report
    assert (report["v"], report["bench"]) == (1, "workflows")
    assert small_run.row.keys() >= ROW_OF_INTERFACES
    assert all(report[name] for name in ("commit", "machine", "python", "server"))
    assert report["server"].startswith("valkey ")
    expected = {"count": 60, "workers": 2, "slots": 8, "durability": "normal", "idle_samples": 20}
    assert expected.items() <= report["settings"].items()


def test_latency_and_the_bare_rate_are_timed_in_the_same_run(small_run: Run) -> None:
    row = small_run.row
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    # Both are rounded; per_s comes from the time that the row states.
    assert row["ratio"] == pytest.approx(row["store_writes_per_s"] / row["bare_commits_per_s"], rel=0.02, abs=0.001)
    assert row["per_s"] == pytest.approx(60 / row["seconds"], rel=0.01)


def test_without_a_terminal_it_prints_plain_lines_and_leaves_nothing_behind(small_run: Run) -> None:
    assert "60 of 60" in small_run.stdout
    assert "\x1b" not in small_run.stdout + small_run.stderr
    assert complaints(small_run.stderr) == []
    assert small_run.left == []


def test_several_numbers_of_workers_give_a_row_each_and_a_picture(tmp_path: Path) -> None:
    run = run_workflows(
        tmp_path, "--workers", "2", "--workers", "1", "--count", "30", "--idle-samples", "2", "--durability", "normal",
        "--plot", "workers.svg", "--repeats", "1",
    )  # fmt: skip

    assert run.status == 0, run.stderr
    assert [(row["workers"], row["completed"]) for row in run.report["rows"]] == [(1, 30), (2, 30)]
    assert run.report["settings"]["workers"] == [1, 2]
    assert {name.partition(":")[0] for name in run.report["shares"]} == {"1", "2"}
    assert run.stdout.count("30 of 30") == 2
    picture = ElementTree.parse(tmp_path / "workers.svg")
    (line,) = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(line.attrib["points"].split()) == 2
    assert run.left == ["workers.svg"]


@pytest.mark.req("dc-bench-repeatable")
def test_it_is_repeated_three_times_each_on_a_fresh_tree(tmp_path: Path) -> None:
    # The limit is as long as three of them take on any machine: a repeat that would not fit in is left out.
    run = run_workflows(
        tmp_path, "--count", "30", "--idle-samples", "2", "--durability", "normal", "--limit", "1000",
    )  # fmt: skip

    row = run.row
    assert run.status == 0, run.stderr
    assert (row["repeats"], run.report["settings"]["repeats"]) == (3, 3)
    assert (row["completed"], row["step_runs"], row["extra_entries"]) == (30, 90, 0)
    assert 0 < row["per_s_min"] <= row["per_s"] <= row["per_s_max"]
    assert {name.partition(":")[0] for name in run.report["shares"]} == {"run 1", "run 2", "run 3"}
    assert "medians of 3 runs" in run.stdout
    assert run.left == []


@pytest.mark.fault
@pytest.mark.req("flt-redis-flush")
def test_killed_workers_and_an_emptied_redis_cost_time_but_no_workflow(tmp_path: Path) -> None:
    # The first kill meets full hands: 320 × 3 steps of 50 ms take 16 places 3 s, and the first flush comes behind it.
    # More are open than can run: 16 would begin and end together, and a kill between two such waves meets empty hands.
    # Not every second: where a start takes so long, each kill meets one who starts, and five such in a row end a tree.
    run = run_workflows(
        tmp_path, "--count", "320", "--open", "24", "--kill-every", "2s", "--flush-every", "2500ms", "--seed", "1",
        "--idle-samples", "10", "--limit", "60",
    )  # fmt: skip

    row = run.row
    # How soon the work of the killed goes on on a shared machine is no matter of this test: bounds are measured apart.
    assert [line for line in run.report["findings"] if "went on late" not in line] == [], run.stderr
    assert run.status == bool(run.report["findings"])
    assert row["completed"] == 320
    assert row["kills"] >= 1 and row["flushes"] >= 1
    assert 0 < row["extra_entries"] <= row["kills"] * 8
    assert row["resumed"] > 0
    assert 0 < row["recovered_median_s"] <= row["recovered_s"]
    assert run.report["settings"]["seed"] == 1
    assert run.left == []


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_tree_and_removes_its_folder(tmp_path: Path, number: signal.Signals) -> None:
    # 60 s of load: it can not end by itself while this test looks.
    command = [*BENCH, "workflows", "--count", "9000", "--kill-every", "10s", "--idle-samples", "1"]
    bench = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: list(tmp_path.glob(".kernel/bench-*/entries/*")), "workers that run")
        family = psutil.Process(bench.pid).children(recursive=True)
        assert {"worker-0", "worker-1", "dispatcher-0"} <= {process.name() for process in family}

        bench.send_signal(number)
        bench.communicate(timeout=LIMIT_S)
    finally:
        if bench.poll() is None:
            bench.kill()
            bench.communicate()

    assert bench.returncode == 128 + number
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--count", "0"], "--count"),
        (["--count", "many"], "--count"),
        (["--workers", "0"], "--workers"),
        (["--durability", "half"], "--durability"),
        (["--kill-every", "soon"], "--kill-every"),
        (["--kill-every", "1ms"], "--kill-every"),
        (["--flush-every", "-1"], "--flush-every"),
        (["--workers", "2", "--workers", "65"], "--workers"),
        (["--json", "missing/report.json"], "--json"),
        (["--plot", "missing/picture.svg"], "--plot"),
        (["--plot", "picture.png"], "must end in .svg"),
        (["--plot", "."], "must end in .svg"),
        (["--json", "."], "--json"),
        (["--compare", "missing.json"], "--compare"),
        (["--data-dir", "/proc/nowhere"], "--data-dir"),
        (["surplus"], "surplus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_is_one_line_and_exit_2(tmp_path: Path, options: list[str], words: str) -> None:
    command = [*BENCH, "workflows", *options]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and words in line
    assert list(tmp_path.iterdir()) == []
