"""The control socket: for whoever may enter the folder, and never a way to hold up the loop."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from kernel.errors import Refused
from supervisor.control_client import ControlClient, NoSupervisor
from tests.process.supervised import program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def tree(supervise):
    tree = supervise()
    tree.wait_running()
    return tree


def connected(data_dir: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    try:
        connection.connect(str(data_dir / "control.sock"))
    except BlockingIOError:
        connection.close()
        raise
    return connection


def said(connection: socket.socket) -> dict[str, Any]:
    received = b""
    while not received.endswith(b"\n"):
        data = connection.recv(65_536)
        assert data, "the supervisor closed the connection"
        received += data
    return json.loads(received)


def test_the_socket_is_closed_to_others(tree, data_dir) -> None:
    assert (data_dir / "control.sock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"\x00\xff\xfe",
        b"[]",
        b"{}",
        b'{"v":2,"op":"status"}',
        b'{"v":1,"op":"format_disk"}',
        b'{"v":1,"op":"status","x":1}',
        b'{"v":1,"op":"kill_child","slot":"0"}',
        b"[" * 4000,
    ],
)
def test_a_request_that_is_none_is_refused_and_the_connection_lives(tree, data_dir, line) -> None:
    with connected(data_dir) as connection:
        connection.sendall(line + b"\n")
        assert said(connection)["ok"] is False
        connection.sendall(b'{"v":1,"op":"status"}\n')
        assert said(connection)["state"] == "RUNNING"


def test_a_request_without_end_is_cut_off(tree, data_dir) -> None:
    with connected(data_dir) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(1000):
            connection.sendall(b"x" * 10_000)
    assert tree.status() is not None


def test_slow_and_silent_clients_and_such_that_do_not_read_do_not_hold_up_the_loop(tree, data_dir) -> None:
    silent = [connected(data_dir) for _ in range(20)]
    silent[0].sendall(b'{"v":1,')  # at once: who says nothing is dismissed after 2 s
    greedy = connected(data_dir)
    greedy.setblocking(False)
    try:
        for _ in range(2000):
            greedy.send(b'{"v":1,"op":"status"}\n' * 20)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        pass

    assert tree.status() is not None, "answered within the 5 s that a client waits"
    for connection in (*silent, greedy):
        connection.close()


def test_a_client_that_says_nothing_is_dismissed(tree, data_dir) -> None:
    with connected(data_dir) as connection:
        assert connection.recv(1) == b""


def test_more_clients_than_allowed_are_turned_away_and_later_ones_served(tree, data_dir) -> None:
    many: list[socket.socket] = []
    try:
        many.extend(connected(data_dir) for _ in range(60))
    except BlockingIOError:
        pass  # even the queue before the door is full
    assert len(many) > 30
    for connection in many:
        connection.close()

    wait_until(tree.status, "it answers again")


def test_kill_child_kills_the_child_in_that_place(tree, data_dir) -> None:
    old = tree.process_of("worker-0")

    with ControlClient(data_dir) as client:
        assert client.request("kill_child", role="worker", slot=0)["pid"] == old.pid

    tree.wait_replaced("worker-0", old)
    wait_until(lambda: tree.heard("owner_dead"), "the death is announced")
    assert tree.heard("owner_dead")[0]["cause"] == "death"


def test_a_death_that_an_operator_asked_for_does_not_lengthen_the_back_off(supervise, data_dir) -> None:
    tree = supervise(restart_first_s=0.05, restart_give_up=2)
    for _ in range(4):
        tree.wait_running()
        old = tree.process_of("worker-0")
        with ControlClient(data_dir) as client:
            client.request("kill_child", slot=0)
        tree.wait_replaced("worker-0", old)

    tree.wait_running()
    assert {line["x"]["delay_ms"] for line in tree.log("child.backoff")} == {50}


def test_kill_child_of_an_empty_place_is_refused(tree, data_dir) -> None:
    with ControlClient(data_dir) as client, pytest.raises(Refused, match="worker 7 is not running"):
        client.request("kill_child", slot=7)


def dismissed(client: ControlClient) -> ControlClient:
    """That client, after it has been silent for so long that the supervisor has closed its connection."""
    client._socket.settimeout(60)
    assert client._socket.recv(1, socket.MSG_PEEK) == b""
    return client


def test_who_stands_still_between_his_connection_and_his_question_is_answered_all_the_same(tree, data_dir) -> None:
    """It was "no supervisor is running", of one that ran."""
    with ControlClient(data_dir) as client:
        assert dismissed(client).request("status")["ok"] is True
    with ControlClient(data_dir) as client, pytest.raises(TimeoutError):
        dismissed(client).request("kill_child", role="worker", slot=0)  # it may have been heard: not twice
    assert tree.child("worker-0")["restarts"] == 0


def test_only_where_nobody_listens_any_more_the_supervisor_is_gone(tree, data_dir) -> None:
    with ControlClient(data_dir) as client:
        assert not client.is_gone_within(5.0), "it has dismissed who was silent, and is there"
    with ControlClient(data_dir) as client:
        tree.process.terminate()
        assert client.is_gone_within(60.0)


def test_stop_waits_for_the_end_and_tells_how_it_was(supervise, data_dir) -> None:
    tree = supervise(program(worker="stubborn_worker"), drain_s=0.5)
    tree.wait_running()

    with ControlClient(data_dir) as client:
        assert client.stop(60) == 1

    assert tree.process.poll() is not None or tree.wait_end(1) == 1


def test_stop_twice_is_one_order(supervise, data_dir) -> None:
    tree = supervise(program(worker="gated"))
    tree.wait_running()

    with ControlClient(data_dir) as first, ControlClient(data_dir, timeout_s=60) as second:
        first.request("stop")
        second.request("stop")
        (data_dir / "worker-may-end").touch()  # not before: the second order would find nobody
        assert (second._read_line() or {}).get("exit") == 0

    assert tree.wait_end() == 0
    assert tree.heard("hasten") == []


def test_nobody_there_is_said_at_once(data_dir) -> None:
    with pytest.raises(NoSupervisor, match="no supervisor is running in"):
        ControlClient(data_dir)
