"""Workers that die: takeover, proof of death, suspects that run alone, parking, and the way back (DECISIONS 2, 27)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel import transitions
from kernel.context import Context
from kernel.errors import Parked
from kernel.store.conditional import Applied, Clear, Missed, Transition
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from tests.engine.flows import flow, gives, raises, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.engine_store import Fault

LEASE_MS = 1_500


def killer(rig: SteppedRig, deadly: list[str], name: str = "kills") -> Any:
    """A step that ends the process of whichever worker in `deadly` enters it."""

    def activity(ctx: Context) -> str:
        for worker in rig.workers:
            if worker.worker_id == ctx.worker_id and ctx.worker_id in deadly:
                worker.kill()
        return ctx.worker_id

    return step(rig, name, activity)


def die_once(rig: SteppedRig, worker: RigWorker, workflow_id: str) -> None:
    """Let `worker` claim the workflow and die in its step."""
    rig.pass_once(worker)
    assert worker.dead, f"{worker.worker_id} did not enter {workflow_id}"


@pytest.mark.req("core-worker-replaceable", "clm-crash-lease", "rec-worker-id", "id-claim-token")
def test_a_dead_workers_claim_is_taken_over_after_its_lease_with_a_new_token(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    definition = flow(rig, killer(rig, ["w1"]))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    died_ms, token = rig.clock.boot_ms(), rig.row(workflow_id)["claim_token"]
    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    taken = rig.recorder.of("claim.taken")
    assert rig.output(workflow_id) == "w2"
    assert LEASE_MS <= rig.ledger.entries[1].begin_ms - died_ms <= LEASE_MS + rig.settings.scan_ms + 200
    assert [event["taken_over"] for event in taken] == [False, True]
    assert taken[0]["claim_token"] == token != taken[1]["claim_token"]
    assert [entry.attempt for entry in rig.ledger.entries] == [1, 2]
    assert rig.instance(workflow_id).deaths == 0, "progress forgives"


@pytest.mark.req("shd-no-force-clear", "shd-no-business-fail", "core-running-is-not-alive")
def test_without_proof_nothing_clears_the_lease_of_a_dead_worker(rig: SteppedRig) -> None:
    definition = flow(rig, killer(rig, ["w1"]))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    held = rig.row(workflow_id)
    for _ in range(14):
        rig.advance(100)
        rig.pass_once(second)
        second.sweep()

    assert rig.row(workflow_id) == held
    assert (held["status"], held["steps"][0]["status"]) == ("running", "running")


def test_two_that_see_the_same_expired_claim_take_it_over_once(rig: SteppedRig) -> None:
    definition = flow(rig, killer(rig, ["w1"]))
    first, *others = (rig.worker(definition) for _ in range(4))
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    rig.advance(LEASE_MS)
    instance = rig.instance(workflow_id)

    answers = [other.scheduler._claimer._due(instance, rig.clock.wall_ms(), alone=True) for other in others]

    assert [type(answer).__name__ for answer in answers] == ["Claimed", "NotYet", "NotYet"]
    assert rig.instance(workflow_id).deaths == 1


@pytest.mark.req("s4")
@pytest.mark.case("A21")
def test_a_step_that_kills_three_workers_is_parked_and_everything_else_goes_on(rig: SteppedRig) -> None:
    """The third death is one while alone; what runs beside the first two is only delayed (L11)."""
    deadly = flow(rig, "before", killer(rig, ["w1", "w2", "w3", "w4"]), type="deadly")
    fine = flow(rig, "fine", type="fine")
    workflow_id = rig.start(deadly)
    others = [rig.start(fine, f"f{k}") for k in range(20)]
    for _ in range(6):
        worker = rig.worker(deadly, fine)
        began_ms = rig.clock.boot_ms()
        rig.run(
            lambda worker=worker, began_ms=began_ms: worker.dead or rig.clock.boot_ms() > began_ms + 10_000,
            "a death or nothing",
            worker,
        )

    instance = rig.instance(workflow_id)
    assert [worker.dead for worker in rig.workers] == [True, True, True, False, False, False]
    assert instance.parked is not None
    assert instance.parked.reason.startswith("3 workers died in step kills")
    assert (instance.status, instance.deaths, instance.claim_token, instance.claimable_time) == (
        "running",
        3,
        None,
        None,
    )
    assert rig.ledger.count("before") == 1
    assert all(rig.status(other) == "completed" for other in others)
    with pytest.raises(Parked, match="3 workers died"):
        rig.client.result(workflow_id, timedelta(0))


def test_a_suspect_runs_alone_and_while_it_runs_its_worker_takes_nothing(rig: SteppedRig) -> None:
    beside: list[int] = []

    def kills_twice(ctx: Context) -> str:
        if ctx.attempt < 3:
            next(w for w in rig.workers if w.worker_id == ctx.worker_id).kill()
            return "never seen"
        for k in range(5):
            rig.start(fine, f"late{k}")
            rig.advance(100)
            third.loop.pass_once()
        beside.append(third.busy)
        return "survived"

    suspect, fine = flow(rig, step(rig, "kills", kills_twice), type="suspect"), flow(rig, "fine", type="fine")
    workflow_id = rig.start(suspect)
    for _ in range(2):
        die_of(rig, suspect, fine)
    third = rig.worker(suspect, fine, slots=8)
    assert rig.instance(workflow_id).deaths == 1
    rig.advance(LEASE_MS)
    rig.finish(workflow_id)

    assert beside == [1]
    assert rig.output(workflow_id) == "survived"
    assert rig.instance(workflow_id).deaths == 0
    rig.finish(*(rig.client.start_or_resume(fine.plan, biz_key=f"late{k}").workflow_id for k in range(5)))


def die_of(rig: SteppedRig, *definitions: Any) -> None:
    """A fresh worker that dies of its work."""
    worker = rig.worker(*definitions)
    rig.run(lambda: worker.dead, "a death", worker)


def make_suspect(rig: SteppedRig, definition: Any, key: str) -> str:
    """A workflow with two deaths behind it, free and due."""
    workflow_id = rig.start(definition, key)
    set_fields(rig, workflow_id, deaths=2)
    return workflow_id


def test_a_busy_worker_leaves_a_suspect_to_others_and_then_makes_room_for_it(rig: SteppedRig) -> None:
    """For one scan period it only pushes it back; then it takes nothing new, and runs it when it is empty."""
    alone: list[int] = []
    suspect = flow(rig, step(rig, "suspect", lambda ctx: alone.append(worker.busy)), type="suspect")
    busy = flow(rig, step(rig, "busy", lambda ctx: rig.advance(400)), type="busy")
    worker = rig.worker(suspect, busy, slots=2)
    keys = iter(range(1_000))

    def feed(call: Any) -> None:
        """There is always more of the other work."""
        if "claim" in call.names and len(rig.queue.ids()) < 5:
            rig.start(busy, f"b{next(keys)}")

    rig.start(busy, "first")
    rig.pass_once(worker)
    worker.store.fault_of = feed
    workflow_id = make_suspect(rig, suspect, "s")
    rig.start(busy, "second")
    rig.finish(workflow_id, limit_ms=60_000)

    assert alone == [1]


def test_after_another_worker_has_taken_the_suspect_all_slots_are_used_again(rig: SteppedRig) -> None:
    """Having once made room must not leave a worker with one batch at a time for the rest of its life."""
    suspect, fine = flow(rig, "suspect", type="suspect"), flow(rig, "fine", type="fine")
    worker, other = rig.worker(suspect, fine, slots=4), rig.worker(suspect, fine)
    rig.pass_once(worker)
    rig.start(fine, "first")
    worker.loop.pass_once()
    workflow_id = make_suspect(rig, suspect, "s")
    worker.loop.pass_once()
    assert worker.busy == 1
    rig.base_runner.run_all()
    rig.run(lambda: rig.ended(workflow_id), "the suspect's end", other)
    rig.advance(10 * rig.settings.scan_ms)

    rig.start(fine, "second")
    worker.loop.pass_once()
    assert worker.busy == 1
    for k in range(3):
        rig.start(fine, f"more{k}")
    worker.loop.pass_once()

    assert worker.busy == 4


def test_with_a_limit_of_zero_nothing_is_ever_parked(rig: SteppedRig) -> None:
    definition = flow(rig, killer(rig, [f"w{k}" for k in range(1, 7)]))
    workflow_id = rig.start(definition)
    for _ in range(7):
        worker = rig.worker(definition, deaths_max=0)
        rig.run(lambda worker=worker: worker.dead or rig.ended(workflow_id), "a death or the end", worker)

    assert rig.output(workflow_id) == "w7"


@pytest.mark.parametrize("how", ["lease", "proof"])
def test_a_definition_may_fail_instead_of_being_parked(rig: SteppedRig, how: str) -> None:
    finalized: list[str] = []
    definition = flow(
        rig,
        killer(rig, ["w1", "w2", "w3"]),
        on_poison="fail",
        failure_finalizer=lambda ctx: finalized.append(ctx.error.code),
    )
    workflow_id = rig.start(definition)
    dispatcher, _loop = rig.dispatcher(definition)
    for _ in range(3):
        worker = rig.worker(definition)
        rig.run(lambda worker=worker: worker.dead, "a death", worker)
        if how == "proof":
            dispatcher.sweeps.release_owner(worker.worker_id, counted=True)
    survivor = rig.worker(definition)
    rig.run(lambda: rig.ended(workflow_id), "the end", survivor)

    instance = rig.instance(workflow_id)
    assert (instance.status, instance.parked, finalized) == ("failed", None, ["parked"])
    assert instance.error is not None
    assert "3 workers died in step kills" in instance.error.message
    assert rig.ledger.count("kills") == 3


def test_unpark_puts_an_instance_back_with_its_deaths_forgotten(rig: SteppedRig) -> None:
    definition = flow(rig, killer(rig, ["w1", "w2", "w3"]))
    workflow_id = rig.start(definition)
    for _ in range(3):
        die_of(rig, definition)
    survivor = rig.worker(definition)
    rig.run(lambda: rig.ended(workflow_id), "the parking", survivor)
    before = rig.row(workflow_id)
    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute", survivor)
    assert rig.row(workflow_id) == before
    assert rig.client.unpark("wf-nothing") is False

    assert rig.client.unpark(workflow_id) is True

    row = rig.row(workflow_id)
    assert (row["deaths"], "parked" in row, row["claimable_time"]) == (0, False, rig.clock.wall_ms())
    assert workflow_id in rig.queue.ids()
    assert rig.client.unpark(workflow_id) is False
    rig.run(lambda: rig.ended(workflow_id), "the end", survivor)
    assert rig.output(workflow_id) == "w4"


def test_progress_between_deaths_starts_the_count_anew(rig: SteppedRig) -> None:
    """Each of six steps kills one worker: that is no poison."""
    deadly = [f"w{k}" for k in range(1, 7)]
    definition = flow(rig, *(killer(rig, [deadly[k]], f"kills{k}") for k in range(6)))
    workflow_id = rig.start(definition)
    for _ in range(7):
        worker = rig.worker(definition)
        rig.run(lambda worker=worker: worker.dead or rig.ended(workflow_id), "a death or the end", worker)

    assert [worker.dead for worker in rig.workers] == [True] * 6 + [False]
    assert rig.status(workflow_id) == "completed"
    assert [s.takeovers for s in rig.instance(workflow_id).steps] == [1] * 6


def test_no_way_to_a_claim_leads_past_the_parking(rig: SteppedRig) -> None:
    """Whatever else the row says (DECISIONS detail 19)."""
    definition = flow(rig, "a")
    ways: dict[str, tuple[dict[str, Any], bool]] = {
        "claim": ({}, False),
        "claim_alone": ({}, False),
        "take_over": ({"dead_token": "dead", "alone": True}, True),
        "claim_handed_over": ({"resource": "speech"}, False),
    }
    for name, (more, held) in ways.items():
        workflow_id = rig.start(definition, name)
        set_fields(rig, workflow_id, permit_wait={"resource": "speech", "step": "a", "since_time": 1})
        if held:
            set_fields(rig, workflow_id, claim_token="dead")
        owner = {"worker_id": "w", "worker": "w", "lease_ms": 1, "definition_keys": (definition.plan.key,)}
        claim = getattr(transitions, name)(Held(workflow_id, "new"), **owner, **more, commit_id="c")

        set_fields(rig, workflow_id, parked={"reason": "it kills", "since_time": 1})
        assert isinstance(rig.store.apply(claim), Missed), name
        rig.store.apply(Transition("by hand", INSTANCES, workflow_id, (), (Clear("parked"),)))
        assert isinstance(rig.store.apply(claim), Applied), name


@pytest.mark.req("can-supersede")
def test_a_parked_workflow_can_be_superseded(rig: SteppedRig) -> None:
    definition = flow(rig, killer(rig, ["w1", "w2", "w3"]))
    workflow_id = rig.start(definition)
    for _ in range(3):
        die_of(rig, definition)
    rig.run(lambda: rig.ended(workflow_id), "the parking", rig.worker(definition))
    assert "parked" in rig.row(workflow_id)

    assert rig.client.supersede(workflow_id).changed

    assert (rig.status(workflow_id), "parked" in rig.row(workflow_id)) == ("canceled", False)


@pytest.mark.case("A11", "A13")
def test_a_death_between_two_attempts_loses_nothing(rig: SteppedRig) -> None:
    """Between pop and claim, between claim and entry, between release and the push: the scan finds it each time."""
    boundaries: list[tuple[str, Fault]] = [
        ("claim", "kill_before"),
        ("claim", "kill_after"),
        ("begin_step", "kill_after"),
        ("retry_step", "kill_after"),
    ]
    for write, fault in boundaries:
        fails = write == "retry_step"
        definition = flow(rig, step(rig, "a", raises(ValueError("no")) if fails else gives(1), max_retry=1))
        dying = rig.worker(definition)
        dying.store.fail_once(write, fault)
        workflow_id = rig.start(definition, f"{write}-{fault}")
        rig.run(lambda dying=dying: dying.dead, "the death", dying)
        rig.queue.wipe()
        rig.run(lambda workflow_id=workflow_id: rig.ended(workflow_id), "the end", rig.worker(definition))

        entries = rig.ledger.of("a", workflow_id)
        assert len(entries) == (2 if write == "retry_step" else 1), write


@pytest.mark.req("clm-uncertain")
def test_a_takeover_of_which_nobody_knows_is_given_back_before_its_lease_ends(rig: SteppedRig) -> None:
    """The takeover landed, its answer and the reading after it were lost: the row bears that write's own token."""
    definition = flow(rig, killer(rig, ["w1"]))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    die_once(rig, first, workflow_id)
    rig.advance(LEASE_MS)
    second.store.fail_once("take_over", "undecidable")
    began_ms = rig.clock.wall_ms()

    rig.run(lambda: rig.status(workflow_id) == "completed", "the end", second)

    assert "take_over" in [name for write in second.store.writes for name in write.names]
    assert rig.clock.wall_ms() - began_ms < LEASE_MS
    assert rig.instance(workflow_id).steps[0].takeovers == 1
