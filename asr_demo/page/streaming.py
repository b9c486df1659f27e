"""The open streams of one process: a reader each, one subscription to news for all, a few threads for what blocks.

A stream pulls: its next batch is read only when the last one has gone into the socket, so that a slow reader holds one
batch and no queue (A79), and one who takes nothing for SEND_LIMIT_S is let go. None of them has a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kernel import Client, Unavailable

log = logging.getLogger("asr_demo.page")

STREAMS_MAX = 64
THREADS = 4
PULSE_S = 1.0
"""How often a stream speaks at least: a page that hears nothing for some of these takes its server for frozen."""
SEND_LIMIT_S = 20.0
AGAIN_S = 1
RETRY = b"retry: 1000\n\n"
BYE = b"event: bye\nretry: 500\ndata: {}\n\n"


class Reader(Protocol):
    """A read cursor of the kernel (`client.progress.reader`)."""

    @property
    def ended(self) -> bool: ...

    def poll(self) -> list[Any]: ...

    def wait_ms(self) -> int: ...


class OpenStream:
    """One of them. `given` counts the bytes that were handed to the socket's side."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.given = 0


class Streams:
    """All open streams. Used on the event loop alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
        self.open: set[OpenStream] = set()
        self.closing = False

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """`call` on one of the few threads: it may block."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def response(self, reader: Reader, workflow_id: str) -> ASGIApp:
        """What answers a request with the stream of `reader`, or with 429 when there is no place."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if self.closing or len(self.open) >= STREAMS_MAX:
                full = f"streams: this process has {len(self.open)} of {STREAMS_MAX}, come again"
                refused = later("this process is about to end") if self.closing else later(full, status=429)
                await refused(scope, receive, send)
                return
            stream = OpenStream()
            forget = self._listen(reader, stream.changed)
            self.open.add(stream)
            try:
                events = self._events(reader, workflow_id, stream)
                # Its own pings are comments, which no page sees; the pulse is an event.
                response = EventSourceResponse(events, ping=3600, send_timeout=SEND_LIMIT_S)
                await response(scope, receive, send)
            except SendTimeoutError:
                log.info("a reader of %s took nothing for %g s", workflow_id, SEND_LIMIT_S)
            finally:
                self.open.discard(stream)
                forget()

        return answer

    def close(self) -> None:
        """Every stream says good-bye and ends; no new one begins."""
        self.closing = True
        for stream in self.open:
            stream.changed.set()

    def end(self) -> None:
        """After the last request: the threads end with what they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listen(self, reader: Reader, changed: asyncio.Event) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def tell() -> None:  # on the one thread that hears of all streams
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(changed.set)

        return self._client.progress.on_news(reader, tell)  # type: ignore[arg-type]

    async def _events(self, reader: Reader, workflow_id: str, stream: OpenStream) -> AsyncIterator[bytes]:
        """The bytes of one stream until its end: the terminal event, or a good-bye."""
        clock = asyncio.get_running_loop().time
        yield RETRY
        pulse_s = 0.0
        while True:
            # In this order: a change during the poll is not waited for, and what was there at a good-bye is given.
            stream.changed.clear()
            closing = self.closing
            events = await self.run(reader.poll)
            said = b"".join(event.sse() for event in events if event.event != "heartbeat")
            if reader.ended:
                # Before the terminal event, behind which a page listens no more: how the steps have ended.
                said = await self.run(self._pulse, workflow_id) + said
            if said:
                stream.given += len(said)
                yield said
            if reader.ended:
                return
            if closing:
                yield BYE
                return
            if clock() >= pulse_s:
                yield await self.run(self._pulse, workflow_id)
                pulse_s = clock() + PULSE_S
            wait_s = min(reader.wait_ms() / 1000, pulse_s - clock())
            if wait_s > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stream.changed.wait(), wait_s)

    def _pulse(self, workflow_id: str) -> bytes:
        """A sign of life, and how far the steps are."""
        try:
            instance = self._client.get(workflow_id)
        except Unavailable:
            instance = None  # the way is told without it
        steps = [] if instance is None else [[step.name, step.status] for step in instance.steps]
        return b"event: pulse\ndata: " + as_json({"steps": steps}) + b"\n\n"


def later(line: str, *, status: int = 503) -> Response:
    """A refusal that holds for a moment only."""
    return PlainTextResponse(f"{line}\n", status, headers={"Retry-After": str(AGAIN_S)})


def as_json(value: Any) -> bytes:
    """`value` on one line, and no markup wherever a page puts it."""
    return msgspec.json.encode(value).replace(b"<", b"\\u003c")
