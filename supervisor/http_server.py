"""HTTP in a child of the supervisor: an ASGI application on a socket that the supervisor holds.

uvicorn runs on a thread and so installs no signal handler: an order to drain comes by the link. It is of the
extras `web` and `metrics`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

END_S = 1
"""How long an end waits for answers under way: the supervisor gives a companion 1.5 s."""


class HttpServer:
    """`app` on the socket `listener`, which stays the caller's, from `start` to `stop`.

    `ready` is called when it listens, `ending` when an end begins, before open answers are waited for, and `ended` when
    nothing is answered any more; all on its event loop.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        ready: Callable[[], None],
        *,
        connections_max: int,
        ending: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._listener = listener
        self._connections_max = connections_max
        self._hooks = (ready, ending)
        self._ended = ended
        self._moved_s = time.monotonic()
        self._server: _Server | None = None
        self._asked = False
        self.failure: BaseException | None = None
        self.over = threading.Event()
        # Should it hang past its limit, the process ends without it.
        self._thread = threading.Thread(target=self._body, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; `over` is set when nothing is answered any more."""
        self._asked = True  # first: one that is just being made looks at this last
        if self._server is not None:
            self._server.should_exit = True

    def silent_s(self) -> float:
        """How long ago the event loop moved last, in seconds."""
        return time.monotonic() - self._moved_s

    def _body(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self.over.set()

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=self._connections_max,
            timeout_graceful_shutdown=END_S,
            callback_notify=self._moves,
            timeout_notify=0,
        )
        self._server = server = _Server(config, *self._hooks)
        server.should_exit = self._asked
        try:
            await server.serve(sockets=[self._listener.dup()])
        finally:
            self._ended()

    async def _moves(self) -> None:
        self._moved_s = time.monotonic()


class _Server(uvicorn.Server):
    """Says when it listens, and when it is about to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = ready
        self._say_ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._say_ending()
        await super().shutdown(sockets)
