"""`bench workflows` and `bench fanout` on a MongoDB and a Redis that are not theirs alone: what they count there, and
that nothing of theirs remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.run_database import PREFIX, RunDatabase
from bench.servers import Servers
from bench.tree_place import open_place
from kernel.errors import InvalidConfig, StoreUnavailable
from tests.bench_runs.command import BENCH, LIMIT_S, run_workflows
from tests.support.mongo_server import MongoServer
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(300)
NOBODY = "mongodb://127.0.0.1:1/?directConnection=true"


def bench(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    addresses = ("REDIS_URL", "MONGODB_URI", "MONGO_URI")
    without = {name: value for name, value in os.environ.items() if name not in addresses}
    return subprocess.run(
        [*BENCH, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=without | environ,
        check=False,
    )


def databases(server: MongoServer) -> set[str]:
    return {name for name in server.driver.list_database_names() if name.startswith(PREFIX)}


@pytest.fixture
def mongo(mongo_server: MongoServer) -> Iterator[MongoServer]:
    """A server with a database of somebody else; afterwards it alone is there, as it was."""
    before = databases(mongo_server)
    others = mongo_server.driver["kernel_bench_of_others"]["bench_bare"]
    others.insert_one({"name": "kept"})
    try:
        yield mongo_server
        assert databases(mongo_server) - before == {"kernel_bench_of_others"}
        assert [row["name"] for row in others.find()] == ["kept"]
    finally:
        mongo_server.driver.drop_database("kernel_bench_of_others")


@pytest.fixture
def redis_url(real_redis: RedisTarget) -> Iterator[str]:
    """A server with a key of somebody else; afterwards it alone is there."""
    assert real_redis.server is not None
    real_redis.client.set("of_somebody_else", "1", ex=1000)
    yield f"unix://{real_redis.server.socket}"
    assert real_redis.client.keys() == [b"of_somebody_else"]


@pytest.mark.req("dc-bench-repeatable")
def test_workflows_on_a_mongodb_count_the_same_and_leave_no_database(
    mongo: MongoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", mongo.uri)
    run = run_workflows(tmp_path, "--count", "20", "--idle-samples", "2", "--repeats", "1", "--store", "env")

    assert run.status == 0, run.stderr
    assert (run.row["completed"], run.row["step_runs"], run.row["extra_entries"]) == (20, 60, 0)
    assert 5 <= run.row["store_writes_per_workflow"] <= 6
    assert run.row["bare_commits_per_s"] > 0
    assert run.row["ratio"] == pytest.approx(run.row["store_writes_per_s"] / run.row["bare_commits_per_s"], abs=0.02)
    settings = run.report["settings"]
    assert settings["store"].startswith("MongoDB ") and " at " in settings["store"]
    assert (settings["redis"], settings["durability"], run.row["durability"]) == ("embedded", "majority", "majority")
    assert settings["store"] in run.stdout and "embedded store" not in run.stdout
    assert run.left == []


@pytest.mark.req("dc-bench-repeatable")
def test_a_fanout_on_both_servers_tells_everybody_once_and_leaves_nothing(
    mongo: MongoServer, redis_url: str, tmp_path: Path
) -> None:
    ended = bench(
        tmp_path, "fanout", "--count", "20", "--json", "report.json", "--store", "env", "--redis", "env",
        REDIS_URL=redis_url, MONGODB_URI=mongo.uri,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    last = report["rows"][-1]
    assert (last["subscribers"], last["completed"], last["duplicates"], last["lost"]) == (20, 20, 0, 0)
    assert 3.0 < last["store_writes_per_signal"] <= 3.5
    assert 7.0 <= last["subscriber_writes_each"] < 8.0
    assert last["redis_trips_per_signal"] > 0
    assert report["settings"]["redis"] == redis_url.replace("unix://", "unix:")
    assert report["settings"]["store"].startswith("MongoDB ")
    assert report["settings"]["redis"] in ended.stdout and report["settings"]["store"] in ended.stdout
    assert not {"servers", "redis_url", "store_uri"} & report["settings"].keys()


@pytest.mark.fault
def test_workflows_on_a_redis_that_was_given_outlast_kills_and_leave_no_key(redis_url: str, tmp_path: Path) -> None:
    run = run_workflows(
        tmp_path, "--count", "320", "--open", "16", "--kill-every", "2s", "--idle-samples", "2", "--limit", "60",
        "--durability", "normal", "--redis", redis_url,
    )  # fmt: skip

    assert [line for line in run.report["findings"] if "went on late" not in line] == [], run.stderr
    assert run.row["completed"] == 320 and run.row["kills"] >= 1 and run.row["repeats"] == 1
    assert run.row["redis_trips_per_workflow"] > 0
    assert run.report["settings"]["redis"] == redis_url.replace("unix://", "unix:")
    assert run.report["settings"]["store"] == "embedded"
    assert run.left == []


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_drops_its_database_and_its_keys(
    mongo: MongoServer,
    valkey: RedisTarget,
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert valkey.server is not None
    before, url = databases(mongo), f"unix://{valkey.server.socket}"
    monkeypatch.setenv("MONGODB_URI", mongo.uri)
    command = [*BENCH, "workflows", "--count", "9000", "--idle-samples", "1", "--store", "env", "--redis", url]
    running = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: list(tmp_path.glob(".kernel/bench-*/entries/*")), "workers that run")
        wait_until(lambda: databases(mongo) > before, "a database of the run")
        wait_until(valkey.client.keys, "keys of the run")
        family = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(number)
        running.communicate(timeout=LIMIT_S)
    finally:
        if running.poll() is None:
            running.kill()
            running.communicate()

    assert running.returncode == 128 + number
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert valkey.client.keys() == []
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_removed_any_more_is_named(
    own_redis: RedisTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_redis.server is not None
    url = f"unix://{own_redis.server.socket}"
    with open_place(Servers(redis_url=url), "normal", tmp_path) as place:
        own_redis.server.kill()
    own_redis.server.start()

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left behind: the keys of the namespace {place.flags['namespace']}: ")
    assert url not in repr(place)


def test_a_database_with_something_in_it_is_refused_and_kept(mongo: MongoServer) -> None:
    database = RunDatabase(mongo.uri, "kernel_bench_of_others")
    try:
        with pytest.raises(InvalidConfig, match="is there already"):
            database.check()
    finally:
        database.close()


def test_a_database_that_somebody_makes_again_is_told(mongo: MongoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    database = RunDatabase(mongo.uri)
    database.check()
    client = database._opener.connection().client
    monkeypatch.setattr(client, "list_database_names", lambda: [database.name])
    try:
        with pytest.raises(StoreUnavailable, match="made again"):
            database.drop()
    finally:
        database.close()


@pytest.mark.parametrize("which", ["workflows", "fanout"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--store", "mongodb://u:pa%23ss@127.0.0.1"], "put the URI into MONGODB_URI"),
        (["--store", "mongodb://127.0.0.1/?tlsCertificateKeyFilePassword=pa%23ss"], "put the URI into MONGODB_URI"),
        (["--store", "store.sqlite"], "mongodb_uri: no valid MongoDB URI"),
        (["--store", "env"], "MONGODB_URI is not set"),
        (["--store", NOBODY, "--durability", "full"], "--durability"),
        (["--redis", "redis://:pa%23ss@127.0.0.1"], "put the URL into REDIS_URL"),
        (["--redis", "http://127.0.0.1"], "redis_url: must start with redis://"),
        (["--redis", "env"], "redis_url"),
        (["--repeats", "0"], "--repeats"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_can_not_be_is_one_line_and_exit_2(tmp_path: Path, which: str, options: list[str], words: str) -> None:
    ended = bench(tmp_path, which, *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and words in line and "pa#ss" not in line and "pa%23ss" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--flush-every", "1s", "--redis", "redis://127.0.0.1:1"], "--flush-every"),
        (["--observation-outage", "1s", "--store", NOBODY], "--observation-outage"),
        (["--observation-outage", "1s", "--repeats", "2"], "--observation-outage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_faults_that_would_hit_others_are_refused(tmp_path: Path, options: list[str], words: str) -> None:
    ended = bench(tmp_path, "workflows", *options)

    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and words in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["workflows", "fanout"])
@pytest.mark.parametrize("options", [["--store", NOBODY], ["--redis", "redis://127.0.0.1:1"]], ids=lambda o: o[0])
def test_a_server_that_does_not_answer_is_one_line_and_exit_69(tmp_path: Path, which: str, options: list[str]) -> None:
    ended = bench(tmp_path, which, *options)

    assert (ended.returncode, ended.stdout) == (69, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ") and ("127.0.0.1:1" in line or "PING" in line)
    assert list(tmp_path.iterdir()) == []
