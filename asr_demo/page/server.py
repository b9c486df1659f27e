"""The paths of the page, and what is refused before any of them is asked. Every path is a GET and changes nothing.

Loopback is no protection from a browser: a foreign page may point a name of its own at 127.0.0.1, so the Host must be
one of this machine's names, and an Origin, where one is sent, this very address.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_demo.page.desk import Desk, Shown
from asr_demo.page.markup import live_page, shelf_page
from asr_demo.page.streaming import Streams, as_json, later
from kernel import Client, Instance, Refused, Unavailable

STATIC = {"live.js": "text/javascript", "live.css": "text/css"}
"""The only files that are ever served, by name."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def page_app(client: Client, desk: Desk, streams: Streams) -> Starlette:
    """The application of one process."""
    paths = _Paths(client, desk, streams)
    routes = [
        Route("/", paths.shelf),
        Route("/live/{object_id:path}", paths.live),
        Route("/stream/{object_id:path}", paths.stream),
        Route("/result/{object_id:path}", paths.result),
        Route("/static/{name}", paths.static),
        Route("/favicon.ico", paths.icon),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard)], exception_handlers={Unavailable: paths.unavailable})


class _Paths:
    def __init__(self, client: Client, desk: Desk, streams: Streams) -> None:
        self._client = client
        self._desk = desk
        self._streams = streams
        folder = files("asr_demo.page") / "static"
        self._static = {name: (folder / name).read_bytes() for name in STATIC}

    async def shelf(self, request: Request) -> Response:
        """The list of all, a page of it."""
        after = request.query_params.get("after")
        return HTMLResponse(shelf_page(await self._streams.run(self._desk.page, after)))

    async def live(self, request: Request) -> Response:
        """The page of one."""
        return HTMLResponse(live_page(await self._shown(request)))

    async def result(self, request: Request) -> Response:
        """The business object: what the user gets, whatever the stream has shown."""
        return Response(as_json(await self._shown(request)), media_type="application/json")

    async def stream(self, request: Request) -> Any:
        """Its present round as server-sent events. `Last-Event-ID`, or `after` where a page begins a connection of its
        own, is the last frame that the reader has (DECISIONS 24)."""
        shown = await self._shown(request)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        workflow_id = self._desk.workflow_id(shown.object_id)
        try:
            reader = await self._streams.run(self._reader, shown, workflow_id, after)
        except Refused as error:
            if error.code == "invalid_id":
                return PlainTextResponse(f"{error}\n", 400)
            # Accepted and not registered yet, or registered for the round before: in a moment.
            return later(str(error))
        return self._streams.response(reader, workflow_id)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "there is no such file\n")
        return Response(self._static[name], media_type=STATIC[name])

    async def icon(self, request: Request) -> Response:
        """Browsers ask for it unasked."""
        return Response(status_code=204)

    async def unavailable(self, request: Request, error: Exception) -> Response:
        """A store that does not answer now."""
        return later(f"not now: {error}")

    async def _shown(self, request: Request) -> Shown:
        object_id = request.path_params["object_id"]
        shown: Shown | None = await self._streams.run(self._desk.find, object_id)
        if shown is None:
            raise HTTPException(404, f"there is no summary {object_id[:200]!a}\n")
        return shown

    def _reader(self, shown: Shown, workflow_id: str, after: str | None) -> Any:
        def final(instance: Instance) -> dict[str, Any]:
            there = self._desk.find(shown.object_id)
            return {} if there is None else {"round": there.round, "status": there.status, "summary": there.summary}

        return self._client.progress.reader(
            workflow_id, after, object_id=shown.object_id, fencing_token=shown.round, final=final
        )


class Guard:
    """Refuses foreign hosts and origins, and puts the protective headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        why = _foreign(Headers(scope=scope))
        inner = self._app if why is None else PlainTextResponse(f"{why}\n", 403)
        await inner(scope, receive, send_guarded)


def _foreign(headers: Headers) -> str | None:
    """Why a request comes from elsewhere; None when it does not."""
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in _HOSTS:
        return "Host: must be a loopback name"
    if origin is not None and origin != f"http://{host}":
        return "Origin: must be this very page"
    return None
