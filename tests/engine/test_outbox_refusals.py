"""Objects that their source refuses again and again, and threads that are not to be had: neither stops a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.errors import StoreUnavailable
from tests.support.outbox_rig import Desk, OutboxRig

SECOND_MS, SCAN_MS = 1_000, 30_000


def rounds(rig: OutboxRig, desk: Desk, seconds: int) -> None:
    for _ in range(seconds):
        desk.round()
        rig.pass_time(SECOND_MS)


def refusing(*bad: str) -> Callable[[str, tuple[Any, ...]], None]:
    """As a MongoDB collection whose validator these old documents break: it is there, and takes no write of theirs."""

    def before(name: str, args: tuple[Any, ...]) -> None:
        if name == "claim" and args[0] in bad:
            raise StoreUnavailable(f"claim_dispatch of jobs {args[0]!r}: MongoDB refuses (121)")

    return before


@pytest.mark.req("dsp-bad-intent", "dsp-limits")
@pytest.mark.parametrize(
    "bad", [("a-bad",), ("k07",), ("a-bad", "b-bad", "k07", "z-bad")], ids=["first", "one", "four"]
)
def test_objects_that_a_source_refuses_hold_up_no_others(bad: tuple[str, ...]) -> None:
    rig = OutboxRig()
    good = [f"k{number:02}" for number in range(20) if f"k{number:02}" not in bad]
    for object_id in (*bad, *good):
        rig.accept(object_id)
    desk = rig.desk(dispatch_scan_ms=SCAN_MS)
    desk.source.before = refusing(*bad)

    rounds(rig, desk, 30)

    assert {rig.intent(object_id).status for object_id in good} == {"dispatched"}
    assert not desk.outbox.away
    assert desk.counters["poison"] >= len(bad)

    desk.source.before = lambda name, args: None
    rounds(rig, desk, 2 * SCAN_MS // SECOND_MS)

    assert rig.statuses() == {"dispatched": len(good) + len(bad)}, "and none of them rests for longer than a scan"


@pytest.mark.req("dsp-bad-intent")
def test_a_source_that_is_away_puts_no_object_aside() -> None:
    """All is dispatched as soon as it is back, whatever was tried meanwhile."""
    rig = OutboxRig()
    for number in range(20):
        rig.accept(f"k{number:02}")
    desk = rig.desk()

    def away(name: str, args: tuple[Any, ...]) -> None:
        raise StoreUnavailable("nobody answers")

    desk.source.before = away
    rounds(rig, desk, 120)
    assert desk.outbox.away and desk.counters["poison"] == 0

    desk.source.before = lambda name, args: None
    rounds(rig, desk, 10)

    assert rig.statuses() == {"dispatched": 20}
    assert not desk.outbox.away


@pytest.mark.req("dsp-limits")
def test_a_thread_that_can_not_be_started_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short of threads now has all its slots when there are threads again."""
    rig = OutboxRig()
    desk = rig.desk(dispatch_slots=4)
    free = desk.outbox.spare.take(100)
    for _ in range(free):
        desk.outbox.spare.give_back()
    for number in range(10):
        rig.accept(f"k{number}", announce=True)

    def none_left(name: str, body: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(desk.runner, "spawn", none_left)
        rounds(rig, desk, 3)

    assert rig.statuses() == {"dispatched": 10}, "its own thread does the work"
    assert free > 0
    assert desk.outbox.spare.take(100) == free
