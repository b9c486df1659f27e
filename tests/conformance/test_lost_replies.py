"""A writer that lost its answer can see in the row whether its own write landed (DECISIONS detail 3, A52)."""

from __future__ import annotations

import pytest

from kernel import transitions as make
from kernel.errors import OutcomeUnknown
from kernel.store.conditional import MISSED, Applied, Duplicate
from kernel.store.protocol import Store
from kernel.transitions import Held
from tests.conformance.instances import TOKEN, claimed, instance_document, put, read, step_document
from tests.support.lossy_store import LossyStore


def started(store: Store) -> Held:
    steps = [step_document(0, "running", attempt=1), step_document(1)]
    put(store, instance_document("wf", store.now_ms(), **claimed(), steps=steps))
    return Held("wf", TOKEN)


@pytest.mark.case("A52")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_the_mark_tells_whether_a_write_of_unknown_outcome_landed(lost: str, store: Store) -> None:
    lossy = LossyStore(store)
    held = started(store)
    done = make.complete_step(
        held, read(store, "wf"), 0, output=b"o", elapsed_ms=1, worker_id="w", commit_id="my-commit"
    )
    getattr(lossy, f"lose_{lost}")()

    with pytest.raises(OutcomeUnknown):
        lossy.apply(done)

    after = read(store, "wf")
    landed = "my-commit" in after.commit_ids
    assert landed is (lost == "reply")
    assert (after.steps[0].status == "completed") is landed
    assert after.claim_token == TOKEN


@pytest.mark.case("A52")
def test_the_same_transition_sent_again_takes_effect_once(store: Store) -> None:
    """Its guards no longer hold after it landed: sending it again misses, and the mark stands once."""
    lossy = LossyStore(store)
    held = started(store)
    done = make.complete_step(held, read(store, "wf"), 0, output=b"o", elapsed_ms=1, worker_id="w", commit_id="mine")
    lossy.lose_reply()
    with pytest.raises(OutcomeUnknown):
        lossy.apply(done)

    assert lossy.apply(done) == MISSED
    assert read(store, "wf").commit_ids.count("mine") == 1
    assert read(store, "wf").revision == 8

    lossy.lose_request()
    begun = make.begin_step(held, read(store, "wf"), 1, worker_id="w", commit_id="next")
    with pytest.raises(OutcomeUnknown):
        lossy.apply(begun)
    assert isinstance(lossy.apply(begun), Applied)
    assert read(store, "wf").steps[1].attempt == 1


@pytest.mark.case("A52")
def test_a_copy_that_lands_late_changes_nothing_although_its_guards_hold_again(store: Store) -> None:
    """The first copy was still under way when the same transition was sent again, and meanwhile the claim has come back
    to where it was: only the mark tells that this was done. (Found by seed 45 of the simulation: a late suspension.)"""
    held = started(store)
    entered = make.begin_step(held, read(store, "wf"), 0, worker_id="w", commit_id="mine")
    assert isinstance(store.apply(entered), Applied)

    assert store.apply(entered) == MISSED
    assert store.apply_all([entered]) == [MISSED]
    assert read(store, "wf").steps[0].attempt == 2
    assert read(store, "wf").commit_ids.count("mine") == 1


@pytest.mark.case("A52")
def test_an_insert_that_meets_its_own_first_copy_can_be_told_from_anothers(store: Store) -> None:
    created = make.create(
        workflow_id="wf", type_="t", biz_key="b", fingerprint="f", step_names=("s",), input_=b"", priority=1,
        now_ms=1, commit_id="mine",
    )  # fmt: skip
    lossy = LossyStore(store)
    lossy.lose_reply()
    with pytest.raises(OutcomeUnknown):
        lossy.insert(created)

    assert lossy.insert(created) == Duplicate("workflow_id")
    assert read(store, "wf").commit_ids == ("mine",)
