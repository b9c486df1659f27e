"""The heartbeat of a claim, and the fence that ends the right to act when the heartbeat fails (groups 10 and 12)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kernel.context import Context
from kernel.errors import ClaimLost
from tests.engine.flows import flow, gives, raises, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import LiveRig, RigWorker, SteppedRig
from tests.support.wait import stays, wait_until

LEASE_MS = 1_500
RENEW_MS = 500
FENCE_MS = 1_250
BRIEF: dict[str, Any] = {"lease_ms": 4_000, "fence_ms": 3_700}
"""For threads on the machine's clock: short enough to run out in the test, and so long that a heartbeat of every half
second may come three seconds late. `LONG_S` is longer."""
LONG_S = 4.5


def gaps(worker: RigWorker) -> list[int]:
    times = worker.store.renewed_at
    return [after - before for before, after in pairwise(times)]


@pytest.mark.req("clm-renew-third", "clm-no-steal", "core-running-is-not-alive", "rec-claim-not-revision")
def test_a_claim_is_renewed_every_third_of_its_lease_and_never_stolen(rig: SteppedRig) -> None:
    """An activity of ten leases, while another worker looks for work all the time."""
    revisions = set()

    def long(ctx: Context) -> int:
        for _ in range(10 * LEASE_MS // 100):
            rig.advance(100)
            rig.pass_once(other)
            revisions.add(rig.row(ctx.workflow_id)["revision"])
            assert rig.row(ctx.workflow_id)["claimable_time"] > rig.clock.wall_ms()
        return ctx.attempt

    definition = flow(rig, step(rig, "long", long))
    worker = rig.worker(definition)
    other = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.output(workflow_id) == 1
    assert set(gaps(worker)) == {RENEW_MS}
    assert len(worker.store.renewed_at) >= 10 * LEASE_MS // RENEW_MS - 1
    assert len(revisions) == 1
    assert len(rig.recorder.of("claim.taken")) == 1


@pytest.mark.req("clm-no-steal", "clm-renew-third")
@pytest.mark.case("A02", "A05")
def test_an_activity_that_burns_the_processor_beyond_its_lease_keeps_its_claim(live: LiveRig) -> None:
    """The renewal thread has to get its turn beside pure Python that never waits."""

    def burn(ctx: Context) -> int:
        end_ms = live.clock.boot_ms() + round(LONG_S * 1000)
        number = 0
        while live.clock.boot_ms() < end_ms:
            number = (number * 31 + 7) % 1_000_003
        return ctx.attempt

    definition = flow(live, step(live, "burn", burn))
    workers = [live.worker(definition, **BRIEF) for _ in range(2)]
    workflow_id = live.start(definition)

    live.wait_ended(workflow_id, timeout=30)

    assert live.output(workflow_id) == 1
    assert live.ledger.count("burn") == 1
    assert sum(len(worker.store.renewed_at) for worker in workers) >= 2
    assert live.recorder.of("claim.lost") == []


@pytest.mark.req("clm-no-steal", "clm-renew-detached")
def test_a_queue_that_hangs_costs_no_lease(live: LiveRig) -> None:
    """Renewal touches the store only: the scheduler of this process is stuck in the queue meanwhile (M16)."""
    gate, hung = live.gate(), live.gate()

    def hang() -> None:
        if "running" in rows():
            hung.set()
            gate.wait(60)

    def rows() -> list[str]:
        return [live.step(workflow_id, "long").status]

    definition = flow(live, step(live, "long", lambda ctx: ctx.cancel.wait(LONG_S) or ctx.attempt))
    workflow_id = live.start(definition)
    live.queue.hang = hang
    worker = live.worker(definition, **BRIEF)
    other = live.worker(definition, **BRIEF)

    wait_until(hung.is_set, "the queue hangs")
    live.wait_ended(workflow_id, timeout=30)

    assert live.output(workflow_id) == 1
    assert len(worker.store.renewed_at) + len(other.store.renewed_at) >= 2


@pytest.mark.req("clm-renew-cond", "act-detach-lease-loss", "clm-lost-error")
def test_when_the_token_in_the_row_changes_the_heartbeat_ends_and_the_activity_is_told(rig: SteppedRig) -> None:
    seen: dict[str, Any] = {}

    def activity(ctx: Context) -> str:
        set_fields(rig, ctx.workflow_id, claim_token="another's")
        began_ms = rig.clock.boot_ms()
        while not ctx.cancelled:
            rig.advance(50)
        seen["after_ms"] = rig.clock.boot_ms() - began_ms
        seen["reason"] = ctx.cancel.reason
        for name in ("check", "effect_key", "ports"):
            with pytest.raises(ClaimLost):
                use(ctx, name)
        rig.advance(10 * LEASE_MS)
        return "late"

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert seen["after_ms"] <= LEASE_MS / 3 + 50
    assert seen["reason"] == "claim_lost"
    assert len(worker.store.renewed_at) == 1
    assert (rig.step(workflow_id, "a").status, worker.busy) == ("running", 0)
    assert [event["code"] for event in rig.recorder.of("claim.lost")] == ["claim_lost"]


def use(ctx: Context, name: str) -> None:
    """Ask for what leads to an effect."""
    value = getattr(ctx, name)
    if callable(value):
        value()


@pytest.mark.req("clm-renew-stop")
@pytest.mark.parametrize("activity", [gives(1), raises(ValueError("no"))])
def test_after_the_end_of_a_claim_nothing_is_renewed(rig: SteppedRig, activity: Any) -> None:
    worker = rig.worker(definition := flow(rig, step(rig, "a", activity)))
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    rig.advance(10 * LEASE_MS)

    assert worker.store.renewed_at == []
    assert worker.held == []
    assert worker.renewals.pass_once() == 0


@pytest.mark.req("clm-renew-stop")
def test_the_heartbeat_thread_of_a_worker_ends_with_it(live: LiveRig) -> None:
    definition = flow(live, "a")
    worker = live.worker(definition)
    live.wait_ended(live.start(definition))
    assert "renewals" in live.base_runner.alive()

    worker.loop.drain()
    wait_until(worker.loop.done.is_set, "the end of the worker")

    wait_until(lambda: not live.base_runner.alive(), "the end of all its threads")
    stays(lambda: not live.base_runner.alive(), "no thread comes back", 0.3)


@pytest.mark.req("clm-renew-detached", "act-timeout-cancel-wait")
def test_the_timeout_of_an_activity_does_not_stop_the_renewal_of_its_claim(rig: SteppedRig) -> None:
    """It ignores its cancellation for five leases: nobody else enters, and the process is told that it is stuck."""
    others: list[int] = []

    def deaf(ctx: Context) -> str:
        for _ in range(5 * LEASE_MS // 100):
            rig.advance(100)
            rig.pass_once(other)
            others.append(rig.ledger.count("deaf"))
        return "late"

    definition = flow(rig, step(rig, "deaf", deaf, timeout=seconds(1)))
    worker = rig.worker(definition, stuck_grace_ms=3_000)
    other = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert set(others) == {1}
    assert len(worker.store.renewed_at) >= 5 * LEASE_MS // RENEW_MS - 1
    assert worker.stuck == ["step deaf went on for 3000 ms after its timeout"]
    assert rig.status(workflow_id) == "failed"
    assert rig.step(workflow_id, "deaf").error.kind == "timeout"
