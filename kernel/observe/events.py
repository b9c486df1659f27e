"""The closed list of event names, and the observer that writes them to the log."""

from __future__ import annotations

import logging

log = logging.getLogger("kernel.events")

EVENTS: dict[str, int] = {
    "claim.taken": logging.DEBUG,
    "claim.lost": logging.WARNING,
    "claim.released": logging.DEBUG,
    "claim.released_dead": logging.INFO,
    "claim.mismatch": logging.WARNING,
    "claim.deferred": logging.WARNING,
    "step.started": logging.DEBUG,
    "step.completed": logging.DEBUG,
    "step.suspended": logging.DEBUG,
    "step.yielded": logging.DEBUG,
    "step.retried": logging.INFO,
    "step.skipped": logging.WARNING,
    "step.failed": logging.WARNING,
    "step.stuck": logging.ERROR,
    "permit.granted": logging.DEBUG,
    "permit.refused": logging.DEBUG,
    "permit.unavailable": logging.WARNING,
    "permit.lost": logging.WARNING,
    "permit.restored": logging.WARNING,
    "permit.released": logging.DEBUG,
    "finalizer.deferred": logging.WARNING,
    "workflow.completed": logging.DEBUG,
    "workflow.failed": logging.WARNING,
    "workflow.canceled": logging.INFO,
}
"""Event name → level. Inputs and outputs are never part of an event."""


class LogObserver:
    """Events as log records: the name is the message, the fields travel beside it for the formatter."""

    def note(self, event: str, **fields: object) -> None:
        """Write one event. Raises ValueError for a name outside the list: a typo must not vanish."""
        if event not in EVENTS:
            raise ValueError(f"event {event!r} is not in the list")
        if log.isEnabledFor(EVENTS[event]):
            log.log(EVENTS[event], event, extra={"event": event, **fields})
