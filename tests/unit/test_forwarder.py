"""kernel.forwarder: what one reader sees, in which order, when generations, ends and losses come between."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest

from kernel.clock import ManualClock
from kernel.errors import StoreUnavailable
from kernel.forwarder import Forwarder, Outcome, ReaderTimes
from kernel.frames import Terminal, encode_terminal, encode_text
from kernel.stream_events import StreamEvent
from kernel.stream_words import Appended, Position, Seniority, StreamId
from tests.support.stream_port import MemoryStreams

STREAM = StreamId("object-42", "wf-42", "f1")
TIMES = ReaderTimes(poll_ms=1_000, check_ms=5_000, heartbeat_ms=15_000)
DONE = Terminal("completed", 1, 9)


class Desk:
    """A stream in memory, a store that says what the test wants, and readers on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.port = MemoryStreams(self.clock.wall_ms)
        self.outcome: Outcome | None = None
        self.store_down = False
        self.asked = 0
        self.ages = itertools.count(1)
        self.requests = itertools.count(1)
        self.heard = True
        self.generation = 0

    def begin(self) -> int:
        found = self.port.reset(STREAM, Seniority(1, next(self.ages)), reset_id=f"r{next(self.requests)}")
        assert found is not None
        self.generation = found
        return found

    def write(self, *texts: str) -> None:
        records = [encode_text(text) for text in texts]
        answer = self.port.append(STREAM, self.generation, records, writer="w", request=next(self.requests))
        if isinstance(answer, Appended):
            self.generation = answer.generation

    def finish(self, result: object = None) -> None:
        self.outcome = Outcome(DONE, result)
        self.port.finish(STREAM, Seniority(1, next(self.ages)), encode_terminal(DONE))

    def ask(self) -> Outcome | None:
        self.asked += 1
        if self.store_down:
            raise StoreUnavailable("down")
        return self.outcome

    def reader(self, after: Position | None = None) -> Forwarder:
        return Forwarder(self.port, STREAM, self.ask, self.clock, times=TIMES, heard=lambda: self.heard, after=after)


def said(events: list[StreamEvent]) -> list[str]:
    """Frames as their text, all else in brackets."""
    return [event.frame.data if event.event == "frame" else f"[{event.event}]" for event in events]


def seen(reader: Forwarder, polls: int = 50) -> list[str]:
    """Poll until nothing is left to do at once."""
    shown: list[str] = []
    for _ in range(polls):
        shown += said(reader.poll())
        if reader.ended or reader.wait_ms():
            return shown
    raise AssertionError("busy without end")


@pytest.mark.req("sse-list", "sse-follow")
def test_two_readers_each_get_all_frames_then_what_comes_and_the_end() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a", "b")
    one, two = desk.reader(), desk.reader()

    assert seen(one) == ["a", "b"]
    desk.write("c")
    assert seen(one) == ["c"]
    assert seen(two) == ["a", "b", "c"]
    desk.finish("the summary")
    last = [event for reader in (one, two) for event in reader.poll()]
    assert said(last) == ["[terminal]", "[terminal]"]
    assert last[0].frame.data == {"status": "completed", "workflow_run": 1, "result": "the summary"}
    assert one.ended and one.poll() == []


@pytest.mark.req("sse-reconnect", "sse-finished-direct")
def test_a_reader_of_what_has_finished_gets_the_result_first_and_only() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a", "b")
    desk.finish("the summary")

    for after in (None, Position(desk.generation, 0), Position(7, 7)):
        events = desk.reader(after).poll()
        assert said(events) == ["[terminal]"]
        assert events[0].frame.data["result"] == "the summary"


@pytest.mark.req("sse-reconnect")
def test_at_the_start_a_reader_waits_and_gets_what_is_written_then() -> None:
    desk = Desk()
    reader = desk.reader()

    assert seen(reader) == []
    desk.begin()
    assert seen(reader) == []
    desk.write("a")
    assert seen(reader) == ["a"]


@pytest.mark.req("sse-reconnect")
@pytest.mark.case("A78")
def test_a_reader_that_comes_back_with_the_last_id_goes_on_behind_it_wherever_it_was_cut() -> None:
    desk = Desk()
    desk.begin()
    texts = [f"t{n}" for n in range(6)]
    desk.write(*texts)

    events = desk.reader().poll()
    assert said(events) == texts
    for cut, event in enumerate(events):
        assert event.position is not None
        back = desk.reader(Position.parse(str(event.position)))
        assert seen(back) == texts[cut + 1 :]
        texts.append(f"more{cut}")
        desk.write(texts[-1])
        assert seen(back) == texts[-1:]


@pytest.mark.req("sse-reconnect")
@pytest.mark.parametrize("of", ["another generation", "a frame that is not there yet", "a time long ago", "the future"])
def test_a_last_id_that_leads_nowhere_begins_at_the_head_and_says_so(of: str) -> None:
    desk = Desk()
    first = desk.begin()
    desk.write("old")
    second = desk.begin()
    desk.write("a", "b")
    after = {
        "another generation": Position(first, 0), "a frame that is not there yet": Position(second, 2),
        "a time long ago": Position(1, 1), "the future": Position(second + 5, 0),
    }[of]  # fmt: skip

    assert seen(desk.reader(after)) == ["[reset]", "a", "b"]


@pytest.mark.req("sse-double-check", "sse-round-isolation")
@pytest.mark.crash("56")
def test_a_reset_between_the_read_and_the_second_look_drops_the_batch() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a")
    reader = desk.reader()
    assert seen(reader) == ["a"]
    desk.write("b")

    def reset_now(name: str) -> None:
        if name == "generation":
            desk.port.before = lambda name: None
            desk.begin()
            desk.write("x")

    desk.port.before = reset_now

    assert seen(reader) == ["[reset]", "x"], "b was read, and is never shown"


@pytest.mark.req("sse-double-check")
def test_a_reset_tells_a_reader_that_has_frames_and_nobody_else() -> None:
    desk = Desk()
    reader = desk.reader()
    seen(reader)
    desk.begin()
    desk.begin()
    assert seen(reader) == []
    desk.write("a")
    assert seen(reader) == ["a"]
    desk.begin()
    assert seen(reader) == ["[reset]"], "also before anything new is there"
    desk.begin()
    assert seen(reader) == []
    desk.write("b")
    assert seen(reader) == ["b"]


@pytest.mark.req("sse-round-isolation", "sse-double-check")
def test_no_schedule_of_resets_wipes_and_losses_shows_a_reader_two_generations_as_one() -> None:
    """S14: frames carry their generation in their text; between two `reset` events all frames are of one, in order."""
    resets = 0
    for seed in range(400):
        choose = random.Random(seed)
        desk = Desk()
        readers = [desk.reader(), desk.reader()]
        shown: list[list[str]] = [[], []]
        count = 0

        def meddle(name: str, choose: random.Random = choose, desk: Desk = desk) -> None:
            if choose.random() < 0.3:
                change(choose, desk)

        def change(choose: random.Random, desk: Desk) -> None:
            nonlocal count
            before, desk.port.before = desk.port.before, lambda name: None
            # A generation is at first the time: that none comes back rests on fewer resets than milliseconds.
            desk.clock.advance(10)
            match choose.choices(("write", "begin", "wipe", "lose"), (8, 2, 1, 1))[0]:
                case "write":
                    for _ in range(choose.randint(1, 4)):
                        count += 1
                        model = desk.port.of(STREAM)
                        lost = model.known and len(model.frames) != model.next
                        desk.write(f"{desk.generation + lost}/{count}")
                case "begin":
                    desk.begin()
                case "wipe":
                    desk.port.wipe()
                case "lose":
                    desk.port.of(STREAM).frames = []
            desk.port.before = before

        desk.begin()
        desk.port.before = meddle
        for _ in range(60):
            change(choose, desk)
            at = choose.randrange(2)
            desk.port.down = choose.random() < 0.1
            events = readers[at].poll()
            desk.port.down = False
            shown[at] += said(events)
            if choose.random() < 0.1:
                # The reader's connection breaks, and it comes back with what it has.
                places = [event.position for event in events if event.position is not None]
                if places:
                    readers[at] = desk.reader(places[-1])
        for lines in shown:
            _check_generations(lines)
            resets += lines.count("[reset]")
    assert resets > 300, "the schedules did reset readers who had frames"


def _check_generations(lines: list[str]) -> None:
    generation, last = None, 0
    for line in lines:
        if line == "[reset]":
            generation, last = None, 0
            continue
        of, number = map(int, line.split("/"))
        assert generation in (None, of), f"two generations in one view: {lines}"
        assert number > last, f"out of order or twice: {lines}"
        generation, last = of, number


@pytest.mark.req("sse-terminal-retry", "sse-redis-failure")
def test_a_reader_ends_although_the_terminal_frame_never_came() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a")
    reader = desk.reader()
    assert seen(reader) == ["a"]
    desk.outcome = Outcome(DONE, 7)

    assert seen(reader) == [], "nobody has said so yet"
    desk.clock.advance(TIMES.check_ms)
    assert seen(reader) == [], "the last frames may be on their way"
    desk.write("b")
    assert seen(reader) == ["b"]
    desk.clock.advance(1_000)

    assert seen(reader) == ["[terminal]"]


@pytest.mark.req("sse-terminal-retry", "sse-redis-failure")
def test_without_redis_a_reader_waits_and_ends_by_the_store() -> None:
    desk = Desk()
    desk.port.down = True
    reader = desk.reader()

    assert seen(reader) == []
    assert 0 < reader.wait_ms() <= TIMES.poll_ms
    desk.outcome = Outcome(DONE, 7)
    desk.clock.advance(TIMES.check_ms)
    assert seen(reader) == ["[terminal]"]


@pytest.mark.req("sse-expired")
def test_when_frames_or_everything_expired_the_result_still_comes() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a")
    reader = desk.reader()
    seen(reader)
    desk.finish("the summary")
    desk.port.of(STREAM).frames = []

    assert seen(reader) == ["[terminal]"], "one who was in the middle"
    assert seen(desk.reader()) == ["[terminal]"]
    desk.port.wipe()
    events = desk.reader(Position(desk.generation, 0)).poll()
    assert said(events) == ["[terminal]"] and events[0].frame.data["result"] == "the summary"


@pytest.mark.req("layer-business-answers")
def test_a_terminal_reference_that_the_store_does_not_confirm_ends_nobody() -> None:
    """Of an earlier run of the same round, whose reset got lost."""
    desk = Desk()
    desk.begin()
    desk.write("old")
    desk.finish()
    desk.outcome = None
    reader = desk.reader()

    assert seen(reader) == ["old"]
    asked = desk.asked
    for _ in range(3):
        desk.clock.advance(1_000)
        assert seen(reader) == []
    assert desk.asked == asked, "it is not asked about with every poll"
    desk.begin()
    desk.write("new")
    assert seen(reader) == ["[reset]", "new"]
    desk.finish()
    assert seen(reader) == ["[terminal]"]


@pytest.mark.req("sse-reconnect")
def test_while_the_store_is_away_the_reference_is_believed() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a")
    desk.store_down = True
    reader = desk.reader()
    assert seen(reader) == ["a"]
    desk.port.finish(STREAM, Seniority(1, 50), encode_terminal(DONE))

    events = reader.poll()

    assert said(events) == ["[terminal]"]
    assert events[0].frame.data == {"status": "completed", "workflow_run": 1}


@pytest.mark.req("sse-unknown-version", "sse-other-types")
def test_a_record_that_can_not_be_shown_is_reported_and_the_rest_follows() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a")
    for record in (b"\x21new release", b"\x1fx", b"\x12{", b"\x11\xff"):
        desk.port.append(STREAM, desk.generation, [record], writer="w", request=next(desk.requests))
    desk.write("b")

    events = desk.reader().poll()

    assert said(events) == ["a", "[error]", "[error]", "[error]", "[error]", "b"]
    codes = [event.frame.data["code"] for event in events if event.event == "error"]
    assert codes == ["unsupported_compact_version", "unknown_record_type", "corrupt_record", "corrupt_record"]
    assert all(event.position is None for event in events if event.event == "error")


@pytest.mark.case("A82")
def test_a_reader_without_news_gets_a_heartbeat_in_time() -> None:
    desk = Desk()
    desk.begin()
    reader = desk.reader()
    seen(reader)
    beats = 0
    for _ in range(180_000 // 100):
        desk.clock.advance(100)
        if reader.wait_ms() == 0:
            beats += said(reader.poll()).count("[heartbeat]")

    assert beats + 1 >= 12 and beats <= 12


@pytest.mark.req("sse-follow")
def test_a_reader_that_is_told_looks_seldom_and_one_that_is_not_looks_more_often() -> None:
    desk = Desk()
    desk.begin()
    reader = desk.reader()
    seen(reader)

    assert reader.wait_ms() == 1_000
    desk.heard = False
    assert reader.wait_ms() == 250
    assert desk.port.of(STREAM).watched, "and it asked to be told"


@pytest.mark.case("A80")
def test_a_hundred_readers_who_stand_still_hold_next_to_nothing() -> None:
    desk = Desk()
    desk.port._bytes_max = 2**40
    desk.begin()
    for _ in range(500):
        desk.write(*["x" * 64] * 100)
    tracemalloc.start()
    try:
        readers = [desk.reader() for _ in range(100)]
        for reader in readers:
            assert len(reader.poll()) <= 128
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert held < 5 * 2**20, "the limit is 50 MiB"
    count = len(said(readers[0].poll()))
    while readers[0].wait_ms() == 0:
        count += len(readers[0].poll())
    assert count == 50_000 - 128, "and each goes on where it stood"
