"""A proxy before a Redis server that loses replies, goes silent, cuts links or sends garbage."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kernel.coordination import RedisEndpoint


class Proxy:
    """Forwards bytes both ways on one thread until told otherwise. Set the attributes from any thread."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._folder = Path(tempfile.mkdtemp(prefix="wk-proxy-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "proxy.sock"))
        self._listener.listen(64)
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_in, selectors.EVENT_READ, lambda: None)
        self._partners: dict[socket.socket, socket.socket] = {}
        self._from_client: set[socket.socket] = set()
        self._closing = False
        self.endpoint = RedisEndpoint(path=str(self._folder / "proxy.sock"))
        self.lose_replies = 0
        """How many replies still vanish; the server has run their commands."""
        self.silent = False
        """Both directions: bytes are taken and never passed on; links stay open."""
        self.garbage = b""
        """Sent once in place of the next reply."""
        self.swallowed = 0
        """How many chunks of bytes vanished while it was silent."""
        self.links_made = 0
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    @property
    def links_open(self) -> int:
        return len(self._from_client)

    def cut(self) -> None:
        """Close every link, as a restarting server does."""
        for link in list(self._partners):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing = True
        self._wake_out.send(b"x")
        self._thread.join(10)
        for each in (*self._partners, self._listener, self._wake_in, self._wake_out, self._selector):
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._upstream))
        self.links_made += 1
        self._partners |= {client: server, server: client}
        self._from_client.add(client)
        for link in (client, server):
            self._selector.register(link, selectors.EVENT_READ, lambda link=link: self._forward(link))

    def _forward(self, source: socket.socket) -> None:
        partner = self._partners.get(source)
        if partner is None:
            return
        try:
            data = source.recv(65_536)
        except OSError:
            data = b""
        if not data:
            self._drop(source, partner)
        elif self.silent:
            self.swallowed += 1
        else:
            data = data if source in self._from_client else self._reply(data)
            with contextlib.suppress(OSError):
                partner.sendall(data)

    def _reply(self, data: bytes) -> bytes:
        if self.lose_replies > 0:
            self.lose_replies -= 1
            return b""
        if self.garbage:
            data, self.garbage = self.garbage, b""
        return data

    def _drop(self, *links: socket.socket) -> None:
        for link in links:
            self._partners.pop(link, None)
            self._selector.unregister(link)
            link.close()
        # Last, so that a link that does not count any more is closed for its client, too.
        self._from_client.difference_update(links)


@contextlib.contextmanager
def proxied(upstream: Path) -> Iterator[Proxy]:
    """A proxy before the server whose socket is `upstream`."""
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
