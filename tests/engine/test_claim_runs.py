"""How far one claim carries a workflow, and what alone ends it (clm-stop-reasons)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.errors import NonRetryable
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.support.engine_rig import Rig, RigWorker, SteppedRig

Middle = Callable[[Rig], Step]


def claims(rig: Rig, workflow_id: str) -> int:
    return len(rig.recorder.of("claim.taken", workflow_id))


def once(first: Any, later: Any = "done") -> Callable[[Context], Any]:
    """Return the directive `first` in the first entry, `later` in every other."""
    return lambda ctx: first if ctx.checkpoint() is None and ctx.resume is None else later


GOES_ON: list[tuple[str, Callable[[Rig], Definition]]] = [
    ("plain steps", lambda rig: flow(rig, "a", "b", "c")),
    (
        "a wave",
        lambda rig: flow(rig, "a", step(rig, "b", depends_on=["a"]), step(rig, "c", depends_on=["a"]),
                         step(rig, "d", depends_on=["b", "c"])),
    ),
    ("a step left out", lambda rig: flow(rig, "a", step(rig, "b", raises(ValueError("no")), on_failed="skip"), "c")),
    ("a finalizer", lambda rig: flow(rig, "a", success_finalizer=lambda ctx: None)),
    (
        "the way through failing",
        lambda rig: flow(rig, "a", step(rig, "b", raises(NonRetryable("no"))), failure_finalizer=lambda ctx: None),
    ),
]  # fmt: skip


@pytest.mark.req("clm-stop-reasons", "clm-multi-steps")
@pytest.mark.parametrize("make", [make for _, make in GOES_ON], ids=[name for name, _ in GOES_ON])
def test_nothing_else_ends_a_claim(rig: SteppedRig, make: Callable[[Rig], Definition]) -> None:
    workflow_id = rig.drive(make(rig))

    assert rig.status(workflow_id) in ("completed", "failed")
    assert claims(rig, workflow_id) == 1


ENDS: list[tuple[str, Middle]] = [
    ("Sleep", lambda rig: step(rig, "b", once(Sleep(seconds(1), 1)))),
    ("WaitForSignal", lambda rig: step(rig, "b", once(WaitForSignal("ready", "k", poll_fallback=seconds(1))))),
    ("Yield", lambda rig: step(rig, "b", once(Yield(1)))),
    ("a retry", lambda rig: step(rig, "b", fails_first(1), max_retry=1)),
]


@pytest.mark.req("clm-stop-reasons", "clm-release-clears")
@pytest.mark.parametrize("middle", [middle for _, middle in ENDS], ids=[name for name, _ in ENDS])
def test_a_step_that_waits_or_is_tried_again_ends_the_claim(rig: SteppedRig, middle: Middle) -> None:
    """The control is durable when the claim ends: the row bears no claim, and another worker goes on from it."""
    definition = flow(rig, "a", middle(rig), "c")
    first, second = (rig.worker(definition) for _ in range(2))
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    row = rig.row(workflow_id)
    assert (row["steps"][0]["status"], "claim_token" in row, first.held) == ("completed", False, [])
    assert row["steps"][1]["status"] in ("waiting", "pending")
    first.kill()

    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    assert rig.status(workflow_id) == "completed"
    assert claims(rig, workflow_id) == 2


@pytest.mark.req("clm-stop-reasons", "shd-claim-stops")
def test_a_worker_that_stops_ends_the_claim(rig: SteppedRig) -> None:
    workers: list[RigWorker] = []

    def told_to_stop(ctx: Context) -> str:
        workers[0].loop.drain()
        return "committed"

    definition = flow(rig, "a", step(rig, "b", told_to_stop), "c")
    workers += [rig.worker(definition), rig.worker(definition)]
    workflow_id = rig.start(definition)
    rig.pass_once(workers[0])
    assert ("claim_token" in rig.row(workflow_id), rig.step(workflow_id, "b").status) == (False, "completed")

    rig.run(lambda: rig.ended(workflow_id), "the end", workers[1])

    assert claims(rig, workflow_id) == 2
    assert {entry.step: entry.worker_id for entry in rig.ledger.entries} == {"a": "w1", "b": "w1", "c": "w2"}


@pytest.mark.req("clm-stop-reasons", "clm-uncertain")
def test_an_uncertain_commit_ends_the_claim(rig: SteppedRig) -> None:
    """The answer to a completion is lost and the row can not be read: the worker runs nothing more under this claim."""
    definition = flow(rig, "a", "b", "c")
    first, second = (rig.worker(definition) for _ in range(2))
    completions = iter(["lost"])
    first.store.fault_of = lambda write: (
        "undecidable" if write.names == ("complete_step",) and next(completions, None) else None
    )
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    assert rig.ledger.count("a") == 1 and rig.ledger.count("b") == 0, "b was begun by the lost write, and not entered"
    assert len(rig.recorder.of("claim.lost", workflow_id)) == 1

    rig.run(lambda: rig.ended(workflow_id), "the end", second)

    assert rig.status(workflow_id) == "completed"
    assert claims(rig, workflow_id) == 2
