"""The fence: a claim that can not be renewed ends its right to act by its own clock (DECISIONS 7, detail 16)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.context import Context, StepCanceled
from kernel.engine.lease import Renewals
from kernel.errors import Fenced
from tests.engine.flows import flow, seconds, step
from tests.engine.test_renewal import FENCE_MS, LEASE_MS, RENEW_MS, use
from tests.support.engine_rig import LiveRig, SteppedRig
from tests.support.wait import wait_until


@pytest.mark.parametrize("fault", ["unavailable", "lose_reply"])
@pytest.mark.req("act-detach-lease-loss", "clm-late-worker", "shd-late-fenced")
@pytest.mark.case("A12")
def test_when_renewals_fail_no_effect_starts_after_the_fence(rig: SteppedRig, fault: Any) -> None:
    """The cut-off worker stops by its own clock, before another one can take over; an unknown renewal is none."""
    seen: list[tuple[int, str]] = []

    def activity(ctx: Context) -> str:
        if ctx.worker_id == "w2":
            return "by w2"
        worker.store.renewals_fail = fault
        began_ms = rig.clock.boot_ms()
        for _ in range(2 * LEASE_MS // 50):
            rig.advance(50)
            for name in ("effect_key", "ports", "check"):
                try:
                    use(ctx, name)
                except Fenced:
                    seen.append((rig.clock.boot_ms() - began_ms, name))
        seen.append((-1, str(ctx.cancel.reason)))
        return "by w1"

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert min(ms for ms, _ in seen[:-1]) == FENCE_MS
    assert {name for ms, name in seen if ms == FENCE_MS} == {"effect_key", "ports", "check"}
    assert seen[-1] == (-1, "fenced")
    assert worker.store.names()[-1] == "begin_step", "a fenced claim commits nothing"
    assert (worker.busy, worker.held) == (0, [])
    assert [event["code"] for event in rig.recorder.of("claim.lost")] == ["fenced"]
    rig.worker(definition)
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.workers[1])
    assert rig.output(workflow_id) == "by w2"


@pytest.mark.case("A12")
def test_a_fenced_claim_is_never_renewed_again_and_commits_nothing_although_the_store_is_back(rig: SteppedRig) -> None:
    def activity(ctx: Context) -> str:
        worker.store.renewals_fail = "unavailable"
        rig.advance(FENCE_MS)
        worker.store.renewals_fail = None
        asked = len(worker.store.renewed_at)
        rig.advance(10 * LEASE_MS)
        assert len(worker.store.renewed_at) == asked
        return "late"

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.step(workflow_id, "a").status == "running"
    assert worker.busy == 0


@pytest.mark.case("A54")
def test_renewals_that_fail_for_a_while_and_come_back_in_time_cost_nothing(rig: SteppedRig) -> None:
    """The heartbeat survives the store's errors and is tried again before the fence falls."""

    def activity(ctx: Context) -> int:
        for _ in range(5):
            worker.store.renewals_fail = "unavailable"
            rig.advance(FENCE_MS - RENEW_MS - 150)
            worker.store.renewals_fail = None
            rig.advance(RENEW_MS)
            ctx.check()
        return ctx.attempt

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == 1


@pytest.mark.case("A54")
def test_the_heartbeat_thread_survives_every_error(live: LiveRig) -> None:
    """Even one that no store should raise."""
    gate = live.gate()
    definition = flow(live, step(live, "a", lambda ctx: gate.wait(60)))
    worker = live.worker(definition)
    broken = worker.store.inner.apply_all
    failures: list[int] = []

    def fails(transitions: Any) -> Any:
        if transitions[0].name == "renew" and len(failures) < 2:
            failures.append(1)
            raise RuntimeError("a driver's own error")
        return broken(transitions)

    worker.store.inner.apply_all = fails  # type: ignore[method-assign]
    workflow_id = live.start(definition)
    wait_until(lambda: len(failures) == 2 and len(worker.store.renewed_at) >= 4, "renewals go on")
    gate.set()
    live.wait_ended(workflow_id)

    assert live.status(workflow_id) == "completed"
    assert len(live.recorder.of("claim.taken")) == 1


@pytest.mark.case("A12")
def test_the_fence_counts_from_before_the_claim_was_sent(rig: SteppedRig) -> None:
    """The store took the claim a second ago by its own clock, although the answer comes only now."""
    left: list[float] = []

    def slow(call: Any) -> None:
        if call.number == 0:
            rig.clock.advance(1_000)

    def activity(ctx: Context) -> None:
        ctx.check()
        rig.clock.advance(FENCE_MS - 1_000)
        with pytest.raises(Fenced):
            ctx.check()
        left.append(ctx.remaining_s())

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    worker.store.fault_of = slow
    rig.start(definition)
    rig.pass_once(worker)

    assert len(left) == 1


def test_a_fence_that_fell_between_two_steps_lets_no_further_step_start(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", lambda ctx: _jump(rig)), "b")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.ledger.steps() == ["a"]
    assert rig.step(workflow_id, "a").status == "running"


def _jump(rig: SteppedRig) -> None:
    """This process stood still for a lease: no heartbeat was made meanwhile."""
    rig.clock.advance(LEASE_MS)


@pytest.mark.req("clm-late-worker", "act-old-process-commit", "shd-late-fenced")
@pytest.mark.case("A05")
def test_a_worker_that_stood_still_past_its_lease_can_not_overwrite_its_successor(rig: SteppedRig) -> None:
    """As SIGSTOP during an activity: the other one takes over and completes before the first goes on."""

    def activity(ctx: Context) -> str:
        if ctx.worker_id == "w1":
            rig.clock.advance(LEASE_MS + 1)
            rig.run(lambda: rig.ended(ctx.workflow_id), "the end", other)
        return ctx.worker_id

    definition = flow(rig, step(rig, "a", activity), "b")
    first, other = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)

    assert rig.output(workflow_id) == "b"
    assert [entry.worker_id for entry in rig.ledger.entries] == ["w1", "w2", "w2"]
    assert rig.step(workflow_id, "a").attempt == 2
    assert [event["code"] for event in rig.recorder.of("claim.lost")] == ["fenced"]


def test_a_renewal_that_arrives_after_the_fence_changes_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    rig.start(definition)
    worker.loop.pass_once()
    (claim,) = worker.renewals._claims.values()
    rig.clock.advance(FENCE_MS)
    with pytest.raises(Fenced):
        claim.check()

    claim.renewed(rig.clock.boot_ms())

    with pytest.raises(Fenced):
        claim.check()


def test_one_renewal_pass_serves_all_claims_in_one_call(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    for k in range(6):
        rig.start(definition, f"k{k}")
    worker.loop.pass_once()
    assert isinstance(worker.renewals, Renewals)
    rig.clock.advance(RENEW_MS)

    assert worker.renewals.pass_once() == 6
    assert len(worker.store.renewed_at) == 1


def test_a_step_that_asks_after_its_timeout_whether_it_may_go_on_is_told_no(rig: SteppedRig) -> None:
    reasons: list[str] = []

    def activity(ctx: Context) -> None:
        rig.advance(2_000)
        try:
            ctx.check()
        except StepCanceled as error:
            reasons.append(str(error))
            raise

    definition = flow(rig, step(rig, "a", activity, timeout=seconds(1)))
    workflow_id = rig.drive(definition)

    assert reasons == ["step a: timeout"]
    assert rig.step(workflow_id, "a").error.code == "step_timeout"


def test_a_fence_that_fell_between_begin_and_entry_lets_the_activity_not_start(rig: SteppedRig) -> None:
    """It is checked at the entry, too: the commit of the beginning took long."""

    def slow(call: Any) -> None:
        if call.names == ("begin_step",):
            rig.clock.advance(FENCE_MS)

    definition = flow(rig, "a")
    worker = rig.worker(definition)
    worker.store.fault_of = slow
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.ledger.entries == []
    assert rig.step(workflow_id, "a").status == "running"
    assert worker.busy == 0


def test_the_answer_of_an_older_renewal_does_not_move_the_fence_back(rig: SteppedRig) -> None:
    worker = rig.worker(definition := flow(rig, "a"))
    rig.start(definition)
    worker.loop.pass_once()
    (claim,) = worker.renewals._claims.values()
    rig.clock.advance(1_000)
    now_ms = rig.clock.boot_ms()
    claim.renewed(now_ms)
    claim.renewed(now_ms - 400)

    assert claim.fenced_at_ms == now_ms + FENCE_MS


@pytest.mark.case("A54", "A12")
def test_a_fenced_worker_gives_its_claim_back_when_its_activity_has_returned(rig: SteppedRig) -> None:
    """Nothing runs under the claim and the worker lives: nobody waits for the lease, and no death is counted."""
    entered: list[int] = []

    def activity(ctx: Context) -> str:
        entered.append(rig.clock.wall_ms())
        if len(entered) == 1:
            rig.clock.advance(FENCE_MS + 1)
        return "done"

    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "completed"
    assert len(entered) == 2
    assert entered[1] - entered[0] < rig.settings.lease_ms, "long before the lease would have ended"
    row = rig.row(workflow_id)
    assert row["deaths"] == 0
    assert row["steps"][0]["attempt"] == 2


def test_a_claim_that_another_has_taken_is_not_given_back(rig: SteppedRig) -> None:
    def activity(ctx: Context) -> str:
        if ctx.worker_id == "w1":
            rig.clock.advance(rig.settings.lease_ms + 1)
            rig.pass_once(other)
        return f"by {ctx.worker_id}"

    definition = flow(rig, step(rig, "a", activity), "b")
    worker = rig.worker(definition)
    other = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    before = rig.row(workflow_id)
    rig.pass_once(worker)

    assert rig.status(workflow_id) == "completed"
    assert rig.row(workflow_id) == before
    assert rig.row(workflow_id)["steps"][0]["worker_id"] == "w2"
