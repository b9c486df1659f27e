"""Drain, hasten, kill (dc-signal-cascade)."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tests.process.supervised import STUBS, all_gone, program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.mark.req("dc-signal-cascade")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_all_in_parallel_and_the_exit_status_is_0(supervise, data_dir, number) -> None:
    tree = supervise(program(worker="gated", companions=("echo",)), workers=3, drain_s=300.0)
    tree.wait_running()
    family = tree.family()

    def ordered() -> list[int]:
        return sorted(fact["slot"] for fact in tree.heard("drain") if fact["role"] == "worker")

    tree.process.send_signal(number)
    wait_until(lambda: ordered() == [0, 1, 2], "three drains side by side: none of them can end before the gate opens")
    assert tree.process.poll() is None, "they are waited for"
    (data_dir / "worker-may-end").touch()

    assert tree.wait_end() == 0
    assert ordered() == [0, 1, 2]
    assert tree.heard("hasten") == []
    assert all_gone(family)


def test_companions_end_after_those_who_may_need_them(supervise) -> None:
    tree = supervise(program(worker="slow_worker", companions=("echo",)), redis_url=None)
    tree.wait_running()

    tree.process.send_signal(signal.SIGTERM)
    assert tree.wait_end() == 0

    ends = [line["x"]["child"] for line in tree.log("child.exited")]
    assert set(ends[:2]) == {"worker-0", "dispatcher-0"}
    assert set(ends[2:]) == {"echo", "valkey"}


@pytest.mark.req("dc-signal-cascade", "shd-grace")
def test_a_child_past_the_grace_time_is_killed_and_the_exit_status_is_1(supervise) -> None:
    tree = supervise(program(worker="stubborn_worker"), drain_s=3.0)  # which the dispatcher needs by no means
    tree.wait_running()
    family = tree.family()
    worker_id = tree.child("worker-0")["worker_id"]

    began = time.monotonic()
    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1
    assert time.monotonic() - began >= 3.0
    assert [line["x"]["child"] for line in tree.log("child.killed")] == ["worker-0"]
    (end,) = [line["x"] for line in tree.log("child.exited") if line["x"]["child"] == "worker-0"]
    assert end["cause"] == "ordered"
    assert worker_id
    assert all_gone(family)


@pytest.mark.req("dc-signal-cascade")
def test_a_second_signal_hastens(supervise) -> None:
    tree = supervise(program(worker="stubborn_worker", companions=("echo",)), workers=2, drain_s=60.0)
    tree.wait_running()
    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(tree.heard("drain")) == 3, "the drain order has come to both, and to the dispatcher")

    began = time.monotonic()
    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1
    assert time.monotonic() - began < 30, "the grace time, 60 s, was not waited for"
    assert len(tree.heard("hasten")) == 2


def test_a_third_signal_kills(supervise) -> None:
    tree = supervise(program(worker="stubborn_worker"), drain_s=60.0)
    tree.wait_running()
    for order in (1, 2, 3):
        tree.process.send_signal(signal.SIGTERM)
        if order < 3:
            # Seen at once: 1.4 s after the second order all have ended, and nobody is left for the third.
            wait_until(lambda order=order: len(tree.log("drain.begin")) == order, "the order is taken", every=0.002)

    assert tree.wait_end(30) == 1, "the grace time, 60 s, was not waited for"
    assert [line["msg"] for line in tree.log("drain.begin")] == ["drain", "hasten", "kill"]


def test_a_signal_to_the_whole_process_group_is_one_order_to_drain(supervise) -> None:
    """`systemctl stop` signals every process, and the supervisor passes the order on: nobody is hastened by that."""
    tree = supervise(program(worker="slow_worker"))
    tree.wait_running()

    for process in tree.family():
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue  # it was ordered to end before its own signal came

    assert tree.wait_end() == 0
    assert tree.heard("hasten") == []
    assert len(tree.heard("drained")) == 1


def test_a_child_that_is_signalled_twice_by_another_hand_hastens(supervise) -> None:
    tree = supervise(program(worker="patient_worker"))
    tree.wait_running()
    worker = tree.process_of("worker-0")
    worker.terminate()
    wait_until(lambda: tree.heard("drain"), "it drains")

    worker.terminate()

    wait_until(lambda: tree.heard("hasten"), "it hastens")
    tree.wait_replaced("worker-0", worker)


@pytest.mark.case("A66")
def test_a_stopped_child_does_not_hold_up_the_end(supervise) -> None:
    tree = supervise(drain_s=0.5)
    tree.wait_running()
    tree.process_of("worker-0").suspend()

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1


@pytest.mark.case("A59")
@pytest.mark.req("dc-clean-exit")
def test_sigterm_at_any_moment_of_the_start_leaves_nothing(supervise, tmp_path) -> None:
    """24 starts, signalled 0–50 ms after the first sign of life and before; a zombie or an orphan would stay."""
    for attempt in range(24):
        folder = tmp_path / f"run{attempt}"
        tree = supervise(program(probe="probe"), folder=folder, app=f"{STUBS}:any")
        if attempt % 4:
            wait_until(lambda folder=folder: (folder / "supervisor.lock").exists(), "it has begun", every=0.001)
        family = tree.family()
        pause_ms(attempt * 50 / 24)
        family = [*family, *[process for process in tree.family() if process not in family]]

        tree.process.send_signal(signal.SIGTERM)

        assert tree.wait_end() in (0, -signal.SIGTERM), tree.log_text()
        assert all_gone(family)
        assert not folder.exists() or {path.name for path in folder.iterdir()} <= {"heard.jsonl"}


def pause_ms(duration: float) -> None:
    """Let a moment pass that is itself what is tested."""
    deadline = time.monotonic() + duration / 1000
    wait_until(lambda: time.monotonic() >= deadline, "the moment", every=0.001)
