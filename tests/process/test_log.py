"""One log for all processes: whole lines, their place, no password, and never a reason to wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from urllib.parse import quote

import msgspec
import psutil
import pytest

from supervisor.control_client import ControlClient
from tests.process.supervised import program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.mark.req("dc-logging")
def test_four_processes_and_a_thousand_lines_each_are_all_whole(supervise, tmp_path) -> None:
    path = tmp_path / "kernel.log"
    tree = supervise(program(worker="logging_worker"), workers=4, log_file=str(path))
    status = tree.wait_running()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ours = [line for line in lines if line["event"] == "test.line"]

    assert len(ours) == 4000
    assert status["log"] == {"lost_in_children": 0, "lost_at_sink": 0}
    for child in (child for child in status["children"] if child["role"] == "worker"):
        mine = [line for line in ours if line["pid"] == child["pid"]]
        assert [line["x"]["number"] for line in mine] == list(range(1000))
        assert [line["seq"] for line in mine] == list(range(1, 1001))
        assert {(line["role"], line["slot"], line["worker_id"]) for line in mine} == {
            ("worker", child["slot"], child["worker_id"])
        }
        assert all(line["msg"] == f"line {n} of {'x' * (n % 200)}" for n, line in enumerate(mine))
    assert list(lines[0])[:9] == ["v", "ts", "level", "event", "msg", "role", "slot", "pid", "worker_id"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.case("A67")
def test_logging_goes_on_for_all_when_writers_are_killed_in_mid_sentence(supervise) -> None:
    """The stock handler stops for ever after some dozens of kills; each record here is whole or absent, and an absent
    one is told of: a supervisor that stands still for half a second loses some."""
    tree = supervise(program(worker="chatty_worker"), workers=2, restart_first_s=0.02, restart_max_s=0.02)
    tree.wait_running()
    for _ in range(25):
        victim = tree.process_of("worker-0")
        wait_until(lambda victim=victim: f'"pid":{victim.pid},' in tree.log_text(), "it has spoken")
        victim.kill()
        tree.wait_replaced("worker-0", victim)
        tree.wait_running()

    size = len(tree.log_text())
    survivor = f'"pid":{tree.child("worker-1")["pid"]},'
    wait_until(lambda: tree.log_text()[size:].count(survivor) > 100, "the other one still speaks")
    last: Counter[int] = Counter()
    for line in tree.lines():
        if line["event"] == "log.dropped":
            last[line["pid"]] += int(line["msg"].split()[0])
        elif line["event"] == "test.chat":
            assert line["seq"] == last[line["pid"]] + 1, "no gap that was not told"
            last[line["pid"]] = line["seq"]
    assert len(last) >= 25
    assert len(tree.log("log.dropped")) < 25, "not with every kill"


@pytest.mark.case("A67")
def test_the_last_words_of_a_native_crash_are_kept(supervise) -> None:
    tree = supervise(program(worker="native_crash_worker"))
    tree.wait_running()
    wait_until(lambda: tree.child("worker-0")["restarts"] == 1, "it crashed and came back")

    words = [line["msg"] for line in tree.log("child.stderr")]

    assert "last words on stderr" in words
    assert "Fatal Python error: Segmentation fault" in words
    assert any("native_crash_worker" in line for line in words)
    assert tree.child("worker-0")["last_exit"]["text"] == "killed by SIGSEGV"


@pytest.mark.case("A68")
def test_a_reader_that_does_not_read_holds_up_nobody(supervise, tmp_path, data_dir) -> None:
    """The supervisor's stderr is a full pipe that nobody empties: children are born, killed, replaced, drained."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.process.start_stub",
            json.dumps({"data_dir": str(data_dir), "redis_url": "redis://127.0.0.1:1/0", "workers": 2, "drain_s": 20}),
            program_json("chatty_worker"),
        ],
        stderr=writer,
    )
    os.close(writer)
    try:
        wait_until(lambda: lost_at_sink(data_dir) > 1000, "the pipe and the backlog are full")
        with ControlClient(data_dir) as client:
            old = client.request("kill_child", slot=0)["pid"]
        wait_until(lambda: worker_pid(data_dir) not in (None, old), "a successor")

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(reader)


def program_json(worker: str) -> str:
    return msgspec.json.encode(program(worker=worker)).decode()


def lost_at_sink(data_dir) -> int:
    try:
        with ControlClient(data_dir) as client:
            return client.request("status")["log"]["lost_at_sink"]
    except Exception:
        return 0


def worker_pid(data_dir) -> int | None:
    with ControlClient(data_dir) as client:
        children = client.request("status")["children"]
    return next(child["pid"] for child in children if child["name"] == "worker-0")


@pytest.mark.case("A68")
def test_a_stopped_supervisor_holds_up_a_writer_once_and_the_losses_are_counted(supervise) -> None:
    tree = supervise(program(worker="chatty_worker"))
    tree.wait_running()
    supervisor = psutil.Process(tree.pid)
    worker = tree.process_of("worker-0")

    supervisor.suspend()
    before = worker.cpu_times().user
    wait_until(lambda: worker.cpu_times().user > before + 0.1, "the worker goes on working")
    supervisor.resume()

    wait_until(lambda: tree.log("log.dropped"), "the losses are told")
    status = tree.status()
    assert status is not None
    assert status["log"]["lost_in_children"] > 0


@pytest.mark.case("A83")
def test_no_password_in_any_output(supervise, data_dir, tmp_path) -> None:
    canary, url_safe = "cAn4ry/x#y@z%q", quote("cAn4ry/x#y@z%q", safe="")
    data_dir.mkdir(mode=0o700)
    forms = [
        f"redis://:{canary}@127.0.0.1:1/0",
        f"redis://user:{url_safe}@127.0.0.1:1/0",
        f"mongodb://u:{url_safe}@one:1,two:2/?replicaSet=r",
        f"Port could not be cast to integer value as '{canary.split('/')[0]}'",
        f"password={canary} password: '{canary}' PASSWORD={url_safe}&x=1",
        canary,
        url_safe,
    ]
    (data_dir / "canaries.txt").write_text("\n".join(forms))
    tree = supervise(
        program(worker="secretive_worker"),
        redis_url=None,
        environ={"REDIS_URL": f"redis://:{url_safe}@127.0.0.1:1/0", "MONGODB_URI": f"mongodb://root:{canary}@db/"},
    )
    tree.wait_running()
    wait_until(lambda: tree.heard("leaked"), "it leaked")
    status = subprocess.run(
        [sys.executable, "-m", "supervisor", "status", "--json", "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
    )
    commands = [" ".join(process.cmdline()) for process in tree.family()]
    tree.process.send_signal(signal.SIGTERM)
    tree.wait_end()

    outputs = [tree.log_text(), status.stdout + status.stderr, *commands]
    assert "***" in outputs[0]
    assert len(tree.log("test.leak")) == 2 * len(forms)
    assert json.loads(status.stdout)["children"][-1]["last_exit"]["words"].startswith("ConnectionError: redis://***@")
    for output in outputs:
        for form in (canary, url_safe, "cAn4ry"):
            assert form not in output


def test_stacks_of_all_children_come_into_the_log(supervise, data_dir) -> None:
    tree = supervise(program(worker="blocked_worker"))
    tree.wait_running()
    wait_until(lambda: tree.heard("blocked"), "it is blocked")

    with ControlClient(data_dir) as client:
        assert client.request("stacks")["children"] == 2

    wait_until(lambda: "blocked_worker" in stderr_of(tree, "worker"), "a stack, though the interpreter is held")
    wait_until(lambda: "dispatcher" in stderr_of(tree, "dispatcher"), "the other one")


def stderr_of(tree, role: str) -> str:
    return "\n".join(line["msg"] for line in tree.log("child.stderr") if line["role"] == role)


def test_the_log_file_is_opened_again_on_sigusr2(supervise, tmp_path) -> None:
    path = tmp_path / "kernel.log"
    tree = supervise(log_file=str(path))
    tree.wait_running()
    path.rename(tmp_path / "kernel.log.1")

    tree.process.send_signal(signal.SIGUSR2)

    wait_until(path.exists, "a new file")
    victim = tree.process_of("worker-0")
    victim.kill()
    wait_until(lambda: "child.exited" in path.read_text(), "it is written to")
