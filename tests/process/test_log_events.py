"""What the log of a tree tells of its life, by the names of the closed list (dc-logging)."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path

import pytest

from kernel import App, Context, Definition, Step
from kernel.config import load
from kernel.runtime import open_client
from supervisor.boot import Program
from supervisor.guardian import Guardian
from supervisor.loop import Loop
from supervisor.nursery import Nursery
from supervisor.roles import Roles
from tests.process.supervised import Supervised, program
from tests.support.wait import wait_until


def events(tree: Supervised) -> list[str]:
    return [line["event"] for line in tree.lines()]


def told(path: Path) -> list[str]:
    """The events of the whole lines of a log file."""
    return [json.loads(line)["event"] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.fault
@pytest.mark.req("dc-logging")
def test_from_the_first_child_to_the_last_each_turn_is_one_event(supervise) -> None:
    tree = supervise(dispatchers=0)
    tree.wait_running()
    tree.process.send_signal(signal.SIGTERM)
    assert tree.wait_end() == 0

    assert events(tree) == [
        *("supervisor.started", "child.started", "child.ready", "supervisor.ready"),
        *("drain.begin", "child.exited", "drain.end", "supervisor.ended"),
    ]


@pytest.mark.fault
def test_a_child_that_can_not_start_is_told_until_it_is_given_up(supervise) -> None:
    tree = supervise(program(worker="crashing_worker"), dispatchers=0, restart_give_up=2, restart_first_s=0.05)

    assert tree.wait_end() == 1

    assert len(tree.log("child.failed")) == 2
    assert "KernelError" in tree.log("child.failed")[0]["exc"]
    (fatal,) = tree.log("child.fatal")
    assert fatal["x"]["child"] == "worker-0"


@pytest.mark.fault
def test_sighup_says_that_nothing_is_read_again(supervise) -> None:
    tree = supervise(dispatchers=0)
    tree.wait_running()

    tree.process.send_signal(signal.SIGHUP)

    assert tree.wait_end() == 0
    (line,) = tree.log("supervisor.no_reload")
    assert line["msg"] == "SIGHUP: settings are read at the start only; this tree drains and ends"


@pytest.mark.fault
def test_a_log_file_that_can_not_be_opened_again_is_told_in_the_old_one(supervise, tmp_path) -> None:
    path, moved = tmp_path / "kernel.log", tmp_path / "kernel.log.1"
    tree = supervise(log_file=str(path), dispatchers=0)
    tree.wait_running()
    path.rename(moved)
    path.mkdir()

    tree.process.send_signal(signal.SIGUSR2)

    wait_until(lambda: "log.reopen_failed" in told(moved), "the failure is told")


@pytest.mark.fault
def test_what_is_no_message_is_told_and_the_child_works_on(supervise) -> None:
    tree = supervise(program(worker="rambling_worker"), dispatchers=0)
    tree.wait_running()

    wait_until(lambda: tree.log("link.refused"), "it is told")
    assert tree.child("worker-0")["state"] == "RUNNING"


@pytest.mark.fault
def test_the_release_of_a_dead_owner_is_told(supervise) -> None:
    tree = supervise(log_level="debug")
    tree.wait_running()

    tree.process_of("worker-0").kill()

    wait_until(lambda: tree.log("owner.released"), "the dispatcher acknowledges")


def hold(ctx: Context) -> None:
    """Tell that it runs, and run until the test opens the gate."""
    folder = Path(ctx.ports.data_dir)
    (folder / "held").touch()
    wait_until((folder / "gate").exists, "the gate is opened")


HELD = Definition(type="held", steps=[Step("hold", hold), Step("rest", hold)])
APP = App(definitions=[HELD], ports=lambda request: request)


@pytest.mark.fault
@pytest.mark.req("dc-logging")
def test_a_claim_is_told_from_its_taking_to_its_giving_back(supervise, data_dir) -> None:
    tree = supervise(
        Program(Roles()),
        app=f"{__name__}:APP",
        dispatchers=0,
        log_level="debug",
        lease_s=6.0,
        drain_s=60.0,
        poll_s=0.2,
    )
    tree.wait_running()
    with open_client(load({}, environ={}).config, data_dir, None) as client:
        workflow_id = client.start_or_resume(HELD.plan, biz_key="one", input=None).workflow_id
    wait_until((data_dir / "held").exists, "the first step runs")
    wait_until(lambda: tree.log("claim.renewed"), "its claim is renewed")

    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: tree.log("drain.poll_stopped"), "the worker takes nothing new")
    (data_dir / "gate").touch()

    assert tree.wait_end() == 0
    ours = [line["event"] for line in tree.lines() if line.get("workflow_id") == workflow_id]
    assert [event for event in ours if event in ("claim.taken", "claim.renewed", "claim.released")] == [
        "claim.taken",
        *["claim.renewed"] * ours.count("claim.renewed"),
        "claim.released",
    ]
    assert {line["role"] for line in tree.log("claim.released")} == {"worker"}


def test_a_guardian_that_can_not_be_forked_is_told_and_tried_again(monkeypatch, caplog, tmp_path) -> None:
    def fails(self: Guardian) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Guardian, "__init__", fails)
    loop = Loop()
    nursery = Nursery(loop, load({}, environ={}).config, tmp_path, None, None)  # type: ignore[arg-type]

    with caplog.at_level(logging.ERROR, "supervisor"):
        nursery._new_guardian()
        loop.run_until(lambda: len(caplog.records) == 2, 60_000)
    loop.close()

    assert [record.__dict__["event"] for record in caplog.records] == ["guardian.failed"] * 2
    assert nursery.guardian_pid is None
