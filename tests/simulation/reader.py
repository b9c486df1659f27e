"""A client that follows a stream and checks what it is shown (S14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel.errors import KernelError
from kernel.stream_events import FRAME, RESET, TERMINAL, StreamEvent
from kernel.stream_words import Batch, StreamId
from tests.simulation.ports import StreamsPort, stream_key

if TYPE_CHECKING:
    from tests.simulation.roles import ApiProcess
    from tests.simulation.world import World

LOOKS_MAX = 40


class ReadingPort(StreamsPort):
    """The port of readers: it sees when the generation has moved between a read and the second look at it, and gives
    it the time to."""

    _batch: Batch | None = None

    def read(self, *args: Any, **named: Any) -> Batch:
        self._batch = None
        batch: Batch = self._call("read", *args, **named)
        self._batch = batch
        return batch

    def generation(self, stream: StreamId) -> int:
        world = self._world
        lucky = not world.calm and world.planted is None
        if lucky and self._batch is not None and self._batch.records and world.rng.random() < 0.2:
            world.holds.hold(self._process, stream_key(stream), 1, whole=False)
        found: int = self._call("generation", stream)
        if self._batch is not None and self._batch.records and found != self._batch.generation:
            self._world.sometimes.add("reader saw a reset in mid-batch")
        return found


class Shown:
    """What one reader has been shown of one run."""

    def __init__(self, world: World, workflow_id: str, run: int) -> None:
        self._world = world
        self._workflow_id = workflow_id
        self._run = run
        self._generation = self._least = 0
        self._next: int | None = None
        self._text = ""
        self.position: str | None = None

    def see(self, event: StreamEvent) -> None:
        if event.event == RESET:
            # What follows is of this generation, or of a later one of which nothing was shown before it came.
            self._least, self._generation, self._next, self._text = event.frame.data["generation"], 0, 0, ""
        elif event.event == FRAME and event.position is not None:
            self._frame(event)

    def _frame(self, event: StreamEvent) -> None:
        position = event.position
        assert position is not None
        where = f"{self._workflow_id} at {position}"
        if position.generation < self._least or self._generation not in (0, position.generation):
            self._world.violation("S14", f"{where}: a frame of another generation than {self._generation}")
        if self._next is not None and position.offset != self._next:
            self._world.violation("S14", f"{where}: frame {self._next} is missing")
        self._generation, self._next = position.generation, position.offset + 1
        self.position = str(position)
        if event.frame.msg_type == "text":
            self._text += event.frame.data
            *lines, self._text = self._text.split("\n")
            for line in lines:
                self._line(line, where)

    def _line(self, line: str, where: str) -> None:
        """`workflow|run|step|place`, but for the first after a return, which may have begun before it."""
        parts = line.split("|")
        if len(parts) == 4 and (parts[0], parts[1]) != (self._workflow_id, str(self._run)):
            self._world.violation("S14", f"{where}: {line!r} is shown to a reader of run {self._run}")


def follow(world: World, api: ApiProcess, workflow_id: str) -> None:
    """Follow, leave, come back where one was; bounded. What is refused or away ends it."""
    instance = api.client.get(workflow_id)
    if instance is None:
        return
    shown = Shown(world, workflow_id, instance.workflow_run)
    pause = api.event()
    looks = 0
    for _ in range(world.rng.choice((1, 1, 2))):
        try:
            reader = api.client.progress.reader(workflow_id, shown.position)
        except KernelError:
            return
        if reader.stream != StreamId.of(instance):
            return
        while not reader.ended and looks < LOOKS_MAX:
            looks += 1
            for event in reader.poll():
                shown.see(event)
                if event.event == TERMINAL:
                    return
            if world.rng.random() < 0.05:
                break
            pause.wait(max(0.05, reader.wait_ms() / 1000))
