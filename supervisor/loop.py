"""The one loop of the parent: file descriptors, timers, nothing else. No thread is ever started."""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable
from itertools import count

from supervisor.events import tell

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

Callback = Callable[[], object]


def mono_ms() -> int:
    """Milliseconds since some fixed point: for durations only."""
    return time.monotonic_ns() // 1_000_000


class Timer:
    """One call in the future; `cancel` makes it never happen."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Calls back when a descriptor is ready or a time has come, in one thread. On simulated time `selector` waits."""

    def __init__(self, now_ms: Callable[[], int] = mono_ms, selector: selectors.BaseSelector | None = None) -> None:
        self.now_ms = now_ms
        self._selector = selector or selectors.DefaultSelector()
        self._timers: list[tuple[int, int, Timer]] = []
        self._order = count()

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """Call back whenever one of `events` is possible on `fd`; a second call replaces the first."""
        try:
            self._selector.modify(fd, events, callback)
        except KeyError:
            self._selector.register(fd, events, callback)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`; it must still be open, or epoll would go on reporting a copy in another process."""
        try:
            self._selector.unregister(fd)
        except KeyError:
            pass

    def call_at(self, at_ms: int, callback: Callback) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (at_ms, next(self._order), timer))
        return timer

    def call_in(self, delay_ms: int, callback: Callback) -> Timer:
        return self.call_at(self.now_ms() + delay_ms, callback)

    def run_once(self, wait_ms: int = 1_000) -> None:
        """Wait for the next event, at most `wait_ms`, and handle all that is ready."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if self._timers:
            wait_ms = min(wait_ms, max(0, self._timers[0][0] - self.now_ms()))
        for key, _ in self._selector.select(wait_ms / 1000):
            # An earlier callback of this round may have closed this one's descriptor.
            if self._selector.get_map().get(key.fd) is key:
                self._call(key.data)
        now = self.now_ms()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                self._call(timer.callback)

    def run_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Turn until `condition` holds; False when `timeout_ms` have passed before."""
        deadline = self.now_ms() + timeout_ms
        while not condition():
            remaining = deadline - self.now_ms()
            if remaining <= 0:
                return False
            self.run_once(min(remaining, 1_000))
        return True

    def _call(self, callback: Callback) -> None:
        # A fault in one callback must not take down a tree whose other children work.
        try:
            callback()
        except Exception:
            tell("supervisor.fault", "fault in the supervisor's loop", exc_info=True)

    def close(self) -> None:
        self._selector.close()
