"""The other end of the control socket: for the command line and for programs that drive a tree."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from kernel.errors import KernelError, Refused
from supervisor.control import REPLY_BYTES_MAX, VERSION
from supervisor.run_dir import CONTROL_NAME, read_run_file


class NoSupervisor(KernelError):
    """No supervisor answers for this data folder."""

    code = "no_supervisor"


class ControlClient:
    """One connection to the supervisor of a data folder. Raises NoSupervisor, TimeoutError when it does not answer."""

    def __init__(self, data_dir: str | Path, timeout_s: float = 5.0) -> None:
        path = Path(data_dir).absolute()
        run_file = read_run_file(path)
        self._address = run_file.control if run_file is not None else str(path / CONTROL_NAME)
        self._nobody = f"no supervisor is running in {path}"
        self._timeout_s = timeout_s
        self._open()

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(self._timeout_s)
        self._received = b""
        try:
            self._connect(time.monotonic() + self._timeout_s)
        except (OSError, ValueError) as error:
            self._socket.close()
            if isinstance(error, TimeoutError):
                raise
            raise NoSupervisor(self._nobody) from None

    def _open_again(self) -> None:
        self._socket.close()
        self._open()

    def _connect(self, deadline: float) -> None:
        while True:
            try:
                self._socket.connect(self._address)
                return
            except BlockingIOError:
                # Its queue of connections is full: it is there, and busy or stopped.
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                select.poll().poll(20)

    def request(self, op: str, **parameters: object) -> dict[str, Any]:
        """Ask and return the answer. Raises Refused with the supervisor's reason, NoSupervisor when it is gone.

        A connection that ends without an answer proves nothing: the supervisor dismisses whoever is silent for long,
        as a process is that stands still, and whoever comes while too many are there. Only where nobody listens is
        nobody there. So the question is put once more, but for an order that must not be carried out twice.
        """
        question = msgspec.json.encode({"v": VERSION, "op": op, **parameters}) + b"\n"
        reply = self._answer(question)
        if reply is None:
            self._open_again()
            reply = None if op == "kill_child" else self._answer(question)
        if reply is None:
            raise TimeoutError
        if not reply.get("ok"):
            raise Refused(str(reply.get("error", "the supervisor refused")))
        return reply

    def _answer(self, question: bytes) -> dict[str, Any] | None:
        try:
            self._socket.sendall(question)
        except TimeoutError:
            raise
        except OSError:
            return None
        return self._read_line()

    def stop(self, timeout_s: float | None) -> int | None:
        """Order the end and wait until the process is gone; its exit status, None if it was killed meanwhile.

        Raises TimeoutError; the order stands nevertheless.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pid = int(self.request("stop")["pid"])
        # It has just answered, so this number is still its own; the descriptor keeps it apart from any successor.
        pidfd = _pidfd(pid)
        try:
            self._socket.settimeout(_remaining(deadline))
            reply = self._read_line()
            if pidfd is not None and not _ended(pidfd, _remaining(deadline)):
                raise TimeoutError
        finally:
            if pidfd is not None:
                os.close(pidfd)
        return None if reply is None else int(reply["exit"])

    def is_gone_within(self, limit_s: float) -> bool:
        """Wait for the supervisor to end, or for `limit_s`: then it closes this connection, and nobody listens."""
        self._socket.settimeout(limit_s)
        try:
            if self._read_line() is not None:
                return False
            self._open_again()
        except TimeoutError:
            return False
        except NoSupervisor:
            return True
        return False

    def _read_line(self) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data or len(self._received) > REPLY_BYTES_MAX:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            return None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # gone already, or of another container


def _ended(pidfd: int, limit_s: float | None) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if limit_s is None else limit_s * 1000))
