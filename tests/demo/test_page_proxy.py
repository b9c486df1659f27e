"""The page's stream behind a proxy that gathers 8 KiB before it passes anything on, unless it is told not to (A82)."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.demo.page_stage import Site, Stage
from tests.support.wait import wait_until

GATHERED_BYTES = 8 * 1024
PATIENCE_S = 30


class GatheringProxy:
    """One request; as nginx does, it gathers the answer's body unless the answer says `X-Accel-Buffering: no`."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.gathers: bool | None = None
        self._server: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener.accept()[0] as reader, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            self._server = server
            request = b""
            while b"\r\n\r\n" not in request:
                request += reader.recv(65_536)
            server.sendall(request)
            waiting = b""
            while data := server.recv(65_536):
                waiting += data
                if self.gathers is None:
                    head, end, body = waiting.partition(b"\r\n\r\n")
                    if not end:
                        continue
                    self.gathers = b"x-accel-buffering: no" not in head.lower()
                    reader.sendall(head + end)
                    waiting = body
                if not self.gathers or len(waiting) >= GATHERED_BYTES:
                    try:
                        reader.sendall(waiting)
                    except OSError:
                        return  # he has gone
                    waiting = b""

    def close(self) -> None:
        self._listener.close()
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)


@pytest.fixture
def proxy(site: Site) -> Iterator[GatheringProxy]:
    with closing(GatheringProxy(site.port)) as opened:
        yield opened


@pytest.mark.case("A82")
@pytest.mark.req("sse-http")
def test_a_proxy_is_told_to_pass_everything_on_at_once(stage: Stage, proxy: GatheringProxy) -> None:
    stage.start()
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/stream/note-1", headers={"Host": "127.0.0.1"})
        answer = connection.getresponse()
        stage.write("First.")
        seen = b""
        while b"First." not in seen:  # far less than the proxy would gather: in vain until the time limit otherwise
            seen += answer.readline()
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")
        assert "no-store" in answer.getheader("Cache-Control", "")
        assert answer.getheader("Content-Length") is None
        stage.finish("First.")
        answer.read()
    wait_until(lambda: proxy.gathers is False, "it was told")
