"""A tree in which nothing moves is noticed, and the dump says what everybody was doing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.store.protocol import Query
from kernel.store.tables import SIGNALS
from tests.chaos.checker import ObjectFact
from tests.chaos.stuck import Detector, dump
from tests.faults import apps
from tests.faults.rig import tree
from tests.support.wait import wait_until


def test_silence_is_standing_still() -> None:
    now_ms = [0]
    detector = Detector(30.0, lambda: now_ms[0])
    assert not detector.stands_still(1)
    now_ms[0] = 29_999
    assert not detector.stands_still(1)
    assert not detector.stands_still(2)
    now_ms[0] = 60_000
    assert detector.stands_still(2)
    assert not detector.stands_still(3)
    now_ms[0] = 80_000
    detector.begin_anew()
    now_ms[0] = 109_999
    assert not detector.stands_still(3)
    now_ms[0] = 110_000
    assert detector.stands_still(3)


@pytest.mark.fault
@pytest.mark.req("dc-tests-fault")
def test_the_dump_of_a_stuck_tree_shows_rows_keys_signals_intents_and_stacks(tmp_path: Path) -> None:
    """An activity waits at a gate that nobody opens; a signal of an old generation is pending for one who waits."""
    # A lease that outlasts all waits: on a busy machine a short one would be taken over, and the row show attempt 2.
    with tree(tmp_path / "data", workers=1, lease_s=300.0) as stuck:
        gated = stuck.start(apps.GATED, "gated")
        waits = stuck.start(apps.WAITS, "waits")
        stuck.entered(gated, "only")
        wait_until(lambda: stuck.row(waits)["status"] == "waiting", "it waits")
        stuck.client.signal(waits, "bell", wait_key="waits", generation=7, signal_id="too-late")
        detector = Detector(1.0)
        wait_until(lambda: detector.stands_still(len(stuck.effects.all())), "it stands still")
        columns = ("signal_id", "workflow_id", "signal_type", "wait_key", "generation", "match_time")
        inbox = [
            dict(zip(columns, row, strict=True))
            for row in stuck.store.scan(Query(SIGNALS, (), "signal_id", columns, limit=100))
        ]
        intent = ObjectFact("order-1", "initial", "f1-x", "pending")

        texts: list[str] = []

        def at_the_gate() -> bool:
            """faulthandler reads a thread that runs as it runs: caught in the middle of a call, a stack is short."""
            texts.append(dump(stuck.folder, stuck.rows(), inbox, [intent], stuck.pids(), stuck.session.redis_url))
            return "in _pass_gate" in texts[-1].partition("--- stacks")[2]

        wait_until(at_the_gate, "the stack of the thread that waits at the gate")
        text = texts[-1]
        assert f"gated {gated} running run 1" in text
        assert "only=running/1" in text
        assert f"too-late for {waits}: bell waits 7" in text
        assert "order-1 initial f1-x pending" in text
        assert "lane_state string 16" in text
        stuck.open_gate(gated)
        stuck.finish(gated)
