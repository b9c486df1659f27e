"""A place is held while the call runs, whatever happens to the call, the claim or the worker (group 18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.directives import Sleep, Yield
from kernel.errors import CoordinationRejected, CoordinationUnavailable, NonRetryable, WorkflowCanceled
from kernel.permit_words import Owner, Permit
from tests.engine.flows import flow, gives, raises, seconds, step
from tests.engine.occupied import Occupied
from tests.engine.test_claims import set_fields
from tests.engine.test_permits import asked, waits
from tests.support.engine_rig import LiveRig, RigWorker, SteppedRig
from tests.support.wait import wait_until

LONG_LEASE_MS = 600_000


def holding(rig: SteppedRig, wait_s: float, seen: list[int] | None = None) -> Callable[[Context], Any]:
    """An activity that takes time, and notes how many places are in use at its end."""

    def activity(ctx: Context) -> str:
        rig.base_runner.event().wait(wait_s)
        if seen is not None:
            seen.append(len(rig.permits.owners("printer")))
        return "printed"

    return activity


def permits(worker: RigWorker) -> Any:
    return worker.engine.services.permits


@pytest.mark.req("prm-lease")
def test_a_call_of_many_leases_keeps_its_place(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1)
    seen: list[int] = []
    worker = rig.worker(definition := flow(rig, step(rig, "a", holding(rig, 15, seen), resource="printer")))

    rig.finish(rig.start(definition))

    assert 10 * rig.settings.permit_lease_ms <= 15_000
    assert seen == [1]
    assert permits(worker).counters["permit_lost"] == 0
    assert permits(worker).holds == 0


def beside_each_other(rig: SteppedRig, inner: Callable[[Context], Any]) -> tuple[RigWorker, str, str]:
    """Two calls in one worker, that of the second workflow while the first one's goes on; both have places."""
    rig.limits |= {name: Limit(max_concurrency=1) for name in ("scanner", "printer")}

    def outer(ctx: Context) -> str:
        rig.pass_once(worker)
        return "scanned"

    scans = flow(rig, step(rig, "a", outer, resource="scanner"), type="scans")
    prints = flow(rig, step(rig, "a", inner, resource="printer"), type="prints")
    worker = rig.worker(scans, prints, slots=2)
    first = rig.start(scans, "first")
    worker.loop.pass_once()
    second = rig.start(prints, "second")
    return worker, first, second


@pytest.mark.req("prm-lease", "prm-renew-script")
def test_a_spoilt_resource_costs_no_other_resource_its_places(rig: SteppedRig) -> None:
    """Whatever somebody has written into a key of the scanner: the printer's place is kept while its call runs."""
    seen: list[tuple[int, int]] = []
    renew = rig.permits.renew

    def renewed(held: Sequence[Permit]) -> Any:
        if any(permit.resource == "scanner" for permit in held):
            raise CoordinationRejected("WRONGTYPE: the key holds what no kernel wrote")
        return renew(held)

    def inner(ctx: Context) -> str:
        rig.permits.renew = renewed  # type: ignore[method-assign]
        rig.base_runner.event().wait(10 * rig.settings.permit_lease_ms / 1000)
        seen.append((len(rig.permits.owners("scanner")), len(rig.permits.owners("printer"))))
        return "printed"

    worker, *ids = beside_each_other(rig, inner)
    rig.finish(*ids)

    assert seen == [(0, 1)]
    assert permits(worker).counters["permit_lost"] == 0


@pytest.mark.req("prm-lease")
def test_a_redis_that_is_away_is_asked_once_for_all_places(rig: SteppedRig) -> None:
    """Each question may cost a timeout, and the places of the others could lapse meanwhile."""
    asked_for: list[list[str]] = []
    renew = rig.permits.renew

    def away(held: Sequence[Permit]) -> Any:
        asked_for.append([permit.resource for permit in held])
        raise CoordinationUnavailable("the permits are away")

    def inner(ctx: Context) -> str:
        rig.permits.renew = away  # type: ignore[method-assign]
        assert permits(worker).pass_once() == 2
        rig.permits.renew = renew  # type: ignore[method-assign]
        return "printed"

    worker, *ids = beside_each_other(rig, inner)
    rig.finish(*ids)

    assert len(asked_for) == 1


def ends(rig: SteppedRig) -> dict[str, Callable[[Context], Any]]:
    """Every way in which an invocation may end."""

    def leaves(value: Any) -> Callable[[Context], Any]:
        return lambda ctx: "done" if ctx.attempt > 1 or ctx.resume or ctx.checkpoint() else value

    def late(ctx: Context) -> str:
        rig.base_runner.event().wait(2)
        return "late"

    def supersedes(ctx: Context) -> str:
        rig.client.supersede(ctx.workflow_id)
        return "canceled meanwhile"

    return {
        "return": gives("done"),
        "error": raises(ValueError("no")),
        "panic": raises(SystemExit(3)),  # type: ignore[arg-type]
        "declined": raises(NonRetryable("no")),
        "cancel": raises(WorkflowCanceled("no")),
        "sleep": leaves(Sleep(seconds(1), "slept")),
        "yield": leaves(Yield("page 2")),
        "too large": gives(b"x" * 2**20),
        "timeout": late,
        "superseded": supersedes,
    }


@pytest.mark.parametrize(
    "way",
    ["return", "error", "panic", "declined", "cancel", "sleep", "yield", "too large", "timeout", "superseded"],
)
@pytest.mark.req("prm-release", "can-wait-released", "slp-frees")
def test_the_place_is_given_back_however_the_invocation_ends(rig: SteppedRig, way: str) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1)
    activity = ends(rig)[way]
    timeout = {"timeout": seconds(1)} if way == "timeout" else {}
    worker = rig.worker(definition := flow(rig, step(rig, "a", activity, resource="printer", **timeout)))
    workflow_id = rig.start(definition)

    rig.run(lambda: rig.ledger.count("a") >= 1 and worker.busy == 0, "the invocation ended")
    assert rig.permits.owners("printer") == []
    rig.finish(workflow_id)

    assert rig.permits.owners("printer") == []
    assert asked(rig, "release") == asked(rig) == rig.ledger.count("a")
    assert permits(worker).holds == 0


def test_a_fenced_call_keeps_its_place_until_it_returns(rig: SteppedRig) -> None:
    """It goes on downstream, whatever became of the right to commit."""
    rig.limits["printer"] = Limit(max_concurrency=1)
    seen: list[int] = []
    worker = rig.worker(definition := flow(rig, step(rig, "a", holding(rig, 5, seen), resource="printer")))
    worker.store.renewals_fail = "unavailable"
    rig.start(definition)

    rig.run(lambda: bool(seen), "the call returns")

    assert seen == [1]
    assert rig.recorder.names().count("claim.lost") == 1
    assert rig.permits.owners("printer") == []


@pytest.mark.crash("22")
@pytest.mark.req("prm-new-claim-new-owner", "prm-expiry", "prm-release-owner-only")
def test_who_takes_over_is_another_owner_and_needs_a_free_place(make_rig: Callable[..., SteppedRig]) -> None:
    """Killed between grant and call: the place is nobody's until its lease ends, and one place is taken, not two."""
    rig = make_rig(permit_lease_ms=10_000)
    rig.limits["printer"] = Limit(max_concurrency=1)
    dead = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    dead.store.fail_once("begin_step", "kill_before")
    workflow_id = rig.start(definition)
    rig.pass_once(dead)
    assert dead.dead
    (old,) = rig.permits.owners("printer")
    granted_ms = rig.clock.wall_ms()

    rig.worker(definition)
    rig.run(lambda: bool(rig.permits.refusals), "the next owner is refused")
    assert rig.permits.owners("printer") == [old]
    assert rig.clock.wall_ms() - granted_ms < 10_000, "the claim's lease ended before that of the place"
    rig.permits.release("printer", [Owner(old[0], old[1], "another-token")], Limit(1))
    assert rig.permits.owners("printer") == [old], "only its owner frees it"

    rig.finish(workflow_id)
    assert rig.ledger.of("a")[0].begin_ms >= 1_000_000 + 10_000 or rig.clock.wall_ms() - granted_ms >= 10_000
    assert rig.ledger.count("a") == 1
    assert rig.permits.most["printer"] == 1


@pytest.mark.crash("25")
@pytest.mark.req("prm-release-owner-only", "prm-expiry", "fin-failure-must-write")
def test_a_release_that_fails_delays_nothing_and_is_made_again(make_rig: Callable[..., SteppedRig]) -> None:
    rig = make_rig(permit_lease_ms=LONG_LEASE_MS)
    rig.limits["printer"] = Limit(max_concurrency=1)

    def fails(ctx: Context) -> None:
        rig.permits.down = True
        raise ValueError("no")

    definition = flow(
        rig, step(rig, "a", fails, resource="printer"), failure_finalizer=rig.ledger(lambda ctx: None), type="fails"
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)

    rig.finish(workflow_id)
    assert rig.status(workflow_id) == "failed", "the failure is written all the same"
    assert len(rig.permits.owners("printer")) == 1
    assert permits(worker).holds == 1

    rig.permits.down = False
    permits(worker).pass_once()
    assert rig.permits.owners("printer") == []
    assert permits(worker).holds == 0


@pytest.mark.req("prm-fail-closed", "prm-idempotent")
def test_a_grant_whose_answer_is_lost_is_a_refusal_and_keeps_no_place(make_rig: Callable[..., SteppedRig]) -> None:
    rig = make_rig(permit_lease_ms=LONG_LEASE_MS)
    rig.limits["printer"] = Limit(max_concurrency=1)
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    rig.permits.loses_replies = True
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)
    assert len(rig.permits.owners("printer")) == 1, "granted, and nobody heard of it"
    assert rig.ledger.entries == []

    rig.permits.loses_replies = False
    permits(worker).pass_once()
    assert rig.permits.owners("printer") == []
    rig.finish(workflow_id)
    assert rig.step(workflow_id, "a").attempt == 1
    assert rig.permits.most["printer"] == 1


@pytest.mark.crash("24")
@pytest.mark.req("prm-lost-during-run", "obs-claims-visible")
def test_a_place_that_was_lost_is_counted_once_and_the_call_goes_on(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1)

    def activity(ctx: Context) -> str:
        model = rig.permits.of("printer")
        model.holders.clear()  # as after a pause of this process for longer than the lease
        model.holders["other", "a", "t"] = (10**15, 0)
        rig.base_runner.event().wait(4)
        return "printed"

    worker = rig.worker(definition := flow(rig, step(rig, "a", activity, resource="printer")))
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    assert permits(worker).counters["permit_lost"] == 1
    assert [event["workflow_id"] for event in rig.recorder.of("permit.lost")] == [workflow_id]
    assert rig.permits.owners("printer") == [("other", "a", "t")], "the other one's place is left alone"
    status = worker.loop.status()["counters"]
    assert isinstance(status, dict)
    assert (status["permits"], status["permit_lost"]) == (1, 1)


@pytest.mark.req("prm-lost-during-run")
def test_after_a_wipe_a_running_call_is_counted_again(rig: SteppedRig) -> None:
    """DECISIONS 9: put back at the next renewal, under the new epoch, and released like any other."""
    rig.limits["printer"] = Limit(max_concurrency=1)
    after: list[int] = []

    def activity(ctx: Context) -> str:
        rig.advance(10)
        rig.permits.wipe()
        rig.base_runner.event().wait(2)
        after.append(len(rig.permits.owners("printer")))
        rig.base_runner.event().wait(2)
        return "printed"

    worker = rig.worker(definition := flow(rig, step(rig, "a", activity, resource="printer")))
    rig.finish(rig.start(definition))

    assert after == [1]
    assert (permits(worker).counters["permit_restored"], permits(worker).counters["permit_lost"]) == (1, 0)
    assert len(rig.recorder.of("permit.restored")) == 1
    assert rig.permits.owners("printer") == []


@pytest.mark.req("prm-release")
def test_a_proved_death_frees_its_places_at_once(make_rig: Callable[..., SteppedRig]) -> None:
    rig = make_rig(permit_lease_ms=LONG_LEASE_MS)
    rig.limits |= {"printer": Limit(max_concurrency=1), "tenant_work": Limit(max_concurrency=1)}
    definition = flow(rig, step(rig, "a", resource="printer"), resource=lambda data: f"tenant_work:{data}")
    dead = rig.worker(definition, worker_id="dead")
    dead.store.fail_once("begin_step", "kill_after")
    workflow_id = rig.start(definition, input="acme")
    rig.pass_once(dead)
    assert [len(rig.permits.owners(name)) for name in ("printer", "tenant_work:acme")] == [1, 1]

    heir = rig.worker(definition)
    assert heir.sweeps.release_owner("dead", counted=True) == [workflow_id]

    assert [len(rig.permits.owners(name)) for name in ("printer", "tenant_work:acme")] == [0, 0]
    rig.finish(workflow_id)
    assert rig.step(workflow_id, "a").attempt == 2


def test_a_worker_that_is_told_to_stop_between_grant_and_call_gives_the_place_back(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1)
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    worker.store.fault_of = lambda write: worker.loop.drain() if "begin_step" in write.names else None  # type: ignore[func-returns-value]
    workflow_id = rig.start(definition)

    rig.pass_once(worker)

    assert worker.store.names()[-1] == "unbegin"
    assert rig.permits.owners("printer") == []
    assert rig.step(workflow_id, "a").attempt == 0


@pytest.mark.req("prm-vs-max-workers", "prm-two-limits", "prm-global")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_in_flight_never_passes_the_limit_whatever_the_slots(live: LiveRig, workers: int) -> None:
    """20 slots each, concurrency 8: 8 in flight, and all the work is done."""
    live.limits["printer"] = Limit(max_concurrency=8)
    gate = live.gate()
    running: list[int] = []

    def activity(ctx: Context) -> str:
        running.append(1)
        gate.wait(20)
        return "printed"

    definition = flow(live, step(live, "a", activity, resource="printer"))
    for _ in range(workers):
        live.worker(definition, slots=20)
    ids = [live.start(definition, f"k{number}") for number in range(30)]
    wait_until(lambda: len(live.permits.refusals) >= 22 and len(running) >= 8, "eight run, all others were refused")

    assert len(running) == 8
    gate.set()
    live.wait_ended(*ids, timeout=60)

    assert live.permits.most["printer"] == 8
    assert live.ledger.count("a") == 30
    assert max(live.step(key, "a").attempt for key in ids) == 1


@pytest.mark.req("prm-release")
def test_a_suspect_that_waits_for_a_permit_does_not_rest_when_a_place_is_free(rig: SteppedRig) -> None:
    """It is claimed by an empty worker only (DECISIONS detail 4), and by that one before its net's time."""
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)
    set_fields(rig, workflow_id, deaths=2)
    occupied.free()
    freed_ms = rig.clock.wall_ms()

    rig.finish(workflow_id)

    assert rig.clock.wall_ms() - freed_ms <= 10_000
    assert worker.store.names().count("claim_handed_over") == 1


def test_a_handed_place_whose_claim_is_lost_to_another_is_given_back(rig: SteppedRig) -> None:
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)
    occupied.free()
    worker.store.fail_once("claim_handed_over", "unavailable")

    rig.pass_once(worker)
    assert rig.permits.owners("printer") == []
    rig.finish(workflow_id)
    assert rig.permits.owners("printer") == []
