"""Boundaries 54–58: what is shown to clients and to operators. It decides nothing, and is never wrong for long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kernel.context import Context
from kernel.definition import Step
from kernel.observe.repair import Repair
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document
from kernel.states import TERMINAL
from kernel.store.memory_projection import MemoryProjection
from kernel.store.projection import Keep
from kernel.stream_events import FRAME, RESET, StreamEvent
from kernel.stream_events import TERMINAL as TERMINAL_EVENT
from kernel.stream_words import NotAppended, StreamId
from tests.simulation.crash.fault import Call
from tests.simulation.crash.outside import Asked
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.crash.working import ENDS_MS, begun
from tests.simulation.entries import world_process
from tests.simulation.roles import ApiProcess

PARTS = 4
MINUTE = timedelta(seconds=60)


def speaking(s: Stage, *, fails: bool = False) -> Step:
    """A step that shows the attempt in which it is, several times."""

    def speak(ctx: Context) -> dict[str, Any]:
        s.ledger.enter(ctx, "a")
        for part in range(PARTS):
            ctx.stream.send("part", {"attempt": ctx.attempt, "part": part})
            world_process().event().wait(0.4)
            ctx.check()
        if fails and ctx.attempt == 1:
            raise RuntimeError("as told")
        return {"step": "a", "run": ctx.workflow_run}

    return Step("a", speak, timeout=MINUTE, max_retry=int(fails), streams=True)


def following(s: Stage, workflow_id: str) -> Asked:
    """Somebody who follows the workflow to its end; the answer: all that he was given."""

    def call(api: ApiProcess) -> list[StreamEvent]:
        reader = api.client.progress.reader(workflow_id, None)
        pause, seen = api.event(), []
        while True:
            for event in reader.poll():
                seen.append(event)
                if event.event == TERMINAL_EVENT:
                    return seen
            pause.wait(max(0.05, reader.wait_ms() / 1000))

    return s.ask(call, "follow")


def check_view(s: Stage, reader: Asked, attempt: int) -> None:
    """Between two resets there are frames of one generation and one attempt, in order, none of them twice."""
    s.until(lambda: reader.done, "the reader is at the end", ENDS_MS)
    assert reader.error is None
    view: list[tuple[int, int, int]] = []
    for event in reader.answer:
        if event.event == RESET:
            view = []
        elif event.event == FRAME and event.position is not None:
            data = event.frame.data
            view.append((event.position.generation, data["attempt"], data["part"]))
            assert len({one[:2] for one in view}) == 1, view
            parts = [part for _, _, part in view]
            assert parts == list(range(parts[0], parts[0] + len(parts))), "each frame once, and in order"
    assert [one[1] for one in view] in ([], [attempt] * len(view)), view


@scene("54", "streams.append")
def frames_are_appended(s: Stage) -> None:
    """b: sent again under the same request, and stored once."""
    s.arm("streams.append", "worker", when=lambda call: s.plant.made_in["streams.append"] == 1)
    workflow_id = begun(s, s.flow(speaking(s)))
    reader = following(s, workflow_id)
    s.fired()
    end = s.ended(workflow_id, ENDS_MS)
    assert (end.status, s.entries(workflow_id, "a")) == ("completed", (s.pick(2, 1, 2),))
    check_view(s, reader, end.steps[0].attempt)
    model = s.redis.streams.read(StreamId.of(end), 0, 0, bytes_max=100_000, count_max=1_000)
    assert len(model.records) == PARTS + 1, "each once, and the terminal frame"


@scene("55", "streams.finish")
def the_terminal_frame_is_appended(s: Stage) -> None:
    s.arm("streams.finish", "worker")
    workflow_id = begun(s, s.flow(speaking(s)))
    reader = following(s, workflow_id)
    s.fired()
    end = s.ended(workflow_id, ENDS_MS)
    assert end.status == "completed"
    check_view(s, reader, 1)
    assert reader.answer[-1].frame.data["status"] == "completed"
    s.rest(WORK_MS)
    streams, stream = s.redis.streams, StreamId.of(end)
    found = streams.read(stream, 0, 0, bytes_max=100_000, count_max=1_000)
    assert (found.terminal is None) == (s.point == "a")
    if found.terminal is not None:
        late = streams.append(stream, found.generation, [b"\x11late"], writer="another", request=1)
        assert late == NotAppended("terminal"), "nothing comes after it"


@scene("56", "streams.reset")
def a_stream_begins_a_new_generation(s: Stage) -> None:
    """With the second attempt; whoever was reading drops what he had."""
    s.arm("streams.reset", "worker", when=lambda call: s.plant.hits["retry_step"] == 1)
    workflow_id = begun(s, s.flow(speaking(s, fails=True)))
    reader = following(s, workflow_id)
    s.fired()
    end = s.ended(workflow_id, ENDS_MS)
    assert end.status == "completed"
    check_view(s, reader, end.steps[0].attempt)
    assert RESET in [event.event for event in reader.answer]


def rows(store: MemoryProjection, table: str) -> list[Document]:
    return [store.get(table, key) or {} for key in sorted(store._rows[table])]


def writes_to(table: str) -> Any:
    def writes(call: Call) -> bool:
        return any(keep.table == table for keep in call.said[0])

    return writes


def observed_right(s: Stage, store: MemoryProjection, workflow_id: str) -> None:
    """One row for each attempt that there was, and the snapshot of the last revision."""
    end = s.ended(workflow_id, ENDS_MS)

    def all_told() -> bool:
        queues = [queue for process, queue in s.observers.items() if not process.dead]
        return not any(queue.counters["observation_queue"] for queue in queues)

    s.until(all_told, "everything is written", WORK_MS)
    wanted = {(step.name, number + 1) for step in end.steps for number in range(step.attempt)}
    attempts = rows(store, ATTEMPTS)
    assert sorted((row["step"], row["attempt"]) for row in attempts) == sorted(wanted)
    (snapshot,) = rows(store, SNAPSHOTS)
    assert (snapshot["revision"], snapshot["status"]) == (end.revision, end.status)


@scene("57", "observe.keep_all")
def attempts_are_written(s: Stage) -> None:
    """A repeat writes the same rows again; what died in a queue is told by whoever goes on."""
    store = s.observe()
    s.arm("observe.keep_all", "worker", when=writes_to(ATTEMPTS))
    workflow_id = begun(s, s.flow(s.work("a", 2_000), s.work("b"), s.work("c")))
    s.fired()
    assert bool(rows(store, ATTEMPTS)) == (s.point != "a")
    observed_right(s, store, workflow_id)


@scene("58", "observe.keep_all")
def a_snapshot_is_written(s: Stage) -> None:
    """An older revision never wins."""
    store = s.observe()
    told: list[Keep] = []

    def second(call: Call) -> bool:
        told.extend(keep for keep in call.said[0] if keep.table == SNAPSHOTS)
        return s.plant.made_in["observe.keep_all"] >= 1 and writes_to(SNAPSHOTS)(call)

    s.arm("observe.keep_all", "worker", when=second)
    workflow_id = begun(s, s.flow(s.work("a", 2_000), s.work("b", 2_000), s.work("c", 2_000)))
    s.fired()
    observed_right(s, store, workflow_id)
    after = rows(store, SNAPSHOTS)
    assert store.keep_all(told[:1]) == 0 and rows(store, SNAPSHOTS) == after


@scene("58", "observe.keep_all")
def the_last_snapshot_is_written(s: Stage) -> None:
    """Died with its process, it is wrong until somebody repairs it; the workflow knows nothing of that (S13)."""
    store = s.observe()

    def last(call: Call) -> bool:
        return any(keep.document.get("status") in TERMINAL for keep in call.said[0])

    s.arm("observe.keep_all", "worker", when=last)
    workflow_id = begun(s, s.flow(s.work("a")))
    s.fired()
    end = s.row(workflow_id)
    if s.point == "a":
        s.rest(TAKEOVER_MS)
        assert all(row["status"] == "running" for row in rows(store, SNAPSHOTS))
        Repair(s.store, store, 86_400_000).repair_all()
    observed_right(s, store, workflow_id)
    assert s.row(workflow_id) == end
