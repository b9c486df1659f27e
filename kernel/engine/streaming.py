"""The client stream of one claim: which steps write to it, when it begins anew, and its end (group 23).

A round's first streaming step begins a generation of its own, and so does every entry after an attempt that failed or
died: what it wrote is not shown twice (sse-reset). Only a step that goes on after a pause of its own, and a later
streaming step, write on where the stream stands. All of it is handed to the writer's thread: the step waits for
nothing, and a Redis that fails is no business of the workflow's (sse-reset-best-effort).
"""

from __future__ import annotations

import threading

from kernel.definition import Definition
from kernel.engine.claims import ActiveClaim
from kernel.records import Instance
from kernel.states import STEP_PENDING, STEP_RUNNING, TERMINAL
from kernel.stream_sink import NoSink, Sink, StreamSink
from kernel.stream_words import Seniority
from kernel.stream_writer import StreamWriter
from kernel.streams import ClientStreams


class ClaimStream:
    """Shared by the threads of a wave. Nothing here raises for Redis, and nothing waits."""

    def __init__(self, streams: ClientStreams, definition: Definition, claim: ActiveClaim) -> None:
        self._streams = streams
        self._claim = claim
        self._steps = frozenset(
            index for index, step in enumerate(definition.steps) if step.streams and streams.available
        )
        steps = claim.instance.steps
        self._interrupted = {index for index in self._steps if steps[index].status == STEP_RUNNING}
        self._lock = threading.Lock()
        self._writer: StreamWriter | None = None
        self._sinks: dict[int, StreamSink] = {}

    def sink(self, instance: Instance, index: int | None) -> Sink:
        """The sink of one invocation of step `index`, just begun as `instance` says; NoSink for all but streaming
        steps."""
        if index is None or index not in self._steps:
            return NoSink()
        with self._lock:
            keep = self._goes_on(instance, index)
            self._interrupted.discard(index)
            fresh = self._writer is None
            writer = self._writer = self._writer or self._streams.writer(instance, self._claim.check)
            if fresh or not keep:
                writer.begin(Seniority.of(instance), keep=keep)
            made = self._sinks[index] = self._streams.sink(writer)
        return made

    def left(self, index: int) -> None:
        """The invocation of step `index` has returned: what it writes from now on, in whatever thread, is dropped."""
        with self._lock:
            sink = self._sinks.pop(index, None)
        if sink is not None:
            sink.close()

    def end(self, instance: Instance) -> None:
        """The claim is over. If its last committed record is terminal, the terminal frame goes behind everything that
        was written (sse-terminal-after-mongo)."""
        with self._lock:
            writer, self._writer = self._writer, None
        if self._steps and instance.status in TERMINAL:
            self._streams.finish(instance, writer)
        elif writer is not None:
            writer.close()

    def _goes_on(self, instance: Instance, index: int) -> bool:
        record = instance.steps[index]
        if index in self._interrupted:
            return False
        if record.resume is not None:
            return True
        if record.attempt > 1:
            return False
        others = (instance.steps[other] for other in self._steps if other != index)
        return record.checkpoint is not None or any(other.status != STEP_PENDING for other in others)
