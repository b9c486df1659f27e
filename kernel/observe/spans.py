"""OpenTelemetry spans of what the engine tells: one trace a run of a workflow, whichever workers go on with it.

The trace id is the record's own (`Instance.trace_id`), and so are the ids of the workflow's span and of the first
invocation of each attempt: they are derived, so that two processes that have never met name the same parent. Every
span is made whole when it ends, with the times of the record; nothing is kept open, and a worker that dies takes along
only the spans that were not sent yet. An invocation that goes on after a wait is not inside of the one before it: it
has a link to it.

Only `kernel.runtime` imports this module, after the fork, and only where the environment names a receiver: the package
belongs to the extra `otel`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import set_span_in_context as within

from kernel.clock import Clock
from kernel.observe.event_queue import Threads
from kernel.observe.events import attempt_of
from kernel.records import Instance, StepRecord
from kernel.states import FAILED

log = logging.getLogger("kernel.observe")

FLUSH_S = 3.0
"""How long the end of a process waits for its receiver at most."""
CLAIM_DIGITS = 8
"""Of the token: enough to tell two claims of a workflow apart, too few to write under."""
_STEP_ENDS = {
    "step.completed": "completed",
    "step.retried": "failed",
    "step.failed": "failed",
    "step.skipped": "skipped",
    "step.canceled": "canceled",
    "step.suspended": "suspended",
    "step.yielded": "yielded",
    "step.lost": "lost",
}
_FAILURES = frozenset({"failed", "skipped", "lost"})
_WORKFLOW_ENDS = frozenset({"workflow.completed", "workflow.failed", "workflow.canceled"})
_OPEN_MAX = 4_096


class _Entry(NamedTuple):
    """Why an invocation goes on with an earlier one, if it does, and the claim that it runs under: the record of its
    end may say neither."""

    why: str | None
    claim: str


class ChosenIds(IdGenerator):
    """Gives out the ids that this thread has chosen for the span that it is about to make."""

    def __init__(self) -> None:
        self._next = threading.local()

    def choose(self, trace_id: int, span_id: int) -> None:
        self._next.trace_id, self._next.span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return int(self._next.trace_id)

    def generate_span_id(self) -> int:
        return int(self._next.span_id)


class SpanObserver:
    """Makes the spans of one process. `provider` was made with `ids`; `close` waits `limit_s` for it."""

    def __init__(
        self, provider: TracerProvider, ids: ChosenIds, clock: Clock, threads: Threads, limit_s: float = FLUSH_S
    ) -> None:
        self._provider = provider
        self._ids = ids
        self._clock = clock
        self._threads = threads
        self._limit_s = min(limit_s, FLUSH_S)
        self._tracer = provider.get_tracer("kernel")
        self._lock = threading.Lock()
        self._entered: dict[tuple[str, int, str], _Entry] = {}
        """Invocations of this process, from their entry to their end."""

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Make a span of what has ended."""
        if instance is None:
            return
        if event in _WORKFLOW_ENDS:
            self._workflow(instance)
        elif step is not None:
            record = instance.steps[step]
            if event == "step.started":
                self._enter(instance, record)
            elif event in _STEP_ENDS:
                self._step(event, instance, record)

    def sample(self, counters: Mapping[str, object]) -> None:
        """Counters are no spans."""

    def close(self) -> None:
        """Send what waits, for some seconds at most: the library's own limits are those of one try, and it tries again
        for longer than a drain may take. What is on its way then is lost with the process."""
        done = self._threads.event()

        def send() -> None:
            try:
                self._provider.shutdown()
            finally:
                done.set()

        self._threads.spawn("spans", send)
        if not done.wait(self._limit_s):
            log.warning("spans were dropped at the end: their receiver did not take them in time")

    # --- spans -------------------------------------------------------------------------------------------

    def _workflow(self, instance: Instance) -> None:
        began_ms = instance.created_time if instance.run_time is None else instance.run_time
        ended_ms = self._clock.wall_ms() if instance.finish_time is None else instance.finish_time
        failed = instance.status == FAILED
        self._make(
            f"workflow {instance.type}",
            instance,
            _workflow_span(instance),
            (began_ms, ended_ms),
            attributes={"kernel.workflow.status": instance.status, "kernel.workflow.replays": instance.retry_count},
            error=(instance.error.code if instance.error is not None else FAILED) if failed else None,
        )

    def _enter(self, instance: Instance, record: StepRecord) -> None:
        why: str | None = None if record.resume is None else record.resume.kind
        if why is None and record.checkpoint is not None and record.failures == 0 and record.takeovers == 0:
            why = "yield"
        with self._lock:
            if len(self._entered) >= _OPEN_MAX:  # their ends were not told: claims that were lost
                self._entered.clear()
            self._entered[instance.workflow_id, instance.workflow_run, record.name] = _Entry(
                why, instance.claim_token or ""
            )

    def _step(self, event: str, instance: Instance, record: StepRecord) -> None:
        with self._lock:
            place = (instance.workflow_id, instance.workflow_run, record.name)
            why, claim = self._entered.pop(place, _Entry(None, instance.claim_token or ""))
        attempt, outcome = attempt_of(event, record), _STEP_ENDS[event]
        first = _derived(instance, record.name, attempt)
        began_ms = record.started_time or instance.created_time
        ended_ms = record.finish_time or (record.failed_time if outcome == "failed" else None) or self._clock.wall_ms()
        attributes: dict[str, Any] = {
            "kernel.step": record.name,
            "kernel.step.attempt": attempt,
            "kernel.step.outcome": outcome,
            "kernel.claim": claim[:CLAIM_DIGITS],
            "kernel.worker": record.worker_id or instance.worker_id or "",
        }
        if why is not None:
            attributes["kernel.step.resumed_by"] = why
        code = record.error.code if record.error is not None else outcome
        self._make(
            f"step {record.name}",
            instance,
            first if why is None else _derived(instance, record.name, attempt, began_ms),
            (began_ms, ended_ms),
            attributes=attributes,
            parent=_workflow_span(instance),
            links=() if why is None else (Link(_context(instance, first)),),
            error=code if outcome in _FAILURES else None,
            event=outcome,
        )

    def _make(
        self,
        name: str,
        instance: Instance,
        span_id: int,
        times_ms: tuple[int, int],
        *,
        attributes: dict[str, Any],
        parent: int | None = None,
        links: tuple[Link, ...] = (),
        error: str | None = None,
        event: str | None = None,
    ) -> None:
        self._ids.choose(int(instance.trace_id, 16), span_id)
        began_ns, ended_ns = times_ms[0] * 1_000_000, max(times_ms) * 1_000_000
        span = self._tracer.start_span(
            name,
            context=within(NonRecordingSpan(_context(instance, parent))) if parent is not None else None,
            kind=SpanKind.INTERNAL,
            attributes={
                "kernel.workflow.id": instance.workflow_id,
                "kernel.workflow.type": instance.type,
                "kernel.lane": f"P{instance.business_priority}",
                "kernel.round": instance.workflow_run,
                **attributes,
            },
            links=links,
            start_time=began_ns,
        )
        if event is not None:
            span.add_event(event, {"kernel.revision": instance.revision}, timestamp=ended_ns)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended_ns)


def open_spans(clock: Clock, threads: Threads, process: str, limit_s: float) -> SpanObserver:
    """The spans of this process, sent to where the environment says. `process` names it: `worker-0`."""
    found = Resource.create()
    named: dict[str, Any] = {SERVICE_INSTANCE_ID: process}
    if str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        named[SERVICE_NAME] = "workflow-kernel"
    ids = ChosenIds()
    provider = TracerProvider(resource=found.merge(Resource(named)), id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return SpanObserver(provider, ids, clock, threads, limit_s)


def _context(instance: Instance, span_id: int) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(instance.trace_id, 16), span_id, is_remote=True, trace_flags=flags)


def _workflow_span(instance: Instance) -> int:
    return _derived(instance)


def _derived(instance: Instance, *parts: object) -> int:
    """An id that every process derives alike; never 0, which is none."""
    text = "\0".join(map(str, (instance.workflow_id, instance.workflow_run, *parts)))
    return int.from_bytes(hashlib.sha256(f"span\0{text}".encode()).digest()[:8]) or 1
