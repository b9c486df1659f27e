"""The circuit breaker before Redis: a dead or hung server costs a process a bounded time, then none.

Closed: calls go through. After `failures` failures in a row it is open: calls are skipped at once. When the
cool-down is over it is half open: one call is let through as a probe while the others are still skipped; its success
closes the breaker, its failure opens it again for twice as long, up to a cap. With a socket timeout of 400 ms
and 2 failures a hung Redis takes less than 1 s from the claim loop before it is skipped (RELIABILITY 2.2, A29).
"""

from __future__ import annotations

import threading
from typing import Protocol


class BootClock(Protocol):
    """Milliseconds that never jump: what kernel.clock.Clock offers for durations."""

    def boot_ms(self) -> int: ...


class CircuitBreaker:
    """Counts failures in a row and says which calls may be tried. Used by several threads at once."""

    def __init__(
        self, clock: BootClock, *, failures: int = 2, cool_down_ms: int = 1_000, cool_down_max_ms: int = 5_000
    ) -> None:
        self._clock = clock
        self._failures_to_open = failures
        self._cool_down_first_ms = cool_down_ms
        self._cool_down_max_ms = cool_down_max_ms
        self._lock = threading.Lock()
        self._failures = 0
        self._cool_down_ms = cool_down_ms
        self._probe_at_ms: int | None = None
        """When the next probe may start; None while closed."""
        self._probing = False

    @property
    def state(self) -> str:
        """`closed`, `open` or `half_open`, for status pages."""
        with self._lock:
            if self._probe_at_ms is None:
                return "closed"
            return "half_open" if self._probing or self._clock.boot_ms() >= self._probe_at_ms else "open"

    def admit(self) -> bool:
        """Whether a call may be made now. Each True must be answered by succeeded, failed or abandoned."""
        if self._probe_at_ms is None:
            return True
        with self._lock:
            now_ms = self._clock.boot_ms()
            if not self._may_probe(now_ms):
                # Still cooling down, unless another thread's success closed it a moment ago.
                return self._probe_at_ms is None
            # The next probe is due a cool-down later even if this one's thread never comes back to report.
            self._probe_at_ms = now_ms + self._cool_down_ms
            self._probing = True
            return True

    def _may_probe(self, now_ms: int) -> bool:
        return self._probe_at_ms is not None and now_ms >= self._probe_at_ms

    def succeeded(self) -> None:
        """The server answered the call."""
        if self._failures == 0 and self._probe_at_ms is None:
            return
        with self._lock:
            self._failures = 0
            self._probe_at_ms = None
            self._probing = False
            self._cool_down_ms = self._cool_down_first_ms

    def failed(self) -> None:
        """The server did not answer, or answered that it can not serve now."""
        with self._lock:
            self._failures += 1
            now_ms = self._clock.boot_ms()
            if self._probing:
                self._probing = False
                self._cool_down_ms = min(2 * self._cool_down_ms, self._cool_down_max_ms)
                self._probe_at_ms = now_ms + self._cool_down_ms
            elif self._probe_at_ms is None and self._failures >= self._failures_to_open:
                self._probe_at_ms = now_ms + self._cool_down_ms

    def abandoned(self) -> None:
        """The caller was interrupted before it learnt anything: a probe is free for the next caller at once."""
        with self._lock:
            if self._probing:
                self._probing = False
                self._probe_at_ms = self._clock.boot_ms()
