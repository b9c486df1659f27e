"""Activities that are coroutines: one event loop, watched from outside (group 12, DECISIONS detail 17)."""

from __future__ import annotations

import asyncio

import pytest

from kernel.context import Context
from tests.engine.flows import flow, seconds, step
from tests.support.engine_rig import LiveRig
from tests.support.wait import wait_until


@pytest.mark.req("act-panic", "act-one-classification", "dag-wave-parallel")
def test_async_and_plain_activities_live_side_by_side(live: LiveRig) -> None:
    both = asyncio.Event()

    async def waits(ctx: Context) -> str:
        await asyncio.wait_for(both.wait(), 60)
        return "waited"

    async def frees(ctx: Context) -> str:
        both.set()
        return "freed"

    async def fails(ctx: Context) -> str:
        raise SystemExit(ctx.attempt)

    definition = flow(
        live,
        step(live, "waits", waits, depends_on=[]),
        step(live, "frees", frees, depends_on=[]),
        step(live, "fails", fails, on_failed="skip", max_retry=1, depends_on=["waits", "frees"]),
        step(live, "plain", lambda ctx: [ctx.output("waits"), ctx.output("frees")], depends_on=["fails"]),
    )
    live.worker(definition)
    workflow_id = live.start(definition)
    live.wait_ended(workflow_id)

    assert live.output(workflow_id) == ["waited", "freed"]
    assert live.ledger.count("fails") == 2
    assert live.step(workflow_id, "fails").error.kind == "panic"


@pytest.mark.req("act-timeout-cancel-wait", "act-timeout-no-immediate")
def test_an_async_activity_is_cancelled_at_its_next_await_and_its_end_waited_for(live: LiveRig) -> None:
    order: list[str] = []

    async def activity(ctx: Context) -> str:
        order.append(f"begun {ctx.attempt}")
        if ctx.attempt == 2:
            return "second"
        try:
            await asyncio.sleep(60)
        finally:
            order.append("cancelled")
            await asyncio.sleep(0.3)  # time enough for the next attempt, if nobody waited for this one
            order.append("ended 1")
        return "first"

    definition = flow(live, step(live, "a", activity, timeout=seconds(1), max_retry=1))
    live.worker(definition)
    began_ms = live.clock.boot_ms()
    workflow_id = live.start(definition)
    live.wait_ended(workflow_id)

    assert live.output(workflow_id) == "second"
    assert order == ["begun 1", "cancelled", "ended 1", "begun 2"]
    assert live.ledger.of("a")[1].begin_ms - began_ms >= 1_300, "and not before its time was up"
    assert live.step(workflow_id, "a").errors[0].kind == "timeout"


@pytest.mark.req("b-40")
def test_a_coroutine_that_never_yields_can_not_hide_its_timeout_and_the_loop_is_seen_to_be_silent(
    live: LiveRig,
) -> None:
    """The timeout comes from another thread; the loop is watched from outside."""
    gate = live.gate()

    async def blocks(ctx: Context) -> bool:
        return gate.wait(60)

    definition = flow(live, step(live, "a", blocks, timeout=seconds(0.2)))
    worker = live.worker(definition, stuck_grace_ms=300)
    workflow_id = live.start(definition)

    wait_until(lambda: worker.stuck, "the stuck activity is noticed")
    wait_until(lambda: worker.engine.event_loop.silent_ms() > 500, "the silence of the loop is measured")
    gate.set()
    live.wait_ended(workflow_id)

    assert live.step(workflow_id, "a").error.kind == "timeout"
    wait_until(lambda: worker.engine.event_loop.silent_ms() == 0, "the loop is well again")


@pytest.mark.req("act-detach-lease-loss")
def test_an_async_activity_ends_when_its_claim_is_lost(live: LiveRig) -> None:
    ended: list[str] = []

    async def activity(ctx: Context) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(str(ctx.cancel.reason))
        return "late"

    definition = flow(live, step(live, "a", activity))
    worker = live.worker(definition)
    workflow_id = live.start(definition)
    wait_until(lambda: live.ledger.count("a"), "the activity has begun")
    live.client.supersede(workflow_id)

    wait_until(lambda: ended, "the activity has ended", timeout=20)
    wait_until(lambda: worker.busy == 0, "the slot is free")

    assert ended == ["claim_lost"]
    assert live.status(workflow_id) == "canceled"
