"""Client streams on a real server, with real threads: readers in other processes, wipes, hangs, takeovers, wakeups."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel.app import App
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.context import Context
from kernel.coordination import ScriptRunner, Streams, StreamTerms
from kernel.coordination.scripts import CALL_TIMEOUT_S
from kernel.coordination.stream_news import StreamNews
from kernel.definition import Definition, Step
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.forwarder import ReaderTimes
from kernel.frames import decode
from kernel.ids import RandomIds
from kernel.runtime import Engine, NoQueue
from kernel.store.sqlite import SqliteStore
from kernel.stream_events import StreamEvent
from kernel.stream_words import StreamId
from kernel.streams import ClientStreams, StreamSettings
from lua import get
from tests.support.engine_runner import LiveRunner
from tests.support.redis_servers import RedisTarget
from tests.support.wait import stays, wait_until

QUICK = StreamSettings(flush_ms=20, times=ReaderTimes(poll_ms=500, check_ms=1_000, heartbeat_ms=60_000))


class Bench:
    """A SQLite store, one Redis, workers whose step writes what the test says, and a publisher who follows.

    Where no call is meant to fail its time limit is a patient one: these machines are shared and slow at times."""

    def __init__(self, target: RedisTarget, folder: Path, call_timeout_s: float = 10.0) -> None:
        self.target = target
        self._call_timeout_s = call_timeout_s
        self.folder = folder
        self.clock = SystemClock()
        self.ids = RandomIds()
        self.runner = LiveRunner(self.clock)
        self.store = SqliteStore(folder / "store.sqlite", self.clock, durability="normal", lease_ms=30_000)
        self.store.prepare()
        self.definition = Definition(
            type="job",
            steps=[Step("compose", self._run, streams=True, max_retry=3)],
            failure_finalizer=lambda ctx: None,
        )
        self.script: Callable[[Context], Any] = lambda ctx: None
        self.news = StreamNews(target.connector, target.keys.stream_channel, self.clock, self.ids.fraction, self.runner)
        self.client = Client(
            *(self.store, NoQueue(), self.clock, self.ids, threading.Event()), input_bytes_max=10_000,
            streams=self.streams(self.news),
        )  # fmt: skip
        self.gates: list[threading.Event] = []
        self._loops: list[Any] = []
        self._threads: list[threading.Thread] = []

    def port(self) -> Streams:
        runner = ScriptRunner(self.target.connector, self.clock, call_timeout_s=self._call_timeout_s)
        self.target._open.callback(runner.close)
        return Streams(runner, self.target.keys, StreamTerms())

    def streams(self, news: StreamNews | None = None) -> ClientStreams:
        return ClientStreams(self.port(), runner=self.runner, clock=self.clock, ids=self.ids, settings=QUICK, news=news)

    def _run(self, ctx: Context) -> Any:
        return self.script(ctx)

    def gate(self) -> threading.Event:
        self.gates.append(threading.Event())
        return self.gates[-1]

    def work(self, **settings: int) -> Engine:
        engine = Engine(
            App(definitions=[self.definition]),
            Settings(**{"slots": 2, "poll_ms": 50, "scan_ms": 200, "lease_ms": 30_000, **settings}),
            store=self.store,
            queue=NoQueue(),
            worker=Worker(self.ids.token(), "test/1/worker-0"),
            clock=self.clock,
            streams=(self.port(), QUICK),
        )
        loop = engine.worker_loop()
        loop.start()
        self._loops.append(loop)
        return engine

    def start(self, key: str = "job-1") -> str:
        return self.client.start_or_resume(self.definition.plan, biz_key=key).workflow_id

    def stream(self, workflow_id: str) -> StreamId:
        instance = self.client.get(workflow_id)
        assert instance is not None
        return StreamId.of(instance)

    def frames(self, workflow_id: str) -> list[Any]:
        key = self.target.keys.stream(self.stream(workflow_id))["stream_frames"]
        return [decode(record) for record in self.target.client.lrange(key, 0, -1)]

    def read(self, workflow_id: str, last: str | None = None) -> list[StreamEvent]:
        """Follow on a thread of its own; the list grows as events come."""
        seen: list[StreamEvent] = []

        def body() -> None:
            seen.extend(self.client.follow(workflow_id, last))

        thread = threading.Thread(target=body, daemon=True)
        self._threads.append(thread)
        thread.start()
        return seen

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        for loop in self._loops:
            loop.drain()
        for loop in self._loops:
            assert loop.done.wait(60), "a worker did not drain"
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a reader did not end"
        self.client.close()
        self.news.close()
        left = self.runner.close()
        assert not left, f"threads that did not end: {left}"
        self.store.close()


@pytest.fixture
def bench(valkey: RedisTarget, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(valkey, tmp_path)
    yield made
    made.close()


@pytest.fixture
def own_bench(own_redis: RedisTarget, tmp_path: Path) -> Iterator[Bench]:
    """On a server that the test may stop, with the time limit of a worker."""
    made = Bench(own_redis, tmp_path, CALL_TIMEOUT_S)
    yield made
    made.close()


def text_of(events: list[StreamEvent]) -> str:
    """What a client has on its screen: frames since the last reset."""
    shown = ""
    for event in events:
        if event.event == "reset":
            shown = ""
        elif event.event == "frame" and event.frame.msg_type == "text":
            shown += event.frame.data
    return shown


def ended(events: list[StreamEvent]) -> bool:
    return bool(events) and events[-1].event == "terminal"


@pytest.mark.req("sse-list", "sse-follow", "sse-sink")
def test_two_readers_follow_live_and_both_end_with_the_result(bench: Bench) -> None:
    gates = [bench.gate() for _ in range(3)]

    def script(ctx: Context) -> str:
        for n, gate in enumerate(gates):
            gate.wait(60)
            ctx.stream.write(f"part {n}. ")
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    readers = [bench.read(workflow_id), bench.read(workflow_id)]
    for n, gate in enumerate(gates):
        gate.set()
        whole = "".join(f"part {m}. " for m in range(n + 1))
        wait_until(lambda whole=whole: all(text_of(seen) == whole for seen in readers), f"both show {whole!r}")  # type: ignore[misc]

    wait_until(lambda: all(map(ended, readers)), "both end")
    assert [seen[-1].frame.data["result"] for seen in readers] == ["done", "done"]
    places = [[str(event.position) for event in seen if event.position] for seen in readers]
    assert places[0] == places[1]


@pytest.mark.req("sse-follow", "e2e-sse")
def test_a_reader_is_told_of_news_and_does_not_look_all_the_time(bench: Bench) -> None:
    """With a poll interval of minutes only a wakeup brings a frame; and an idle reader asks Redis next to nothing."""
    slow = StreamSettings(flush_ms=20, times=ReaderTimes(poll_ms=600_000, check_ms=600_000, heartbeat_ms=600_000))
    streams = ClientStreams(
        bench.port(), runner=bench.runner, clock=bench.clock, ids=bench.ids, settings=slow, news=bench.news
    )
    gate, seen, stop = bench.gate(), [], threading.Event()

    def script(ctx: Context) -> str:
        ctx.stream.write("first")
        gate.wait(60)
        ctx.stream.write(" second")
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.client.progress._streams = streams

    def body() -> None:
        seen.extend(bench.client.follow(workflow_id, stop=stop))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    wait_until(lambda: bench.news.heard, "the subscription stands")
    bench.work()
    wait_until(lambda: text_of(seen) == "first", "the first frame came by a wakeup")

    def reads() -> int:
        stats = bench.target.client.info("commandstats")
        return int(stats.get("cmdstat_llen", {"calls": 0})["calls"])

    before = reads()
    stays(lambda: reads() <= before + 1, "an idle reader does not ask", 1.0)
    gate.set()
    wait_until(lambda: ended(seen), "the end came by a wakeup")
    thread.join(60)
    assert text_of(seen) == "first second"
    wait_until(lambda: bench.news.readers == 0, "nobody is registered")


@pytest.mark.req("sse-reconnect", "sse-cross-pod", "e2e-sse")
def test_a_client_that_comes_back_to_another_process_goes_on_or_begins_at_the_head(bench: Bench) -> None:
    gate = bench.gate()

    def script(ctx: Context) -> str:
        for n in range(5):
            ctx.stream.send("part", n)
        gate.wait(60)
        for n in range(5, 8):
            ctx.stream.send("part", n)
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    first = iter(bench.client.follow(workflow_id))
    cut = [next(first) for _ in range(3)]
    first.close()  # type: ignore[attr-defined]
    assert bench.target.server is not None
    url = f"unix://{bench.target.server.socket}"
    command = [sys.executable, "-m", "tests.engine.stream_reader", str(bench.folder), url, workflow_id]
    back = subprocess.Popen([*command, str(cut[-1].position)], stdout=subprocess.PIPE, text=True)
    fresh = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: dict[str, list[dict[str, Any]]] = {"back": [], "fresh": []}

    def collect(name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines[name].append(json.loads(line))

    threads = [threading.Thread(target=collect, args=pair) for pair in (("back", back), ("fresh", fresh))]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: (len(lines["back"]), len(lines["fresh"])) == (2, 5), "both have caught up")
        gate.set()
        assert (back.wait(60), fresh.wait(60)) == (0, 0)
    finally:
        for process in (back, fresh):
            process.kill()
            process.wait()
        for thread in threads:
            thread.join(60)
        for process in (back, fresh):
            assert process.stdout is not None
            process.stdout.close()

    def parts(events: list[dict[str, Any]]) -> list[Any]:
        return [json.loads(event["data"])["data"] for event in events if event["event"] == "frame"]

    assert [event.frame.data for event in cut] == [0, 1, 2]
    assert parts(lines["back"]) == [3, 4, 5, 6, 7]
    assert parts(lines["fresh"]) == list(range(8))
    for events in lines.values():
        assert events[-1]["event"] == "terminal"
        assert json.loads(events[-1]["data"])["data"]["result"] == "done"


@pytest.mark.req("sse-reset-on-activation", "sse-reset", "sse-terminal-after-mongo")
def test_publisher_and_engine_reset_by_the_same_script_and_the_end_is_one_call(bench: Bench) -> None:
    failing = [True]

    def script(ctx: Context) -> str:
        ctx.stream.write("text")
        if failing[0]:
            failing[0] = False
            raise ValueError("once")
        return "done"

    bench.script = script
    with bench.target.client.monitor() as monitor:
        workflow_id = bench.start()
        bench.work()
        wait_until(lambda: len(bench.frames(workflow_id)) == 2, "text and end are there")
        bench.target.client.set("that-was-all", "x", px=1_000)
        calls = []
        while "that-was-all" not in (entry := monitor.next_command())["command"]:
            found = re.match(r"EVAL(SHA)? (\S+)", entry["command"])
            if found is not None and entry["client_type"] != "lua":
                calls.append(found[2])

    by_name = {get(name).sha1: name for name in ("stream_reset", "stream_append", "stream_finish")}
    named = [by_name.get(call, "by text") for call in calls]
    # What the server does not know yet is sent by its sha1 first, and then once as a text.
    assert [name for name in named if name != "by text"] == [
        "stream_reset", "stream_reset", "stream_append", "stream_reset", "stream_append", "stream_finish",
    ], "activation, the first entry, and the one after the failure"  # fmt: skip


@pytest.mark.req("sse-loss-harmless", "sse-round-isolation")
@pytest.mark.crash("56")
def test_redis_emptied_again_and_again_under_readers_mixes_nothing_and_changes_no_result(bench: Bench) -> None:
    def script(ctx: Context) -> str:
        for n in range(400):
            ctx.stream.send("n", n)
            if n % 80 == 40:
                bench.target.client.flushall()
            ctx.cancel.wait(0.002)
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    readers = [bench.read(workflow_id) for _ in range(3)]
    wait_until(lambda: all(map(ended, readers)), "all end")

    assert bench.client.result(workflow_id, timedelta(seconds=1)) == "done"
    for seen in readers:
        generation, last = None, -1
        for event in seen:
            if event.event == "reset":
                generation, last = None, -1
            elif event.event == "frame" and event.position is not None:
                assert generation in (None, event.position.generation)
                generation = event.position.generation
                if event.frame.msg_type == "n":
                    assert event.frame.data > last
                    last = event.frame.data


@pytest.mark.req("sse-redis-failure", "core-side-paths-do-not-decide")
@pytest.mark.parametrize("how", ["hangs", "is dead"])
def test_a_redis_that_hangs_or_dies_neither_slows_the_step_nor_fails_it_and_readers_end(
    own_bench: Bench, how: str
) -> None:
    bench = own_bench
    server = bench.target.server
    assert server is not None
    gate, started = bench.gate(), bench.gate()

    def script(ctx: Context) -> str:
        ctx.stream.write("before ")
        started.set()
        gate.wait(60)
        for _ in range(2_000):
            ctx.stream.write("x" * 700)  # if they waited for calls that hang, these would take ten minutes
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    seen = bench.read(workflow_id)
    started.wait(60)
    wait_until(lambda: text_of(seen) == "before ", "the reader follows")
    (server.pause if how == "hangs" else server.kill)()
    gate.set()
    try:
        wait_until(lambda: ended(seen), "the reader ends by the store")
        assert seen[-1].frame.data["result"] == "done"
        instance = bench.client.get(workflow_id)
        assert instance is not None
        assert (instance.status, instance.steps[0].attempt, instance.deaths) == ("completed", 1, 0)
    finally:
        (server.resume if how == "hangs" else server.start)()


@pytest.mark.req("sse-disconnect")
@pytest.mark.case("A79")
def test_readers_that_vanish_leave_nothing_behind(bench: Bench) -> None:
    gate = bench.gate()

    def script(ctx: Context) -> str:
        ctx.stream.write("text")
        gate.wait(60)
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    wait_until(lambda: len(bench.frames(workflow_id)) == 1, "the text is there")
    threads = threading.active_count()
    for n in range(200):
        reader = bench.client.follow(workflow_id)
        if n % 2:
            assert next(iter(reader)).frame.data == "text"
            reader.close()  # type: ignore[attr-defined]
        del reader

    assert bench.news.readers == 0
    wait_until(lambda: threading.active_count() <= threads, "their threads are gone")
    gate.set()
    wait_until(lambda: bench.client.progress.get(workflow_id).status == "completed", "the workflow goes on")  # type: ignore[union-attr]


@pytest.mark.req("sse-disconnect", "sse-list")
@pytest.mark.case("A81")
def test_a_reader_that_stands_still_holds_up_no_other_and_not_the_step(bench: Bench) -> None:
    gate = bench.gate()

    def script(ctx: Context) -> str:
        ctx.stream.write("first")
        gate.wait(60)
        for n in range(300):
            ctx.stream.send("n", n)
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    stalled = bench.client.follow(workflow_id)
    assert next(iter(stalled)).frame.data == "first"
    readers = [bench.read(workflow_id) for _ in range(20)]
    wait_until(lambda: all(text_of(seen) == "first" for seen in readers), "all others follow")
    gate.set()

    wait_until(lambda: all(map(ended, readers)), "all others end")
    for seen in readers:
        assert [event.frame.data for event in seen if event.event == "frame"][1:] == list(range(300))
    rest = list(stalled)
    assert [event.frame.data for event in rest if event.event == "frame"] == list(range(300)), "it goes on where it was"
    assert ended(rest)


def test_the_settings_reach_the_streams_of_a_process() -> None:
    config = Config(
        stream_flush_s=0.05, stream_flush_bytes=77, stream_buffer_bytes=20_000, stream_poll_s=2, stream_check_s=3,
        stream_heartbeat_s=4,
    )  # fmt: skip

    assert StreamSettings.of(config) == StreamSettings(
        flush_ms=50, flush_bytes=77, buffer_bytes=20_000,
        times=ReaderTimes(poll_ms=2_000, check_ms=3_000, heartbeat_ms=4_000),
    )  # fmt: skip
    assert StreamSettings.of(Config()) == StreamSettings()


@pytest.mark.req("sse-follow")
def test_a_caller_with_a_loop_of_its_own_is_called_when_there_is_something_to_poll(bench: Bench) -> None:
    """What a web process does: poll, go back to its event loop, be woken."""
    gate = bench.gate()

    def script(ctx: Context) -> str:
        gate.wait(60)
        ctx.stream.write("text")
        return "done"

    bench.script = script
    workflow_id = bench.start()
    bench.work()
    reader = bench.client.progress.reader(workflow_id)
    woken = threading.Event()
    forget = bench.client.progress.on_news(reader, woken.set)
    wait_until(lambda: bench.news.heard, "the subscription stands")
    assert reader.poll() == []
    woken.clear()
    gate.set()

    seen: list[StreamEvent] = []

    def ended_by_polls() -> bool:
        assert woken.wait(60), "nobody told the reader"
        woken.clear()
        seen.extend(reader.poll())
        return reader.ended

    wait_until(ended_by_polls, "the end")
    forget()
    assert text_of(seen) == "text" and ended(seen)
    assert bench.news.readers == 0
