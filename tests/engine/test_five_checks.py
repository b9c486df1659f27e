"""Five checks before a step advances: each broken alone, and the write or the call is refused (core-five-checks)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel import transitions
from kernel.business_objects import BusinessObjects
from kernel.config import Limit
from kernel.context import Context
from kernel.ids import SeededIds
from kernel.objects import Objects
from kernel.store.conditional import Applied, Missed, Transition
from kernel.store.memory import MemoryStore
from kernel.transitions import Held
from tests.engine.flows import flow, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig

NOTES = Objects(name="notes", round_fields=("result",))


class Broken(BaseException):
    """Ends an activity where the test has seen enough: its worker is dead then."""


def completing(rig: SteppedRig) -> tuple[Transition, dict[str, Any]]:
    """The completion of a step that is being executed, as its holder would send it; and the row as it stands."""
    sent: list[Transition] = []
    rows: list[dict[str, Any]] = []

    def activity(ctx: Context) -> None:
        instance = rig.instance(ctx.workflow_id)
        assert instance.claim_token is not None
        held = Held(ctx.workflow_id, instance.claim_token)
        sent.append(
            transitions.complete_step(
                held, instance, 0, output=b"\x01\xc0", elapsed_ms=1, worker_id="w1", commit_id="the test's"
            )
        )
        rows.append(rig.row(ctx.workflow_id))
        worker.kill()
        raise Broken

    definition = flow(rig, step(rig, "a", activity), "b")
    worker = rig.worker(definition)
    rig.start(definition)
    rig.pass_once(worker)
    return sent[0], rows[0]


@pytest.mark.req("core-five-checks")
def test_with_every_check_kept_the_step_advances(rig: SteppedRig) -> None:
    completion, _ = completing(rig)
    assert isinstance(rig.store.apply(completion), Applied)


@pytest.mark.req("core-five-checks")
@pytest.mark.parametrize("status", ["pending", "waiting", "completed", "skipped", "failed"])
def test_the_persisted_state_must_allow_the_step_now(rig: SteppedRig, status: str) -> None:
    completion, row = completing(rig)
    set_fields(rig, completion.key, steps=[{**row["steps"][0], "status": status}, row["steps"][1]])
    before = rig.row(completion.key)

    assert isinstance(rig.store.apply(completion), Missed)
    assert rig.row(completion.key) == before


@pytest.mark.req("core-five-checks")
def test_the_claim_token_must_be_the_current_one(rig: SteppedRig) -> None:
    completion, _ = completing(rig)
    set_fields(rig, completion.key, claim_token="another's")
    before = rig.row(completion.key)

    assert isinstance(rig.store.apply(completion), Missed)
    assert rig.row(completion.key) == before


@pytest.mark.req("core-five-checks")
def test_the_order_of_the_definition_must_allow_the_step(rig: SteppedRig) -> None:
    """A row in which `b` looks due, while `a` has to be entered again: `b` is not called before `a` is complete."""
    seen: list[str] = []

    def late(ctx: Context) -> str:
        seen.append(rig.step(ctx.workflow_id, "a").status)
        return "b"

    definition = flow(rig, "a", step(rig, "b", late))
    worker = rig.worker(definition)
    worker.store.fail_once("complete_step", "kill_before")
    workflow_id = rig.start(definition)
    rig.run(lambda: worker.dead, "the death in a", worker)
    rig.advance(rig.settings.lease_ms)
    row = rig.row(workflow_id)
    assert [entry["status"] for entry in row["steps"]] == ["running", "pending"]
    set_fields(rig, workflow_id, steps=[row["steps"][0], {**row["steps"][1], "due_time": 1}])

    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(definition))

    assert rig.ledger.steps() == ["a", "a", "b"]
    assert seen == ["completed"]


@pytest.mark.req("core-five-checks")
def test_the_result_must_belong_to_the_current_business_round(rig: SteppedRig) -> None:
    objects = BusinessObjects(NOTES, MemoryStore(rig.clock, tables={NOTES.place: NOTES.table}), SeededIds(7))
    objects.accept("n-1", type_="job", biz_key="n-1", input={}, priority=1)
    round_1 = _round(objects)
    assert objects.fail("n-1", round_1, {})
    round_2 = objects.new_round("n-1", round_1, type_="job", biz_key="n-1", input={}, priority=1)
    assert round_2 is not None

    assert not objects.complete("n-1", round_1, {"result": "late"})
    assert objects.complete("n-1", round_2, {"result": "right"})


@pytest.mark.req("core-five-checks")
def test_a_permit_must_be_held_before_the_downstream_is_called(rig: SteppedRig) -> None:
    rig.limits = {"speech": Limit(paused=True)}
    definition = flow(rig, step(rig, "call", resource="speech"))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)

    rig.run(lambda: "permit_wait" in rig.row(workflow_id), "the refusal", worker)

    assert rig.ledger.entries == []
    assert rig.step(workflow_id, "call").attempt == 0


def _round(objects: BusinessObjects) -> str:
    there = objects.get("n-1")
    assert there is not None
    assert there.fencing_token is not None
    return there.fencing_token
