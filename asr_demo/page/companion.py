"""The web process: forked, watched and restarted by the supervisor, on a socket that the supervisor holds.

A server that ends waits for its open answers. Streams would not end by themselves: they are told first, and each says
`event: bye`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from asr_demo.notes import Notes
from asr_demo.page.desk import Desk, NoteDesk, SubscriptionDesk
from asr_demo.page.server import page_app
from asr_demo.page.streaming import Streams
from asr_demo.subscriptions import SUBSCRIPTIONS
from kernel import Client, SystemClock
from kernel.runtime import open_client, open_objects
from supervisor.http_server import END_S, HttpServer

log = logging.getLogger("asr_demo.page")

REPORT_S = 1.0
CONNECTIONS_MAX = 256
SEND_BUFFER_BYTES = 64 * 1024


class Link(Protocol):
    """What the supervisor hands to a companion process (supervisor.child.ChildLink)."""

    config: Any
    redis_url: str | None
    data_dir: Path
    listener: socket.socket

    def ready(self) -> None: ...

    def next_order(self, timeout_s: float) -> Any: ...

    def report(self, status: dict[str, Any]) -> None: ...

    def failed(self, text: str) -> None: ...


def notes(link: Link) -> int:
    """The role of the web process beside single jobs."""
    with closing(Notes(link.data_dir)) as opened:
        return _run(link, NoteDesk(opened))


def subscriptions(link: Link) -> int:
    """The role of the web process beside the live-summary story."""
    opened = open_objects(link.config, link.data_dir, [SUBSCRIPTIONS], SystemClock(), prepare=False)
    with closing(opened[SUBSCRIPTIONS.name]) as objects:
        return _run(link, SubscriptionDesk(objects))


def _run(link: Link, desk: Desk) -> int:
    with open_client(link.config, link.data_dir, link.redis_url, prepare=False) as client:
        server = PageServer(client, desk, link.listener, link.ready)
        server.start()
        while not server.over.is_set():
            order = link.next_order(REPORT_S)
            if order is not None and order.kind in ("drain", "hasten"):
                server.stop()
            link.report({"loops": {"page": server.silent_s()}, "streams": len(server.streams.open)})
            if order is not None and order.kind == "hasten":
                return 1
            if order is not None:
                server.over.wait(2 * END_S)
        if server.failure is not None:
            log.error("the page failed", exc_info=server.failure)
            link.failed(f"the page failed: {type(server.failure).__name__}: {server.failure}")
            return 1
    return 0


class PageServer(HttpServer):
    """The page on the socket `listener`, which stays the caller's."""

    def __init__(
        self, client: Client, desk: Desk, listener: socket.socket, ready: Callable[[], None] = lambda: None
    ) -> None:
        self.streams = streams = Streams(client)
        # Inherited by its connections; else the system would keep megabytes for a reader who takes nothing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().__init__(
            page_app(client, desk, streams), listener, ready, connections_max=CONNECTIONS_MAX,
            ending=streams.close, ended=streams.end,
        )  # fmt: skip
