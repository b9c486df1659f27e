"""The closed list of event names, and the observer that writes them to the log."""

from __future__ import annotations

import logging

from kernel.records import Instance, StepRecord

log = logging.getLogger("kernel.events")

EVENTS: dict[str, int] = {
    # The claim of a workflow, and why it ended other than by its own commits.
    "claim.taken": logging.DEBUG,
    "claim.lost": logging.WARNING,
    "claim.released": logging.DEBUG,
    "claim.released_dead": logging.INFO,
    "claim.mismatch": logging.WARNING,
    "claim.deferred": logging.WARNING,
    "claim.undeferred": logging.INFO,
    # One attempt of a step: its entry, and each way in which it may end.
    "step.started": logging.DEBUG,
    "step.unbegun": logging.DEBUG,  # the worker stops: taken back before the activity was called
    "step.completed": logging.DEBUG,
    "step.suspended": logging.DEBUG,
    "step.yielded": logging.DEBUG,
    "step.retried": logging.INFO,  # failed, and to be tried again
    "step.skipped": logging.WARNING,
    "step.failed": logging.WARNING,
    "step.canceled": logging.INFO,
    "step.stuck": logging.ERROR,
    "step.lost": logging.WARNING,  # its worker's claim was ended by somebody else
    # Between attempts.
    "step.deferred": logging.DEBUG,  # rests until there is a place of its resource
    "step.resumed": logging.DEBUG,  # its timer, signal or poll time has come
    "permit.granted": logging.DEBUG,
    "permit.refused": logging.DEBUG,
    "permit.unavailable": logging.WARNING,
    "permit.lost": logging.WARNING,
    "permit.restored": logging.WARNING,
    "permit.released": logging.DEBUG,
    "finalizer.deferred": logging.WARNING,
    # Every status that a workflow enters, and what else changes its lot.
    "workflow.created": logging.DEBUG,
    "workflow.replayed": logging.INFO,
    "workflow.waiting": logging.DEBUG,
    "workflow.running": logging.DEBUG,
    "workflow.failing": logging.WARNING,
    "workflow.completed": logging.DEBUG,
    "workflow.failed": logging.WARNING,
    "workflow.canceled": logging.INFO,
    "workflow.parked": logging.ERROR,
    "workflow.unparked": logging.INFO,
    "workflow.raised": logging.DEBUG,  # to a higher priority
}
"""Event name → level. Inputs and outputs are never part of an event."""

LOGGED = frozenset(
    {
        *("claim.renewed", "claim.not_renewed", "claim.fenced"),
        *("redis.down", "redis.denied"),
        *("drain.wakeups_stopped", "drain.poll_stopped", "drain.claims_ended"),
        *("drain.observations_drained", "drain.ended"),
    }
)
"""Events that are written to the log where they happen and told to no observer: no commit is behind them."""


class LogObserver:
    """Events as log records: the name is the message, the fields travel beside it for the formatter."""

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Write one event. Raises ValueError for a name outside the list: a typo must not vanish."""
        if event not in EVENTS:
            raise ValueError(f"event {event!r} is not in the list")
        if log.isEnabledFor(EVENTS[event]):
            log.log(EVENTS[event], event, extra={"event": event, **named(event, instance, step), **fields})


_ROLLED_BACK = frozenset({"step.suspended", "step.yielded", "step.unbegun"})
"""The record counts that attempt no more when these are told: the step goes on under the same number."""


def attempt_of(event: str, step: StepRecord) -> int:
    """The attempt that a step's event tells of; `step` is the record as the commit left it."""
    return step.attempt + 1 if event in _ROLLED_BACK else step.attempt


def named(event: str, instance: Instance | None, step: int | None) -> dict[str, object]:
    """What identifies the record, the step and the attempt, for a reader who searches by id (stp-trace).

    The worker of a step's event is the one that entered the attempt, although the claim may have ended since.
    """
    if instance is None:
        return {}
    found: dict[str, object] = {
        "workflow_id": instance.workflow_id,
        "type": instance.type,
        "trace_id": instance.trace_id,
        "status": instance.status,
        "revision": instance.revision,
        "worker_id": instance.worker_id,
    }
    if step is not None:
        record = instance.steps[step]
        found |= {
            "step": record.name,
            "attempt": attempt_of(event, record),
            "worker_id": record.worker_id or instance.worker_id,
        }
    return found
