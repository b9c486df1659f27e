"""A workflow that needs a place as a whole: how many of one tenant's run at once (prm-tenant, B-26)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep
from kernel.errors import InvalidName
from kernel.limits import change_limit
from kernel.permit_words import WORKFLOW
from tests.engine.flows import Activity, flow, raises, seconds, step
from tests.engine.occupied import Occupied
from tests.engine.test_permits import waits
from tests.support.engine_rig import LiveRig, Rig, RigWorker, SteppedRig
from tests.support.wait import wait_until


def tenant_flow(rig: Rig, *activities: Activity | None, **options: Any) -> Definition:
    """Steps a, b, … of a workflow whose input is its tenant's name."""
    steps = [step(rig, chr(97 + number), activity) for number, activity in enumerate(activities or (None,))]
    return flow(rig, *steps, **{"resource": lambda tenant: f"tenant_work:{tenant}", **options})


@pytest.mark.req("prm-tenant", "prm-unique-owner-parts")
def test_the_place_is_the_workflows_from_its_first_step_to_the_end_of_the_claim(rig: SteppedRig) -> None:
    rig.limits["tenant_work"] = Limit(max_concurrency=2)
    seen: list[list[tuple[str, str, str]]] = []

    def look(ctx: Context) -> str:
        seen.append(rig.permits.owners("tenant_work:acme"))
        return "seen"

    worker = rig.worker(definition := tenant_flow(rig, look, look, look))
    rig.pass_once(worker)  # its first look at the lanes
    workflow_id = rig.start(definition, input="acme")
    rig.finish(workflow_id)

    token = rig.recorder.of("claim.taken")[0]["claim_token"]
    assert seen == [[(workflow_id, WORKFLOW, token)]] * 3
    assert rig.permits.owners("tenant_work:acme") == []
    assert [what for what, _ in rig.permits.calls if what != "sweep"] == ["acquire", "release"]
    assert worker.store.names() == ["claim", "begin_step", "complete_step", "complete_step", "complete_step"]


@pytest.mark.req("prm-tenant", "prm-refused")
def test_refused_the_workflow_rests_before_its_first_step(rig: SteppedRig) -> None:
    occupied = Occupied(rig, "tenant_work:acme")
    worker = rig.worker(definition := tenant_flow(rig, None, None))
    workflow_id = rig.start(definition, input="acme")

    row = waits(rig, workflow_id)
    assert row.permit_wait is not None
    assert (row.permit_wait.resource, row.permit_wait.step) == ("tenant_work:acme", WORKFLOW)
    assert [(s.status, s.attempt) for s in row.steps] == [("pending", 0)] * 2
    assert (row.status, row.steps[0].traffic_wait_count, row.steps[0].due_time) == ("running", 1, None)
    assert row.claimable_time is not None
    assert row.claimable_time - row.created_time >= rig.settings.permit_wait_ms
    rig.advance(2_000)

    occupied.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert "claim_handed_over" in worker.store.names()
    assert rig.instance(workflow_id).permit_wait is None
    assert rig.step(workflow_id, "a").traffic_wait_ms >= 2_000
    assert rig.step(workflow_id, "b").traffic_wait_ms == 0
    assert rig.permits.owners("tenant_work:acme") == []


@pytest.mark.req("prm-tenant", "slp-frees")
def test_a_workflow_that_waits_holds_no_place(rig: SteppedRig) -> None:
    """B-26: waiting does not count, so that sleepers keep nobody from working."""
    rig.limits["tenant_work"] = Limit(max_concurrency=1)
    sleeper = tenant_flow(rig, lambda ctx: "rested" if ctx.resume else Sleep(seconds(60)))
    rig.worker(sleeper)
    ids = [rig.start(sleeper, f"k{number}", input="acme") for number in range(5)]

    rig.run(lambda: all(rig.status(key) == "waiting" for key in ids), "all sleep", limit_ms=20_000)
    assert rig.permits.owners("tenant_work:acme") == []
    rig.finish(*ids)
    assert rig.permits.most["tenant_work:acme"] == 1


@pytest.mark.req("prm-tenant-fair", "prm-tenant")
def test_a_tenant_at_its_limit_holds_up_no_other(live: LiveRig) -> None:
    live.limits["tenant_work"] = Limit(max_concurrency=2)
    gate = live.gate()
    entered: list[str] = []

    def works(ctx: Context) -> str:
        entered.append(ctx.input)
        if ctx.input == "big":
            gate.wait(60)
        return "done"

    definition = tenant_flow(live, works)
    live.worker(definition, slots=4)
    big = [live.start(definition, f"b{number}", input="big") for number in range(100)]
    wait_until(lambda: len(live.permits.refusals) >= 98, "98 of them wait")

    small = live.start(definition, "s", input="small")
    live.wait_ended(small)

    assert entered == ["big", "big", "small"]
    # The last one to be refused may still be giving its claim back.
    wait_until(lambda: sum("claim_token" in live.row(key) for key in big) == 2, "only two of them hold a claim")
    gate.set()
    live.wait_ended(*big, timeout=60)
    assert live.permits.most["tenant_work:big"] == 2


def test_a_tenant_may_have_a_limit_of_its_own(rig: SteppedRig) -> None:
    rig.limits["tenant_work"] = Limit(max_concurrency=1)
    rig.worker(definition := tenant_flow(rig))
    change_limit(rig.store, "tenant_work:blocked", paused=True)
    blocked, free = rig.start(definition, "k1", input="blocked"), rig.start(definition, "k2", input="free")

    rig.finish(free)
    assert waits(rig, blocked).steps[0].attempt == 0
    change_limit(rig.store, "tenant_work:blocked", paused=False)
    resumed_ms = rig.clock.wall_ms()
    rig.finish(blocked)
    assert rig.clock.wall_ms() - resumed_ms <= 5_000, "the sweep knows the tenants that were refused lately"


def test_step_and_workflow_wait_for_their_own_resources(rig: SteppedRig) -> None:
    """First the whole, then the step; while the step waits, the workflow's place is free."""
    whole, printer = Occupied(rig, "tenant_work:acme"), Occupied(rig, "printer")
    definition = flow(rig, step(rig, "a", resource="printer"), resource="tenant_work:acme")
    rig.worker(definition)
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)

    whole.free()
    rig.run(lambda: rig.instance(workflow_id).permit_wait.step == "a", "it waits for the printer")  # type: ignore[union-attr]
    waits(rig, workflow_id)
    assert rig.permits.owners("tenant_work:acme") == []
    rig.advance(1_000)
    printer.free()
    rig.finish(workflow_id)

    assert rig.step(workflow_id, "a").traffic_wait_count == 2
    assert rig.step(workflow_id, "a").traffic_wait_ms >= 1_000, "since the first refusal of either"
    assert rig.permits.owners("printer") == rig.permits.owners("tenant_work:acme") == []


def rests_for(rig: SteppedRig, workflow_id: str, name: str) -> None:
    """Until the row says that it waits for this step's place, or as a whole, and nobody holds it."""

    def rests() -> bool:
        instance = rig.instance(workflow_id)
        shown = instance.permit_wait
        return shown is not None and shown.step == name and instance.claim_token is None

    rig.run(rests, f"{workflow_id} rests for {name}")


@pytest.mark.req("prm-tenant", "prm-wake-lost")
def test_a_step_that_was_called_and_then_held_up_as_a_whole_begins_when_it_may(rig: SteppedRig) -> None:
    """Its own time is still ahead: were it to rest until then, the workflow would be claimed and given back in vain, as
    often as the place of the whole is handed to it."""
    whole, printer = Occupied(rig, "tenant_work:acme"), Occupied(rig, "printer")
    definition = flow(rig, step(rig, "a", resource="printer"), resource="tenant_work:acme")
    worker = rig.worker(definition, permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    rests_for(rig, workflow_id, WORKFLOW)
    whole.free()
    rests_for(rig, workflow_id, "a")
    whole = Occupied(rig, "tenant_work:acme")
    printer.free()
    rests_for(rig, workflow_id, WORKFLOW)
    assert rig.permits.owners("printer") == []

    whole.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)

    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert "release" not in worker.store.names()


@pytest.mark.req("prm-tenant", "prm-wake-lost")
def test_a_step_in_line_is_still_called_after_the_whole_had_to_wait(rig: SteppedRig) -> None:
    """The row tells of one wait at a time; what it forgets nobody is called for."""
    whole, printer, scanner = Occupied(rig, "tenant_work:acme"), Occupied(rig, "printer"), Occupied(rig, "scanner")
    definition = flow(
        rig,
        step(rig, "a", resource="printer", depends_on=[]),
        step(rig, "b", resource="scanner", depends_on=[]),
        resource="tenant_work:acme",
    )
    rig.worker(definition, permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    rests_for(rig, workflow_id, WORKFLOW)
    whole.free()
    rig.run(lambda: rig.step(workflow_id, "b").traffic_wait_count > 0, "both steps are refused")
    waits(rig, workflow_id)
    whole = Occupied(rig, "tenant_work:acme")
    scanner.free()
    rests_for(rig, workflow_id, WORKFLOW)
    whole.free()
    rig.run(lambda: rig.step(workflow_id, "b").status == "completed", "the second step has run")
    rests_for(rig, workflow_id, "a")

    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)

    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms


@pytest.mark.req("prm-tenant", "fpr-excludes")
def test_a_place_of_the_resource_that_was_asked_for_before_is_none_of_the_one_that_is_asked_for_now(
    rig: SteppedRig,
) -> None:
    """The Definition has got another resource while the workflow stood in line."""
    red, blue = Occupied(rig, "red"), Occupied(rig, "blue")
    old, new = (flow(rig, "a", resource=name) for name in ("red", "blue"))
    assert old.plan.key == new.plan.key
    first = rig.worker(old, permit_wait_ms=600_000)
    workflow_id = rig.start(old)
    waits(rig, workflow_id)
    first.kill()
    second = rig.worker(new, permit_wait_ms=600_000)

    red.free()
    rig.run(lambda: not rig.permits.of("red").line, "it has left the line for red", second)
    assert rig.ledger.entries == []
    assert waits(rig, workflow_id).permit_wait.resource == "blue"  # type: ignore[union-attr]
    assert rig.permits.owners("red") == []
    blue.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert rig.permits.owners("blue") == []


def restarted(rig: SteppedRig, scan_ms: int) -> tuple[Occupied, list[str], Callable[[], RigWorker]]:
    """Three of a tenant that wait for its only place, whose worker is gone. The place, they, and what makes the new
    worker: Redis still knows the line, and no living process was ever refused a place of that tenant."""
    occupied = Occupied(rig, "tenant_work:acme")
    definition = tenant_flow(rig)
    options = {"permit_wait_ms": 600_000, "scan_ms": scan_ms}
    gone = rig.worker(definition, **options)
    ids = [rig.start(definition, f"k{number}", input="acme") for number in range(3)]
    for workflow_id in ids:
        waits(rig, workflow_id)
    gone.kill()
    return occupied, ids, lambda: rig.worker(definition, **options)


def lapse(rig: SteppedRig, in_ms: int) -> None:
    """The tenant's place is kept by nobody any more: its lease ends."""
    holders = rig.permits.of("tenant_work:acme").holders
    for owner in holders:
        holders[owner] = (rig.store.now_ms() + in_ms, 0)


@pytest.mark.parametrize("how", ["its lease ends", "the worker that was called is gone"])
@pytest.mark.req("prm-tenant", "prm-expiry", "prm-wake-lost")
def test_after_a_restart_of_everything_a_tenants_line_goes_on(rig: SteppedRig, how: str) -> None:
    occupied, ids, start = restarted(rig, scan_ms=10_000)
    if how == "its lease ends":
        lapse(rig, 1_000)
    else:
        assert occupied.free() == 1
        assert rig.queue.pop(1)[0]
    began_ms = rig.clock.wall_ms()

    start()
    rig.finish(*ids)

    assert rig.clock.wall_ms() - began_ms <= 10_000 + 2_500 + rig.settings.poll_ms


@pytest.mark.req("prm-tenant", "prm-wake-lost")
def test_a_place_that_a_scan_handed_over_in_vain_is_looked_after(rig: SteppedRig) -> None:
    """Whoever was called by the scan has died with the call, and the next scan is a minute away."""
    _, ids, start = restarted(rig, scan_ms=60_000)
    lapse(rig, 1_000)
    sweep, lost = rig.permits.sweep, []

    def loses(resource: str, limit: Limit) -> int:
        handed = sweep(resource, limit)
        if handed and not lost:
            lost.extend(rig.queue.pop(1)[0])
        return handed

    rig.permits.sweep = loses  # type: ignore[method-assign]
    start()
    rig.run(lambda: bool(lost), "a scan hands the place over")
    lost_ms = rig.clock.wall_ms()
    rig.finish(*ids)

    assert rig.clock.wall_ms() - lost_ms <= 2_500 + rig.settings.poll_ms


def test_a_failing_workflow_needs_no_place_for_its_end(rig: SteppedRig) -> None:
    rig.limits["tenant_work"] = Limit(max_concurrency=1)
    ended: list[str] = []

    def finalizer(ctx: Context) -> None:
        if not ended:
            ended.append("fails once")
            raise ValueError("no")
        ended.append("done")

    definition = tenant_flow(rig, raises(ValueError("no")), failure_finalizer=finalizer)
    rig.worker(definition)
    workflow_id = rig.start(definition, input="acme")
    rig.run(lambda: bool(ended), "the finalizer failed")
    change_limit(rig.store, "tenant_work:acme", paused=True)

    rig.finish(workflow_id)
    assert (rig.status(workflow_id), ended) == ("failed", ["fails once", "done"])


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda tenant: tenant["missing"], "the function raised TypeError"),
        (lambda tenant: 7, "7 is no name"),
        (lambda tenant: f"tenant_work:{tenant}\n", "control or unprintable"),
    ],
)
def test_a_resource_that_can_not_be_told_is_an_error_that_everybody_sees(
    rig: SteppedRig, function: Any, rule: str
) -> None:
    rig.worker(definition := flow(rig, "a", resource=function))
    workflow_id = rig.start(definition, input="acme")

    rig.run(lambda: rig.instance(workflow_id).finalizer is not None, "it is deferred")

    finalizer = rig.instance(workflow_id).finalizer
    assert finalizer is not None
    assert finalizer.error.code == "invalid_definition"
    assert rule in finalizer.error.message
    assert rig.ledger.entries == []


def test_a_name_that_is_no_resource_is_refused_when_the_definition_is_made() -> None:
    with pytest.raises(InvalidName, match="job: resource"):
        Definition(type="job", steps=[Step("a", print)], resource="No Name")
