"""What the engine tells its observer: every fact once, after its commit, with the record that the commit left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from kernel.context import Context
from kernel.directives import Sleep, Yield
from kernel.errors import WorkflowCanceled
from kernel.observe.projection import attempts_in, attempts_of, snapshot_of
from kernel.observe.views import Attempt
from kernel.records import Instance
from kernel.states import TERMINAL
from kernel.transitions import Held, claim
from tests.engine.flows import fails_first, flow, gives, raises, seconds, step
from tests.engine.occupied import Occupied
from tests.engine.signals import asks, leave, tell, wait_asleep
from tests.engine.test_deaths import die_once, killer
from tests.support.engine_rig import SteppedRig
from tests.support.engine_store import Write


def told(rig: SteppedRig, workflow_id: str | None = None) -> list[str]:
    """Facts of workflows and steps, in order: `name`, or `name step attempt`."""
    return [
        " ".join(map(str, (name, *(fields[key] for key in ("step", "attempt") if key in fields))))
        for name, fields in rig.recorder.events
        if name.startswith(("workflow.", "step.")) and workflow_id in (None, fields.get("workflow_id"))
    ]


def statuses(rig: SteppedRig, workflow_id: str) -> list[str]:
    """What was told of the workflow itself."""
    return [name for name in rig.recorder.names(workflow_id) if name.startswith("workflow.")]


def records(rig: SteppedRig, event: str) -> list[Instance]:
    """The records that came with an event."""
    return [instance for name, instance, _ in rig.recorder.told if name == event and instance is not None]


@pytest.fixture(autouse=True)
def every_record_is_that_of_the_commit(request: pytest.FixtureRequest) -> Iterator[None]:
    """In all of these tests each event comes with the row as it is at that moment, down to the marks of its writers."""
    name = "durable_rig" if "durable_rig" in request.fixturenames else "rig"
    rig: SteppedRig = request.getfixturevalue(name)
    wrong: list[str] = []
    note = rig.recorder.note

    def checked(event: str, *, instance: Instance | None = None, step: int | None = None, **fields: Any) -> None:
        if instance is not None and instance != rig.instance(instance.workflow_id):
            wrong.append(event)
        note(event, instance=instance, step=step, **fields)

    rig.recorder.note = checked  # type: ignore[method-assign]
    yield
    assert wrong == []


@pytest.mark.req("obs-events", "obs-after-commit")
def test_a_run_with_one_retry_is_told_start_by_start_and_end_by_end(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    workflow_id = rig.drive(flow(rig, step(rig, "a", fails_first(1), max_retry=1), "b"))

    assert told(rig) == [
        "workflow.created",
        *("step.started a 1", "step.retried a 1"),
        *("step.started a 2", "step.completed a 2"),
        *("step.started b 1", "step.completed b 1"),
        "workflow.completed",
    ]
    revisions = [i.revision for name, i, _ in rig.recorder.told if i is not None and not name.startswith("claim.")]
    # Created, begun, retried, begun, completed with the entry of the next step, completed with the end.
    assert revisions == [1, 2, 3, 4, 5, 5, 6, 6]
    assert rig.row(workflow_id)["revision"] == 6
    assert {fields["trace_id"] for _, fields in rig.recorder.events} == {rig.instance(workflow_id).trace_id}


@pytest.mark.req("obs-after-commit")
def test_all_that_a_step_may_ask_for_is_told_in_order(rig: SteppedRig) -> None:
    entered: list[str] = []

    def many_ways(ctx: Context) -> Any:
        entered.append(str(ctx.checkpoint()))
        match len(entered):
            case 1:
                return Sleep(seconds(1), checkpoint="slept")
            case 2:
                return Yield("yielded")
            case 3:
                raise ValueError("once")
            case _:
                return "done"

    definition = flow(rig, step(rig, "a", many_ways, max_retry=1), step(rig, "ask", asks()))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.row(workflow_id).get("wait", {}).get("kind") == "signal" and worker.busy == 0, "asks", worker)
    tell(rig, workflow_id)
    rig.finish(workflow_id)

    assert told(rig) == [
        *("workflow.created", "step.started a 1", "step.suspended a 1", "workflow.waiting"),
        *("step.resumed a 0", "workflow.running", "step.started a 1", "step.yielded a 1"),
        *("step.started a 1", "step.retried a 1", "step.started a 2", "step.completed a 2"),
        *("step.started ask 1", "step.suspended ask 1", "workflow.waiting", "step.resumed ask 0", "workflow.running"),
        *("step.started ask 1", "step.completed ask 1", "workflow.completed"),
    ]


@pytest.mark.req("obs-events")
@pytest.mark.parametrize("way", ["the sweep", "the claim"])
def test_an_activation_is_told_once_whoever_makes_it(rig: SteppedRig, way: str) -> None:
    definition = flow(rig, step(rig, "nap", lambda ctx: "up" if ctx.resume else Sleep(seconds(5))))
    worker, other = rig.worker(definition), rig.worker(definition)
    workflow_ids = [rig.start(definition, f"job-{number}") for number in range(3)]
    wait_asleep(rig, worker, *workflow_ids)
    rig.advance(5_000)
    if way == "the sweep":
        other.sweep()
        worker.sweep()
    else:
        rig.queue.push([entry for entry in rig.queue.popped if entry.workflow_id in workflow_ids])
        rig.pass_once(worker)
    rig.finish(*workflow_ids)

    for workflow_id in workflow_ids:
        resumed = rig.recorder.of("step.resumed", workflow_id)
        assert [event["kind"] for event in resumed] == ["timer"]
        assert statuses(rig, workflow_id) == [
            *("workflow.created", "workflow.waiting", "workflow.running", "workflow.completed"),
        ]
    assert {record.status for record in records(rig, "workflow.running")} == {"running"}


@pytest.mark.req("obs-events")
@pytest.mark.parametrize("way", ["at once", "the sweep", "after the suspension"])
def test_a_signal_that_wakes_is_told_once_whichever_way_it_comes(rig: SteppedRig, way: str) -> None:
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    if way == "after the suspension":
        tell(rig, workflow_id)  # early: nobody waits for it yet
        assert rig.recorder.of("step.resumed") == []
    else:
        wait_asleep(rig, worker, workflow_id)
        (tell if way == "at once" else leave)(rig, workflow_id)
    rig.finish(workflow_id)
    tell(rig, workflow_id)  # again: a duplicate wakes nobody

    assert [event["kind"] for event in rig.recorder.of("step.resumed")] == ["signal"]
    assert statuses(rig, workflow_id) == [
        *("workflow.created", "workflow.waiting", "workflow.running", "workflow.completed"),
    ]


@pytest.mark.req("obs-events")
def test_a_step_that_is_woken_beside_others_does_not_change_the_workflows_status(rig: SteppedRig) -> None:
    """`nap` is due while the claim is still busy with a step that ends later."""

    def works(ctx: Context) -> str:
        rig.advance(3_000)
        return "worked"

    definition = flow(
        rig,
        step(rig, "nap", lambda ctx: "up" if ctx.resume else Sleep(seconds(1)), depends_on=[]),
        step(rig, "long", works, depends_on=[]),
    )
    workflow_id = rig.drive(definition)

    assert "step.resumed nap 0" in told(rig)
    assert statuses(rig, workflow_id) == ["workflow.created", "workflow.completed"]


@pytest.mark.req("obs-events")
def test_a_failure_and_its_replay_are_told_status_by_status(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "bad", fails_first(1)), failure_finalizer=rig.ledger(gives(None)))
    workflow_id = rig.drive(definition)
    rig.start(definition)
    rig.finish(workflow_id)
    rig.start(definition)  # found: nothing happens, and nothing is told

    assert told(rig) == [
        *("workflow.created", "step.started bad 1", "step.failed bad 1", "workflow.failing", "workflow.failed"),
        *("workflow.replayed", "step.started bad 1", "step.completed bad 1", "workflow.completed"),
    ]
    assert [record.workflow_run for record in records(rig, "workflow.replayed")] == [2]


@pytest.mark.req("obs-events")
def test_steps_of_a_wave_fail_beside_each_other_and_the_workflow_begins_to_fail_once(rig: SteppedRig) -> None:
    bad = raises(ValueError("no"))
    definition = flow(rig, *(step(rig, name, bad, depends_on=[]) for name in ("left", "right")))
    workflow_id = rig.drive(definition)

    assert sorted(name for name in told(rig) if name.startswith("step.failed")) == [
        *("step.failed left 1", "step.failed right 1"),
    ]
    assert statuses(rig, workflow_id) == ["workflow.created", "workflow.failing", "workflow.failed"]


@pytest.mark.req("obs-events")
def test_a_step_that_may_be_done_without_is_told_as_skipped(rig: SteppedRig) -> None:
    rig.drive(flow(rig, step(rig, "a", raises(ValueError("no")), on_failed="skip"), "b"))

    assert "step.skipped a 1" in told(rig)
    assert told(rig)[-1] == "workflow.completed"


@pytest.mark.req("obs-events")
def test_a_cancellation_is_told_once_whoever_asks_for_it(rig: SteppedRig) -> None:
    def superseded(ctx: Context) -> str:
        assert rig.client.supersede(ctx.workflow_id).changed
        assert not rig.client.supersede(ctx.workflow_id).changed
        return "too late"

    by_itself = flow(rig, step(rig, "a", raises(WorkflowCanceled("not wanted"))), type="by_itself")
    from_outside = flow(rig, step(rig, "a", superseded), type="from_outside")
    rig.worker(by_itself, from_outside)
    own, other = rig.drive(by_itself, "own"), rig.drive(from_outside, "other")

    for workflow_id in (own, other):
        assert told(rig, workflow_id) == [
            *("workflow.created", "step.started a 1", "step.canceled a 1", "workflow.canceled"),
        ]
    assert all(record.status == "canceled" for record in records(rig, "step.canceled"))


@pytest.mark.req("obs-events")
def test_a_lost_attempt_is_told_when_another_takes_the_claim_over(durable_rig: SteppedRig) -> None:
    """The attempt of the dead worker is lost, and the step is entered under the next number."""
    rig = durable_rig
    definition = flow(rig, killer(rig, ["w1"]))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    assert told(rig) == [
        *("workflow.created", "step.started kills 1", "step.lost kills 1"),
        *("step.started kills 2", "step.completed kills 2", "workflow.completed"),
    ]
    assert [(event["worker_id"], event["revision"]) for event in rig.recorder.of("step.lost")] == [("w1", 2)]
    assert rig.recorder.of("step.started")[1]["takeovers"] == 1


@pytest.mark.req("obs-events")
@pytest.mark.parametrize("on_poison", ["park", "fail"])
def test_a_suspect_is_told_lost_by_lost_and_parked_once(rig: SteppedRig, on_poison: Any) -> None:
    definition = flow(rig, killer(rig, ["w1", "w2", "w3"]), on_poison=on_poison)
    workers = [rig.worker(definition) for _ in range(4)]
    workflow_id = rig.start(definition)
    for worker in workers[:3]:
        rig.run(lambda dying=worker: dying.dead, "its death", worker)  # type: ignore[misc]
    rig.run(lambda: rig.ended(workflow_id), "the end", workers[3])
    if on_poison == "park":
        assert rig.client.unpark(workflow_id)
        assert not rig.client.unpark(workflow_id)
        rig.finish(workflow_id)

    assert [event["attempt"] for event in rig.recorder.of("step.lost")] == [1, 2, 3]
    assert [event["worker_id"] for event in rig.recorder.of("step.lost")] == ["w1", "w2", "w3"]
    ends = ["workflow.parked", "workflow.unparked", "workflow.completed"]
    assert statuses(rig, workflow_id) == [
        "workflow.created", *(ends if on_poison == "park" else ["workflow.failing", "workflow.failed"]),
    ]  # fmt: skip


@pytest.mark.req("obs-events")
def test_a_proved_death_is_told_with_the_attempt_that_it_cost(rig: SteppedRig) -> None:
    """A dispatcher gives the claim back; the next one dies before it enters the step: that is no attempt."""
    definition = flow(rig, killer(rig, ["w1"]))
    first, second = rig.worker(definition), rig.worker(definition)
    process, _ = rig.dispatcher(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    process.sweeps.release_owner("w1", counted=True)
    taken = claim(
        Held(workflow_id, "token-2"), worker_id="gone", worker="gone/1", lease_ms=60_000,
        definition_keys=(definition.plan.key,), commit_id="c-2",
    )  # fmt: skip
    rig.store.apply(taken)
    process.sweeps.release_owner("gone", counted=False)
    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    assert [event["worker_id"] for event in rig.recorder.of("claim.released_dead")] == ["w1", "gone"]
    assert [(event["attempt"], event["worker_id"]) for event in rig.recorder.of("step.lost")] == [(1, "w1")]


@pytest.mark.req("obs-events")
def test_a_wait_for_a_permit_is_told_with_the_row_that_rests(rig: SteppedRig) -> None:
    printer = Occupied(rig, "printer")
    definition = flow(rig, step(rig, "print", resource="printer"))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    printer.free()
    rig.finish(workflow_id)

    assert told(rig) == [
        *("workflow.created", "step.deferred print 0", "step.started print 1", "step.completed print 1"),
        "workflow.completed",
    ]
    assert [(event["resource"], event["status"]) for event in rig.recorder.of("step.deferred")] == [
        ("printer", "running"),
    ]
    assert [event["step_name"] for event in rig.recorder.of("permit.released")] == ["print"]


@pytest.mark.req("obs-events")
def test_a_version_that_nobody_runs_is_told_when_it_is_deferred_and_when_it_comes_back(rig: SteppedRig) -> None:
    old, new = flow(rig, "a"), flow(rig, "a", "b")
    process, _ = rig.dispatcher(new)
    process.sweeps.touch_definitions()
    workflow_id = rig.start(old)
    process.sweeps.defer_and_release(defer=True)
    worker = rig.worker(old)
    worker.sweeps.touch_definitions()
    process.sweeps.defer_and_release(defer=True)
    rig.finish(workflow_id)

    assert [record.deferred is not None for record in records(rig, "claim.deferred")] == [True]
    assert [record.deferred for record in records(rig, "claim.undeferred")] == [None]


@pytest.mark.req("obs-events")
def test_a_raised_priority_is_told_and_one_that_stays_is_not(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    for priority in ("background", "background", "realtime", "async"):
        rig.start(definition, priority=priority)

    assert [record.business_priority for record in records(rig, "workflow.raised")] == [0]
    assert [name for name, _ in rig.recorder.events] == ["workflow.created", "workflow.raised"]


@pytest.mark.req("obs-events")
def test_many_starts_are_told_one_by_one(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    rig.start(definition, "job-2")
    rig.client.start_many(definition.plan, [(f"job-{number}", None) for number in range(4)])

    assert [record.biz_key for record in records(rig, "workflow.created")] == ["job-2", "job-0", "job-1", "job-3"]


@pytest.mark.req("obs-events")
def test_an_entry_that_is_taken_back_is_told(rig: SteppedRig) -> None:
    """The worker is told to stop between the commit of the entry and the call of the activity."""
    definition = flow(rig, "a")
    worker, other = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)

    def stop(write: Write) -> None:
        if write.names == ("begin_step",):
            worker.scheduler.stop()

    worker.store.fault_of = stop
    rig.pass_once(worker)
    rig.run(lambda: rig.ended(workflow_id), "the end", other)

    assert told(rig)[1:4] == ["step.started a 1", "step.unbegun a 1", "step.started a 1"]
    assert rig.ledger.count("a") == 1


@pytest.mark.req("cmp-observe-after")
def test_an_observer_that_fails_costs_nobody_anything(rig: SteppedRig) -> None:
    rig.recorder.raises = RuntimeError("the observer is broken")
    definition = flow(rig, step(rig, "nap", lambda ctx: "up" if ctx.resume else Sleep(seconds(1))))
    workflow_id = rig.drive(definition)
    other = rig.start(definition, "job-2", start_delay=timedelta(hours=1), priority="background")
    rig.start(definition, "job-2", priority="realtime")
    rig.client.supersede(other)

    assert (rig.status(workflow_id), rig.status(other)) == ("completed", "canceled")
    assert {rig.status(workflow_id), rig.status(other)} <= set(TERMINAL)


# --- what the events make of it -----------------------------------------------------------------------


def folded(rig: SteppedRig) -> dict[tuple[int, str, int], str]:
    """The outcome of every attempt, by (run, step, attempt), as the events tell of it."""
    rows: dict[str, Attempt] = {}
    for event, instance, index in rig.recorder.told:
        if instance is None or index is None:
            continue
        row = attempts_of(event, instance, index, rig.store.now_ms())
        if row is not None:
            rows[row.attempt_key] = row
    return {(row.workflow_run, row.step, row.attempt): row.outcome for row in rows.values()}


@pytest.mark.req("obs-events")
def test_events_and_the_record_tell_the_same_of_every_attempt(durable_rig: SteppedRig) -> None:
    """A failure, a sleep, a death, a yield; and after a replay once more."""
    rig = durable_rig
    entered: list[int] = []

    def lives(ctx: Context) -> Any:
        entered.append(ctx.attempt)
        match len(entered):
            case 1 | 6:
                raise ValueError("no")
            case 2:
                return Sleep(seconds(1))
            case 3:
                rig.workers[0].kill()
            case 4:
                return Yield("page 2")
            case 5:
                raise TypeError("no")
        return "done"

    definition = flow(rig, "first", step(rig, "lives", lives, max_retry=1))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: first.dead, "its death", first)
    rig.run(lambda: rig.ended(workflow_id), "the failure", second)
    of_run_1 = {
        (1, "first", 1): "completed",
        (1, "lives", 1): "failed",
        (1, "lives", 2): "lost",
        (1, "lives", 3): "failed",
    }
    assert folded(rig) == of_run_1
    assert in_record(rig, workflow_id) == of_run_1
    rig.advance(1_000)
    rig.start(definition)
    rig.finish(workflow_id)

    of_run_2 = {(2, "lives", 1): "failed", (2, "lives", 2): "completed"}
    assert entered == [1, 2, 2, 3, 3, 1, 2]
    assert folded(rig) == of_run_1 | of_run_2
    assert in_record(rig, workflow_id) == {(1, "first", 1): "completed"} | of_run_2


def in_record(rig: SteppedRig, workflow_id: str) -> dict[tuple[int, str, int], str]:
    rows = attempts_in(rig.instance(workflow_id))
    return {(row.workflow_run, row.step, row.attempt): row.outcome for row in rows}


@pytest.mark.req("obs-events")
def test_an_attempt_that_ignores_its_timeout_is_stuck_and_then_timed_out(rig: SteppedRig) -> None:
    """Its worker is replaced while it runs; whoever claims next counts the timeout (B-40)."""
    outcomes: list[dict[tuple[int, str, int], str]] = []

    def stuck(ctx: Context) -> str:
        if ctx.attempt == 1:
            rig.advance(10_000)
            rig.pass_once(second)  # what the timer started runs meanwhile
            outcomes.append(folded(rig))
            rig.workers[0].kill()
        return "done"

    definition = flow(rig, step(rig, "a", stuck, timeout=seconds(1), max_retry=1))
    first, second = rig.worker(definition, stuck_grace_ms=2_000), rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: first.dead, "its death", first)
    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    assert outcomes == [{(1, "a", 1): "stuck"}]
    assert rig.recorder.of("step.lost") == []
    assert folded(rig) == {(1, "a", 1): "timeout", (1, "a", 2): "completed"}


@pytest.mark.req("obs-after-commit")
def test_the_last_event_of_a_workflow_makes_the_snapshot_of_its_row(rig: SteppedRig) -> None:
    definition = flow(rig, "a", step(rig, "b", fails_first(1), max_retry=1), "c")
    workflow_id = rig.drive(definition)
    last = [instance for _, instance, _ in rig.recorder.told if instance is not None][-1]
    now_ms = rig.store.now_ms()

    assert snapshot_of(last, now_ms) == snapshot_of(rig.instance(workflow_id), now_ms)


@pytest.mark.req("obs-events")
def test_a_worker_that_has_lost_its_claim_tells_nothing_of_the_record(rig: SteppedRig) -> None:
    """It was frozen and taken over. What it knows has the revision of what the other one knows, and is older."""

    def overtaken(ctx: Context) -> str:
        if ctx.worker_id == "w1":
            rig.clock.advance(5_000)
            rig.run(lambda: rig.ended(ctx.workflow_id), "the end", other)
        return "done"

    definition = flow(rig, step(rig, "a", overtaken))
    first, other = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)

    assert [instance for event, instance, _ in rig.recorder.told if event == "claim.lost"] == [None]
    assert [event["trace_id"] for event in rig.recorder.of("claim.lost")] == [rig.instance(workflow_id).trace_id]
    assert folded(rig) == {(1, "a", 1): "lost", (1, "a", 2): "completed"}
