"""The control socket: `status`, `stop`, `kill_child`, `stacks` for whoever may enter the data folder.

One JSON object a line, `{"v":1,"op":…}`, answered by one line `{"v":1,"ok":true,…}` or `{"v":1,"ok":false,"error":…}`.
A client that sends rubbish, too much, too slowly, or does not read is cut off; it can not hold up the loop. A client
that asked for `stop` gets a second line when everything has ended, and then the end of the stream.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from kernel.errors import InvalidConfig, Refused
from supervisor.loop import READ, WRITE, Loop, Timer

VERSION = 1
REQUEST_BYTES_MAX = 4_096
CLIENTS_MAX = 32
PATIENCE_MS = 2_000
REPLY_BYTES_MAX = 4 * 1024 * 1024


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask for."""

    v: Literal[1]
    op: Literal["status", "stop", "kill_child", "stacks"]
    role: str = "worker"
    slot: int = 0


Handler = Callable[[Request], dict[str, Any]]


class ControlServer:
    """Listens on a unix socket (0600) inside the loop. `handler` answers a checked request and never waits."""

    def __init__(self, loop: Loop, path: Path, handler: Handler) -> None:
        self._loop = loop
        self._handler = handler
        self._clients: set[_Client] = set()
        self._listener = _listening(path)
        self._open_door()

    def _open_door(self) -> None:
        if self._listener.fileno() != -1:
            self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client is gone again
        except OSError:
            # Out of descriptors: the door would stay ready, and the loop would turn for nothing else.
            self._loop.forget(self._listener.fileno())
            self._loop.call_in(PATIENCE_MS, self._open_door)
            return
        if len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        self._clients.add(_Client(self._loop, connection, self._answer, self._clients.discard))

    def _answer(self, line: bytes) -> tuple[dict[str, Any], bool]:
        """The reply, and whether the client waits for the end."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.MsgspecError, RecursionError) as error:
            return {"ok": False, "error": f"bad request: {error}"}, False
        try:
            return {"ok": True, **self._handler(request)}, request.op == "stop"
        except Refused as error:
            return {"ok": False, "error": str(error)}, False

    def close(self, last_words: dict[str, Any]) -> None:
        """Tell those who wait how it ended, and close everything."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for client in list(self._clients):
            if client.waits:
                client.send(last_words)
            client.close()


class _Client:
    """One connection: half a request on one side, half a reply on the other, and a limit to both."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        answer: Callable[[bytes], tuple[dict[str, Any], bool]],
        gone: Callable[[_Client], None],
    ) -> None:
        self.waits = False
        self._loop = loop
        self._connection = connection
        self._answer = answer
        self._gone = gone
        self._received = b""
        self._to_send = b""
        self._timer: Timer = loop.call_in(PATIENCE_MS, self._lose_patience)
        connection.setblocking(False)
        loop.watch(connection.fileno(), READ, self._read)

    def _read(self) -> None:
        try:
            data = self._connection.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        while b"\n" in self._received and self._connection.fileno() != -1:
            line, _, self._received = self._received.partition(b"\n")
            reply, waits = self._answer(line)
            self.waits = self.waits or waits
            self._renew_patience()
            self.send(reply)
        if len(self._received) > REQUEST_BYTES_MAX:
            self.send({"ok": False, "error": f"bad request: longer than {REQUEST_BYTES_MAX} bytes"})
            self.close()

    def _renew_patience(self) -> None:
        self._timer.cancel()
        if not self.waits:
            self._timer = self._loop.call_in(PATIENCE_MS, self._lose_patience)

    def _lose_patience(self) -> None:
        """Unless it was this process that stood still, and what the client has said lies there unread."""
        over = self._timer
        if not self._to_send:
            self._read()
        if self._timer is over:
            self.close()

    def send(self, reply: dict[str, Any]) -> None:
        self._to_send += msgspec.json.encode({"v": VERSION, **reply}) + b"\n"
        self._write()

    def _write(self) -> None:
        try:
            sent = self._connection.send(self._to_send, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._to_send = self._to_send[sent:]
        if len(self._to_send) > REPLY_BYTES_MAX:
            self.close()
            return
        # While it does not read, it is not read either: nobody can pile up replies.
        if self._to_send:
            self._loop.watch(self._connection.fileno(), WRITE, self._write)
        else:
            self._loop.watch(self._connection.fileno(), READ, self._read)

    def close(self) -> None:
        if self._connection.fileno() != -1:
            self._timer.cancel()
            self._loop.forget(self._connection.fileno())
            self._connection.close()
            self._gone(self)


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_umask = os.umask(0o177)  # the socket is never open to others, not even for a moment
    try:
        listener.bind(str(path))
        listener.listen(CLIENTS_MAX)
    except OSError as error:
        listener.close()
        raise InvalidConfig(f"data_dir: control socket {path}: {error.strerror or error}") from None
    finally:
        os.umask(old_umask)
    listener.setblocking(False)
    return listener
