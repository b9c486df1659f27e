"""The Runner of real processes: pooled daemon threads and one timer thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from kernel.clock import Clock

log = logging.getLogger("kernel.threads")


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ThreadRunner:
    """Threads are kept and used again, because a claim of trivial steps is shorter than the start of a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle: list[SimpleQueue[tuple[str, Callable[[], None]]]] = []
        self._lock = threading.Lock()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._timer_thread_started = False

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put((name, body))

    def _serve(self, inbox: SimpleQueue[tuple[str, Callable[[], None]]]) -> None:
        while True:
            name, body = inbox.get()
            threading.current_thread().name = name
            try:
                body()
            except BaseException:
                # The last line of defence: a thread of the engine that dies in silence would lose its slot for ever.
                log.exception("thread %s ended with an error", name)
            del body
            with self._lock:
                self._idle.append(inbox)

    def event(self) -> threading.Event:
        return threading.Event()

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        with self._changed:
            if not self._timer_thread_started:
                self._timer_thread_started = True
                threading.Thread(target=self._run_timers, name="timers", daemon=True).start()
            heapq.heappush(self._timers, (boot_ms, next(self._order), timer))
            if self._timers[0][2] is timer:
                self._changed.notify()
            if len(self._timers) > 1024:
                self._drop_canceled()
        return timer

    def _drop_canceled(self) -> None:
        """Timers of calls that returned in time are most of the heap: forget them before it grows."""
        live = [entry for entry in self._timers if entry[2].callback is not None]
        if len(live) <= len(self._timers) // 2:
            heapq.heapify(live)
            self._timers = live

    def _run_timers(self) -> None:
        while True:
            with self._changed:
                due = self._next_due()
            callback = due.callback
            if callback is None:
                continue
            try:
                callback()
            except BaseException:
                log.exception("a timer's callback failed")

    def _next_due(self) -> _Timer:
        while True:
            now_ms = self._clock.boot_ms()
            if self._timers and self._timers[0][0] <= now_ms:
                return heapq.heappop(self._timers)[2]
            timeout = (self._timers[0][0] - now_ms) / 1000 if self._timers else None
            self._changed.wait(timeout)
