"""Starting a tree, looking at it, and bringing it to its end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psutil
import pytest

from supervisor.status_view import with_usage
from tests.process.supervised import all_gone, program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.mark.req("dc-supervisor-forks")
def test_the_ordered_number_of_workers_and_dispatchers_is_forked(supervise) -> None:
    tree = supervise(workers=2, dispatchers=1)
    tree.wait_running()

    children = psutil.Process(tree.pid).children()

    names = sorted(child.name() for child in children)
    assert names == ["dispatcher-0", "guardian", "worker-0", "worker-1"]
    assert all(child.ppid() == tree.pid for child in children)


def test_a_role_may_be_absent(supervise) -> None:
    tree = supervise(workers=0, dispatchers=2)

    status = tree.wait_running()

    assert [child["role"] for child in status["children"]] == ["dispatcher", "dispatcher"]


@pytest.mark.case("A62")
def test_a_tree_with_nothing_to_run_does_not_idle(supervise, data_dir) -> None:
    tree = supervise(workers=0, dispatchers=0, redis_url=None)

    assert tree.wait_end() == 2
    assert tree.log_text() == "error: workers, dispatchers: both are 0, there is nothing to run\n"
    assert not data_dir.exists()


def test_each_fork_has_a_fresh_worker_id_and_a_successor_keeps_the_slot(supervise) -> None:
    tree = supervise(workers=2)
    tree.wait_running()
    tree.process_of("worker-1").kill()

    wait_until(lambda: len(tree.heard("began")) == 4, "a successor")

    began = tree.heard("began")
    assert len({fact["worker_id"] for fact in began}) == 4
    assert all(len(fact["worker_id"]) == 32 and int(fact["worker_id"], 16) >= 0 for fact in began)
    assert [fact["slot"] for fact in began if fact["role"] == "worker"].count(1) == 2


@pytest.mark.case("A55", "A56")
def test_the_parent_has_one_thread_and_no_driver(supervise) -> None:
    tree = supervise()
    tree.wait_running()

    supervisor = psutil.Process(tree.pid)

    assert supervisor.num_threads() == 1
    assert supervisor.net_connections("inet") == []
    assert not [path for path in (mapped.path for mapped in supervisor.memory_maps()) if "pymongo" in path]


@pytest.mark.req("dc-clean-exit")
def test_after_a_stop_no_process_and_no_file_of_the_run_is_left(supervise, data_dir: Path) -> None:
    tree = supervise(program(companions=("echo",)), redis_url=None)
    tree.wait_running()
    family = tree.family()
    assert {"control.sock", "run.json", "supervisor.lock", "valkey.sock"} <= {path.name for path in data_dir.iterdir()}

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0
    assert all_gone(family)
    assert [path.name for path in data_dir.iterdir()] == ["heard.jsonl"]


def test_the_data_folder_and_all_in_it_is_closed_to_others(supervise, data_dir: Path) -> None:
    tree = supervise(redis_url=None)
    tree.wait_running()

    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert {
        path.name: oct(path.stat().st_mode & 0o077) for path in data_dir.iterdir() if path.name != "heard.jsonl"
    } == dict.fromkeys(("control.sock", "run.json", "supervisor.lock", "valkey.sock", "valkey.log"), "0o0")


def test_the_tree_speaks_to_nobody_outside_the_machine(supervise) -> None:
    """Also case A85: sockets of the whole tree are on the loopback interface or in the data folder."""
    tree = supervise(program(companions=("echo",)), redis_url=None)
    tree.wait_running()

    listening = [
        connection.laddr.ip
        for process in tree.family()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert set(listening) == {"127.0.0.1"}


@pytest.mark.case("A85")
def test_the_embedded_server_has_no_port_and_a_private_socket(supervise, data_dir: Path) -> None:
    tree = supervise(redis_url=None)
    tree.wait_running()

    server = tree.process_of("valkey")

    assert server.net_connections("inet") == []
    assert (data_dir / "valkey.sock").stat().st_mode & 0o777 == 0o600
    assert ask(data_dir / "valkey.sock", "CONFIG GET maxmemory-policy").endswith("noeviction\r\n")
    assert ask(data_dir / "valkey.sock", "CONFIG GET save").endswith("$0\r\n\r\n")


def ask(path: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(4096).decode()


def test_a_companion_answers_on_its_address_and_its_socket_survives_its_death(supervise) -> None:
    tree = supervise(program(companions=("echo",)))
    tree.wait_running()
    address = next(fact["addresses"]["echo"] for fact in tree.heard("began") if "addresses" in fact)
    port = int(address.rpartition(":")[2])
    first = answer(port)
    assert first == tree.child("echo")["pid"]

    psutil.Process(first).kill()

    assert answer(port) != first  # asked while nobody was there, answered by the successor


def answer(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        return int(connection.recv(64))


def test_the_probe_tells_companions_and_types_before_anything_is_started(supervise) -> None:
    tree = supervise(program(probe="probe"), app="tests.process.roles_for_tests:anything")

    status = tree.wait_running()

    assert status["types"] == ["greeting"]
    assert [child["name"] for child in status["children"]] == ["echo", "dispatcher-0", "worker-0"]


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("nothing", "there is no attribute 'nothing'"),
        ("rubbish", "the probe answered amiss"),
        ("silence", "exit status 0"),
        ("fault", "RuntimeError: two lines"),
    ],
)
def test_an_application_that_can_not_be_used_is_one_line_and_exit_2(supervise, data_dir, attribute, words) -> None:
    tree = supervise(program(probe="probe"), app=f"tests.process.roles_for_tests:{attribute}", redis_url=None)

    assert tree.wait_end() == 2
    (line,) = tree.log_text().splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not data_dir.exists()


@pytest.mark.req("dc-status")
def test_status_tells_place_usage_and_what_the_child_reports(supervise) -> None:
    tree = supervise()
    tree.wait_running()
    wait_until(lambda: tree.child("worker-0")["claims"] is not None, "a report")

    status = tree.status()
    assert status is not None
    worker = next(child for child in with_usage(status)["children"] if child["name"] == "worker-0")

    assert (worker["role"], worker["slot"], worker["state"], worker["restarts"]) == ("worker", 0, "RUNNING", 0)
    assert worker["pid"] in [fact["pid"] for fact in tree.heard("began") if fact["role"] == "worker"]
    assert worker["claims"] == 3
    assert worker["rss_bytes"] > 1_000_000
    assert worker["cpu_percent"] >= 0
    assert worker["uptime_s"] > 0
    assert 0 <= worker["loops"]["main"] < 60


def test_the_age_of_a_loop_grows_while_its_process_is_stopped(supervise) -> None:
    """A stopped process is left alone: it may go on later."""
    tree = supervise()
    tree.wait_running()
    pid = tree.child("worker-0")["pid"]
    wait_until(lambda: tree.child("worker-0")["loops"], "a report")

    psutil.Process(pid).suspend()

    wait_until(lambda: tree.child("worker-0")["loops"]["main"] > 1, "the loop is getting old")
    psutil.Process(pid).resume()
    wait_until(lambda: tree.child("worker-0")["loops"]["main"] < 0.5, "it moves again")
    assert tree.child("worker-0")["pid"] == pid
