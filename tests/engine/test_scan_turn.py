"""The turn to scan, whose holder dies at each boundary of a scan: the net is never torn for long (A17)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.outbox_rig import SETTINGS, Desk, OutboxRig

SCAN_MS = SETTINGS.dispatch_scan_ms
ROUND_MS = 500
"""A round each half second, as the loop makes one at the latest."""


def dies_at(desk: Desk, port: str, call: str, when: str) -> None:
    """Let this dispatcher be killed before or after its first call of that name."""
    watched = desk.index if port == "index" else desk.source

    def met(name: str, *_: Any) -> None:
        if name == call:
            desk.kill()

    if when == "before":
        watched.before = met
    else:
        watched.after = met


def passes(rig: OutboxRig, ms: int) -> None:
    for _ in range(ms // ROUND_MS):
        rig.settle()
        rig.pass_time(ROUND_MS)
    rig.settle()


@pytest.mark.case("A17")
@pytest.mark.crash("17")
@pytest.mark.req("dsp-scan-mutex", "layer-redis-rebuild")
@pytest.mark.parametrize("wiped", [False, True], ids=["kept", "wiped"])
@pytest.mark.parametrize(
    ("port", "call", "when"),
    [
        ("index", "hold_scan", "before"),
        ("index", "hold_scan", "after"),
        ("source", "due", "before"),
        ("source", "due", "after"),
        ("index", "add", "before"),
        ("index", "add", "after"),
        ("index", "take", "before"),
        ("index", "take", "after"),
        ("source", "claim", "before"),
        ("source", "claim", "after"),
        ("source", "confirm", "before"),
        ("source", "confirm", "after"),
    ],
)
def test_another_scans_within_the_turn_and_a_period(port: str, call: str, when: str, wiped: bool) -> None:
    """The killed one has the turn, or what it found, in its hands. FLUSHALL makes it no worse: the turn is free sooner,
    and what was noted is found again."""
    rig = OutboxRig()
    ids = [f"k{number}" for number in range(5)]
    for object_id in ids:
        rig.accept(object_id)
    first = rig.desk()
    dies_at(first, port, call, when)
    for _ in range(20):  # a round scans, the next ones handle what it found
        first.round()
        rig.pass_time(0 if first.dead else ROUND_MS)
        if first.dead:
            break
    assert first.dead, f"{call} was never called"
    others = [rig.desk(), rig.desk()]
    if wiped:
        rig.index.wipe()
    rig.accept("later")

    passes(rig, 2 * SCAN_MS)

    assert sum(desk.counters["scans"] for desk in others) >= 1
    assert {rig.intent(key).status for key in [*ids, "later"]} == {"dispatched"}
    assert sum(desk.counters["scans"] for desk in others) <= 3, "one scan a period for all together"


@pytest.mark.req("dsp-scan-mutex")
def test_the_holder_dies_in_period_after_period_and_the_net_holds() -> None:
    """Six dispatchers, each killed in its scan: every period another one begins one, and never two."""
    rig = OutboxRig()
    for _ in range(6):
        desk = rig.desk()
        dies_at(desk, "source", "due", "before")
    last = rig.desk()
    last.index.before = lambda name, args: None
    rig.accept()

    for number in range(6):
        rig.settle(*[desk for desk in rig.desks if desk is not last])
        assert sum(desk.dead for desk in rig.desks) == number + 1, "one in each period"
        rig.pass_time(SCAN_MS + 1)
    rig.settle(last)

    assert rig.intent().status == "dispatched"
