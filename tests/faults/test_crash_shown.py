"""The side paths when processes die: what a client is shown, and what operators are (RELIABILITY §5, 08, 37, 54 to 58).

None of it decides anything: the workflow ends as it would have, and what is shown is of one attempt, whole or cut off.
One cell after the other, each with one workflow: three workers, and each kill meets one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernel.frames import Terminal
from kernel.ids import workflow_id_for
from kernel.stream_words import Appended, NotAppended, Seniority, StreamId
from tests.faults.arms import Arm, Point
from tests.faults.crash_app import SEEN, SHOWN, Shown
from tests.faults.crash_shown import APP, LATE, Stage, Watched, begun, stage_in, whole
from tests.faults.invariants import findings, orphans
from tests.faults.pausing import paused
from tests.faults.publisher import Publisher, publishers
from tests.faults.rig import LIMIT_S
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("flt-process-exit", "dc-tests-fault")]

POINTS: tuple[Point, ...] = ("before", "lost", "after")


def marked(boundary: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", [pytest.param(p, marks=pytest.mark.crash(boundary, p)) for p in POINTS])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("stage") / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def publisher(stage: Stage) -> Iterator[Publisher]:
    with publishers(stage.tree.folder, stage.tree.session.redis_url, APP) as program:
        yield program


def start(stage: Stage, cell: str, *, fails: bool = False) -> tuple[str, Watched]:
    """A workflow of the cell, and somebody who reads along."""
    handle = stage.tree.client.start_or_resume(SHOWN.plan, biz_key=cell, input=Shown(fails=fails))
    return handle.workflow_id, Watched(stage.tree, handle.workflow_id)


def arm(stage: Stage, cell: str, call: str, point: Point, *, role: str = "worker", touches: str = "") -> None:
    found = Arm(call=call, point=point, workflow_id=workflow_id_for(cell), role=role, touches=touches)
    stage.tree.arms.arm(cell, found)


def wait_fired(stage: Stage, cell: str) -> None:
    wait_until(lambda: stage.tree.arms.fired(cell), f"the fault of cell {cell}", LIMIT_S)


def wait_shown(reader: Watched, attempt: int) -> None:
    wait_until(lambda: reader.screen == [begun(attempt)], f"attempt {attempt} alone is shown", LIMIT_S)


def finish(stage: Stage, workflow_id: str, reader: Watched, attempt: int, unentered: int = 0) -> None:
    """It ends in that attempt, and of all attempts its readers have that one before them, and all of it that was shown
    before its end. `unentered`: of so many a process died beside their beginning, before or behind it."""
    stage.tree.open_gate(f"{workflow_id}-{attempt}")
    *shown, last = whole(attempt)
    wait_until(lambda: reader.screen == shown, "all but the last number is shown", LIMIT_S)
    stage.tree.open_gate(f"{workflow_id}-{attempt}-end")
    stage.tree.finish(workflow_id)
    assert reader.finish() == "completed"
    assert reader.events[-1].frame.data["result"] == f"result of attempt {attempt}"
    # Who is slow to send, or to look, has the end of the record first, and nothing comes behind that.
    assert reader.screen in ([*shown, last], shown)
    reader.check()
    (entries,) = stage.tree.effects.counts(workflow_id).values()
    assert attempt - unentered <= entries <= attempt


# --- the stream ---------------------------------------------------------------------------------------


@marked("08")
@pytest.mark.req("sse-reset-on-activation", "sor-reset-before-enqueue", "sse-reset-best-effort", "sse-round-isolation")
def test_a_publisher_that_resets_the_stream_of_a_run(stage: Stage, publisher: Publisher, point: Point) -> None:
    """Redis has frames of another life under this very name. Left there or not, they are gone with the first frame of
    the run: no reader sees them beside it, and nothing waits for it."""
    cell, running = f"08-{point}", stage.tree
    workflow_id = workflow_id_for(cell)
    stream = StreamId(cell, workflow_id, "run-1")
    old = stage.streams.reset(stream, Seniority(1, 1), reset_id="old")
    assert old is not None
    assert isinstance(stage.streams.append(stream, old, [LATE], writer="old", request=1), Appended)
    running.wait_running()
    with paused(running, [*running.pids(), *running.pids("dispatcher")]):
        arm(stage, cell, "stream_reset", point, role="publisher")
        said = publisher.start(SHOWN.type, cell, Shown())
        wait_fired(stage, cell)
        assert (said.killed, said.error) == (point != "lost", "")
        assert running.instance(workflow_id).status == "running", "registered before it was shown"
        there = stage.batch(stream)
        assert (there.generation, there.length) == ((old, 1) if point == "before" else (old + 1, 0))
        reader = Watched(running, workflow_id)
        wait_until(lambda: len(reader.screen) == there.length, "it shows what there is", LIMIT_S)

    wait_shown(reader, 1)
    finish(stage, workflow_id, reader, 1)
    assert reader.resets >= (1 if point == "before" else 0)


@marked("54")
@pytest.mark.req("sse-append-lua", "sse-offset-zero", "sse-loss-harmless")
def test_a_worker_that_appends(stage: Stage, point: Point) -> None:
    """Stored once, under its request's number, at one offset; the frames of the attempt that died go with it."""
    cell = f"54-{point}"
    arm(stage, cell, "stream_append", point)
    workflow_id, reader = start(stage, cell)
    wait_fired(stage, cell)
    last = 1 if point == "lost" else 2
    stage.tree.entered(workflow_id, "compose", last)
    wait_shown(reader, last)
    assert stage.frames(stage.stream(workflow_id)) == [begun(last)], "once"

    finish(stage, workflow_id, reader, last)
    *shown, end = wait_until(lambda: ended(stage, workflow_id), "its terminal frame", LIMIT_S)
    assert shown == whole(last)
    assert end.status == "completed"


def ended(stage: Stage, workflow_id: str) -> list[object] | None:
    """All that Redis has of the stream, once its terminal frame is there."""
    frames = stage.frames(stage.stream(workflow_id))
    return frames if frames and isinstance(frames[-1], Terminal) else None


@marked("56")
@pytest.mark.req("sse-reset", "sse-reset-best-effort", "sse-double-check", "s14")
def test_a_worker_that_begins_a_generation(stage: Stage, point: Point) -> None:
    """Readers have frames of the attempt before. The reset is made once for each entry, however often it is asked for,
    and after it they begin at the first frame."""
    cell = f"56-{point}"
    workflow_id, reader = start(stage, cell, fails=True)
    wait_shown(reader, 1)
    stream = stage.stream(workflow_id)
    first = stage.streams.generation(stream)
    arm(stage, cell, "stream_reset", point)
    stage.tree.open_gate(f"{workflow_id}-1")
    wait_fired(stage, cell)
    last = 2 if point == "lost" else 3
    wait_shown(reader, last)
    assert stage.streams.generation(stream) == first + (2 if point == "after" else 1)

    finish(stage, workflow_id, reader, last, unentered=last - 2)
    assert reader.resets >= 1
    step = stage.tree.instance(workflow_id).steps[0]
    assert (step.attempt, step.failures, step.takeovers) == (last, 1, last - 2)


@marked("37")
@pytest.mark.req("sse-terminal-retry", "sse-reconnect", "sse-finished-direct", "layer-business-answers", "obs-repair")
def test_a_worker_that_tells_the_end(stage: Stage, point: Point) -> None:
    """Whether the terminal frame got there or not, who reads along, who comes back and who comes late gets the end and
    the result of the record; and a snapshot that died with its process is repaired from it."""
    cell = f"37-{point}"
    workflow_id, reader = start(stage, cell)
    wait_shown(reader, 1)
    at = str(reader.events[-1].position)
    arm(stage, cell, "stream_finish", point)

    finish(stage, workflow_id, reader, 1)
    wait_fired(stage, cell)
    for other in (Watched(stage.tree, workflow_id, at), Watched(stage.tree, workflow_id)):
        assert other.finish() == "completed"
        assert other.events[-1].frame.data["result"] == "result of attempt 1"
    revision = stage.tree.instance(workflow_id).revision
    seen = stage.snapshot(workflow_id)
    assert seen is not None and seen[1] <= revision
    stage.repair()
    assert stage.snapshot(workflow_id) == ("completed", revision)


@marked("55")
@pytest.mark.req("sse-terminal-after-mongo", "sse-no-append-after-terminal", "sse-terminal-retry")
def test_a_worker_that_ends_the_stream(stage: Stage, point: Point) -> None:
    """The frame and its reference are there together or not at all; behind them nothing is appended."""
    cell = f"55-{point}"
    arm(stage, cell, "stream_finish", point)
    workflow_id, reader = start(stage, cell)
    wait_shown(reader, 1)
    finish(stage, workflow_id, reader, 1)
    wait_fired(stage, cell)
    stream = stage.stream(workflow_id)
    if point == "before":
        batch = stage.batch(stream)
        assert (batch.terminal, stage.frames(stream)) == (None, whole(1))
        return

    *shown, end = wait_until(lambda: ended(stage, workflow_id), "its terminal frame", LIMIT_S)
    batch = stage.batch(stream)
    assert shown == whole(1)
    assert batch.terminal is not None
    assert (batch.terminal.generation, batch.terminal.offset) == (batch.generation, len(shown))
    assert batch.terminal.record == batch.records[-1]
    assert end == Terminal("completed", 1, stage.tree.instance(workflow_id).revision)
    late = stage.streams.append(stream, batch.generation, [LATE], writer="late", request=1)
    assert late == NotAppended("terminal")
    assert stage.batch(stream) == batch


# --- observations -------------------------------------------------------------------------------------


def hurt_when_seen(stage: Stage, cell: str, call: str, point: Point) -> str:
    """One step of two is done, and its worker is hurt when it writes that down; the other one is held meanwhile."""
    running = stage.tree
    workflow_id = running.client.start_or_resume(SEEN.plan, biz_key=cell, input=Shown()).workflow_id
    running.entered(workflow_id, "b")
    running.entered(workflow_id, "d")
    revision = running.instance(workflow_id).revision
    wait_until(lambda: stage.snapshot(workflow_id), "it was seen before", LIMIT_S)
    arm(stage, cell, call, point, touches="d:completed" if call == "keep_attempts" else str(revision + 1))
    running.open_gate(f"{workflow_id}-d")
    wait_fired(stage, cell)
    running.entered(workflow_id, "b", 1 if point == "lost" else 2)
    return workflow_id


def finish_seen(stage: Stage, workflow_id: str, point: Point) -> None:
    """It ends as if nothing had been, and the end is seen."""
    running = stage.tree
    running.open_gate(f"{workflow_id}-b")
    running.finish(workflow_id)
    assert running.effects.counts(workflow_id) == {"a": 1, "b": 1 if point == "lost" else 2, "d": 1}
    wanted = ("completed", running.instance(workflow_id).revision)
    wait_until(lambda: stage.snapshot(workflow_id) == wanted, "its end is seen", LIMIT_S)


@marked("57")
@pytest.mark.req("obs-no-affect", "obs-attempt-key", "obs-repair")
def test_a_worker_that_writes_a_batch_of_observations(stage: Stage, point: Point) -> None:
    """A batch is there or not, and a repeat writes the same rows: never two of one attempt; the lost are repaired."""
    cell = f"57-{point}"
    workflow_id = hurt_when_seen(stage, cell, "keep_attempts", point)
    if point == "before":
        assert ("d", 1, "completed") not in stage.attempts(cell)
    else:  # an arm tells that it was met before the call is made
        wait_until(lambda: ("d", 1, "completed") in stage.attempts(cell), "the batch is there", LIMIT_S)
    finish_seen(stage, workflow_id, point)

    stage.repair()
    last = 1 if point == "lost" else 2
    rows = stage.attempts(cell)
    assert len({(step, attempt) for step, attempt, _ in rows}) == len(rows)
    assert [row for row in rows if row[2] == "completed"] == [
        ("a", 1, "completed"),
        ("b", last, "completed"),
        ("d", 1, "completed"),
    ]


@marked("58")
@pytest.mark.req("obs-revision-guard", "obs-no-affect")
def test_a_worker_that_writes_a_snapshot(stage: Stage, point: Point) -> None:
    """A later revision is there at the end, and a process that comes late with an older one changes nothing."""
    cell = f"58-{point}"
    workflow_id = hurt_when_seen(stage, cell, "keep_snapshot", point)
    older = stage.stored(cell)
    assert older is not None
    finish_seen(stage, workflow_id, point)

    newest = stage.stored(cell)
    assert newest is not None and newest["revision"] > older["revision"]
    assert stage.keep(older) == 0
    assert stage.stored(cell) == newest


def test_afterwards_every_invariant_holds(stage: Stage) -> None:
    running = stage.tree
    wait_until(lambda: not orphans(running.rows()), "no claim is left", LIMIT_S)
    rows = running.rows()
    assert findings(rows, running.effects.all(), [row["biz_key"] for row in rows]) == []
    stays(lambda: running.rows() == rows, "what has ended stays as it is", seconds=0.5)
