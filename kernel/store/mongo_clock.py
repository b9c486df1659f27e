"""An estimate of the server's clock: this machine's boot clock plus an offset measured by `hello` (B-46).

It proposes scan bounds and absolute timer targets and decides nothing: leases and due checks are evaluated by the
server (`$$NOW`). A wall clock that an operator or NTP sets does not move it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from kernel.clock import Clock
from kernel.errors import Unavailable

SYNC_PERIOD_MS = 30_000
SYNC_AGAIN_MS = 1_000  # after a failed measurement: an outage must not cost every caller a time-out
SAMPLES = 5


class ServerClock:
    """`server_ms` asks the server for its time (milliseconds since the epoch); it may raise `Unavailable`."""

    def __init__(self, clock: Clock, server_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._server_ms = server_ms
        self._lock = threading.Lock()
        self._server: Hashable = None
        self._offset_ms: int | None = None
        # Both by the boot clock.
        self._good_until_ms = 0
        self._next_try_ms = 0

    def now_ms(self, server: Hashable = None) -> int:
        """The estimate; `server` says whose clock it is, and another one is measured anew.

        Raises `Unavailable` only while nothing was ever measured; later an old offset is kept.
        """
        if server != self._server:
            self._server = server
            self.distrust()
        if self._offset_ms is None:
            with self._lock:
                if self._offset_ms is None:
                    self._measure()
        elif self._is_stale() and self._lock.acquire(blocking=False):
            # One thread measures, the others go on with the offset that they have.
            try:
                self._next_try_ms = self._clock.boot_ms() + SYNC_AGAIN_MS
                self._measure()
            except Unavailable:
                pass
            finally:
                self._lock.release()
        assert self._offset_ms is not None
        return self._clock.boot_ms() + self._offset_ms

    def distrust(self) -> None:
        """Measure again soon: the connection was lost, and behind the next one may be another clock."""
        self._good_until_ms = 0

    def _is_stale(self) -> bool:
        boot_ms = self._clock.boot_ms()
        return boot_ms >= self._good_until_ms and boot_ms >= self._next_try_ms

    def _measure(self) -> None:
        """Best of five: the sample with the shortest round trip errs by no more than half of it."""
        best: tuple[int, int] | None = None
        for _ in range(SAMPLES):
            sent_ms = self._clock.boot_ms()
            server_ms = self._server_ms()
            received_ms = self._clock.boot_ms()
            sample = (received_ms - sent_ms, server_ms - (sent_ms + received_ms) // 2)
            best = sample if best is None else min(best, sample)
        assert best is not None
        self._offset_ms = best[1]
        self._good_until_ms = self._clock.boot_ms() + SYNC_PERIOD_MS
        self._next_try_ms = 0
