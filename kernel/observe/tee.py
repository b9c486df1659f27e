"""Several observers as one, and a count of the events that an operator asks for by number (obs-claims-visible)."""

from __future__ import annotations

import threading
from typing import Protocol

from kernel.records import Instance

COUNTED = {
    "claim.lost": "claims_lost",
    "claim.mismatch": "claims_mismatched",
    "claim.deferred": "claims_deferred",
}
"""Event → counter. Waits for permits are counted where permits are asked for."""


class Eye(Protocol):
    """As `kernel.engine.ports.Observer`."""

    def note(
        self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object
    ) -> None: ...


class EventCounter:
    """Counts, in this process and since its start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counters = dict.fromkeys(COUNTED.values(), 0)

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Count one event, if it is one that is counted."""
        counter = COUNTED.get(event)
        if counter is not None:
            with self._lock:
                self.counters[counter] += 1


class Tee:
    """Tells each of its observers in turn; one that fails keeps no other from being told."""

    def __init__(self, *observers: Eye) -> None:
        self._notes = tuple(observer.note for observer in observers)

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Tell all of them, then raise what the first failing one raised."""
        failure: Exception | None = None
        for note in self._notes:
            try:
                note(event, instance=instance, step=step, **fields)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
