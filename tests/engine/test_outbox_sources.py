"""Several sources in one dispatcher: what is wrong with one of them stays with that one (group 7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.dispatch import DueIntent
from kernel.engine.threads import ThreadRunner
from tests.support.outbox_rig import OutboxRig
from tests.support.wait import wait_until


class Theirs:
    """A source of the user's own, with `objects` that are due; what it does in a call is up to the test."""

    name = "theirs"

    def __init__(self, rig: OutboxRig, objects: int = 0) -> None:
        self._rig = rig
        self._objects = objects
        self.before: Any = lambda call: None

    def now_ms(self) -> int:
        return self._rig.objects.now_ms()

    def due(self, **_options: Any) -> list[DueIntent]:
        self.before("due")
        return [DueIntent(f"t{n}", 1) for n in range(self._objects)]

    def read(self, object_id: str) -> None:
        self.before("read")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@pytest.mark.parametrize("call", ["due", "read"])
@pytest.mark.parametrize("slots", [1, 4])
def test_a_source_that_hangs_stops_only_itself_and_status_shows_it(
    call: str, slots: int, gate: threading.Event
) -> None:
    """Also where it has every slot in its hands that it can get."""
    clock = SystemClock()
    rig = OutboxRig(clock=clock, runner=ThreadRunner(clock))
    theirs = Theirs(rig, objects=20)
    hung = threading.Semaphore(0)

    def hang(name: str) -> None:
        if name == call and not gate.is_set():
            hung.release()
            gate.wait(60)

    theirs.before = hang
    desk = rig.desk(theirs, rig.objects, poll_ms=50, dispatch_scan_ms=50, dispatch_slots=slots)  # type: ignore[arg-type]
    loop = desk.loop()
    loop.start()
    try:
        assert hung.acquire(timeout=60)
        for number in range(20):
            rig.accept(f"k{number}")

        wait_until(lambda: rig.statuses() == {"dispatched": 20}, "the other source's objects are dispatched")
        ages: Any = lambda: loop.status()["loops"]  # noqa: E731
        wait_until(lambda: ages()["outbox.theirs"] > 1 > ages()["outbox.jobs"], "who hangs shows in the status")
    finally:
        gate.set()
        loop.drain()
    wait_until(loop.done.is_set, "the end of both loops")


@pytest.mark.req("dsp-claim-one")
def test_two_sources_share_the_slots_of_the_process() -> None:
    """The first calls wait until as many run beside each other as there are slots; there are never more."""
    clock = SystemClock()
    rig = OutboxRig(clock=clock, runner=ThreadRunner(clock))
    lock, full = threading.Lock(), threading.Event()
    held, most = 0, 0

    def reading(call: str) -> None:
        nonlocal held, most
        if call != "read":
            return
        with lock:
            held += 1
            most = max(most, held)
            if held == 3:
                full.set()
        full.wait(60)
        with lock:
            held -= 1

    sources = [Theirs(rig, objects=50), Theirs(rig, objects=50)]
    for number, source in enumerate(sources):
        source.name = f"theirs{number}"
        source.before = reading
    desk = rig.desk(*sources, poll_ms=50, dispatch_scan_ms=3_600_000, dispatch_slots=3)  # type: ignore[arg-type]
    loop = desk.loop()
    loop.start()
    try:
        wait_until(lambda: len([1 for s in desk.sources for _ in s.of("read")]) == 100, "all are looked at")
    finally:
        full.set()
        loop.drain()
    wait_until(loop.done.is_set, "the end of both loops")
    assert most == 3


def test_a_source_with_a_fault_of_its_own_is_logged_once_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    rig = OutboxRig()
    theirs = Theirs(rig)
    desk = rig.desk(theirs, rig.objects, dispatch_scan_ms=1_000)  # type: ignore[arg-type]

    def rounds(count: int) -> int:
        """How many lines there are of it after so many more rounds."""
        for _ in range(count):
            desk.round()
            rig.pass_time(2_000)
        return len([r for r in caplog.records if r.levelno >= logging.WARNING and "theirs" in r.getMessage()])

    def broken(call: str) -> None:
        raise KeyError("a fault of their program")

    theirs.before = broken
    assert rounds(20) == 1
    assert desk.outbox.away == ["theirs"]
    theirs.before = lambda call: None
    assert rounds(2) == 1
    assert desk.outbox.away == []
    theirs.before = broken
    assert rounds(20) == 2


def test_a_source_that_can_not_read_an_object_says_so_once_for_each(caplog: pytest.LogCaptureFixture) -> None:
    rig = OutboxRig()
    theirs = Theirs(rig, objects=2)

    def broken(call: str) -> None:
        if call == "read":
            raise KeyError("a fault of their program")

    theirs.before = broken
    desk = rig.desk(theirs, dispatch_scan_ms=1_000)  # type: ignore[arg-type]
    for _ in range(40):
        desk.round()
        rig.pass_time(2_000)

    assert [r.exc_info is not None for r in caplog.records if r.levelno >= logging.WARNING] == [False, True] * 2
