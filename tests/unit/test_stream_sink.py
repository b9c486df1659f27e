"""kernel.stream_sink and kernel.stream_writer: how text becomes frames, and what a bad Redis costs its writer."""

from __future__ import annotations

import threading

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.errors import BadReturn, ClaimLost, InvalidName, Refused, TooLarge
from kernel.frames import Frame, Terminal, decode, encode_terminal, encode_text
from kernel.ids import SeededIds
from kernel.stream_sink import NoSink, StreamSink
from kernel.stream_words import Seniority, StreamId
from kernel.stream_writer import StreamWriter
from tests.support.engine_runner import LiveRunner, SteppedRunner
from tests.support.stream_port import MemoryStreams
from tests.support.wait import wait_until

STREAM = StreamId("object-42", "wf-42", "f1")
FIRST = Seniority(1_800_000_000_000, 1)
LATER = Seniority(1_800_000_000_000, 2)


class Desk:
    """A sink on a writer on streams in memory; nothing moves but by the test."""

    def __init__(self, *, flush_ms: int = 100, flush_bytes: int = 1024, buffer_bytes: int = 100_000) -> None:
        self.clock = ManualClock()
        self.runner = SteppedRunner(self.clock)
        self.port = MemoryStreams(self.clock.wall_ms)
        self.lost = False
        self.ids = SeededIds(1)
        self.buffer_bytes = buffer_bytes
        self.writer = self.new_writer()
        self.writer.begin(FIRST, keep=False)
        self.sink = StreamSink(
            self.writer, runner=self.runner, clock=self.clock, flush_ms=flush_ms, flush_bytes=flush_bytes
        )
        self.runner.run_all()

    def new_writer(self) -> StreamWriter:
        return StreamWriter(
            self.port, STREAM, self.guard, runner=self.runner, clock=self.clock, ids=self.ids,
            buffer_bytes=self.buffer_bytes,
            tails=threading.Semaphore(64),
        )  # fmt: skip

    def guard(self) -> None:
        if self.lost:
            raise ClaimLost("gone")

    def records(self) -> list[bytes]:
        self.runner.run_all()
        return list(self.port.of(STREAM).frames)

    def texts(self) -> list[str]:
        return [f.data for f in map(decode, self.records()) if isinstance(f, Frame)]


@pytest.mark.req("sse-aggregate", "sse-text-payload")
def test_ten_thousand_characters_in_a_second_are_some_ten_records() -> None:
    desk = Desk()
    for n in range(10_000):
        desk.sink.write("x")
        if n % 10 == 9:
            desk.runner.advance(1)
            desk.runner.run_all()

    desk.runner.advance(100)

    assert 10 <= len(desk.records()) <= 20
    assert "".join(desk.texts()) == "x" * 10_000
    assert all(record[0] == 0x11 and len(record) <= 1 + 1024 for record in desk.records())


@pytest.mark.req("sse-aggregate")
def test_a_burst_goes_out_without_waiting_and_its_rest_after_the_window() -> None:
    desk = Desk()

    desk.sink.write("x" * 5_200)

    assert [len(text) for text in desk.texts()] == [1024] * 5
    desk.runner.advance(99)
    assert len(desk.texts()) == 5
    desk.runner.advance(1)
    assert [len(text) for text in desk.texts()] == [1024] * 5 + [80]


@pytest.mark.req("sse-aggregate")
def test_text_waits_for_the_window_from_its_first_character() -> None:
    desk = Desk()
    for _ in range(4):
        desk.sink.write("a")
        desk.runner.advance(30)

    assert desk.texts() == ["aaaa"]
    desk.sink.write("b")
    desk.runner.advance(99)
    assert desk.texts() == ["aaaa"]
    desk.runner.advance(1)
    assert desk.texts() == ["aaaa", "b"]


@pytest.mark.req("sse-aggregate")
def test_no_character_is_cut_in_two() -> None:
    for text in ("é" * 3_000, "\U0001f600" * 900, "a" + "☃" * 2_000):
        for flush_bytes in (1, 2, 3, 5, 1024):
            desk = Desk(flush_bytes=flush_bytes, buffer_bytes=10_000_000)
            desk.sink.write(text)
            desk.sink.flush()
            assert "".join(desk.texts()) == text


@pytest.mark.req("sse-flush-order")
def test_anything_else_flushes_the_text_first() -> None:
    desk = Desk()
    desk.sink.write("before")
    desk.sink.send("status", {"page": 1})
    desk.sink.write("after")
    desk.sink.close()
    desk.writer.finish(LATER, encode_terminal(Terminal("completed")))

    frames = [decode(record) for record in desk.records()]

    assert frames == [
        Frame(data="before"), Frame(msg_type="status", data={"page": 1}), Frame(data="after"), Terminal("completed"),
    ]  # fmt: skip


@pytest.mark.req("sse-thresholds-config")
@pytest.mark.parametrize("flush_bytes", [1, 7, 1024, 16_384])
@pytest.mark.parametrize("flush_ms", [1, 100, 5_000])
def test_the_thresholds_change_the_records_and_not_what_they_say(flush_ms: int, flush_bytes: int) -> None:
    desk = Desk(flush_ms=flush_ms, flush_bytes=flush_bytes, buffer_bytes=10_000_000)
    text = "Ein Satz über Ströme, ☃ und mehr. " * 40
    for at in range(0, len(text), 11):
        desk.sink.write(text[at : at + 11])
        desk.runner.advance(3)
    desk.sink.close()

    assert "".join(desk.texts()) == text


@pytest.mark.req("sse-sink")
def test_a_step_without_a_stream_writes_into_nothing() -> None:
    sink = NoSink()

    sink.write("x")
    sink.send("status", {"a": 1})
    sink.flush()

    assert sink.dropped == 0
    with pytest.raises(TooLarge):
        sink.write("x" * (2**20 + 1))


def test_what_can_not_be_a_frame_is_refused_and_nothing_is_lost() -> None:
    desk = Desk()
    desk.sink.write("before")

    for text in (None, b"x", 7):
        with pytest.raises(Refused, match="stream: write takes text"):
            desk.sink.write(text)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        desk.sink.write("x" * 2**26)
    with pytest.raises(TooLarge):
        desk.sink.write("☃" * 2**19)
    with pytest.raises(TooLarge):
        desk.sink.send("page", "x" * 70_000)
    with pytest.raises(BadReturn):
        desk.sink.send("page", object())
    for name in ("", "Page", "a b", "terminal", "x\ny"):
        with pytest.raises(InvalidName):
            desk.sink.send(name)
    for code in (1.5, True, 2**53, float("nan"), "1"):
        with pytest.raises(Refused):
            desk.sink.send("page", code=code)  # type: ignore[arg-type]

    desk.sink.write(" and after")
    desk.sink.flush()
    assert desk.texts() == ["before and after"]


def test_what_is_written_after_the_invocation_ended_is_dropped() -> None:
    desk = Desk()
    desk.sink.write("in time")
    desk.sink.close()

    desk.sink.write("late")
    desk.sink.send("status")
    desk.runner.advance(1_000)

    assert desk.texts() == ["in time"]
    assert desk.sink.dropped == 2


# --- a bad Redis ----------------------------------------------------------------------------------------------


@pytest.mark.req("core-side-paths-do-not-decide")
def test_while_redis_is_down_writing_goes_on_and_what_does_not_fit_is_counted_and_told() -> None:
    desk = Desk(buffer_bytes=5_000)
    desk.port.down = True
    for n in range(100):
        desk.sink.write(f"{n:04d}" + "x" * 1020)
    assert desk.sink.dropped >= 90

    desk.port.down = False
    desk.runner.run_all()
    desk.sink.write("y" * 1024)
    texts = desk.texts()

    kept = [text for text in texts if isinstance(text, str) and text[0] != "y"]
    assert [int(text[:4]) for text in kept] == list(range(len(kept))), "the oldest are kept, in order"
    assert {"dropped": 100 - len(kept)} in texts, "a reader learns of the gap"
    assert texts[-1] == "y" * 1024


@pytest.mark.case("A28")
def test_an_answer_that_got_lost_makes_no_second_frame() -> None:
    desk = Desk()
    desk.port.lose = 3
    for word in ("a", "b", "c", "d"):
        desk.sink.write(word)
        desk.sink.flush()
        desk.runner.run_all()

    assert desk.texts() == ["a", "b", "c", "d"]
    assert desk.writer.failures == 3


@pytest.mark.req("sse-reset")
def test_a_lost_answer_to_the_reset_begins_one_generation() -> None:
    desk = Desk()
    generation = desk.port.generation(STREAM)
    desk.port.lose = 2
    desk.writer.begin(LATER, keep=False)
    desk.sink.write("x" * 1024)

    assert desk.texts() == ["x" * 1024]
    assert desk.port.generation(STREAM) == generation + 1


@pytest.mark.req("sse-loss-harmless")
def test_after_a_wipe_the_stream_begins_anew_with_what_comes() -> None:
    desk = Desk()
    desk.sink.write("a" * 1024)
    generation = desk.port.generation(STREAM)
    desk.runner.run_all()
    desk.clock.advance(5)
    desk.port.wipe()

    desk.sink.write("b" * 1024)

    assert desk.texts() == ["b" * 1024]
    assert desk.port.generation(STREAM) > generation


@pytest.mark.req("sse-stale-writer")
def test_a_writer_whose_stream_a_later_claim_has_reset_writes_nothing_more() -> None:
    desk = Desk()
    desk.sink.write("a" * 1024)
    desk.runner.run_all()
    other = desk.new_writer()
    other.begin(LATER, keep=False)
    other.put(encode_text("theirs"))
    desk.runner.run_all()

    desk.sink.write("late" * 256)
    other.put(encode_text(" more"))

    assert desk.texts() == ["theirs", " more"]
    assert desk.sink.dropped == 1


@pytest.mark.req("sse-stale-writer")
def test_a_lost_claim_sends_nothing_even_if_nobody_has_reset_the_stream() -> None:
    desk = Desk()
    desk.sink.write("a" * 1024)
    desk.runner.run_all()
    desk.lost = True

    desk.sink.write("b" * 1024)

    assert desk.texts() == ["a" * 1024]
    assert desk.sink.dropped == 1


@pytest.mark.req("sse-no-append-after-terminal")
def test_a_writer_that_meets_the_end_stops() -> None:
    desk = Desk()
    desk.runner.run_all()
    desk.port.finish(STREAM, LATER, encode_terminal(Terminal("canceled")))

    desk.sink.write("b" * 1024)

    assert [decode(record) for record in desk.records()] == [Terminal("canceled")]
    assert desk.sink.dropped == 1


def test_a_full_stream_drops_and_its_end_still_comes() -> None:
    desk = Desk()
    desk.port = desk.writer._port = MemoryStreams(desk.clock.wall_ms, bytes_max=3_000)
    desk.writer.begin(LATER, keep=False)
    for _ in range(6):
        desk.sink.write("x" * 1024)
        desk.runner.run_all()
    desk.writer.finish(LATER, encode_terminal(Terminal("completed")))

    assert [decode(record) for record in desk.records()][-1] == Terminal("completed")
    assert len(desk.records()) == 3
    assert desk.sink.dropped >= 4


def test_a_closed_writer_gives_up_after_some_seconds_and_leaves_no_thread_behind() -> None:
    desk = Desk()
    desk.port.down = True
    desk.sink.write("x" * 1024)
    desk.writer.finish(LATER, encode_terminal(Terminal("completed")))
    started = desk.clock.boot_ms()

    desk.runner.run_all()

    assert desk.writer.idle
    assert 5_000 <= desk.clock.boot_ms() - started <= 15_000
    desk.port.down = False
    assert desk.records() == []


@pytest.mark.req("core-side-paths-do-not-decide")
def test_a_redis_that_hangs_holds_up_nobody_who_writes() -> None:
    clock = SystemClock()
    runner = LiveRunner(clock)
    port = MemoryStreams(clock.wall_ms)
    port.gate = threading.Event()
    writer = StreamWriter(
        port, STREAM, lambda: None, runner=runner, clock=clock, ids=SeededIds(1), buffer_bytes=50_000,
        tails=threading.Semaphore(64),
    )  # fmt: skip
    sink = StreamSink(writer, runner=runner, clock=clock, flush_ms=5, flush_bytes=256)
    writer.begin(FIRST, keep=False)
    wait_until(lambda: port.calls == ["reset"], "the first call hangs")

    for _ in range(20_000):
        sink.write("twenty characters...")
    sink.close()
    writer.close()

    assert port.calls == ["reset"], "all of it was written while one call hung"
    assert sink.dropped > 1_000
    assert len(writer._queue) * 64 <= 50_000, "what waits is bounded"
    port.gate.set()
    wait_until(lambda: writer.idle, "what waited is sent")
    assert len(port.text(STREAM)) >= 20_000
    assert not runner.close()


def test_two_threads_write_one_stream_in_an_order_that_each_of_them_keeps() -> None:
    clock = SystemClock()
    runner = LiveRunner(clock)
    port = MemoryStreams(clock.wall_ms)
    writer = StreamWriter(
        port,
        STREAM,
        lambda: None,
        runner=runner,
        clock=clock,
        ids=SeededIds(1),
        buffer_bytes=10_000_000,
        tails=threading.Semaphore(64),
    )
    writer.begin(FIRST, keep=False)

    def write(name: str) -> None:
        for n in range(2_000):
            writer.put(encode_text(f"{name}{n}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until(lambda: writer.idle, "all is sent")

    texts = [f.data for f in port.frames(STREAM) if isinstance(f, Frame)]
    for name in "ab":
        assert [text for text in texts if text[0] == name] == [f"{name}{n}" for n in range(2_000)]
    assert writer.sent == len(texts) == 4_000
    assert not runner.close()
