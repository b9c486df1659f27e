"""Many requests at once, of which one is refused: the others are registered, and nobody is to wait for a scan."""

from __future__ import annotations

import pytest

from kernel.errors import DefinitionMismatch
from kernel.ids import workflow_id_for
from tests.engine.flows import flow
from tests.support.engine_rig import SteppedRig


@pytest.mark.req("sor-enqueue-always")
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_request_that_is_refused_leaves_no_other_unqueued_and_untold(rig: SteppedRig, place: int) -> None:
    other, mine = flow(rig, "a", type="other"), flow(rig, "a", type="mine")
    taken = rig.start(other, "taken")
    rig.queue.model.remove([taken])
    requests: list[tuple[str, None]] = [("one", None), ("two", None), ("three", None)]
    requests.insert(place, ("taken", None))

    with pytest.raises(DefinitionMismatch):
        rig.client.start_many(mine.plan, requests)

    made = {workflow_id_for(key) for key in ("one", "two", "three")}
    assert {rig.instance(workflow_id).type for workflow_id in made} == {"mine"}
    assert rig.queue.ids() == made
    assert all("workflow.created" in rig.recorder.names(key) for key in made)
