"""How a workflow is getting on, for whoever waits for it: its record, its stream, its result (groups 6 and 23).

Everything here reads. What ended a workflow is told by its record alone; the stream only shows the way there
(layer-business-answers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.codec import decode
from kernel.dispatch import ROUND_FIELD
from kernel.engine.ports import Event
from kernel.errors import (
    CheckpointError,
    CoordinationUnavailable,
    Parked,
    ResultTimeout,
    StoreUnavailable,
    UnknownStream,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowFailed,
    WorkflowWasCanceled,
)
from kernel.forwarder import Forwarder, Outcome
from kernel.frames import Terminal
from kernel.ids import check_id
from kernel.records import Instance, to_instance
from kernel.states import CANCELED, COMPLETED, TERMINAL
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.stream_events import StreamEvent
from kernel.stream_words import OBJECT_FIELD, StreamId
from kernel.streams import ClientStreams, terminal_of

_POLL_FIRST_S = 0.002
_POLL_MAX_S = 0.25

Final = Callable[[Instance], Any]
"""What a reader gets as the result of a completed workflow, as JSON can say it."""


class Progress:
    """Safe for many threads."""

    def __init__(self, store: Store, clock: Clock, pause: Event, streams: ClientStreams | None) -> None:
        self._store = store
        self._clock = clock
        self._pause = pause
        self._streams = streams

    def get(self, workflow_id: str) -> Instance | None:
        """The instance as it is now."""
        document = self._store.get(INSTANCES, workflow_id)
        return None if document is None else to_instance(document)

    def result(self, workflow_id: str, timeout: timedelta, type_: Any = Any) -> Any:
        """Wait until the workflow ends; the output of its last step, decoded as `type_`.

        Raises WorkflowFailed, WorkflowWasCanceled, Parked, UnknownWorkflow, or ResultTimeout after `timeout`. A store
        that does not answer is asked again until then: work that outlasts its outage is worth waiting for. Raises
        StoreUnavailable when it does not answer in the end either.
        """
        deadline_ms = self._clock.boot_ms() + round(timeout.total_seconds() * 1000)
        delay_s = _POLL_FIRST_S
        while True:
            try:
                instance = self._known(workflow_id)
            except StoreUnavailable:
                if self._clock.boot_ms() >= deadline_ms:
                    raise
            else:
                if instance.ended:
                    return _result(instance, type_)
                if self._clock.boot_ms() >= deadline_ms:
                    raise ResultTimeout(f"workflow {workflow_id} is still {instance.status} after {timeout}")
            self._pause.wait(delay_s)
            delay_s = min(delay_s * 1.5, _POLL_MAX_S)

    def follow(
        self,
        workflow_id: str,
        last_event_id: str | None = None,
        *,
        object_id: str | None = None,
        fencing_token: str | None = None,
        final: Final | None = None,
        stop: Event | None = None,
    ) -> Iterator[StreamEvent]:
        """The events of the workflow's present round until its end. Raises at once, as `reader`."""
        stream, outcome = self._present(workflow_id, object_id, fencing_token, final)
        return self._opened().follow(stream, outcome, last_event_id, stop)

    def reader(
        self,
        workflow_id: str,
        last_event_id: str | None = None,
        *,
        object_id: str | None = None,
        fencing_token: str | None = None,
        final: Final | None = None,
    ) -> Forwarder:
        """A read cursor to be polled by a caller with a loop of its own.

        Object and round are those of the workflow's record; given, they must be the same, so that a client that was
        told of one round never sees another (sse-identity). Raises UnknownWorkflow, UnknownStream, and InvalidId for
        ids and a Last-Event-ID that are none, before anything of the stream is read.
        """
        stream, outcome = self._present(workflow_id, object_id, fencing_token, final)
        return self._opened().forwarder(stream, outcome, last_event_id)

    def on_news(self, reader: Forwarder, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` from another thread when there may be something to poll; returns what ends that. It must be
        called when the reader goes: nobody else knows that it is gone."""
        return self._opened().on_news(reader.stream, listener)

    def _opened(self) -> ClientStreams:
        if self._streams is None:
            raise CoordinationUnavailable("streams: this client was made without them")
        return self._streams

    def _present(
        self, workflow_id: str, object_id: str | None, fencing_token: str | None, final: Final | None
    ) -> tuple[StreamId, Callable[[], Outcome | None]]:
        check_id(workflow_id, "workflow_id")
        instance = self._known(workflow_id)
        stream = StreamId.of(instance)
        if object_id is not None and not _is_about(instance, stream, object_id):
            raise UnknownStream(f"{OBJECT_FIELD}: workflow {workflow_id} is about another object")
        if fencing_token is not None and fencing_token != stream.round:
            raise UnknownStream(f"{ROUND_FIELD}: workflow {workflow_id} is not in that round now")
        return stream, partial(self._outcome, stream, instance.workflow_run, final or _last_output)

    def _outcome(self, stream: StreamId, run: int, final: Final) -> Outcome | None:
        """How the round that a reader follows has ended; None while it goes on."""
        instance = self.get(stream.workflow_id)
        if instance is None or instance.workflow_run != run or StreamId.of(instance) != stream:
            # A reader who was away so long that the next round has begun: its frames are not for this one.
            return Outcome(Terminal("replaced", run))
        if instance.status not in TERMINAL:
            return None
        return Outcome(terminal_of(instance), _as_json(final(instance)) if instance.status == COMPLETED else None)

    def _known(self, workflow_id: str) -> Instance:
        instance = self.get(workflow_id)
        if instance is None:
            raise UnknownWorkflow(f"workflow {workflow_id!r} does not exist")
        return instance


def _is_about(instance: Instance, stream: StreamId, object_id: str) -> bool:
    """Whether that is the object of the stream. An input need not name it: then it is the last part of the biz_key."""
    if stream.object_id != instance.biz_key:
        return object_id == stream.object_id
    return object_id != "" and f":{instance.biz_key}".endswith(f":{object_id}")


def _result(instance: Instance, type_: Any) -> Any:
    if instance.parked is not None:
        raise Parked(f"workflow {instance.workflow_id} is parked: {instance.parked.reason}")
    if instance.status == COMPLETED:
        last = instance.steps[-1].name
        data = instance.outputs.get(last)
        return None if data is None else decode(data, type_, f"output of step {last}")
    if instance.status == CANCELED:
        raise WorkflowWasCanceled(f"workflow {instance.workflow_id} was canceled")
    error = instance.error
    detail = "no error was recorded" if error is None else f"{error.type}: {error.message}"
    raise WorkflowFailed(f"workflow {instance.workflow_id} failed: {detail}")


def _last_output(instance: Instance) -> Any:
    try:
        return _result(instance, Any)
    except (CheckpointError, UnknownVersion):
        return None


def _as_json(value: Any) -> Any:
    """The value, if JSON can say it: a reader's end must not depend on what an application stored."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    return value
