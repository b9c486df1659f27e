"""`kernel-supervisor bench lanes`, `permits` and `streams` as a user runs them, in a folder of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench_runs.command import BENCH, LIMIT_S
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)
SMALL = ("--repeats", "2", "--slice", "2ms")
TIMED = {
    "op", "n", "depth", "unit", "per_s", "noop_per_s", "ratio", "ratio_p10", "ratio_p90", "target", "p50_us", "p99_us",
    "client_us", "noop_client_us", "server_us", "calls", "calls_target", "timed", "slices",
}  # fmt: skip
CALL_PATHS = ["noop_held_connection", "noop_register_script"]
Ended = tuple[subprocess.CompletedProcess[str], dict[str, Any], list[str]]


def run_bench(folder: Path, bench: str, *options: str) -> Ended:
    """What it said, its report, and the names that it left in `folder`."""
    command = [*BENCH, bench, "--json", "report.json", *options]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    report = folder / "report.json"
    left = sorted(path.name for path in folder.iterdir() if path != report)
    return ended, json.loads(report.read_text()) if report.is_file() else {}, left


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ended]:
    """A small run of each, made once."""
    ran: dict[str, Ended] = {}
    options = {
        "lanes": ("--depth", "400", "--depth", "100", "--plot", "lanes.svg"),
        "permits": ("--depth", "8", "--depth", "200", "--observe", "1.2s"),
        "streams": ("--depth", "100"),
    }

    def run(bench: str) -> Ended:
        if bench not in ran:
            ran[bench] = run_bench(tmp_path_factory.mktemp(bench), bench, *SMALL, *options[bench])
        return ran[bench]

    return run


def rows_of(report: dict[str, Any], *ops: str) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["op"] in ops]


@pytest.mark.req("dc-bench-lanes", "lane-weights")
def test_lanes_have_rates_and_exact_shares(small: Callable[[str], Ended]) -> None:
    ended, report, left = small("lanes")

    assert ended.returncode == 0, ended.stderr
    assert report["shares"] == {"lane 0": 0.4, "lane 1": 0.3, "lane 2": 0.2, "lane 3": 0.1}
    assert "640:480:320:160 of 1600 pops" in ended.stdout
    assert left == ["lanes.svg"]
    shapes = [(row["op"], row["n"], row["depth"]) for row in report["rows"] if row["op"] not in CALL_PATHS]
    four = [("lane_pop", 1), ("lane_pop", 8), ("lane_push", 1), ("lane_push_many", 100)]
    assert shapes == [(*op, depth) for depth in (100, 400) for op in four] + [("lane_pop_idle", 1, 0)]
    (many, _) = rows_of(report, "lane_push_many")
    assert many["unit"] == "ids"


@pytest.mark.req("dc-bench-permits", "prm-window")
def test_permits_have_rates_and_what_was_seen_against_the_limits(small: Callable[[str], Ended]) -> None:
    ended, report, _ = small("permits")

    assert ended.returncode == 0, ended.stderr
    five = ["permit_acquire", "permit_acquire_rate", "permit_start", "permit_renew", "permit_release"]
    shapes = [(row["op"], row["depth"]) for row in rows_of(report, *five)]
    assert shapes == [(op, depth) for depth in (8, 200) for op in five]
    (seen,) = rows_of(report, "limits")
    assert 0 < seen["in_flight_seen"] <= seen["max_concurrency"] == 8
    assert 0 < seen["starts_in_1s_seen"] <= seen["max_starts_per_second"] == 20
    assert seen["refused"] > 0, "nobody pressed against the limits"


@pytest.mark.req("dc-bench-stream", "sse-aggregate")
def test_streams_have_rates_and_what_aggregation_saves(small: Callable[[str], Ended]) -> None:
    ended, report, _ = small("streams")

    assert ended.returncode == 0, ended.stderr
    each, gathered, paced = rows_of(report, "text_each_piece", "text_aggregated", "text_aggregated_paced")
    assert (each["characters"], each["records"], each["bytes"]) == (10_000, 2_500, 12_500)
    assert (gathered["characters"], gathered["records"], gathered["bytes"]) == (10_000, 10, 10_010)
    assert (paced["characters"], paced["records"], paced["bytes"]) == (10_000, 250, 10_250)
    assert each["redis_bytes"] > paced["redis_bytes"] > gathered["redis_bytes"] > 10_000
    assert all(row["per_s"] > 0 for row in (each, gathered, paced))
    assert "no hole" in ended.stdout


@pytest.mark.req("dc-bench-repeatable")
@pytest.mark.parametrize("bench", ["lanes", "permits", "streams"])
def test_each_timed_row_names_its_yardstick_and_what_happens_inside(
    small: Callable[[str], Ended], bench: str
) -> None:  # fmt: skip
    ended, report, left = small(bench)
    timed = [row for row in report["rows"] if "ratio" in row]

    assert [row["op"] for row in timed][:2] == CALL_PATHS
    for row in timed:
        assert set(row) == TIMED
        assert row["per_s"] > 0 and row["noop_per_s"] > 0 and row["slices"] >= 2
        assert row["ratio_p10"] <= row["ratio"] <= row["ratio_p90"]
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["client_us"] > 0 and row["noop_client_us"] > 0
    for row in timed[2:]:
        assert row["calls"] >= 2, "a script that calls nothing was counted"
    assert (report["v"], report["bench"], report["violations"], report["findings"]) == (1, bench, 0, [])
    expected = {"repeats": 2, "slice_s": 0.002, "embedded": True}
    assert expected.items() <= report["settings"].items()
    assert {"pinned", "load_before"} <= report["settings"].keys() and "redis_url" not in report["settings"]
    assert "no-op EVALSHA" in ended.stdout and "ScriptRunner" in ended.stdout
    assert ended.stderr == "" and "\x1b" not in ended.stdout
    assert left == (["lanes.svg"] if bench == "lanes" else [])


def test_it_compares_with_a_report_of_its_own_kind(small: Callable[[str], Ended], tmp_path: Path) -> None:
    for bench in ("lanes", "streams"):
        (tmp_path / f"{bench}.json").write_text(json.dumps(small(bench)[1]))

    same, _, _ = run_bench(tmp_path, "streams", *SMALL, "--depth", "200", "--compare", "streams.json")
    other, _, _ = run_bench(tmp_path, "streams", *SMALL, "--compare", "lanes.json")

    assert same.returncode == 0, same.stderr
    assert "settings.depths: [100] → [200]" in same.stdout
    assert other.returncode == 2 and "is a report of bench lanes, not of streams" in other.stderr


@pytest.mark.parametrize(
    ("bench", "options"), [("permits", ["--observe", "200ms"]), ("streams", [])], ids=["permits", "streams"]
)
def test_a_server_that_is_given_keeps_only_what_was_there(
    tmp_path: Path, valkey: RedisTarget, bench: str, options: list[str]
) -> None:
    """Permits hand places to those who wait, and so write to the lanes as well."""
    assert valkey.server is not None
    valkey.client.set("of_somebody_else", "1", ex=1000)
    url = f"unix://{valkey.server.socket}"

    ended, report, left = run_bench(tmp_path, bench, *SMALL, "--depth", "50", "--redis", url, *options)

    assert ended.returncode == 0, ended.stderr
    assert (report["settings"]["embedded"], report["settings"]["pinned"]) == (False, None)
    assert valkey.client.keys() == [b"of_somebody_else"]
    assert str(valkey.server.socket) not in json.dumps(report)
    assert left == []


@pytest.mark.req("dc-bench-repeatable")
def test_a_run_that_does_not_get_ready_in_time_says_so_and_fails(tmp_path: Path) -> None:
    ended, report, left = run_bench(tmp_path, "lanes", "--limit", "50ms")

    assert ended.returncode == 1
    assert report["findings"] == ["not everything was measured within 0.05 s"]
    assert "violation: not everything was measured" in ended.stderr
    assert left == []


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    command = [*BENCH, "lanes", "--repeats", "1000"]  # far from done when it is interrupted
    bench = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        cpus = os.sched_getaffinity(0)
        wait_until(lambda: is_measuring(bench.pid, cpus, tmp_path), "a run that measures")
        family = psutil.Process(bench.pid).children(recursive=True)
        bench.send_signal(number)
        bench.communicate(timeout=LIMIT_S)
    finally:
        if bench.poll() is None:
            bench.kill()
            bench.communicate()

    assert bench.returncode == 128 + number
    assert family and psutil.wait_procs(family, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == []


def is_measuring(pid: int, cpus: set[int], folder: Path) -> bool:
    """It pins itself right before it measures; where there is one processor only, a log with content must do."""
    if len(cpus) > 1:
        return len(os.sched_getaffinity(pid)) == 1
    return any(b"supervisor.ready" in path.read_bytes() for path in folder.glob(".kernel/bench-*/kernel.log"))


@pytest.mark.parametrize(
    ("bench", "options", "words"),
    [
        ("lanes", ["--depth", "1000001"], "--depth"),
        ("permits", ["--depth", "900001"], "--depth: at most 900,000 for permits"),
        ("streams", ["--repeats", "0"], "--repeats"),
        ("lanes", ["--slice", "0"], "--slice"),
        ("permits", ["--observe", "nan"], "--observe"),
        ("streams", ["--observe", "1s"], "--observe"),
        ("streams", ["--limit", "soon"], "--limit"),
        ("lanes", ["--redis", "http://127.0.0.1"], "redis_url: must start with redis://"),
        ("lanes", ["--redis", "redis://:pa#ss@127.0.0.1"], "put the URL into REDIS_URL"),
        ("streams", ["--redis", "redis://u:pa%23ss@127.0.0.1"], "put the URL into REDIS_URL"),
        ("permits", ["--redis", "env"], "redis_url"),
        ("permits", ["--plot", "missing/picture.svg"], "--plot"),
        ("lanes", ["--plot", "lanes.png"], "must end in .svg"),
        ("streams", ["--compare", "missing.json"], "--compare"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_is_one_line_and_exit_2(tmp_path: Path, bench: str, options: list[str], words: str) -> None:
    command = [*BENCH, bench, *options]
    environ = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environ)

    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and words in line and "pa#ss" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    ended, report, left = run_bench(tmp_path, "streams", "--redis", f"unix://{tmp_path}/nobody.sock")

    assert (ended.returncode, ended.stdout, report, left) == (69, "", {}, [])
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and "PING" in line
