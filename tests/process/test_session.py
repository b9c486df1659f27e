"""A tree driven by a program (the demo, the bench)."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import psutil
import pytest

from kernel.config import Config
from supervisor.session import SessionFailed, running
from tests.process.supervised import DRAIN_S, NO_REDIS, all_gone, program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


def settings(data_dir, **more) -> Config:
    return Config(**{"data_dir": str(data_dir), "redis_url": NO_REDIS, "workers": 1, "drain_s": DRAIN_S} | more)


def test_a_tree_runs_inside_the_block_and_is_gone_after_it(data_dir) -> None:
    with running(settings(data_dir), program()) as session:
        family = [psutil.Process(session.pid), *psutil.Process(session.pid).children(recursive=True)]
        old = session.status(usage=True)["children"][-1]
        assert old["rss_bytes"] > 0

        assert session.kill_child(0) == old["pid"]
        status = session.wait_until(
            lambda status: status["state"] == "RUNNING" and status["children"][-1]["pid"] != old["pid"], 60
        )
        assert status["children"][-1]["restarts"] == 1

    assert session.exit_status == 0
    assert all_gone(family)


def test_an_error_inside_the_block_ends_the_tree(data_dir) -> None:
    with pytest.raises(ZeroDivisionError), running(settings(data_dir), program()) as session:
        family = psutil.Process(session.pid).children(recursive=True)
        raise ZeroDivisionError

    assert session.exit_status == 0
    assert all_gone(family)


def test_a_tree_that_does_not_start_is_an_error(data_dir, tmp_path) -> None:
    with (
        open(tmp_path / "stderr", "wb") as stderr,
        pytest.raises(SessionFailed, match="exit status 2"),
        running(settings(data_dir), program(worker="misconfigured_worker"), stderr=stderr),
    ):
        raise AssertionError("the block must not be entered")

    assert "error: worker-0: mongodb_uri: wrong" in (tmp_path / "stderr").read_text()


def test_the_settings_stand_on_no_command_line(data_dir) -> None:
    with running(settings(data_dir, redis_url="redis://:canary-secret@127.0.0.1:1/0"), program()) as session:
        lines = [" ".join(process.cmdline()) for process in psutil.Process(session.pid).children(recursive=True)]
        lines.append(" ".join(psutil.Process(session.pid).cmdline()))

    assert not [line for line in lines if "canary" in line]


def test_a_driver_that_is_killed_takes_its_tree_along(data_dir, tmp_path) -> None:
    script = dedent(f"""
        import sys
        from kernel.config import Config
        from supervisor.session import running
        from tests.process.supervised import program
        config = Config(data_dir={str(data_dir)!r}, redis_url={NO_REDIS!r}, workers=1, drain_s=3.0)
        with running(config, program(), stderr=open({str(tmp_path / "stderr")!r}, "wb")) as session:
            print(session.pid, flush=True)
            sys.stdin.read()
    """)
    driver = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None
        supervisor = psutil.Process(int(driver.stdout.readline()))
        family = [supervisor, *supervisor.children(recursive=True)]

        driver.kill()

        wait_until(lambda: all_gone(family), "the tree is gone")
    finally:
        driver.kill()
        driver.communicate()
    assert not (data_dir / "run.json").exists()
