"""The registrations that a dispatcher may run beside those that each of its sources always may (group 7).

`dispatch_slots` holds for the process. One of them belongs to each source, whatever the others do, because a source
that hangs never gives back what it holds; the rest is for whoever has work.
"""

from __future__ import annotations

import threading


class SpareSlots:
    """What is free of the shared part. Safe for many threads; nobody waits for a slot."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = max(0, count)

    def take(self, most: int) -> int:
        """At most `most` of those that are free, maybe none."""
        with self._lock:
            taken = max(0, min(most, self._free))
            self._free -= taken
        return taken

    def give_back(self) -> None:
        """One that was taken."""
        with self._lock:
            self._free += 1
