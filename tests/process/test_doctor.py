"""`kernel-supervisor doctor`: each thing that a tree needs, a verdict, a remedy, and nothing changed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from kernel.clock import SystemClock
from kernel.runtime import STORE_FILE
from kernel.store.conditional import Insert
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import DEFINITIONS, INSTANCES
from supervisor.ops_checks import CLOCK_AHEAD_MAX_MS, clock_check
from tests.process.supervised import program
from tests.process.test_cli import COMMAND, command
from tests.support.redis_servers import RedisServer
from tests.support.wait import wait_until

CANARY = "cAn4ry-4711"
SHORT_LEASE = {"KERNEL_LEASE_S": "0.6"}
"""So that a store that is away is found away at once."""


def diagnosed(folder: Path, *arguments: str, code: int = 0, **more: Any) -> dict[str, dict[str, Any]]:
    """The checks by name."""
    found = command("doctor", "--json", "--data-dir", str(folder), *arguments, cwd=folder.parent, **more)
    assert found.returncode == code, found.stdout + found.stderr
    answer = json.loads(found.stdout)
    assert (answer["v"], found.stderr) == (1, "")
    assert all(check["verdict"] == "ok" or check["remedy"] for check in answer["checks"]), "no remedy"
    verdicts = {check["verdict"] for check in answer["checks"]}
    assert answer["verdict"] == next(word for word in ("fail", "warn", "ok") if word in verdicts)
    return {check["name"]: check for check in answer["checks"]}


@pytest.fixture
def store(data_dir: Path) -> Iterator[SqliteStore]:
    """A prepared store in the data folder."""
    data_dir.mkdir(mode=0o700)
    made = SqliteStore(data_dir / STORE_FILE, SystemClock(), durability="normal")
    made.prepare()
    yield made
    made.close()


def test_where_nothing_was_ever_started_all_is_well_and_nothing_is_made(data_dir) -> None:
    checks = diagnosed(data_dir)

    assert {check["verdict"] for check in checks.values()} == {"ok"}
    assert set(checks) == {*("config", "python", "files", "folder", "tree", "app", "store", "observations", "redis")}
    assert list(data_dir.parent.iterdir()) == []


def test_people_get_one_line_a_check(data_dir) -> None:
    data_dir.write_text("not a folder")

    found = command("doctor", "--data-dir", str(data_dir))

    assert found.returncode == 1
    lines = found.stdout.splitlines()
    assert [line.split()[1] for line in lines][:4] == ["config", "python", "files", "folder"]
    assert f"fail  folder           {data_dir} is not a folder -> choose another --data-dir" in lines


@pytest.mark.fault
def test_a_tree_that_runs_and_what_is_left_of_one_that_was_killed(supervise, store, data_dir) -> None:
    tree = supervise(redis_url=None)
    tree.wait_running()

    running = diagnosed(data_dir)
    family = tree.family()
    tree.process.kill()
    wait_until(lambda: not [child for child in family[1:] if child.is_running()], "the children are gone")
    left = diagnosed(data_dir)

    assert running["tree"] == {
        "name": "tree",
        "verdict": "ok",
        "text": f"supervisor {tree.pid} and 3 children run",
        "remedy": None,
    }
    assert running["redis"]["text"].startswith("Valkey ")
    assert running["redis"]["text"].endswith(" (embedded)")
    assert "0 of " in running["redis.scripts"]["text"]
    assert left["tree"]["verdict"] == "warn"
    assert left["tree"]["remedy"].startswith("kernel-supervisor start")
    assert f"one that was killed (pid {tree.pid}) has left its files" in left["tree"]["text"]
    assert left["redis"]["verdict"] == "ok"


@pytest.mark.fault
def test_a_child_that_does_not_run_is_named_with_its_last_words(supervise, data_dir) -> None:
    tree = supervise(program(worker="crashing_worker"), dispatchers=0, restart_first_s=60.0)
    wait_until(lambda: tree.status() and tree.child("worker-0")["state"] == "BACKOFF", "back-off")

    check = diagnosed(data_dir)["tree"]

    assert check["verdict"] == "warn"
    assert "worker-0 is backoff (mongodb://***@db/ does not answer)" in check["text"]


def test_wrong_settings_are_the_only_check(data_dir) -> None:
    checks = diagnosed(data_dir, code=2, environ={"KERNEL_LEASE_S": "-1"})

    (check,) = checks.values()
    assert (check["name"], check["verdict"]) == ("config", "fail")
    assert check["text"].startswith("lease_s (env KERNEL_LEASE_S): ")


@pytest.mark.case("A83")
@pytest.mark.parametrize(
    ("variable", "url", "name"),
    [
        ("REDIS_URL", f"redis://:{CANARY}@127.0.0.1:1/0", "redis"),
        ("REDIS_URL", f"redis://:{CANARY}/x@127.0.0.1:1/0", "redis"),
        ("MONGODB_URI", f"mongodb://root:{CANARY}@127.0.0.1:1/", "store"),
    ],
)
def test_a_store_that_can_not_be_reached_is_69_and_no_password_is_shown(data_dir, variable, url, name) -> None:
    environ = {**SHORT_LEASE, variable: url}
    shown = command("doctor", "--data-dir", str(data_dir), cwd=data_dir.parent, environ=environ)

    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("fail")]
    assert line.split()[1] == name
    assert " -> " in line
    assert shown.returncode == (1 if "invalid_config" in line else 69)
    assert CANARY not in shown.stdout + shown.stderr


def test_an_unreachable_store_of_observations_is_a_warning(store, data_dir) -> None:
    environ = {"KERNEL_OBSERVE_MONGODB_URI": f"mongodb://root:{CANARY}@127.0.0.1:1/", **SHORT_LEASE}

    check = diagnosed(data_dir, environ=environ)["observations"]

    assert check["verdict"] == "warn"
    assert CANARY not in check["text"]


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ((), "ok"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "noeviction"), "ok"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "warn"),
    ],
)
def test_a_redis_that_throws_keys_away_is_told(data_dir, options, verdict) -> None:
    server = RedisServer("valkey", *options)
    try:
        checks = diagnosed(data_dir, environ={"REDIS_URL": f"unix://{quote(str(server.socket))}"})
    finally:
        server.close()

    assert checks["redis.eviction"]["verdict"] == verdict
    assert ("CONFIG SET maxmemory-policy noeviction" in str(checks["redis.eviction"]["remedy"])) == (verdict == "warn")
    assert checks["redis"]["text"].startswith("Valkey ")
    assert checks["redis.clock"]["verdict"] == "ok"


def test_a_user_without_the_right_to_ask_is_no_failure(data_dir) -> None:
    server = RedisServer("valkey")
    try:
        with server.client() as client:
            client.acl_setuser("plain", enabled=True, passwords=[f"+{CANARY}"], keys=["*"], commands=["+time"])
        url = f"unix://plain:{CANARY}@{quote(str(server.socket))}"
        checks = diagnosed(data_dir, environ={"REDIS_URL": url})
    finally:
        server.close()

    assert checks["redis"]["text"] == "Redis of no known version"
    assert checks["redis.eviction"]["verdict"] == "ok"


def test_a_missing_index_is_a_failure_and_is_not_made(store, data_dir) -> None:
    store.close()
    with sqlite3.connect(data_dir / STORE_FILE) as connection:
        connection.execute("DROP INDEX instances_biz_key")
    connection.close()

    check = diagnosed(data_dir, code=1)["store"]

    assert check["verdict"] == "fail"
    assert "lacks an index that correctness rests on" in check["text"]
    assert "instances_biz_key" in check["text"]
    assert diagnosed(data_dir, code=1)["store"] == check


def test_workflows_that_wait_for_help_are_counted(store, data_dir) -> None:
    now_ms = store.now_ms()
    rows = [
        {"workflow_id": f"w{n}", "biz_key": f"b{n}", "definition_key": f"billing@{'a' * 64}", "created_time": now_ms}
        for n in range(3)
    ]
    for row, field in zip(rows, ("parked", "deferred", "deferred"), strict=True):
        store.insert(Insert("w", INSTANCES, row["workflow_id"], {**row, field: {"why": 1}}))
    for version, seen_time in (("b" * 64, now_ms), ("a" * 64, now_ms - 3_600_000)):
        key = f"billing@{version}"
        row = {"definition_key": key, "type": "billing", "seen_time": seen_time}
        store.insert(Insert("d", DEFINITIONS, key, row))

    checks = diagnosed(data_dir)

    assert checks["rows.parked"]["text"] == "1 workflow put aside because their workers died"
    told, _, ago = checks["rows.version"]["text"].rpartition(" (")
    assert told == (
        "no live worker for 2 workflows of billing@aaaaaaaaaaaa; versions seen within 90.0 s: billing@bbbbbbbbbbbb"
    )
    assert ago.endswith("s ago)")
    assert {checks[name]["verdict"] for name in ("rows.parked", "rows.version")} == {"warn"}


def test_a_mongodb_database_before_and_after_the_first_start(mongo_store, data_dir) -> None:
    name = mongo_store.fresh_name()
    environ = {"MONGODB_URI": mongo_store.server.uri, "KERNEL_MONGODB_DATABASE": name, "KERNEL_OBSERVE": "off"}

    before = diagnosed(data_dir, environ=environ)
    untouched = name not in mongo_store.server.driver.list_database_names()
    mongo_store(database=name)
    after = diagnosed(data_dir, environ=environ)

    assert before["store"]["text"].startswith("MongoDB ")
    assert before["store.schema"]["verdict"] == "warn"
    assert "INDEX kernel_meta_name of kernel_meta" in before["store.schema"]["text"]
    assert untouched
    assert after["store.schema"]["verdict"] == "ok"
    assert after["rows.parked"]["verdict"] == after["rows.version"]["verdict"] == "ok"
    assert after["observations"]["text"] == "switched off: lists and timelines are empty"


def test_too_few_files_for_the_slots_are_told(data_dir) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))"
    limited = f"import os, resource, sys; {limit}; os.execv(sys.argv[1], sys.argv[1:])"
    found = subprocess.run(
        [sys.executable, "-c", limited, str(COMMAND), "doctor", "--json", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=data_dir.parent,
        env={**os.environ, "KERNEL_SLOTS": "1024"},
    )

    (check,) = [check for check in json.loads(found.stdout)["checks"] if check["name"] == "files"]
    assert (check["verdict"], check["remedy"]) == ("warn", "ulimit -n 4160")


def test_an_application_is_loaded_and_what_its_module_says_steers_no_terminal(data_dir) -> None:
    folder = data_dir.parent
    (folder / "good.py").write_text("from kernel import *\napp = App(definitions=[])\n")
    (folder / "bad.py").write_text("raise RuntimeError('\\x1b[2Jno password=hunter2')\n")

    good = diagnosed(data_dir, "--app", "good:app")["app"]
    bad = diagnosed(data_dir, "--app", "bad:app", code=1)["app"]

    assert (good["verdict"], good["text"]) == ("ok", "good:app: no workflow types")
    assert bad["verdict"] == "fail"
    assert "RuntimeError" in bad["text"]
    assert bad["text"].isprintable()
    assert "hunter2" not in bad["text"]


def test_a_check_that_the_operating_system_refuses_does_not_end_the_others(tmp_path) -> None:
    """A name that is too long stands for whatever the system may refuse, also to root."""
    checks = diagnosed(tmp_path / ("x" * 300), code=1)

    assert checks["folder"]["verdict"] == "fail"
    assert checks["redis"]["verdict"] == "ok"


def test_a_file_in_which_no_store_was_made_yet_is_no_failure(data_dir) -> None:
    data_dir.mkdir(mode=0o700)
    (data_dir / STORE_FILE).write_bytes(b"")

    assert diagnosed(data_dir)["store"]["text"] == "the embedded store is not there yet: a start makes it"
    assert (data_dir / STORE_FILE).read_bytes() == b""


def test_a_file_that_is_no_store_is_a_failure_and_stays_as_it_is(data_dir) -> None:
    content = b"no database at all, and long enough to be taken for one" * 100
    data_dir.mkdir(mode=0o700)
    (data_dir / STORE_FILE).write_bytes(content)

    checks = diagnosed(data_dir, code=1)

    assert checks["store"]["verdict"] == "fail"
    assert (data_dir / STORE_FILE).read_bytes() == content


def test_a_folder_that_others_may_enter_is_told(store, data_dir) -> None:
    data_dir.chmod(0o755)

    check = diagnosed(data_dir)["folder"]

    assert (check["verdict"], check["remedy"]) == ("warn", f"chmod 700 {data_dir}")
    assert data_dir.stat().st_mode & 0o777 == 0o755, "it only looks"


@pytest.mark.parametrize(
    ("ahead_ms", "verdict"),
    [(0, "ok"), (-CLOCK_AHEAD_MAX_MS, "ok"), (CLOCK_AHEAD_MAX_MS + 1, "warn"), (-86_400_000, "warn")],
)
def test_a_clock_that_is_far_off_is_told(ahead_ms, verdict) -> None:
    check = clock_check("store.clock", ahead_ms)

    assert msgspec.to_builtins(check)["verdict"] == verdict
    assert ("ahead of" in check.text) == (ahead_ms > 0)
