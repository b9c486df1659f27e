"""A step that declares a resource asks for a permit before it is begun, and waits without failing (group 18)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.directives import Sleep
from kernel.errors import InvalidConfig
from kernel.limits import Limits, change_limit
from kernel.records import Instance
from kernel.store.conditional import Insert
from kernel.store.tables import LIMITS
from tests.engine.flows import fails_first, flow, gives, seconds, step
from tests.engine.occupied import Occupied
from tests.support.engine_rig import SteppedRig


def waits(rig: SteppedRig, workflow_id: str) -> Instance:
    """Let the workers go on until the workflow rests before a permit; the row then."""

    def rests() -> bool:
        instance = rig.instance(workflow_id)
        return instance.permit_wait is not None and instance.claim_token is None

    rig.run(rests, f"{workflow_id} waits for a permit")
    return rig.instance(workflow_id)


def asked(rig: SteppedRig, what: str = "acquire") -> int:
    return sum(name == what for name, _ in rig.permits.calls)


@pytest.mark.req("prm-place", "core-declared-checks-only")
def test_a_step_without_a_resource_asks_nobody_and_runs_while_every_place_is_taken(rig: SteppedRig) -> None:
    Occupied(rig, "printer")
    definition = flow(rig, "a", step(rig, "b", resource="printer"))
    rig.worker(definition, flow(rig, "alone", type="plain"))
    plain = rig.start(flow(rig, "alone", type="plain"), "plain")

    rig.finish(plain)
    assert asked(rig) == 0

    waiting = rig.start(definition, "k")
    waits(rig, waiting)
    assert [rig.ledger.count("a"), rig.ledger.count("b")] == [1, 0]
    assert asked(rig) >= 1


@pytest.mark.req("prm-refused", "prm-retry-delay", "stp-attempt-only-entered", "clm-stop-reasons")
def test_refused_the_step_rests_pending_with_its_wait_and_nothing_else(rig: SteppedRig) -> None:
    Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    workflow_id = rig.start(definition)
    before_ms = rig.clock.wall_ms()

    row = waits(rig, workflow_id)

    (step_a,) = row.steps
    assert (row.status, step_a.status, step_a.attempt, step_a.failures, step_a.error) == (
        "running",
        "pending",
        0,
        0,
        None,
    )
    assert (step_a.traffic_wait_count, step_a.traffic_since_time) == (1, before_ms)
    assert row.permit_wait is not None
    assert (row.permit_wait.resource, row.permit_wait.step) == ("printer", "a")
    assert (row.claim_token, row.worker_id, row.claim_time) == (None, None, None)
    hint_ms = rig.permits.refusals[0].ask_again_ms
    assert hint_ms == rig.settings.permit_wait_ms
    assert row.claimable_time is not None
    assert hint_ms <= row.claimable_time - before_ms < hint_ms + 10_000
    assert step_a.due_time == row.claimable_time
    assert rig.ledger.entries == []


@pytest.mark.crash("23")
@pytest.mark.req("prm-before-attempt", "stp-order")
def test_a_refusal_is_one_question_and_one_write(rig: SteppedRig) -> None:
    Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    rig.pass_once(worker)  # its first look at the lanes
    waits(rig, rig.start(definition))

    assert worker.store.names() == ["claim", "defer_for_permit"]
    calls = [what for what, _ in rig.permits.calls if what != "sweep"]
    assert calls == ["acquire", "deferred"]


@pytest.mark.req("stp-order", "prm-release")
def test_the_order_of_a_granted_invocation(rig: SteppedRig) -> None:
    """Ready, permit, running, invoke, release, outcome; the place is in use while the activity runs, no longer."""
    rig.limits["printer"] = Limit(max_concurrency=1)
    order: list[str] = []

    def activity(ctx: Context) -> str:
        order.append(f"invoke, {len(rig.permits.owners('printer'))} in use")
        return "printed"

    worker = rig.worker(definition := flow(rig, step(rig, "a", activity, resource="printer")))
    rig.pass_once(worker)  # its first look at the lanes
    worker.store.fault_of = lambda write: order.extend(write.names)  # type: ignore[func-returns-value]
    acquire, release = rig.permits.acquire, rig.permits.release

    def noted(what: str, call: Any) -> Any:
        def wrapper(*args: Any, **named: Any) -> Any:
            order.append(what)
            return call(*args, **named)

        return wrapper

    rig.permits.acquire = noted("acquire", acquire)  # type: ignore[method-assign]
    rig.permits.release = noted("release", release)  # type: ignore[method-assign]

    rig.finish(rig.start(definition))

    assert order == ["claim", "acquire", "begin_step", "invoke, 1 in use", "release", "complete_step"]


@pytest.mark.req("id-permit-owner", "prm-unique-owner-parts")
def test_the_owner_is_workflow_step_and_claim(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=9)
    owners: list[tuple[str, str, str]] = []
    tokens: list[str] = []

    def activity(ctx: Context) -> str:
        owners.extend(rig.permits.owners("printer"))
        tokens.append(str(rig.row(ctx.workflow_id)["claim_token"]))
        return "printed"

    steps = [step(rig, name, activity, resource="printer") for name in ("a", "b")]
    rig.worker(definition := flow(rig, *steps))
    ids = [rig.start(definition, "k1"), rig.start(definition, "k2")]
    rig.finish(*ids)

    assert {owner[:2] for owner in owners} == {(key, name) for key in ids for name in ("a", "b")}
    assert [owner[2] for owner in owners] == tokens
    assert len(set(owners)) == 4


@pytest.mark.req("stp-wait-vs-fail", "prm-traffic-ms", "lat-fields")
def test_waiting_and_failing_leave_different_traces(rig: SteppedRig) -> None:
    """3 s without a permit and 1 s of work; and a call that raises once and works for 1 s."""
    occupied = Occupied(rig, "printer")
    works = step(rig, "a", lambda ctx: rig.base_runner.event().wait(1), resource="printer")
    failing = fails_first(1)

    def fails_once(ctx: Context) -> Any:
        failing(ctx)
        return rig.base_runner.event().wait(1)

    waiter = flow(rig, works, type="waiter")
    failer = flow(rig, step(rig, "a", fails_once, max_retry=1), type="failer")
    rig.worker(waiter, failer)
    waiting, raising = rig.start(waiter, "w"), rig.start(failer, "f")
    waits(rig, waiting)
    rig.finish(raising)
    rig.advance(3_000 + int(rig.instance(waiting).permit_wait.since_time) - rig.clock.wall_ms())  # type: ignore[union-attr]

    occupied.free()
    rig.finish(waiting)

    waited, raised = rig.step(waiting, "a"), rig.step(raising, "a")
    assert (waited.attempt, waited.failures, waited.error, waited.traffic_wait_count) == (1, 0, None, 1)
    assert (raised.attempt, raised.failures, raised.traffic_wait_count, raised.traffic_wait_ms) == (2, 1, 0, 0)
    assert [error.type for error in raised.errors] == ["ValueError"]
    assert 3_000 <= waited.traffic_wait_ms <= 3_300
    assert waited.elapsed_ms == raised.elapsed_ms == 1_000
    assert waited.traffic_since_time is None
    assert rig.instance(waiting).permit_wait is None


@pytest.mark.req("prm-no-retry-burn", "prm-retry-delay")
def test_a_thousand_refusals_are_no_failure(rig: SteppedRig) -> None:
    occupied = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=1)
    workflow_id = rig.start(definition)

    rig.run(lambda: rig.step(workflow_id, "a").traffic_wait_count >= 30, "30 refusals")
    for _ in range(970):  # the others at once: how long each wait is was seen
        rig.permits.refusals.clear()
        rig.advance(max(0, rig.row(workflow_id)["claimable_time"] - rig.clock.wall_ms()))
        rig.run(lambda: bool(rig.permits.refusals) and "claim_token" not in rig.row(workflow_id), "a refusal")

    row = rig.instance(workflow_id)
    assert row.steps[0].traffic_wait_count >= 1_000
    assert (row.status, row.steps[0].status, row.steps[0].attempt, row.steps[0].failures) == (
        "running",
        "pending",
        0,
        0,
    )
    assert row.permit_wait is not None
    assert row.permit_wait.since_time == row.created_time, "since the first refusal"
    assert row.claimable_time is not None
    assert row.claimable_time - rig.clock.wall_ms() <= 600_000 + 5_000, "nobody rests for longer"

    occupied.free()
    rig.finish(workflow_id)
    assert rig.step(workflow_id, "a").attempt == 1


@pytest.mark.req("prm-fail-closed", "core-declared-checks-only")
def test_without_redis_a_step_with_a_limit_waits_and_the_others_go_on(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(8, 2)
    limited = flow(rig, "before", step(rig, "printed", resource="printer"), type="limited")
    plain = flow(rig, "plain", type="plain")
    worker = rig.worker(limited, plain)
    rig.queue.down = rig.permits.down = True
    waiting, going = rig.start(limited, "l"), rig.start(plain, "p")

    rig.finish(going)
    row = waits(rig, waiting)
    rig.run(lambda: rig.step(waiting, "printed").traffic_wait_count >= 5, "asked again and again")

    assert rig.ledger.count("printed") == 0
    assert (row.steps[1].status, row.steps[1].attempt) == ("pending", 0)
    said = rig.recorder.of("permit.unavailable")
    assert [event["resource"] for event in said] == ["printer"], "said once"
    assert worker.engine.services.permits.away

    rig.queue.down = rig.permits.down = False
    back_ms = rig.clock.wall_ms()
    rig.finish(waiting)
    assert rig.step(waiting, "printed").attempt == 1
    assert rig.clock.wall_ms() - back_ms <= 2 * rig.settings.scan_ms
    assert not worker.engine.services.permits.away


@pytest.mark.req("prm-fail-closed-unlimited", "prm-zero")
def test_what_is_known_to_be_unlimited_needs_no_redis(rig: SteppedRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.limits["printer"] = Limit()
    known, unknown = step(rig, "a", resource="printer"), step(rig, "b", resource="scanner")
    rig.worker(definition := flow(rig, known, unknown))
    rig.queue.down = rig.permits.down = True

    rig.finish(*(rig.start(definition, f"k{number}") for number in range(3)))

    assert rig.ledger.count("b") == 3
    told = [line for line in caplog.messages if "has no limit" in line]
    assert len(told) == 1, "of the one that nobody declares, once"
    assert "scanner" in told[0]
    assert rig.permits.calls == []


def test_a_limit_that_can_not_be_read_stops_its_own_steps_only(rig: SteppedRig) -> None:
    rig.store.insert(Insert("by hand", LIMITS, "printer", {"v": 9, "resource": "printer"}))
    rig.limits["printer"] = rig.limits["scanner"] = Limit(1)
    definitions = [flow(rig, step(rig, name, resource=name), type=name) for name in ("printer", "scanner")]
    rig.worker(*definitions)
    blocked, free = (rig.start(definition, definition.type) for definition in definitions)

    rig.finish(free)
    rig.run(lambda: rig.step(blocked, "printer").traffic_wait_count >= 3, "it asks again")

    assert rig.ledger.count("printer") == 0
    assert "layout version 9" in str(rig.recorder.of("permit.unavailable")[0]["error"])


@pytest.mark.req("prm-config-each", "prm-lower", "prm-raise", "prm-pause")
def test_what_an_operator_sets_holds_for_the_next_question(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=8)
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    change_limit(rig.store, "printer", paused=True)
    paused = rig.start(definition, "k1")
    waits(rig, paused)
    assert [refusal.reason for refusal in rig.permits.refusals] == ["paused"]

    change_limit(rig.store, "printer", paused=False)
    resumed_ms = rig.clock.wall_ms()
    rig.finish(paused)  # by the sweep of this very worker: nobody else knows of it
    assert rig.clock.wall_ms() - resumed_ms <= 3 * rig.settings.scan_ms

    strangers = Occupied(rig, "printer", 2)
    change_limit(rig.store, "printer", max_concurrency=2)
    rig.advance(1_001)
    lowered = rig.start(definition, "k2")
    waits(rig, lowered)
    change_limit(rig.store, "printer", max_concurrency=3)
    rig.finish(lowered)
    assert strangers.limit.max_concurrency == 2


def test_a_limit_that_is_none_is_refused_when_it_is_declared(rig: SteppedRig) -> None:
    with pytest.raises(InvalidConfig, match=r"limits: printer: max_concurrency: .* not -1"):
        Limits(rig.store, rig.clock, {"printer": Limit(max_concurrency=-1)})


@pytest.mark.req("slp-frees", "asr-permit-poll")
def test_every_invocation_has_a_place_of_its_own_and_a_sleeping_step_has_none(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1)

    def submit_and_poll(ctx: Context) -> Any:
        assert len(rig.permits.owners("printer")) == 1
        return "printed" if ctx.checkpoint() == 2 else Sleep(seconds(5), (ctx.checkpoint() or 0) + 1)

    rig.worker(definition := flow(rig, step(rig, "a", submit_and_poll, resource="printer")))
    workflow_id = rig.start(definition)

    rig.run(lambda: rig.status(workflow_id) == "waiting", "it sleeps")
    assert rig.permits.owners("printer") == []
    rig.finish(workflow_id)

    assert rig.ledger.count("a") == 3
    assert [asked(rig), asked(rig, "release")] == [3, 3]
    assert rig.permits.owners("printer") == []


@pytest.mark.req("prm-refused")
def test_a_refused_step_of_a_wave_holds_up_no_other(rig: SteppedRig) -> None:
    """The siblings run and are followed by what depends on them; then the claim rests for the refused one alone."""
    occupied = Occupied(rig, "printer")
    steps = [
        step(rig, "root", depends_on=[]),
        step(rig, "printed", depends_on=["root"], resource="printer"),
        step(rig, "beside", depends_on=["root"]),
        step(rig, "after", depends_on=["beside"]),
        step(rig, "last", depends_on=["printed", "after"]),
    ]
    rig.worker(definition := flow(rig, *steps))
    workflow_id = rig.start(definition)

    row = waits(rig, workflow_id)
    assert [(s.name, s.status) for s in row.steps] == [
        ("root", "completed"), ("printed", "pending"), ("beside", "completed"), ("after", "completed"),
        ("last", "pending"),
    ]  # fmt: skip

    occupied.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert rig.ledger.steps().count("printed") == 1


@pytest.mark.req("prm-refused", "prm-traffic-ms")
def test_two_steps_of_a_workflow_wait_for_two_resources(rig: SteppedRig) -> None:
    """The row names one of them; a place for either wakes it, and each has its own wait."""
    first, second = Occupied(rig, "printer"), Occupied(rig, "scanner")
    steps = [step(rig, name, depends_on=[], resource=name) for name in ("printer", "scanner")]
    rig.worker(definition := flow(rig, *steps))
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)
    rig.run(lambda: len(rig.permits.refusals) == 2, "both were refused")
    waits(rig, workflow_id)

    rig.advance(1_000)
    second.free()
    rig.run(lambda: rig.ledger.count("scanner") == 1, "the second runs")
    row = waits(rig, workflow_id)
    assert row.permit_wait is not None
    assert (row.permit_wait.resource, row.permit_wait.step) == ("printer", "printer")
    rig.advance(2_000)
    first.free()
    rig.finish(workflow_id)

    done = {s.name: s for s in rig.instance(workflow_id).steps}
    assert 1_000 <= done["scanner"].traffic_wait_ms < 2_000 < 3_000 <= done["printer"].traffic_wait_ms < 4_000
    assert rig.ledger.count("printer") == rig.ledger.count("scanner") == 1
    assert rig.instance(workflow_id).permit_wait is None


@pytest.mark.req("prm-before-attempt")
def test_a_step_with_a_resource_is_never_begun_by_the_end_of_the_one_before(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit()
    worker = rig.worker(definition := flow(rig, "a", step(rig, "b", gives(1), resource="printer"), "c"))
    rig.pass_once(worker)  # its first look at the lanes
    rig.finish(rig.start(definition))

    assert worker.store.names() == [
        "claim", "begin_step", "complete_step", "begin_step", "complete_step", "complete_step",
    ]  # fmt: skip
