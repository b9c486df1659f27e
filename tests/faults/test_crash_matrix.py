"""The crash matrix with real processes: at each boundary a process is killed before and after the call, or its answer
is lost; afterwards the facts decide what happens next (RELIABILITY §5, flt-process-exit).

The lease is 30 s and every worker has one slot: a kill hurts one workflow, and what goes on goes on because the death
was proved.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil
import pytest

from kernel import Signal
from tests.faults import crash_cells
from tests.faults.apps import BELL, GATED, LINE, WAITS, Job
from tests.faults.arms import Arm, Point
from tests.faults.crash_cells import (
    ACTIVATED,
    AT_WORK,
    DEFERRED,
    DRAINED,
    POPPED,
    PROCESSES,
    PUBLISHED,
    RENEWED,
    SUPERSEDED,
    Cell,
)
from tests.faults.effects import EFFECT, LEAVE, boot_ms
from tests.faults.invariants import broken_in, findings, orphans
from tests.faults.pausing import paused
from tests.faults.publisher import Publisher, publishers
from tests.faults.rig import ARMED, LIMIT_S, PROMPT_MS, Tree, kill, tree, wait_for
from tests.support.wait import stays, wait_until

AHEAD = 16
"""So many cells of workers at work are under way before the first of them is looked at."""

pytestmark = [pytest.mark.fault, pytest.mark.req("flt-process-exit", "dc-tests-fault")]


def cells(of: Sequence[Cell]) -> pytest.MarkDecorator:
    """One test for each cell, marked with its boundary."""
    return pytest.mark.parametrize(
        "cell", [pytest.param(cell, id=cell.id, marks=pytest.mark.crash(cell.boundary, cell.point)) for cell in of]
    )


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("matrix") / "data"
    # After three scan periods without a worker a dispatcher defers what it finds: here workers stand still for a while.
    patience = {"lease_s": 30.0, "renew_s": 0.3, "scan_s": 3.0, "drain_s": 20.0}
    with tree(folder, ARMED, workers=4, slots=1, **patience) as running:
        yield running


def sacrifice(matrix: Tree, cell: Cell) -> str:
    """Arm the cell for a workflow of its own and start it."""
    workflow_id = arm(matrix, cell)
    matrix.start(cell.flow, cell.id, 10, nap_s=cell.nap_s)
    return workflow_id


def arm(matrix: Tree, cell: Cell) -> str:
    workflow_id = crash_cells.workflow_id_of(cell)
    matrix.arms.arm(cell.id, crash_cells.armed(cell))
    return workflow_id


def check(matrix: Tree, cell: Cell) -> None:
    """What the cell says is what can be seen of its workflow, once the fault is over."""
    workflow_id = crash_cells.workflow_id_of(cell)
    wait_until(lambda: matrix.arms.fired(cell.id), f"the fault of cell {cell.id}", LIMIT_S)
    wait_until(lambda: matrix.ended([workflow_id]), f"the end after cell {cell.id}", LIMIT_S)
    (fired,) = matrix.arms.fired(cell.id)
    row = matrix.instance(workflow_id)
    entries = {step.name: 0 for step in row.steps} | matrix.effects.counts(workflow_id)

    assert row.status == cell.status
    assert entries == cell.entries
    assert tuple(step.attempt for step in row.steps) == (cell.attempts or tuple(entries[s.name] for s in row.steps))
    assert row.steps[0].failures == cell.failures
    assert cell.statuses in ((), tuple(step.status for step in row.steps))
    outside = matrix.effects.of(workflow_id, what=EFFECT)
    assert cell.effects is None or (cell.effects, 1) == (len(outside), len({effect.note for effect in outside}))
    assert (row.deaths, row.parked) == (0, None)
    assert list(broken_in(matrix.row(workflow_id))) == []
    if cell.kills:
        later = [entered for entered in matrix.effects.of(workflow_id) if entered.at_ms > fired.at_ms]
        assert fired.pid not in {entered.pid for entered in later}


@cells(POPPED)
@pytest.mark.req("flt-pop-claim-crash")
def test_a_worker_that_takes_a_candidate(matrix: Tree, cell: Cell) -> None:
    """The id is gone from the lane, the row still claimable: the next scan brings it back, not the lease."""
    matrix.wait_running()
    began_ms = boot_ms()
    workflow_id = sacrifice(matrix, cell)

    check(matrix, cell)

    first = matrix.entered(workflow_id, "a")
    assert first.at_ms - began_ms <= PROMPT_MS


@cells(RENEWED)
@pytest.mark.req("clm-renew-cond", "clm-renew-detached")
def test_a_worker_that_renews(matrix: Tree, cell: Cell) -> None:
    matrix.wait_running()
    workflow_id = matrix.start(cell.flow, cell.id, 10)
    matrix.entered(workflow_id, "only")
    arm(matrix, cell)
    wait_until(lambda: matrix.arms.fired(cell.id), "the renewal is hurt", LIMIT_S)
    matrix.open_gate(workflow_id)

    check(matrix, cell)


class Sacrifices:
    """Cells of workers at work, side by side: four workers, and each kill meets one workflow."""

    def __init__(self, matrix: Tree) -> None:
        self._matrix = matrix
        self.ids: list[str] = []

    def need(self, cell: Cell) -> None:
        """This one is under way, and the next ones are."""
        for following in AT_WORK[len(self.ids) : AT_WORK.index(cell) + AHEAD]:
            self.ids.append(sacrifice(self._matrix, following))


@pytest.fixture(scope="module")
def sacrifices(matrix: Tree) -> Sacrifices:
    matrix.wait_running()
    return Sacrifices(matrix)


@pytest.fixture(scope="module")
def deferred(matrix: Tree) -> None:
    """Begun early: it takes a dispatcher some scans to be sure, and workers mind nothing of it."""
    for cell in DEFERRED:
        sacrifice(matrix, cell)


@cells(AT_WORK)
@pytest.mark.case("A23")
@pytest.mark.req("core-return-is-not-complete", "cmp-window", "cmp-skip-on-recover")
def test_a_worker_at_work(matrix: Tree, deferred: None, sacrifices: Sacrifices, cell: Cell) -> None:
    sacrifices.need(cell)
    check(matrix, cell)


@pytest.fixture
def quiet(matrix: Tree, sacrifices: Sacrifices) -> None:
    """No other cell is under way, and every place is taken."""
    wait_until(lambda: matrix.ended(sacrifices.ids), "the other cells", LIMIT_S)
    matrix.wait_running()


@pytest.fixture(scope="module")
def publisher(matrix: Tree) -> Iterator[Publisher]:
    assert matrix.config.app is not None
    with publishers(matrix.folder, matrix.session.redis_url, matrix.config.app) as program:
        yield program


def ring(matrix: Tree, cell: Cell) -> None:
    """The signal that one of WAITS waits for."""
    workflow_id = crash_cells.workflow_id_of(cell)
    told = Signal(
        signal_id=f"ring:{cell.id}", workflow_id=workflow_id, signal_type=BELL, wait_key=cell.id, generation=1
    )
    matrix.client.deliver_signals([told])


def start_waiting(matrix: Tree, cell: Cell) -> str:
    """A workflow of the cell that waits; its first attempt to start it is not the one that is hurt."""
    job = Job(10)
    handle = matrix.client.start_or_resume(cell.flow.plan, biz_key=cell.id, input=job, priority="background")
    wait_until(lambda: matrix.row(handle.workflow_id)["status"] == "waiting", "it waits", LIMIT_S)
    return handle.workflow_id


@cells(PUBLISHED)
@pytest.mark.req("sor-unique-race", "sor-priority-rise")
def test_a_publisher(matrix: Tree, publisher: Publisher, quiet: None, cell: Cell) -> None:
    """Whatever the dead publisher had done: who repeats the call gets the same one instance."""
    workflow_id = crash_cells.workflow_id_of(cell)
    if cell.flow is WAITS:
        start_waiting(matrix, cell)
    arm(matrix, cell)

    said = publisher.start(cell.flow.type, cell.id, Job(10), "realtime")

    assert said.killed == cell.kills
    assert said.error == ("store_unavailable" if cell.id == "03-lost" else "")
    exists = matrix.client.get(workflow_id) is not None
    assert exists == ((cell.boundary, cell.point) != ("02", "before"))
    if cell.boundary in ("02", "03", "05"):
        again = matrix.client.start_or_resume(cell.flow.plan, biz_key=cell.id, input=Job(10), priority="realtime")
        assert again.workflow_id == workflow_id
        assert again.execution_activated == (not exists)
    if cell.flow is WAITS:
        ring(matrix, cell)
    check(matrix, cell)
    assert matrix.instance(workflow_id).business_priority == 0
    assert [row["biz_key"] for row in matrix.rows()].count(cell.id) == 1


@cells(SUPERSEDED)
@pytest.mark.req("can-supersede", "can-supersede-idempotent")
def test_a_publisher_that_supersedes(matrix: Tree, publisher: Publisher, quiet: None, cell: Cell) -> None:
    """Done or not done, never half: a repeat says which it was, and what comes later changes nothing."""
    if cell.flow is GATED:
        workflow_id = matrix.start(cell.flow, cell.id, 10)
        matrix.entered(workflow_id, "only")
    else:
        workflow_id = start_waiting(matrix, cell)
    live = matrix.row(workflow_id)
    arm(matrix, cell)

    said = publisher.supersede(workflow_id)

    assert (said.killed, said.error) == (cell.kills, "")
    row = matrix.row(workflow_id)
    assert row["status"] == (live["status"] if cell.point == "before" else "canceled")
    assert matrix.client.supersede(workflow_id).changed == (cell.point == "before")
    ended = matrix.row(workflow_id)
    ring(matrix, cell)
    matrix.open_gate(workflow_id)  # whoever held it comes too late
    assert not matrix.client.supersede(workflow_id).changed
    wait_until(lambda: len(matrix.effects.of(workflow_id, what=LEAVE)) == 1, "its step is left", LIMIT_S)
    check(matrix, cell)
    assert matrix.row(workflow_id) == ended
    assert "wait" not in ended and "claim_token" not in ended


@cells(DEFERRED)
@pytest.mark.req("fpr-mismatch-not-failure", "s15")
def test_a_dispatcher_that_defers_what_no_worker_runs(matrix: Tree, deferred: None, cell: Cell) -> None:
    """Pushed away for an hour, once, and nothing else of it is touched: no attempt, no failure, no death."""
    workflow_id = crash_cells.workflow_id_of(cell)
    wait_until(lambda: matrix.arms.fired(cell.id), f"the fault of cell {cell.id}", LIMIT_S)
    row = wait_until(lambda: "deferred" in matrix.row(workflow_id) and matrix.row(workflow_id), "it rests", LIMIT_S)

    instance = matrix.instance(workflow_id)
    assert (instance.status, instance.deaths, instance.claim_token, instance.revision) == ("running", 0, None, 2)
    assert [(step.status, step.attempt, step.failures) for step in instance.steps] == [("pending", 0, 0)] * 2
    assert row["claimable_time"] - row["deferred"]["since_time"] >= 3_600_000
    assert list(broken_in(row)) == []
    assert matrix.effects.of(workflow_id) == []
    stays(lambda: matrix.row(workflow_id) == row, "it rests, and nobody defers it again", 0.5)


@cells(ACTIVATED)
@pytest.mark.req("slp-activate", "slp-not-early")
def test_a_dispatcher_that_activates(matrix: Tree, quiet: None, cell: Cell) -> None:
    """One activation, by whom ever, not early; the next sweep queues what the dead one had not."""
    workflow_id = sacrifice(matrix, cell)
    wait_until(lambda: matrix.row(workflow_id)["status"] == "waiting", "it sleeps")
    due_ms = matrix.row(workflow_id)["claimable_time"]
    with paused(matrix, matrix.pids()):
        wait_until(lambda: matrix.arms.fired(cell.id), "the fault", LIMIT_S)
        wait_until(lambda: matrix.row(workflow_id)["status"] == "running", "it is activated")
        row = matrix.instance(workflow_id)
        assert row.resume is not None
        assert (row.resume.kind, row.steps[0].status, row.claim_token) == ("timer", "pending", None)

    check(matrix, cell)

    assert matrix.effects.of(workflow_id, "a")[1].wall_ms >= due_ms
    assert matrix.instance(workflow_id).revision == 6, "insert, begin, suspend, activate, begin, complete: each once"


@cells(DRAINED)
@pytest.mark.req("shd-release")
def test_a_worker_that_drains(matrix: Tree, quiet: None, cell: Cell) -> None:
    """The step that ran is committed, the next one is somebody else's, whether or not the claim was given back."""
    workflow_id = sacrifice(matrix, cell)
    first = matrix.entered(workflow_id, "a")
    assert matrix.row(workflow_id)["steps"][0]["status"] == "running", "it is at work"

    os.kill(first.pid, signal.SIGTERM)
    drains = lambda: [line for line in matrix.log("drain.poll_stopped") if line["pid"] == first.pid]  # noqa: E731
    wait_until(drains, "it has its order")
    matrix.open_gate(workflow_id)

    check(matrix, cell)
    assert matrix.effects.of(workflow_id, "b")[0].pid != first.pid


def one_for_each_worker(matrix: Tree, prefix: str, workers: int) -> tuple[list[str], list[int]]:
    """Workflows that have just entered their first step, each in a process of its own; on a busy machine it takes more
    than one try until all workers wake up within the time of one workflow."""
    for number in range(50):
        ids = matrix.start_many(LINE, f"{prefix}:{number}", workers, hold_s=0.15)
        pids = [matrix.entered(workflow_id, "a").pid for workflow_id in ids]
        if len(set(pids)) == workers and not matrix.ended(ids):
            return ids, pids
        matrix.finish(*ids)
    raise AssertionError("the workers never work side by side")


@pytest.mark.parametrize("part", range(4))
@pytest.mark.crash("60")
def test_kill_in_the_middle_of_a_drain(matrix: Tree, quiet: None, part: int) -> None:
    """Five offsets a part, twenty in all, from the order to drain to some time after the step's end."""
    workers = len(matrix.pids())
    ids, pids = one_for_each_worker(matrix, f"drain:{part}", workers)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    ordered_ms = boot_ms()
    for k, pid in enumerate(pids):
        wait_for(ordered_ms + (part * workers + k) * 20)
        kill(pid)

    matrix.finish(*ids)

    assert [matrix.output(workflow_id) for workflow_id in ids] == [k + 2 for k in range(workers)]
    assert all(sum(matrix.effects.counts(workflow_id).values()) <= 3 + 1 for workflow_id in ids), "one kill, one more"
    matrix.wait_running(without=pids)


@pytest.mark.parametrize(
    ("boundary", "point", "times"),
    [
        pytest.param(boundary, point, times, id=f"{boundary}-{point}", marks=pytest.mark.crash(boundary, point))
        for boundary, point, times in PROCESSES
    ],
)
@pytest.mark.req("dc-restart-child")
def test_a_child_that_starts(matrix: Tree, quiet: None, boundary: str, point: Point, times: int) -> None:
    """Killed right before or after it is ready, once or several times: its place is filled again, never twice, and not
    without a pause; the tree goes on."""
    began = len(matrix.log("child.backoff"))
    victim = matrix.children()[2]
    for k in range(times):
        matrix.arms.arm(f"{boundary}-{point}-{k}", Arm(call="ready", point=point, role="worker"))
    kill(victim["pid"])

    def filled() -> bool:
        names = []
        for child in psutil.Process(matrix.session.pid).children():
            with suppress(psutil.NoSuchProcess):  # it may die between the list and the question
                names.append(child.name())
        assert len(set(names)) == len(names), f"two children in one place: {names}"
        return len(matrix.log("child.backoff")) >= began + times + 1 and matrix.session.status()["state"] == "RUNNING"

    wait_until(filled, "the place is filled", LIMIT_S, every=0.01)
    died = [fired for k in range(times) for fired in matrix.arms.fired(f"{boundary}-{point}-{k}")]
    child = matrix.children()[2]
    assert len({fired.pid for fired in died}) == times
    assert child["restarts"] == victim["restarts"] + times + 1
    delays = [line["x"]["delay_ms"] for line in matrix.log("child.backoff")[began:]]
    assert len(delays) == times + 1 and min(delays) >= 50 and delays == sorted(delays)
    workflow_id = matrix.start(LINE, f"after:{boundary}:{point}", 1)
    matrix.finish(workflow_id)


def test_afterwards_every_invariant_holds(matrix: Tree, quiet: None) -> None:
    wait_until(lambda: not orphans(matrix.rows()), "no claim is left")
    rows = matrix.rows()
    keys = [cell.id for cell in (*POPPED, *RENEWED, *AT_WORK, *PUBLISHED, *SUPERSEDED, *DEFERRED, *ACTIVATED, *DRAINED)]

    assert findings(rows, matrix.effects.all(), keys) == []
    stays(lambda: matrix.rows() == rows, "what has ended stays as it is", seconds=1)
