"""Whoever acts on what it read a while ago: lists of candidates, of due waits, of intents that others have worked on
since (A08, A09, A10). The late one writes nothing, and runs nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kernel.context import Context
from kernel.directives import Sleep, Yield
from tests.engine.flows import flow, seconds, step
from tests.support.engine_rig import SteppedRig
from tests.support.engine_store import Write
from tests.support.outbox_rig import OutboxRig

OBJECTS = 50
YIELDS = 200


@pytest.mark.case("A08")
@pytest.mark.req("dsp-lease-take")
def test_of_two_dispatchers_with_one_list_the_loser_of_each_registers_nothing() -> None:
    """Each of the fifty is handled by the other when it was read already, and before it is claimed."""
    rig = OutboxRig()
    rig.index.down = True  # both scan, and both find all
    for number in range(OBJECTS):
        rig.accept(f"k{number:02}")
    late, quick = rig.desk(), rig.desk()
    (others,) = quick.outbox.sources

    def overtake(name: str, args: tuple[Any, ...]) -> None:
        if name == "claim":
            others._registration.handle(args[0])

    late.source.before = overtake
    late.round()

    assert quick.counters["dispatched"] == OBJECTS
    assert [answer for _, answer in late.source.of("claim")] == [None] * OBJECTS, "it tried each of its list"
    assert late.store.writes == [], "and started nothing"
    assert late.source.of("confirm") == [] and late.source.of("release") == []
    assert {rig.intent(f"k{number:02}").status for number in range(OBJECTS)} == {"dispatched"}


@pytest.mark.case("A09")
@pytest.mark.req("slp-activate-once")
@pytest.mark.parametrize("due", [False, True], ids=["the new wait is young", "the new wait is due as well"])
def test_a_late_activation_of_one_wait_does_not_wake_the_next(rig: SteppedRig, due: bool) -> None:
    """Two scanners have read the same due wait. The first activates it; the step runs and sleeps again."""

    def naps(ctx: Context) -> Any:
        number = ctx.checkpoint(int) or 0
        return Sleep(seconds(10), number + 1) if number < 2 else "rested"

    definition = flow(rig, step(rig, "a", naps))
    quick = rig.worker(definition)
    late = rig.make_worker(definition, worker_id="late")
    rig.workers.remove(late)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.status(workflow_id) == "waiting", "the first sleep")
    first = rig.row(workflow_id)["steps"][0]["wait"]["wait_id"]
    rig.clock.advance(10_000)
    before: list[dict[str, Any]] = []

    def overtaken(write: Write) -> None:
        if "activate_timer" in write.names and not before:
            quick.sweep()
            rig.run(lambda: _wait_id(rig, workflow_id) not in (None, first), "the second sleep", quick)
            rig.clock.advance(10_000 if due else 1)
            before.append(rig.row(workflow_id))

    late.store.fault_of = overtaken
    late.sweep()

    assert before and rig.row(workflow_id) == before[0]
    assert "activate_timer" in late.store.missed
    rig.finish(workflow_id)
    assert rig.output(workflow_id) == "rested"
    assert rig.ledger.count("a") == 3


def _wait_id(rig: SteppedRig, workflow_id: str) -> str | None:
    wait = rig.row(workflow_id)["steps"][0].get("wait")
    return None if wait is None else str(wait["wait_id"])


@pytest.mark.case("A10")
@pytest.mark.req("yld-effect", "core-inv-token")
@pytest.mark.parametrize("moment", ["before the write", "behind the write", "in the activity"])
def test_a_yield_beside_a_scan_and_a_stale_pop_is_neither_lost_nor_doubled(rig: SteppedRig, moment: str) -> None:
    """Each time that it gives its slot back another worker rebuilds the lanes, and tries an id that it popped."""
    cursors: list[int] = []
    disturbed: Counter[str] = Counter()

    def pages(ctx: Context) -> Any:
        number = ctx.checkpoint(int) or 0
        cursors.append(number)
        if moment == "in the activity":
            disturb()
        return Yield(number + 1) if number < YIELDS else "all"

    def disturb() -> None:
        disturbed[moment] += 1
        other.sweep()
        other.scheduler.schedule_runnable_workflows()

    def around(write: Write) -> None:
        if "yield_step" in write.names and moment == "before the write":
            disturb()

    definition = flow(rig, step(rig, "a", pages))
    worker = rig.worker(definition)
    other = rig.worker(definition)
    worker.store.fault_of = around
    if moment == "behind the write":
        worker.queue.push = _pushing(worker.queue.push, disturb)  # type: ignore[method-assign]
    workflow_id = rig.start(definition)
    rig.finish(workflow_id, limit_ms=3_600_000)

    assert rig.output(workflow_id) == "all"
    assert cursors == list(range(YIELDS + 1))
    assert rig.step(workflow_id, "a").attempt == 1
    assert disturbed[moment] > YIELDS // 4


def _pushing(push: Any, act: Any) -> Any:
    def pushed(candidates: Any, **options: Any) -> Any:
        answer = push(candidates, **options)
        act()
        return answer

    return pushed
