"""A desk of notes whose writer does what the test says: the page's surroundings without a tree, quick and exact.

The worker runs in this process, on threads, with the engine, the store and the streams of a real one. What the web
process sees is the data folder and Redis, as beside a tree.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asr_demo.flow import JobInput
from asr_demo.notes import Note, Notes
from asr_demo.page.companion import PageServer
from asr_demo.page.desk import Desk, NoteDesk
from kernel import App, Client, Context, Definition, Instance, Step
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination import ScriptRunner, Streams
from kernel.coordination.stream_news import StreamNews
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.forwarder import ReaderTimes
from kernel.ids import RandomIds
from kernel.runtime import Engine, NoQueue
from kernel.runtime.opening import STORE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.streams import ClientStreams, StreamSettings
from tests.support.engine_runner import LiveRunner
from tests.support.redis_servers import NAMESPACE, RedisTarget
from tests.support.wait import wait_until

QUICK = StreamSettings(flush_ms=20, times=ReaderTimes(check_ms=1_000))
PATIENCE_S = 90.0


@dataclass
class Site:
    """Where the page is, served by a thread of this process."""

    port: int
    server: PageServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class PenBroken(Exception):
    """The composer fails in the middle: the step is run again."""


class Stage:
    """Notes, a store and a Redis; `write`, `stumble` and `finish` are what the composer of the started note does."""

    def __init__(self, target: RedisTarget, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.clock, self.ids = SystemClock(), RandomIds()
        self.runner = LiveRunner(self.clock)
        self.store = SqliteStore(folder / STORE_FILE, self.clock, durability="normal", lease_ms=30_000)
        self.store.prepare()
        self.notes = Notes(folder)
        self.definition = Definition(
            type="async_content_job",
            input=JobInput,
            identity=("tenant_id", "object_id"),
            steps=[Step("compose_content", self._compose, streams=True, max_retry=3)],
            success_finalizer=self._publish,
            failure_finalizer=self._mark_failed,
        )
        self.news = StreamNews(target.connector, target.keys.stream_channel, self.clock, self.ids.fraction, self.runner)
        self.client = Client(
            *(self.store, NoQueue(), self.clock, self.ids, threading.Event()), input_bytes_max=10_000,
            streams=ClientStreams(
                self._port(), runner=self.runner, clock=self.clock, ids=self.ids, settings=QUICK, news=self.news
            ),
        )  # fmt: skip
        self._orders: dict[str, queue.Queue[tuple[str, str]]] = {}
        self._loop: Any = None

    @property
    def config(self) -> Config:
        """The settings of a web process beside this stage."""
        assert self.target.server is not None
        url = f"unix://{quote(str(self.target.server.socket))}"
        return Config(data_dir=str(self.folder), redis_url=url, namespace=NAMESPACE, stream_check_s=1.0)

    @contextmanager
    def served(self, desk: Desk | None = None) -> Iterator[Site]:
        """The page as the web process has it, on a thread: for what kills no process."""
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            ready = threading.Event()
            server = PageServer(self.client, desk or NoteDesk(self.notes), listener, ready.set)
            server.start()
            wait_until(lambda: ready.is_set() or server.over.is_set(), "the page is served")
            try:
                yield Site(listener.getsockname()[1], server)
            finally:
                server.stop()
                assert server.over.wait(30), "the page did not end"
                assert server.failure is None

    def _port(self) -> Streams:
        runner = ScriptRunner(self.target.connector, self.clock, call_timeout_s=1.0)
        self.target._open.callback(runner.close)
        return Streams(runner, self.target.keys)

    # --- the composer ------------------------------------------------------------------------------------

    def start(self, object_id: str = "note-1", *, transcript: str = "what was said") -> str:
        """A note whose composer waits for its first word; the workflow_id."""
        self._orders[object_id] = queue.Queue()
        self.notes.create(object_id, "f1")
        assert self.notes.save_transcript(object_id, "f1", transcript, (transcript,))
        job = JobInput("demo", object_id, "f1", "talk.wav")
        key = f"async_content_job:demo:{object_id}"
        workflow_id = self.client.start_or_resume(self.definition.plan, biz_key=key, input=job).workflow_id
        if self._loop is None:
            self._work()
        return workflow_id

    def write(self, *texts: str, note: str = "note-1") -> None:
        """A frame each."""
        for text in texts:
            self._orders[note].put(("write", text))

    def stumble(self, note: str = "note-1") -> None:
        """This attempt fails; the next one begins again, with nothing shown."""
        self._orders[note].put(("stumble", ""))

    def retry(self, object_id: str = "note-1") -> None:
        """The user starts the note over: its second round."""
        self.notes._update(
            "UPDATE notes SET fencing_token = ?, status = 'processing', error = NULL WHERE object_id = ?",
            ("f2", object_id),
        )
        job = JobInput("demo", object_id, "f2", "talk.wav")
        key = f"async_content_job:demo:{object_id}"
        self.client.start_or_resume(self.definition.plan, biz_key=key, input=job)

    def finish(self, summary: str, note: str = "note-1") -> None:
        """The summary is written into the note, and the workflow ends."""
        self._orders[note].put(("finish", summary))

    def note(self, object_id: str = "note-1") -> Note:
        found = self.notes.read(object_id)
        assert found is not None
        return found

    def instance(self, workflow_id: str) -> Instance:
        found = self.client.get(workflow_id)
        assert found is not None
        return found

    def _compose(self, ctx: Context) -> Any:
        orders = self._orders[ctx.input.object_id]
        while True:
            what, text = orders.get(timeout=PATIENCE_S)
            if what == "stumble":
                raise PenBroken("the pen broke")
            if what == "finish":
                self.notes.save_summary(ctx.input.object_id, ctx.input.fencing_token, text)
                return {"characters": len(text)}
            ctx.stream.write(text)
            ctx.stream.flush()

    def _publish(self, ctx: Context) -> None:
        self.notes.end(ctx.input.object_id, ctx.input.fencing_token, "completed")

    def _mark_failed(self, ctx: Context) -> None:
        self.notes.end(ctx.input.object_id, ctx.input.fencing_token, "failed", "the pen broke")

    def _work(self) -> None:
        engine = Engine(
            App(definitions=[self.definition]),
            Settings(slots=4, poll_ms=50, scan_ms=200, lease_ms=30_000),
            store=self.store,
            queue=NoQueue(),
            worker=Worker(self.ids.token(), "test/1/worker-0"),
            clock=self.clock,
            streams=(self._port(), QUICK),
        )
        self._loop = engine.worker_loop()
        self._loop.start()

    def close(self) -> None:
        for orders in self._orders.values():
            orders.put(("finish", "the test is over"))
        if self._loop is not None:
            self._loop.drain()
            assert self._loop.done.wait(60), "the worker did not drain"
        self.client.close()
        self.news.close()
        left = self.runner.close()
        assert not left, f"threads that did not end: {left}"
        self.store.close()
        self.notes.close()
