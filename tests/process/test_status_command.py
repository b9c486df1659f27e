"""`status --wait` and `status --watch` as scripts and people meet them (dc-status)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.process.supervised import program
from tests.process.test_cli import COMMAND, command
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


def waiting(data_dir: Path, *arguments: str, **more) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "status", "--data-dir", str(data_dir), *arguments], stdout=subprocess.PIPE, text=True, **more
    )


@pytest.mark.req("dc-status")
def test_wait_ready_begins_before_the_tree_and_ends_when_everything_runs(supervise, data_dir) -> None:
    process = waiting(data_dir, "--wait", "ready", "--json")
    tree = supervise(program(worker="logging_worker"))

    out, _ = process.communicate(timeout=120)

    assert process.returncode == 0
    status = json.loads(out)
    assert (status["pid"], status["state"]) == (tree.pid, "RUNNING")
    assert {child["state"] for child in status["children"]} == {"RUNNING"}


def test_wait_ready_says_3_when_it_takes_too_long(supervise, data_dir) -> None:
    nobody = command("status", "--wait", "ready", "--timeout", "0.1", "--data-dir", str(data_dir))
    tree = supervise(program(worker="crashing_worker"), restart_first_s=60.0, dispatchers=0)
    wait_until(lambda: tree.status() and tree.child("worker-0")["state"] == "BACKOFF", "back-off")
    ailing = command("status", "--wait", "ready", "--timeout", "0.1", "--data-dir", str(data_dir))

    assert (nobody.returncode, nobody.stdout) == (3, f"no supervisor is running in {data_dir}\n")
    assert ailing.returncode == 3
    assert "BACKOFF" in ailing.stdout


def test_wait_stopped_ends_with_the_tree(supervise, data_dir) -> None:
    tree = supervise(program(worker="gated"), drain_s=300.0, dispatchers=0)
    tree.wait_running()
    too_long = command("status", "--wait", "stopped", "--timeout", "0.1", "--data-dir", str(data_dir))
    process = waiting(data_dir, "--wait", "stopped", "--json")
    tree.process.send_signal(signal.SIGTERM)
    (data_dir / "worker-may-end").touch()

    out, _ = process.communicate(timeout=120)

    assert too_long.returncode == 1
    assert "RUNNING" in too_long.stdout
    assert process.returncode == 0
    assert json.loads(out) == {"v": 1, "state": "STOPPED", "children": []}


def test_the_help_does_not_make_the_value_of_wait_look_optional() -> None:
    assert "--wait ready|stopped " in command("status", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--timeout", "3"), "--timeout: says how long --wait may take"),
        (("--wait", "ready", "--watch"), "--wait and --watch: one of them"),
        (("--wait", "later"), "'later' is not one of 'ready', 'stopped'"),
        (("--wait", "ready", "--timeout", "-1"), "-1"),
    ],
)
def test_what_makes_no_sense_together_is_refused(arguments, words) -> None:
    found = command("status", *arguments)

    assert found.returncode == 2
    assert words in found.stderr


def test_looks_that_are_no_pictures_follow_each_other_as_blocks_until_ctrl_c(supervise, data_dir) -> None:
    tree = supervise()
    tree.wait_running()
    process = waiting(data_dir, "--watch", stderr=subprocess.STDOUT)
    assert process.stdout is not None
    lines: list[str] = []
    while lines.count("\n") < 2:
        lines.append(process.stdout.readline())

    process.send_signal(signal.SIGINT)
    with process.stdout:
        blocks = ("".join(lines) + process.stdout.read()).split("\n\n")

    assert process.wait(60) == 0
    assert len(blocks) >= 3
    for block in blocks:
        assert block.startswith(f"supervisor {tree.pid}  RUNNING")
        assert "\x1b" not in block


def test_a_terminal_is_cleared_before_each_look(supervise, data_dir) -> None:
    supervise().wait_running()
    master, slave = pty.openpty()
    process = subprocess.Popen([COMMAND, "status", "--watch", "--data-dir", str(data_dir)], stdout=slave)
    os.close(slave)
    seen = b""
    while seen.count(b"\x1b[H\x1b[2J") < 2:
        seen += os.read(master, 65_536)
    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 0
    os.close(master)
