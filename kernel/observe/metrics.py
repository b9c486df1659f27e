"""One more observer: what the engine tells of becomes counters and histograms (obs-claims-visible).

It holds no metric itself: `Meters` does, and what is behind it is chosen by `kernel.runtime` (an extra package). Each
event costs a few lookups and increments, never a call to a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from kernel.records import Instance, StepRecord


class Meters(Protocol):
    """Where counts are kept. `name` is one of `metric_names.METERS`, `labels` its label values in order."""

    def count(self, name: str, *labels: str, by: float = 1.0) -> None: ...

    def observe(self, name: str, value_s: float, *labels: str) -> None: ...

    def set(self, name: str, value: float, *labels: str) -> None: ...


_ENDS = {
    "step.completed": "completed",
    "step.retried": "failed",
    "step.failed": "failed",
    "step.skipped": "failed",
    "step.canceled": "canceled",
    "step.suspended": "suspended",
    "step.yielded": "yielded",
    "step.lost": "lost",
}
_EXECUTED = frozenset({"step.completed", "step.retried", "step.failed", "step.skipped"})
"""The attempt is over, and its record says how long the activity ran in all of its invocations."""
_OVER = frozenset({"step.completed", "step.failed", "step.skipped"})
_FINISHED = frozenset({"workflow.completed", "workflow.failed", "workflow.canceled"})
_SAMPLED = {
    "observation_dropped": "kernel_observation_dropped_total",
    "observation_errors": "kernel_observation_errors_total",
}


class MetricsObserver:
    """Counts what it is told. `kind_of` makes the kind of a resource of its name: tenants are no labels."""

    def __init__(self, meters: Meters, kind_of: Callable[[str], str]) -> None:
        self._meters = meters
        self._kind_of = kind_of
        self._lock = threading.Lock()
        self._sampled = dict.fromkeys(_SAMPLED, 0)

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Count one event."""
        group = event.partition(".")[0]
        if group == "step" and instance is not None and step is not None:
            self._step(event, instance, instance.steps[step])
        elif event in _FINISHED and instance is not None:
            self._finished(instance)
        elif group == "permit":
            self._permit(event, fields)
        elif event == "claim.lost":
            self._lost(fields)
        elif event == "claim.deferred":
            type_ = fields.get("type", "") if instance is None else instance.type
            self._meters.count("kernel_fingerprint_deferred_total", str(type_))

    def sample(self, counters: Mapping[str, object]) -> None:
        """Take over the counters of the side path, which counts for itself: called with every report."""
        waiting = counters.get("observation_queue")
        if isinstance(waiting, int):
            self._meters.set("kernel_observation_queue", waiting)
        with self._lock:
            for counter, name in _SAMPLED.items():
                now = counters.get(counter)
                if isinstance(now, int) and now > self._sampled[counter]:
                    self._meters.count(name, by=now - self._sampled[counter])
                    self._sampled[counter] = now

    def close(self) -> None:
        """Nothing waits: what was counted is in its file."""

    # --- what is told ------------------------------------------------------------------------------------

    def _step(self, event: str, instance: Instance, record: StepRecord) -> None:
        if event == "step.started":
            if _is_first(instance, record):
                self._meters.count("kernel_workflows_started_total", instance.type)
            return
        outcome = _ENDS.get(event)
        if outcome is None:
            return
        if outcome == "failed" and record.error is not None and record.error.kind == "timeout":
            outcome = "timeout"
        place = (instance.type, record.name)
        self._meters.count("kernel_step_attempts_total", *place, outcome)
        if event in _EXECUTED:
            self._meters.observe("kernel_step_execution_seconds", record.elapsed_ms / 1000, *place)
        if event in _OVER and record.external_wait_ms:
            self._meters.observe("kernel_step_external_wait_seconds", record.external_wait_ms / 1000, *place)

    def _finished(self, instance: Instance) -> None:
        labels = (instance.type, instance.status)
        self._meters.count("kernel_workflows_finished_total", *labels)
        if instance.finish_time is not None:
            began_ms = instance.created_time if instance.run_time is None else instance.run_time
            ran_s = max(0, instance.finish_time - began_ms) / 1000
            self._meters.observe("kernel_workflow_duration_seconds", ran_s, *labels)

    def _permit(self, event: str, fields: Mapping[str, object]) -> None:
        resource = self._kind_of(str(fields.get("resource", "")))
        if event == "permit.granted":
            self._meters.count("kernel_permit_granted_total", resource)
            waited_ms = fields.get("waited_ms", 0)
            if isinstance(waited_ms, int):
                self._meters.observe("kernel_permit_wait_seconds", max(0, waited_ms) / 1000, resource)
        elif event == "permit.refused":
            self._meters.count("kernel_permit_refused_total", resource, str(fields.get("reason", "")))
        elif event == "permit.lost":
            self._meters.count("kernel_permit_expired_total", resource)

    def _lost(self, fields: Mapping[str, object]) -> None:
        reason = str(fields.get("code", ""))
        self._meters.count("kernel_claims_lost_total", reason)
        if reason == "claim_lost":  # the store has refused; a fenced worker has not even asked
            self._meters.count("kernel_fencing_rejected_total", str(fields.get("type", "")))


def _is_first(instance: Instance, record: StepRecord) -> bool:
    """Whether this entry is the first of the workflow's run: no other step was ever entered, and this one only now."""
    again = record.attempt != 1 or record.takeovers or record.resume is not None or record.external_wait_ms
    if again or record.executed_ms or record.checkpoint is not None:
        return False
    return all(other is record or other.started_time is None for other in instance.steps)
