"""The three paths that are served, and what is refused before them. Every path is a GET and changes nothing."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernel.config import Config
from supervisor.metrics_looks import Looks
from supervisor.metrics_ready import is_live, verdict
from supervisor.metrics_scrape import Scrape

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""On every answer, also on those that the framework makes: a refusal repeats no text, and is none to run."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def metrics_app(config: Config, looks: Looks, scrape: Scrape, host: str) -> Starlette:
    """The application of the process that serves metrics; `host` is what it listens at.

    On the loopback the Host must be one of its names: a foreign page may point a name of its own at 127.0.0.1, and a
    browser would let it read what comes back. Whoever lets it listen elsewhere has names of his own.
    """
    paths = _Paths(config, looks, scrape)
    routes = [Route("/metrics", paths.metrics), Route("/livez", paths.livez), Route("/readyz", paths.readyz)]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, hosts=_LOOPBACK if is_loopback(host) else None)])


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Paths:
    """Plain functions: the server runs them on threads, because a scrape reads files."""

    def __init__(self, config: Config, looks: Looks, scrape: Scrape) -> None:
        self._config = config
        self._looks = looks
        self._scrape = scrape

    def metrics(self, request: Request) -> Response:
        text, content_type = self._scrape.answer(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    def livez(self, request: Request) -> Response:
        """200 while the supervisor answers; that this answers at all says that its own loop moves."""
        seen = self._looks.status.seen()
        if is_live(seen):
            return PlainTextResponse("ok\n")
        since = "never" if seen.age_s is None else f"{seen.age_s:.1f} s ago"
        why = f": {seen.error}" if seen.error else ""
        return PlainTextResponse(f"the supervisor answered {since}{why}\n", 503)

    def readyz(self, request: Request) -> Response:
        found = verdict(self._config, self._looks.status.seen(), self._looks.store.seen(), self._looks.lanes.seen())
        body = msgspec.json.encode(found) + b"\n"
        return Response(body, 200 if found.ready else 503, media_type="application/json")


class _Guard:
    """Refuses a request that names another host than `hosts` (None: any), and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = PlainTextResponse("Host: must be a loopback name\n", 403)
        await (self._app if self._is_known(scope) else refusal)(scope, receive, send_guarded)

    def _is_known(self, scope: Scope) -> bool:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        try:
            return self._hosts is None or urlsplit(f"//{host}").hostname in self._hosts
        except ValueError:
            return False
