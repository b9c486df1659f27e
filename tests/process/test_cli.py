"""The command `kernel-supervisor` as people and scripts meet it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import lua
from kernel.config import Config
from tests.process.supervised import program
from tests.support.wait import wait_until

COMMAND = Path(sys.executable).with_name("kernel-supervisor")


def command(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_")}
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ | more.pop("environ", {}),
        **more,
    )


@pytest.mark.req("dc-start-command")
def test_help_lists_the_commands_and_the_options_of_start() -> None:
    top, start = command("--help"), command("start", "--help")

    assert (top.returncode, start.returncode) == (0, 0)
    for name in ("start", "stop", "status", "demo", "bench", "workflow", "lua", "config"):
        assert re.search(rf"^  {name} ", top.stdout, re.MULTILINE)
    for option in (
        "--app",
        "--workers",
        "--dispatchers",
        "--slots",
        "--data-dir",
        "--config",
        "--durability",
        "--drain",
    ):
        assert option in start.stdout


def test_help_is_fast_and_loads_no_driver(tmp_path) -> None:
    """Measured in the best of five, in CPU time, by that of a bare interpreter on the same machine; one driver costs
    ten times that."""

    def best(arguments: list[str]) -> float:
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    bare = best([sys.executable, "-c", "pass"])
    assert best([sys.executable, "-m", "supervisor", "--help"]) < 9 * bare

    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "supervisor", "--help"], capture_output=True, text=True
    ).stderr
    modules = {line.rpartition("|")[2].strip().split(".")[0] for line in loaded.splitlines()}
    assert "click" in modules
    assert not modules & {"redis", "pymongo", "sqlite3", "valkey", "psutil", "msgspec", "kernel", "asr_demo", "bench"}


def test_version() -> None:
    assert re.fullmatch(r"kernel-supervisor, version \d+\.\d+\.\d+\n", command("--version").stdout)


@pytest.mark.req("dc-start-command")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "many"), "workers (flag)"),
        (("--workers", "-1"), "workers (flag)"),
        (("--drain", "soon"), "drain_s (flag)"),
        (("--durability", "some"), "durability (flag)"),
        (("--app", "no colon"), "app: 'no colon'"),
        (("--config", "/nowhere/kernel.toml"), "config file /nowhere/kernel.toml"),
        (("--no-such-option",), "No such option"),
        (("--app", "no_such_module_anywhere:app"), "no_such_module_anywhere"),
    ],
)
def test_what_is_wrong_at_start_is_one_line_and_exit_2(tmp_path, arguments, words) -> None:
    found = command("start", *arguments, "--data-dir", str(tmp_path / "data"))

    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert found.stdout == ""
    assert not (tmp_path / "data").exists()


def test_a_wrong_setting_of_the_environment_is_named(tmp_path) -> None:
    found = command("start", "--data-dir", str(tmp_path / "d"), environ={"KERNEL_LEASE_S": "0"})

    assert found.returncode == 2
    assert "lease_s (env KERNEL_LEASE_S)" in found.stderr


def test_an_unknown_command_is_one_line_and_exit_2() -> None:
    found = command("strat")

    assert found.returncode == 2
    assert found.stderr.startswith("error: No such command 'strat'")
    assert found.stderr.count("\n") == 1


def test_status_of_nobody_is_exit_3(tmp_path) -> None:
    shown, as_json = (
        command("status", "--data-dir", str(tmp_path)),
        command("status", "--json", "--data-dir", str(tmp_path)),
    )

    assert (shown.returncode, as_json.returncode) == (3, 3)
    assert shown.stdout == f"no supervisor is running in {tmp_path}\n"
    assert json.loads(as_json.stdout) == {"v": 1, "state": "STOPPED", "children": []}


@pytest.mark.fault
@pytest.mark.req("dc-status")
def test_status_shows_every_child_to_people_and_machines(supervise, data_dir) -> None:
    tree = supervise(workers=2)
    tree.wait_running()

    shown, as_json = (
        command("status", "--data-dir", str(data_dir)),
        command("status", "--json", "--data-dir", str(data_dir)),
    )

    assert (shown.returncode, as_json.returncode) == (0, 0)
    status = json.loads(as_json.stdout)
    assert as_json.stdout.count("\n") == 1
    assert [child["name"] for child in status["children"]] == ["dispatcher-0", "worker-0", "worker-1"]
    assert all(
        {"role", "slot", "pid", "state", "cpu_percent", "rss_bytes", "uptime_s", "restarts", "claims", "last_exit"}
        <= child.keys()
        for child in status["children"]
    )
    for child in status["children"]:
        assert re.search(rf"^{child['name']} +{child['pid']} +RUNNING ", shown.stdout, re.MULTILINE)


@pytest.mark.fault
def test_status_is_exit_3_while_something_is_not_running(supervise, data_dir) -> None:
    tree = supervise(program(worker="crashing_worker"), restart_first_s=60.0, restart_max_s=60.0, dispatchers=0)
    wait_until(lambda: tree.status() and tree.child("worker-0")["state"] == "BACKOFF", "back-off")

    found = command("status", "--data-dir", str(data_dir))

    assert found.returncode == 3
    assert "BACKOFF" in found.stdout
    assert "exit status 1: mongodb://***@db/ does not answer" in found.stdout


@pytest.mark.fault
def test_watch_shows_again_until_the_tree_ends(supervise, data_dir) -> None:
    tree = supervise()
    tree.wait_running()
    watching = subprocess.Popen(
        [COMMAND, "status", "--watch", "--json", "--data-dir", str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert watching.stdout is not None
        first, second = json.loads(watching.stdout.readline()), json.loads(watching.stdout.readline())
        assert second["uptime_s"] > first["uptime_s"]
        assert command("stop", "--data-dir", str(data_dir)).returncode == 0
        assert watching.wait(60) in (0, 3)
    finally:
        watching.kill()
        watching.communicate()


@pytest.mark.fault
def test_stop_waits_for_the_end(supervise, data_dir) -> None:
    tree = supervise(program(worker="slow_worker"))
    tree.wait_running()

    found = command("stop", "--data-dir", str(data_dir))

    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert tree.process.poll() == 0


@pytest.mark.fault
def test_stop_tells_when_somebody_had_to_be_killed(supervise, data_dir) -> None:
    tree = supervise(program(worker="stubborn_worker"), drain_s=0.5)
    tree.wait_running()

    found = command("stop", "--data-dir", str(data_dir))

    assert (found.returncode, found.stderr) == (1, "error: the supervisor ended with exit status 1\n")


@pytest.mark.req("dc-config")
def test_config_show_tells_each_value_and_where_it_came_from(tmp_path) -> None:
    (tmp_path / "kernel.toml").write_text("# ours\nworkers = 5\n")

    found = command(
        "config", "show", "--origin", cwd=tmp_path, environ={"KERNEL_SLOTS": "3", "REDIS_URL": "redis://:canary@h/0"}
    )

    assert re.search(r"^workers = 5 +\(file kernel\.toml:2\)$", found.stdout, re.MULTILINE)
    assert re.search(r"^slots = 3 +\(env KERNEL_SLOTS\)$", found.stdout, re.MULTILINE)
    assert re.search(r"^poll_s = 5\.0 +\(default\)$", found.stdout, re.MULTILINE)
    assert re.search(r'^redis_url = "\*\*\*" +\(env REDIS_URL\)$', found.stdout, re.MULTILINE)
    assert "canary" not in found.stdout


def test_config_show_as_json(tmp_path) -> None:
    settings = json.loads(command("config", "show", "--json", cwd=tmp_path).stdout)["settings"]

    assert settings["lane_weights"] == {"value": [8, 6, 4, 2], "origin": "default"}


def test_config_check(tmp_path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("lease_s = 30\n")
    bad.write_text("leese_s = 30\n")

    for arguments in ((str(good),), ("--config", str(good))):
        assert command("config", "check", *arguments).returncode == 0
    for found in (
        command("config", "check", str(bad)),
        command("config", "check", environ={"KERNEL_CONFIG": str(bad)}),
    ):
        assert found.returncode == 2
        assert found.stderr == f"error: file {bad}:1: there is no setting 'leese_s'; did you mean lease_s?\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('redis_url = "localhost"', "must start with redis://, rediss:// or unix://"),
        ('redis_url = "redis://h/{}/0"', "the database must be a number"),
        ('mongodb_uri = "foo"', "no valid MongoDB URI"),
        ('observe_mongodb_uri = "mongodb://u:{}/@h"', "no valid MongoDB URI"),
        ("[limits.courier]\nmax_concurency = 3", "there is no setting 'max_concurency'; did you mean max_concurrency?"),
    ],
)
def test_config_check_refuses_what_no_start_would_take(tmp_path, line, words) -> None:
    file = tmp_path / "kernel.toml"
    file.write_text(f"lease_s = 30\n{line.format('cAn4ry')}\n")
    file.chmod(0o600)
    number = len(file.read_text().splitlines())

    found = command("config", "check", cwd=tmp_path)

    assert (found.returncode, found.stdout) == (2, "")
    assert f"(file kernel.toml:{number}): {words}" in found.stderr
    assert found.stderr.count("\n") == 1 and "cAn4ry" not in found.stderr


@pytest.mark.parametrize(
    "line", ['redis_url = "rediss://h:1/2"', 'mongodb_uri = "mongodb://h1,h2/?replicaSet=r"', "lease_s = 20.0"]
)
def test_config_check_asks_no_store_and_takes_what_a_start_takes(tmp_path, line) -> None:
    (tmp_path / "kernel.toml").write_text(f"{line}\n")

    found = command("config", "check", cwd=tmp_path)

    assert (found.returncode, found.stdout, found.stderr) == (0, "the settings are right\n", "")


def test_a_wrong_name_that_steers_a_terminal_is_shown_and_not_obeyed(tmp_path) -> None:
    (tmp_path / "kernel.toml").write_text('"\\u001b[2J\\u009b" = 1\n')

    found = command("config", "check", cwd=tmp_path)

    assert found.returncode == 2
    assert found.stderr.removesuffix("\n").isprintable()


def test_config_schema_describes_every_setting() -> None:
    schema = json.loads(command("config", "schema").stdout)

    settings = schema["$defs"]["Config"]
    assert set(settings["properties"]) == set(Config.__struct_fields__)
    assert settings["properties"]["drain_s"]["default"] == 25.0
    assert settings["additionalProperties"] is False


@pytest.mark.req("dc-lua-versioned")
def test_lua_list_tells_name_version_and_sha1_of_every_script() -> None:
    shown, as_json = command("lua", "list"), command("lua", "list", "--json")

    rows = json.loads(as_json.stdout)["scripts"]
    assert rows == [{"name": s.name, "version": s.version, "sha1": s.sha1} for s in lua.scripts()]
    assert [line.split() for line in shown.stdout.splitlines()] == [
        [row["name"], str(row["version"]), row["sha1"]] for row in rows
    ]


def test_output_into_a_closed_pipe_is_no_traceback(tmp_path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run([COMMAND, "config", "show"], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writer)

    assert "Traceback" not in found.stderr
