"""A TCP proxy on the loopback that loses, cuts, swallows or delays: real faults between a client and its server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

_CHUNK = 65_536


class Proxy:
    """Stands in front of `127.0.0.1:upstream_port`. Use as a context manager; safe to steer while it runs."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.lost = 0
        """Answers that were thrown away."""
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._marker = b""
        self._to_lose = 0
        self._on_loss: Callable[[], None] | None = None
        self._open_gate = threading.Event()
        self._open_gate.set()
        self._pause_s = 0.0
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._open_gate.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join()

    def lose_replies(self, containing: bytes, count: int = 1, on_loss: Callable[[], None] | None = None) -> None:
        """Let the next `count` requests with these bytes through, throw each answer away and cut its connection.

        `on_loss` is called when an answer has arrived here (so the request was executed) and before the client can
        notice anything. A count of 0 ends it.
        """
        with self._lock:
            self._marker, self._to_lose, self._on_loss = containing, count, on_loss

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.close()

    def blackhole(self, on: bool = True) -> None:
        """Hold everything back, in both directions, without ending a connection; `False` lets it go on."""
        (self._open_gate.clear if on else self._open_gate.set)()

    def delay(self, seconds: float) -> None:
        """Hold every answer back for so long."""
        self._pause_s = seconds

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream_port))
            except OSError:
                client.close()
                continue
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.append(pair)
            for pump in (self._requests, self._replies):
                threading.Thread(target=pump, args=(pair,), name="proxy-pump", daemon=True).start()

    def _requests(self, pair: _Pair) -> None:
        seen = b""
        while data := pair.received(pair.client):
            self._open_gate.wait()
            # The marker may lie across two pieces; a request is answered only when all of it has arrived.
            seen = seen[-64:] + data
            with self._lock:
                if self._to_lose and self._marker in seen:
                    self._to_lose -= 1
                    pair.losing = True
            pair.sent(pair.server, data)
        pair.close()

    def _replies(self, pair: _Pair) -> None:
        while data := pair.received(pair.server):
            self._open_gate.wait()
            if self._pause_s:
                self._ended.wait(self._pause_s)
            if pair.losing:
                if self._on_loss is not None:
                    self._on_loss()
                self.lost += 1
                break
            pair.sent(pair.client, data)
        pair.close()


class _Pair:
    """One client's connection and its counterpart to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.losing = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def received(self, end: socket.socket) -> bytes:
        try:
            return end.recv(_CHUNK)
        except OSError:
            return b""

    def sent(self, end: socket.socket, data: bytes) -> None:
        try:
            end.sendall(data)
        except OSError:
            self.close()

    def close(self) -> None:
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # ended by the other side, or by the other thread
            end.close()
