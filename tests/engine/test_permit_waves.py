"""A step that stands in line beside siblings for which its workflow is claimed again and again (prm-wake-lost)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.candidates import Candidate
from kernel.config import Limit
from kernel.context import Context
from kernel.definition import Definition, RetryPolicy
from kernel.directives import Sleep, Yield
from kernel.permit_words import WORKFLOW
from tests.engine.flows import flow, seconds, step
from tests.engine.occupied import Occupied
from tests.engine.test_claims import set_fields
from tests.engine.test_permits import asked, waits
from tests.support.engine_rig import RigWorker, SteppedRig

TENANT = "tenant_work:acme"


def notes(rig: SteppedRig, started: dict[str, int]) -> Callable[[Context], str]:
    """An activity that notes when each workflow's call began."""

    def activity(ctx: Context) -> str:
        started[ctx.workflow_id] = rig.clock.wall_ms()
        return "printed"

    return activity


def polls(ctx: Context) -> Sleep:
    return Sleep(seconds(10))


@pytest.mark.parametrize("way", ["yields", "retries at once"])
@pytest.mark.req("prm-release", "prm-wake-lost", "yld-effect", "stp-retry-immediate")
def test_a_sibling_that_is_always_due_keeps_nobody_from_a_place(rig: SteppedRig, way: str) -> None:
    """The claim that its sibling needs takes the hint that was meant for the step in line."""
    printer = Occupied(rig, "printer")
    started: dict[str, int] = {}

    def busy(ctx: Context) -> Any:
        rig.advance(50)
        if started:
            return "read"
        if way == "yields":
            return Yield()
        raise ValueError("no")

    prints = step(rig, "a", notes(rig, started), resource="printer", depends_on=[])
    both = flow(rig, prints, step(rig, "b", busy, depends_on=[], max_retry=10_000))
    alone = flow(rig, prints, type="alone")
    rig.worker(both, alone, permit_wait_ms=600_000)
    first = rig.start(both, "first")
    rig.run(lambda: rig.step(first, "a").traffic_wait_count > 0, "the first one is refused")
    second = rig.start(alone, "second")
    rig.run(lambda: rig.step(second, "a").traffic_wait_count > 0, "the second one is refused")

    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(first, second)

    assert started[first] - freed_ms <= rig.settings.poll_ms
    assert started[second] - started[first] <= rig.settings.poll_ms


@pytest.mark.parametrize("way", ["prepare fails", "its worker is told to stop"])
@pytest.mark.req("prm-wake-lost", "prm-release")
def test_a_place_that_was_handed_over_and_came_to_nothing_is_asked_for_by_the_next_claim(
    rig: SteppedRig, way: str
) -> None:
    """Two steps stand in two lines, and one of them has left its line with the place that its claim did not use."""
    printer, _ = Occupied(rig, "printer"), Occupied(rig, "scanner")
    mishaps: list[str] = []
    started: dict[str, int] = {}

    def prepare(ctx: Context) -> None:
        if mishaps and mishaps.pop() == "prepare fails":
            raise ValueError("no")
        if way != "prepare fails" and not mishaps and printer.taken == 0:
            first.loop.drain()

    definition = flow(
        rig,
        step(rig, "a", notes(rig, started), resource="printer", depends_on=[]),
        step(rig, "b", resource="scanner", depends_on=[]),
        step(rig, "c", polls, depends_on=[]),
        prepare=prepare,
    )
    second = rig.worker(definition, permit_wait_ms=600_000, scan_ms=600_000)
    first = rig.worker(definition, permit_wait_ms=600_000, scan_ms=600_000)
    for worker in (first, second):
        rig.pass_once(worker)  # its first look at the rows
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.step(workflow_id, "c").status == "waiting", "the third step sleeps", first)
    waits(rig, workflow_id)
    assert rig.step(workflow_id, "a").traffic_wait_count == rig.step(workflow_id, "b").traffic_wait_count == 1

    mishaps.append(way)
    printer.free()
    freed_ms = rig.clock.wall_ms()
    rig.run(lambda: not mishaps, "a place is handed over", first)
    assert rig.permits.owners("printer") == []
    assert started == {}
    rig.run(lambda: bool(started), "the step runs")

    assert started[workflow_id] - freed_ms <= 10_000 + rig.settings.poll_ms


@pytest.mark.req("prm-refused", "prm-no-retry-burn")
def test_asking_for_steps_in_line_costs_no_write_and_one_question_each(rig: SteppedRig) -> None:
    """Two sleepers wake together, so that each claim decides several times what is to be done."""
    Occupied(rig, "printer"), Occupied(rig, "scanner")
    definition = flow(
        rig,
        step(rig, "a", resource="printer", depends_on=[]),
        step(rig, "b", resource="scanner", depends_on=[]),
        step(rig, "c", polls, depends_on=[]),
        step(rig, "d", polls, depends_on=[]),
    )
    worker = rig.worker(definition, permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    waits(rig, workflow_id)
    deferrals, questions = worker.store.names().count("defer_for_permit"), asked(rig)
    before = rig.instance(workflow_id)
    claims = worker.scheduler.claims_taken

    def ten_claims_later() -> bool:
        return worker.scheduler.claims_taken == claims + 10 and worker.busy == 0

    rig.run(ten_claims_later, "ten claims")

    assert worker.store.names().count("defer_for_permit") == deferrals
    assert asked(rig) - questions == 10 * 2
    assert rig.instance(workflow_id).steps[:2] == before.steps[:2]


@pytest.mark.req("prm-wake-lost", "prm-refused")
def test_a_step_that_was_asked_for_in_vain_stands_in_line_for_as_long_as_it_rests(rig: SteppedRig) -> None:
    """Also when the worker that asks for it would wait for less time than the one that was refused."""
    printer = Occupied(rig, "printer")
    definition = flow(
        rig,
        step(rig, "a", resource="printer", depends_on=[]),
        step(rig, "c", lambda ctx: "slept" if ctx.resume else polls(ctx), depends_on=[]),
    )
    patient = rig.worker(definition, permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    row = waits(rig, workflow_id)
    patient.kill()
    rig.worker(definition, permit_wait_ms=1_000, scan_ms=600_000)
    rig.run(lambda: rig.step(workflow_id, "c").status == "completed", "the sibling ends")
    assert rig.step(workflow_id, "a").due_time == row.steps[0].due_time
    rig.advance(60_000)

    assert printer.free() == 1
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms


def timed_out(rig: SteppedRig, **options: Any) -> tuple[str, RigWorker, Occupied]:
    """A workflow whose only step ignored its timeout until its worker was replaced, while the tenant's place went to
    somebody else. The workflow, the new worker, and the place."""
    rig.limits[TENANT] = Limit(max_concurrency=1)

    def hangs(ctx: Context) -> str:
        if ctx.attempt == 1:
            rig.advance(5_000)
            rig.base_runner.run_all()
            first.kill()
        return "done"

    definition: Definition = flow(rig, step(rig, "a", hangs, timeout=seconds(1), **options), resource=TENANT)
    first = rig.worker(definition, stuck_grace_ms=2_000)
    workflow_id = rig.start(definition)
    rig.run(lambda: first.dead, "its death", first)
    assert rig.step(workflow_id, "a").stuck_attempt == 1
    whole = Occupied(rig, TENANT)
    return workflow_id, rig.worker(definition, permit_wait_ms=600_000), whole


@pytest.mark.req("act-ignore-cancel-stuck", "b-40", "prm-tenant")
def test_an_attempt_that_ignored_its_timeout_is_counted_without_a_place(rig: SteppedRig) -> None:
    """Nothing is called for that; what comes after the back-off is, and waits for its place like any other."""
    policy = RetryPolicy(initial_interval=seconds(50), max_interval=seconds(50))
    workflow_id, worker, whole = timed_out(rig, retry=policy)

    rig.run(lambda: rig.step(workflow_id, "a").failures == 1, "the failure is counted", limit_ms=10_000)
    assert rig.instance(workflow_id).permit_wait is None
    due_ms = rig.step(workflow_id, "a").due_time
    rig.run(lambda: rig.clock.wall_ms() >= due_ms, "the back-off ends", worker)
    assert worker.scheduler.claims_taken <= 3

    waits(rig, workflow_id)
    whole.free()
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)
    assert rig.clock.wall_ms() - freed_ms <= rig.settings.poll_ms
    assert (rig.status(workflow_id), rig.step(workflow_id, "a").attempt) == ("completed", 2)


@pytest.mark.req("b-40", "prm-tenant")
def test_a_last_step_that_is_skipped_for_its_timeout_ends_the_workflow_without_a_place(rig: SteppedRig) -> None:
    """And says no more that it waits for one, as a worker of an earlier version let it."""
    workflow_id, _, whole = timed_out(rig, on_failed="skip")
    set_fields(rig, workflow_id, permit_wait={"resource": TENANT, "step": WORKFLOW, "since_time": 1})

    rig.finish(workflow_id, limit_ms=10_000)

    row = rig.instance(workflow_id)
    assert (row.status, row.steps[0].status, row.permit_wait) == ("completed", "skipped", None)
    assert whole.taken == 1


@pytest.mark.req("slp-activate", "prm-wake-lost")
@pytest.mark.parametrize("hint", ["another was faster", "Redis was wiped"])
def test_a_call_in_vain_makes_no_timer_of_a_sibling_late(make_rig: Callable[..., SteppedRig], hint: str) -> None:
    """The id was in the lanes for the timer, and was popped for the place."""
    rig = make_rig(poll_ms=5_000, scan_ms=30_000, lease_ms=30_000, renew_ms=10_000, fence_ms=25_000)
    Occupied(rig, "printer")
    late_ms: list[int] = []

    def sleeps(ctx: Context) -> Any:
        if ctx.resume is None:
            return Sleep(seconds(ctx.input))
        late_ms.append(rig.clock.wall_ms() - due_ms[ctx.workflow_id])
        return "rested"

    steps = [step(rig, "a", resource="printer", depends_on=[]), step(rig, "b", sleeps, depends_on=[])]
    rig.worker(definition := flow(rig, *steps), permit_wait_ms=600_000)
    ids = [rig.start(definition, f"k{number}", input=10 + 7 * number) for number in range(8)]
    due_ms = {workflow_id: waits(rig, workflow_id).claimable_time or 0 for workflow_id in ids}
    if hint == "Redis was wiped":
        rig.permits.wipe()
        Occupied(rig, "printer")
    else:
        now_ms = rig.clock.wall_ms()
        rig.queue.push([Candidate(workflow_id, 1, now_ms) for workflow_id in ids])
    refused = len(rig.permits.refusals)

    rig.run(lambda: len(late_ms) == len(ids), "the siblings wake")

    assert len(rig.permits.refusals) >= refused + len(ids), "all were called in vain"
    assert max(late_ms) <= rig.settings.poll_ms
