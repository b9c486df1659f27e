"""A step that waits beside a chain of long ones, each of which begins the next one: what it waits for has its turn
between two of them, and not after the last (DECISIONS detail 1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import Step
from kernel.directives import Sleep, WaitForSignal
from kernel.store.sqlite_rows import BODY
from kernel.store.tables import SIGNALS
from tests.engine.flows import flow, seconds, step
from tests.engine.signals import GENERATION, KEY, TYPE, tell
from tests.engine.test_damaged_nets import overwrite
from tests.support.engine_rig import SteppedRig

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LENGTH = 4


def chain(rig: SteppedRig, *told: Any) -> list[Step]:
    """Steps of an hour, one after the other; the first one tells a signal after a minute, where it should."""

    def hour(ctx: Context) -> int:
        rig.advance(MINUTE_MS)
        if told and ctx.step == "a0":
            told[0](ctx.workflow_id)
        rig.advance(HOUR_MS - MINUTE_MS)
        return 1

    names = [f"a{number}" for number in range(LENGTH)]
    before: list[list[str]] = [[], *([name] for name in names)]
    return [
        step(rig, name, hour, depends_on=before[number], timeout=timedelta(hours=2))
        for number, name in enumerate(names)
    ]


@pytest.mark.req("slp-activate", "dag-algorithm")
def test_a_timer_beside_a_chain_is_no_later_than_one_step(rig: SteppedRig) -> None:
    woken_ms: list[int] = []

    def rests(ctx: Context) -> Any:
        if ctx.resume is None:
            return Sleep(seconds(HOUR_MS / 1000 + 300))
        woken_ms.append(rig.clock.wall_ms())
        return "rested"

    rig.worker(definition := flow(rig, step(rig, "b", rests, depends_on=[]), *chain(rig)))
    began_ms = rig.clock.wall_ms()
    rig.finish(rig.start(definition), limit_ms=8 * HOUR_MS)

    assert len(woken_ms) == 1
    assert woken_ms[0] - began_ms <= 2 * HOUR_MS + MINUTE_MS, "due in the second hour"


@pytest.mark.req("sig-check-after-suspend", "dag-algorithm")
def test_a_signal_beside_a_chain_is_heard_between_two_steps(rig: SteppedRig) -> None:
    """Nobody may write the row of a workflow that is held: its holder looks."""
    woken_ms: list[int] = []

    def listens(ctx: Context) -> Any:
        if ctx.resume is None:
            return WaitForSignal(TYPE, KEY, GENERATION)
        assert ctx.resume.signal_id is not None
        woken_ms.append(rig.clock.wall_ms())
        return "heard"

    steps = chain(rig, lambda workflow_id: tell(rig, workflow_id))
    rig.worker(definition := flow(rig, step(rig, "b", listens, depends_on=[]), *steps))
    began_ms = rig.clock.wall_ms()
    rig.finish(rig.start(definition), limit_ms=8 * HOUR_MS)

    assert len(woken_ms) == 1
    assert woken_ms[0] - began_ms <= HOUR_MS + MINUTE_MS


@pytest.mark.case("A45")
@pytest.mark.req("sig-check-after-suspend")
def test_a_signal_that_nobody_can_read_costs_a_claim_for_each_step_and_no_more(sqlite_rig: SteppedRig) -> None:
    rig = sqlite_rig

    def spoilt(workflow_id: str) -> None:
        tell(rig, workflow_id, signal_id="spoilt")
        overwrite(rig, SIGNALS, "spoilt", BODY)

    def listens(ctx: Context) -> Any:
        return WaitForSignal(TYPE, KEY, GENERATION)

    worker = rig.worker(definition := flow(rig, step(rig, "b", listens, depends_on=[]), *chain(rig, spoilt)))
    workflow_id = rig.start(definition)

    rig.run(
        lambda: rig.step(workflow_id, f"a{LENGTH - 1}").status == "completed", "the chain ends", limit_ms=8 * HOUR_MS
    )

    assert worker.scheduler.claims_taken <= 2 * LENGTH + 1
