"""Intents that can not be dispatched: what has been said about them, and which of them can not even be delayed.

An intent that decodes is delayed in its own record, for all dispatchers and across restarts. One that does not decode
allows no conditional write, so each process remembers for itself to leave it alone for a growing while
(dsp-bad-intent). What is remembered is bounded; what is forgotten is looked at, and reported, once more.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

import msgspec

from kernel.clock import Clock

log = logging.getLogger("kernel.dispatch")

REMEMBERED_MAX = 10_000


class _Bad(msgspec.Struct):
    reason: str = ""
    tries: int = 0
    misses: int = 0
    until_ms: int = 0


class BadIntents:
    """The memory of one source in one process. Safe for many threads."""

    def __init__(self, source: str, clock: Clock, *, delay_ms: int, delay_max_ms: int) -> None:
        self._source = source
        self._clock = clock
        self._delay_ms = delay_ms
        self._delay_max_ms = delay_max_ms
        self._known: OrderedDict[str, _Bad] = OrderedDict()
        self._lock = threading.Lock()

    def report(self, object_id: str, reason: str) -> bool:
        """Log the fault once per object and reason; whether it is news."""
        with self._lock:
            fresh = self._noted(object_id, reason)[1]
        if fresh:
            log.error("the intent of %s in %s can not be dispatched and is kept: %s", object_id, self._source, reason)
        return fresh

    def rest(self, object_id: str, reason: str, *, most_ms: int | None = None) -> bool:
        """As `report`, and leave it alone for a while, twice as long as the last time, `most_ms` at most."""
        fresh = self.report(object_id, reason)
        with self._lock:
            bad = self._noted(object_id, reason)[0]
            delay_ms = min(self._delay_ms * 2 ** min(bad.tries, 30), most_ms or self._delay_max_ms)
            bad.tries += 1
            bad.until_ms = self._clock.boot_ms() + delay_ms
        return fresh

    def missed(self, object_id: str) -> int:
        """It seemed due and could not be claimed: how many milliseconds to leave it alone, longer each time. Nothing is
        wrong the first time: another has it, or our estimate of its source's clock runs ahead."""
        with self._lock:
            bad = self._entry(object_id)
            bad.misses += 1
            delay_ms: int = self._delay_ms * 2 ** min(bad.misses - 1, 30)
            return min(delay_ms, self._delay_max_ms)

    def resting(self, object_id: str) -> bool:
        with self._lock:
            bad = self._known.get(object_id)
            return bad is not None and self._clock.boot_ms() < bad.until_ms

    def forget(self, object_id: str) -> None:
        """It could be dispatched after all: a later fault of it is news."""
        with self._lock:
            self._known.pop(object_id, None)

    def __len__(self) -> int:
        return len(self._known)

    def _noted(self, object_id: str, reason: str) -> tuple[_Bad, bool]:
        """What is known of it, and whether this reason is new."""
        bad = self._entry(object_id)
        fresh = bad.reason != reason
        bad.reason = reason
        return bad, fresh

    def _entry(self, object_id: str) -> _Bad:
        bad = self._known.get(object_id)
        if bad is None:
            bad = self._known[object_id] = _Bad()
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        return bad
