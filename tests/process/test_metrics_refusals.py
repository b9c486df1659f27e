"""What is wrong with `metrics` is one line that names it, before anything runs."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.boot import Program
from supervisor.roles import Companion, Roles
from tests.process.supervised import STUBS, Supervised, program

WITHOUT_EXTRA = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "prometheus_client" else real(name, *rest)
from supervisor.cli import main
main(["start", "--app", "flows:app", "--metrics", "0", "--data-dir", "data"])
"""


def error_of(tree: Supervised) -> str:
    errors = [line for line in tree.log_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


def test_a_port_in_use_is_named(supervise: Callable[..., Supervised]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        tree = supervise(program(), metrics=port)
        assert tree.wait_end() == 2
        assert f"metrics: port {port} on 127.0.0.1: Address already in use" in error_of(tree)


def test_a_port_in_use_leaves_nothing_behind(supervise: Callable[..., Supervised], data_dir: Path) -> None:
    """The port is looked at before the store is made."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        tree = supervise(Program(), app="tests.process.metered_flows:app", metrics=taken.getsockname()[1])
        assert tree.wait_end() == 2
    assert not data_dir.exists()


def test_a_port_in_use_leaves_an_empty_folder_empty(supervise: Callable[..., Supervised], data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        tree = supervise(Program(), app="tests.process.metered_flows:app", metrics=taken.getsockname()[1])
        assert tree.wait_end() == 2
    assert list(data_dir.iterdir()) == []


@pytest.mark.parametrize("value", ["abc", "70000", "-1", ":9100", "1.2.3.4:", "::1:9100", "9100 "])
def test_what_is_no_address_is_refused_and_the_line_says_what_is_one(value: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "supervisor", "start", "--app", "a:b", f"--metrics={value}", "--data-dir", "data"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path.cwd())},
    )
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert 'neither a port from 0 to 65535 nor "HOST:PORT"' in ran.stderr and '"0.0.0.0:9100"' in ran.stderr
    assert not (tmp_path / "data").exists()


def test_a_missing_extra_is_one_line_and_its_own_exit_status(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path.cwd())},
    )
    assert ran.returncode == 78
    assert ran.stderr == (
        "error: metrics: prometheus_client is not installed: pip install 'workflow-kernel[metrics]', or start without\n"
    )


def test_a_companion_of_the_application_can_not_have_its_name(supervise: Callable[..., Supervised]) -> None:
    roles = Roles(f"{STUBS}:worker", f"{STUBS}:dispatcher", None)
    tree = supervise(Program(roles, [Companion("metrics", f"{STUBS}:companion")]), metrics=0)
    assert tree.wait_end() == 2
    assert "metrics: the application has a companion named 'metrics'" in error_of(tree)
