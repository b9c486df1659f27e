"""What a service manager is told (sd_notify), seen on its own socket."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psutil
import pytest

from kernel.config import service_manager
from tests.process.supervised import program
from tests.support.wait import stays, wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def manager(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock, tmp_path / "notify"


class Ear:
    """All words that came so far."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.words: list[str] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self.words.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self.words


def test_ready_status_watchdog_and_stopping_are_told_in_their_order(supervise, manager) -> None:
    sock, path = manager
    ear = Ear(sock)
    tree = supervise(
        program(worker="gated"), dispatchers=0, environ={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
    )
    tree.wait_running()
    wait_until(lambda: "READY=1" in ear.heard(), "it is ready")
    wait_until(lambda: "STATUS=running: 1 of 1 children run" in ear.heard(), "its status")
    so_far = ear.heard().count("WATCHDOG=1")
    wait_until(lambda: ear.heard().count("WATCHDOG=1") > so_far + 2, "it lives")

    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "STOPPING=1" in ear.heard(), "it ends")
    (tree.data_dir / "worker-may-end").touch()

    assert tree.wait_end() == 0
    words = ear.heard()
    assert words.count("READY=1") == words.count("STOPPING=1") == 1
    assert words.index("READY=1") < words.index("STOPPING=1")
    assert {word.partition("=")[0] for word in words} == {"READY", "STATUS", "STOPPING", "WATCHDOG"}


def test_a_stopped_supervisor_feeds_no_watchdog(supervise, manager) -> None:
    sock, path = manager
    ear = Ear(sock)
    tree = supervise(dispatchers=0, environ={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "100000"})
    wait_until(lambda: "WATCHDOG=1" in ear.heard(), "it lives")

    tree.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(tree.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    before = len(ear.heard())
    stays(lambda: len(ear.heard()) == before, "nothing more is said", seconds=1)
    tree.process.send_signal(signal.SIGCONT)

    wait_until(lambda: len(ear.heard()) > before, "it lives again")


def test_a_manager_that_does_not_listen_holds_up_nobody(supervise, tmp_path) -> None:
    tree = supervise(dispatchers=0, environ={"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "100000"})
    tree.wait_running()

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0


def test_the_address_is_the_environments_and_the_watchdog_only_if_it_is_meant_for_us() -> None:
    assert service_manager({}) is None
    assert service_manager({"NOTIFY_SOCKET": "relative"}) is None
    assert service_manager({"NOTIFY_SOCKET": "@abstract"}) == ("@abstract", None)
    assert service_manager({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "x"}) == ("/run/n", None)
    assert service_manager({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}) == ("/run/n", None)
    assert service_manager({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "5"}) == ("/run/n", 5)
