"""Signals when processes die: at each boundary of T-12 a process is killed before and after the call, or its answer is
lost; the signal wakes its wait once all the same (RELIABILITY §5, 39, 40 and 46–50).

The lease is 30 s: what goes on, goes on because the death was proved or a sweep came by.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from kernel import Signal
from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.store.protocol import Query
from kernel.store.tables import SIGNALS
from kernel.transitions import receive_signal
from tests.faults.apps import BELL, RINGS, RUNG, WAITS
from tests.faults.arms import Arm, Point
from tests.faults.effects import boot_ms
from tests.faults.invariants import findings
from tests.faults.pausing import paused
from tests.faults.rig import ARMED, LIMIT_S, PROMPT_MS, Tree, kill, tree
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("flt-process-exit", "dc-tests-fault", "s9")]

POINTS: tuple[Point, ...] = ("before", "lost", "after")

PRODUCER = {
    # boundary: the hurt call, and how often the ringing step is entered for each point
    "46": ("receive_signal", "signal", (2, 1, 2)),
    "47": ("activate_signal", "target", (2, 1, 2)),
    "48": ("mark_matched", "signal", (2, 1, 2)),
    "49": ("push", "target", (2, 1, 2)),
}
HOLDER = {
    # How often the waiting step is entered: once more where its suspension was not committed.
    "39": ("suspend_step", (3, 2, 2)),
    "40": ("recheck", (2, 2, 2)),
}
SWEEP = {"50": "activate_signal", "48s": "mark_matched", "49s": "push"}


@pytest.fixture(scope="module")
def bells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("bells") / "data"
    # After three scan periods without a worker a dispatcher defers what it finds: here workers stand still for a while.
    with tree(folder, ARMED, workers=3, slots=2, lease_s=30.0, renew_s=0.3, scan_s=3.0) as running:
        yield running


def inbox(bells: Tree, signal_id: str) -> Document:
    document = bells.store.get(SIGNALS, signal_id)
    assert document is not None, f"{signal_id} is not in the inbox"
    return document


def told(key: str, signal_id: str) -> Signal:
    return Signal(signal_id=signal_id, workflow_id=workflow_id_for(key), signal_type=BELL, wait_key=key, generation=1)


def asleep(bells: Tree, key: str) -> str:
    """A workflow that waits for its bell."""
    workflow_id = bells.start(WAITS, key, 7)
    wait_until(lambda: bells.row(workflow_id)["status"] == "waiting", f"{key} waits", LIMIT_S)
    return workflow_id


def check_woken(bells: Tree, workflow_id: str, signal_id: str, entries: int = 2) -> None:
    """By the signal, once; and the inbox says so."""
    bells.finish(workflow_id)
    row = bells.instance(workflow_id)
    assert bells.output(workflow_id) == ["signal", signal_id]
    assert len(bells.effects.of(workflow_id, "a")) == entries
    assert row.steps[0].attempt == 1 + max(0, entries - 2)
    assert (row.deaths, row.steps[0].failures) == (0, 0)
    wait_until(lambda: inbox(bells, signal_id)["status"] == "matched", "the mark", LIMIT_S)


def cells(boundaries: Any) -> list[Any]:
    """One test for each boundary and point."""
    return [
        pytest.param(name, point, id=f"{name}-{point}", marks=pytest.mark.crash(name.rstrip("s"), point))
        for name in boundaries
        for point in POINTS
    ]


@pytest.mark.req("sig-crash-insert", "sig-crash-between", "sig-dup-once", "sig-unique", "sig-inbox-fail", "sig-proof")
@pytest.mark.req("sig-scan-match", "sig-then-queue", "core-worker-replaceable")
@pytest.mark.case("A46")
@pytest.mark.parametrize(("boundary", "point"), cells(PRODUCER))
def test_a_producer_that_dies_delivers_once(bells: Tree, boundary: str, point: Point) -> None:
    """The producer is a step of another workflow: whoever takes it over delivers with the same id."""
    bells.wait_running()
    call, whose, entries = PRODUCER[boundary]
    key = f"p:{boundary}:{point}"
    target = asleep(bells, RUNG.format(key))
    signal_id = f"ring:{key}"
    follows = "activate_signal" if call == "push" else ""
    hurt = {"signal": signal_id, "target": target}[whose]
    bells.arms.arm(key, Arm(call=call, point=point, workflow_id=hurt, follows=follows, role="worker"))
    began_ms = boot_ms()

    # A dispatcher's sweep is quicker where the producer stands still between two of its writes, and leaves it nothing.
    with paused(bells, bells.pids("dispatcher")):
        ringer = bells.start(RINGS, key)
        wait_until(lambda: bells.arms.fired(key), f"the fault of {key}", LIMIT_S)
    check_woken(bells, target, signal_id)
    bells.finish(ringer)
    assert len(bells.effects.of(ringer, "ring")) == entries[POINTS.index(point)]
    assert bells.instance(ringer).steps[0].failures == 0
    rows = bells.store.scan(Query(SIGNALS, (), "match_time", ("workflow_id",), 10_000))
    assert [row[0] for row in rows].count(target) == 1
    assert bells.effects.of(target, "a")[1].at_ms - began_ms <= PROMPT_MS


@pytest.mark.req("sig-early", "sig-check-after-suspend", "sig-scan-match", "slp-atomic", "sig-mark-before-unset")
@pytest.mark.case("A46")
@pytest.mark.parametrize(("boundary", "point"), cells(HOLDER))
def test_a_worker_that_dies_around_its_suspension_misses_no_early_signal(
    bells: Tree, boundary: str, point: Point
) -> None:
    bells.wait_running()
    call, entries = HOLDER[boundary]
    key = f"h:{boundary}:{point}"
    workflow_id = workflow_id_for(key)
    bells.arms.arm(key, Arm(call=call, point=point, workflow_id=workflow_id))
    (receipt,) = bells.client.deliver_signals([told(key, f"early:{key}")])
    assert (receipt.activated, receipt.target) == (False, "unknown")
    began_ms = boot_ms()

    bells.start(WAITS, key, 7)

    wait_until(lambda: bells.arms.fired(key), f"the fault of {key}", LIMIT_S)
    check_woken(bells, workflow_id, f"early:{key}", entries[POINTS.index(point)])
    assert bells.effects.of(workflow_id, "a")[-1].at_ms - began_ms <= PROMPT_MS


@pytest.mark.req("sig-scan-match", "sig-crash-between", "sig-proof", "sig-two-nets", "l6")
@pytest.mark.parametrize(("boundary", "point"), cells(SWEEP))
def test_a_dispatcher_that_dies_in_its_sweep_leaves_the_rest_to_the_next(
    bells: Tree, boundary: str, point: Point
) -> None:
    """The producer is gone for good, right after its insert; the workers stand still, so that a dispatcher sweeps."""
    bells.wait_running()
    key = f"s:{boundary}:{point}"
    workflow_id = asleep(bells, key)
    signal_id = f"left:{key}"
    call = SWEEP[boundary]
    hurt = signal_id if call == "mark_matched" else workflow_id
    follows = "activate_signal" if call == "push" else ""
    before = bells.instance(workflow_id).revision
    with paused(bells, bells.pids()):
        bells.arms.arm(key, Arm(call=call, point=point, workflow_id=hurt, role="dispatcher", follows=follows))
        bells.store.insert(receive_signal(told(key, signal_id), now_ms=bells.store.now_ms()))
        wait_until(lambda: bells.arms.fired(key), f"the fault of {key}", LIMIT_S)
        wait_until(lambda: bells.row(workflow_id)["status"] == "running", "it is activated", LIMIT_S)
        wait_until(lambda: inbox(bells, signal_id)["status"] == "matched", "the mark", LIMIT_S)
        row = bells.instance(workflow_id)
        assert row.resume is not None
        assert (row.resume.kind, row.resume.signal_id, row.steps[0].status) == ("signal", signal_id, "pending")
        assert (row.claim_token, row.revision) == (None, before + 1)

    check_woken(bells, workflow_id, signal_id)


@pytest.mark.req("sig-wait-durable", "sig-unlimited-wait", "core-worker-replaceable")
def test_a_wait_outlives_every_process_of_its_tree(bells: Tree) -> None:
    """All workers and dispatchers killed at once while it waits; new ones come, the signal comes, it wakes."""
    bells.wait_running()
    workflow_id = asleep(bells, "outlives")
    before = bells.row(workflow_id)
    pids = [*bells.pids(), *bells.pids("dispatcher")]
    kill(*pids)
    bells.wait_running(without=pids)
    assert bells.row(workflow_id) == before

    bells.client.deliver_signals([told("outlives", "late")])

    check_woken(bells, workflow_id, "late")
    assert bells.effects.of(workflow_id, "a")[1].pid not in pids
    assert os.getpid() not in pids


def test_afterwards_every_invariant_holds(bells: Tree) -> None:
    """Every row is whole, every signal has woken one wait, and what has ended stays as it is."""
    rows = bells.rows()
    assert findings(rows, bells.effects.all(), [row["biz_key"] for row in rows]) == []
    assert bells.store.scan(Query(SIGNALS, (), "pending_time", ("signal_id",), 100)) == []
    woken = [step["last_signal_id"] for row in rows for step in row["steps"] if "last_signal_id" in step]
    assert len(woken) == len(set(woken)) == len(bells.store.scan(Query(SIGNALS, (), "match_time", ("signal_id",), 999)))
    stays(lambda: bells.rows() == rows, "what has ended stays as it is", seconds=1)
