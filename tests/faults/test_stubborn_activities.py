"""Activities that do not behave: deaf to their timeout, busy without pause, keeping the interpreter in native code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import apps
from tests.faults.effects import LEAVE
from tests.faults.invariants import findings, orphans
from tests.faults.rig import Tree, tree
from tests.faults.stalls import STEADY
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

LEASES = 3
GRACE_S, DRAIN_S = 0.5, 1.0


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("busy") / "data"
    with tree(folder, workers=3, stuck_grace_s=GRACE_S, drain_s=DRAIN_S, **STEADY) as running:
        yield running


@pytest.fixture(scope="module")
def furnace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tree, str]]:
    """A tree of its own for the one that burns, beneath the other tests: none of them may disturb its process."""
    with tree(tmp_path_factory.mktemp("furnace") / "data", **STEADY) as running:
        yield running, running.start(apps.BURNING, "burning", hold_s=LEASES * running.config.lease_s)


@pytest.mark.case("A71")
@pytest.mark.req("act-ignore-cancel-stuck")
def test_deaf_to_its_timeout_its_worker_is_replaced_and_the_workflow_taken_over(busy: Tree, furnace: object) -> None:
    """Eight of them, over all workers; what runs beside them ends, and no death is held against anybody."""
    deaf = busy.start_many(apps.STUBBORN, "deaf", 8)
    others = busy.start_many(apps.STEADY, "beside", 12, hold_s=0.05)
    busy.finish(*deaf, *others)

    for number, key in enumerate(deaf):
        first, second = busy.effects.of(key, "b")
        assert second.worker_id != first.worker_id
        assert second.at_ms - first.at_ms >= 1000 * (0.5 + GRACE_S)
        assert busy.effects.of(key, "b", LEAVE)[0].worker_id == second.worker_id, "the deaf one never returned"
        row = busy.instance(key)
        assert (row.steps[1].attempt, row.steps[1].failures, row.deaths) == (2, 1, 0)
        assert busy.output(key) == number + 2
    wait_until(lambda: busy.log("child.recycled"), "the log tells of it")
    assert {line["x"]["cause"] for line in busy.log("child.exited")} == {"ordered"}
    assert [busy.output(key) for key in others] == [number + 3 for number in range(12)]


@pytest.mark.case("A06")
@pytest.mark.req("clm-late-worker", "act-old-process-commit")
def test_native_code_that_keeps_the_interpreter_for_three_leases_completes_once(busy: Tree, furnace: object) -> None:
    """No thread of that process can renew: another runs the step, and the late return changes nothing."""
    busy.wait_running()
    workflow_id = busy.start(apps.NATIVE, "native", hold_s=LEASES * busy.config.lease_s)
    pid = busy.entered(workflow_id, "only").pid

    busy.finish(workflow_id)
    row = busy.row(workflow_id)
    late = lambda: [e for e in busy.effects.of(workflow_id, "only", LEAVE) if e.pid == pid]  # noqa: E731
    wait_until(late, "the native call returns")

    assert busy.effects.counts(workflow_id)["only"] <= 2
    assert busy.row(workflow_id) == row
    assert busy.output(workflow_id) == busy.effects.counts(workflow_id)["only"]
    done = busy.start_many(apps.ONE, "after native", 12, hold_s=0.2)
    busy.finish(*done)
    assert pid in {effect.pid for key in done for effect in busy.effects.of(key)}, "its process works on"


@pytest.mark.case("A05")
@pytest.mark.req("clm-no-steal")
def test_pure_python_that_burns_for_three_leases_runs_once(furnace: tuple[Tree, str]) -> None:
    burning, workflow_id = furnace
    burning.finish(workflow_id)

    (entered,) = burning.effects.of(workflow_id, "only")
    (left,) = burning.effects.of(workflow_id, "only", LEAVE)
    assert left.at_ms - entered.at_ms >= 1000 * LEASES * burning.config.lease_s
    (step,) = burning.instance(workflow_id).steps
    assert (step.attempt, step.takeovers) == (1, 0)


def test_afterwards_every_invariant_holds(busy: Tree) -> None:
    wait_until(lambda: not orphans(busy.rows()), "no claim is left")
    rows = busy.rows()
    native = [row["workflow_id"] for row in rows if row["type"] == "native"]
    effects = [effect for effect in busy.effects.all() if effect.workflow_id not in native]

    assert findings(rows, effects, [row["biz_key"] for row in rows]) == []
