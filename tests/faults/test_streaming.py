"""Readers of a client stream while workers are killed and stopped and Redis is emptied: S14, cells 54 to 56."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kernel.clock import SystemClock
from kernel.coordination import ScriptRunner, Streams
from kernel.runtime import open_streams
from kernel.stream_events import StreamEvent
from kernel.stream_words import StreamId
from tests.faults.pausing import paused
from tests.faults.rig import LIMIT_S, Tree, kill, tree
from tests.faults.stalls import STEADY, patient
from tests.faults.streaming import STREAMING
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("shown") / "data"
    with tree(folder, app="tests.faults.streaming:app", stream_check_s=1.0, **STEADY) as running:
        yield running


class Reader:
    """One reader on a thread of its own, and what it was given."""

    def __init__(self, shown: Tree, workflow_id: str, last_event_id: str | None = None) -> None:
        self.events: list[StreamEvent] = []
        follow = shown.client.follow(workflow_id, last_event_id)
        self.thread = threading.Thread(target=lambda: self.events.extend(follow), daemon=True)
        self.thread.start()

    @property
    def screen(self) -> list[object]:
        """What a client has before it: the data of all frames since the last reset."""
        data: list[object] = []
        for event in list(self.events):
            if event.event == "reset":
                data = []
            elif event.event == "frame":
                data.append(event.frame.data)
        return data

    def finish(self) -> str:
        """Wait for the end; the status that it told."""
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), "the reader did not end"
        assert [event.event for event in self.events].index("terminal") == len(self.events) - 1
        return str(self.events[-1].frame.data["status"])

    def check(self) -> None:
        """No view between two resets holds frames of two generations, or of two attempts."""
        generations: set[int] = set()
        attempts: set[int] = set()
        for event in self.events:
            if event.event == "reset":
                generations, attempts = set(), set()
            elif event.event == "frame" and event.position is not None:
                generations.add(event.position.generation)
                data = event.frame.data
                attempts.add(data["attempt"] if isinstance(data, dict) else int(data.split()[1]))
                assert len(generations) == len(attempts) == 1


def begun(attempt: int) -> str:
    return f"attempt {attempt} begins; "


def whole(attempt: int) -> list[object]:
    numbers: list[object] = [{"attempt": attempt, "number": number} for number in range(200)]
    return [begun(attempt), *numbers, f"attempt {attempt} ends"]


@contextmanager
def redis(shown: Tree) -> Iterator[tuple[Streams, ScriptRunner]]:
    """The tree's Redis, for looking and for emptying it."""
    opened = open_streams(patient(shown.config), shown.session.redis_url, SystemClock())
    assert opened is not None
    with closing(opened[1]):
        yield opened


def frames_of(shown: Tree, workflow_id: str) -> int:
    with redis(shown) as (streams, _):
        return streams.read(StreamId.of(shown.instance(workflow_id)), 0, 0, bytes_max=1, count_max=1).length


@pytest.mark.req("sse-reset", "sse-reset-best-effort", "sse-round-isolation")
@pytest.mark.case("A37")
@pytest.mark.crash("56")
def test_a_worker_killed_in_mid_stream_leaves_nothing_of_its_text_in_the_next(shown: Tree) -> None:
    workflow_id = shown.start(STREAMING, "killed")
    readers = [Reader(shown, workflow_id) for _ in range(2)]
    first = shown.entered(workflow_id, "compose")
    wait_until(lambda: all(reader.screen == [begun(1)] for reader in readers), "both show the first attempt", LIMIT_S)

    kill(first.pid)
    shown.entered(workflow_id, "compose", 2)
    wait_until(lambda: all(reader.screen == [begun(2)] for reader in readers), "both show the second alone", LIMIT_S)
    late = Reader(shown, workflow_id)
    shown.open_gate(f"{workflow_id}-2", f"{workflow_id}-2-end")
    shown.finish(workflow_id)

    for reader in (*readers, late):
        assert reader.finish() == "completed"
        assert reader.events[-1].frame.data["result"] == "result of attempt 2"
        reader.check()
    assert "reset" in [event.event for event in readers[0].events]
    assert "reset" not in [event.event for event in late.events]
    shown.wait_running(without=[first.pid])


@pytest.mark.req("sse-stale-writer", "sse-round-isolation")
@pytest.mark.case("A12")
def test_a_worker_stopped_past_its_lease_is_not_heard_when_it_comes_back(shown: Tree) -> None:
    workflow_id = shown.start(STREAMING, "stopped")
    reader = Reader(shown, workflow_id)
    first = shown.entered(workflow_id, "compose")
    wait_until(lambda: reader.screen == [begun(1)], "the first attempt shows", LIMIT_S)

    with paused(shown, [first.pid]):
        shown.entered(workflow_id, "compose", 2)
        wait_until(lambda: reader.screen == [begun(2)], "the second attempt shows", LIMIT_S)
        shown.open_gate(f"{workflow_id}-1", f"{workflow_id}-1-end")
    wait_until(lambda: _left(shown, workflow_id, 1), "the late worker has written all it had", LIMIT_S)
    assert frames_of(shown, workflow_id) == 1, "none of it is in the stream"
    shown.open_gate(f"{workflow_id}-2")
    *numbers, last = whole(2)
    wait_until(lambda: reader.screen == numbers, "all but the last words are shown", LIMIT_S)
    shown.open_gate(f"{workflow_id}-2-end")
    shown.finish(workflow_id)

    assert reader.finish() == "completed"
    # Who is slow to send, or to look, has the end of the record first, and nothing comes behind that.
    assert reader.screen in ([*numbers, last], numbers)
    reader.check()
    written = len(numbers) + 2
    wait_until(lambda: frames_of(shown, workflow_id) == written, "the last words are there, and the end behind them")


def _left(shown: Tree, workflow_id: str, attempt: int) -> bool:
    leaves = shown.effects.of(workflow_id, "compose", "leave")
    return any(effect.attempt == attempt for effect in leaves)


@pytest.mark.req("sse-loss-harmless", "sse-redis-failure", "sse-round-isolation")
def test_redis_emptied_in_mid_stream_changes_no_result_and_the_reader_shows_what_came_after(shown: Tree) -> None:
    workflow_id = shown.start(STREAMING, "emptied")
    reader = Reader(shown, workflow_id)
    shown.entered(workflow_id, "compose")
    wait_until(lambda: reader.screen == [begun(1)], "it shows", LIMIT_S)

    with redis(shown) as (_, scripts):
        scripts.command("FLUSHALL")
    shown.open_gate(f"{workflow_id}-1", f"{workflow_id}-1-end")
    shown.finish(workflow_id)

    assert reader.finish() == "completed"
    assert shown.output(workflow_id) == "result of attempt 1"
    assert reader.screen in ([begun(1)], whole(1)[1:]), "what came after, unless the end was there first"
    reader.check()
