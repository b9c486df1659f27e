"""Two Runners for the engine in one process: one whose time stands still until a test moves it, one with real threads.

`SteppedRunner` runs everything on the calling thread and on a `ManualClock`: whoever waits lets the others go on first,
and then lets the time pass that it wanted to wait. Nothing sleeps. `LiveRunner` starts real threads and ends them all.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kernel.clock import Clock, ManualClock
from kernel.engine.ports import Event, Timer

SLICE_MS = 100
"""While time passes in steps, heartbeats get a chance this often."""


class Killed(BaseException):
    """The process of this worker is gone: unwinds everything and is caught by nothing of the engine."""


class BaseRunner(Protocol):
    """What `WorkerRunner` stands on."""

    def spawn(self, name: str, body: Callable[[], None]) -> None: ...

    def event(self) -> Event: ...

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> Timer: ...


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SteppedEvent:
    """An event whose `wait` lets the others run, and then lets time pass."""

    def __init__(self, runner: SteppedRunner) -> None:
        self._runner = runner
        self._flag = False

    def set(self) -> None:
        self._flag = True

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        while not self._flag and self._runner.run_one():
            pass
        if not self._flag:
            assert timeout is not None, "nothing is left to run that could set the event"
            self._runner.advance(round(timeout * 1000))
        return self._flag


class SteppedRunner:
    """Runs bodies in the order in which they were started, when somebody waits or the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._bodies: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()
        self.beats: list[Callable[[], bool]] = []
        """Called while time passes; each says whether it wants to be called again soon."""

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        self._bodies.append(body)

    def event(self) -> SteppedEvent:
        return SteppedEvent(self)

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (boot_ms, next(self._order), timer))
        return timer

    def run_one(self) -> bool:
        """Run the oldest body; whether there was one."""
        if not self._bodies:
            return False
        self._bodies.popleft()()
        return True

    def run_all(self) -> None:
        while self.run_one():
            pass

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass: due timers fire in their order, heartbeats are made."""
        target = self.clock.boot_ms() + ms
        while True:
            self._fire_due()
            left = target - self.clock.boot_ms()
            if left <= 0:
                return
            wanted = [beat() for beat in self.beats]
            step = min(left, SLICE_MS) if any(wanted) else left
            if self._timers:
                step = max(1, min(step, self._timers[0][0] - self.clock.boot_ms()))
            self.clock.advance(step)

    def _fire_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.clock.boot_ms():
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()


class LiveRunner:
    """Real threads. `close` ends the timer thread and says which bodies would not end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._spawning = threading.Lock()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._timer_thread: threading.Thread | None = None
        self.errors: list[BaseException] = []
        """What bodies and callbacks raised: a test must end without any."""

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._caught, args=(body,), name=name, daemon=True)
        with self._spawning:  # a thread of another body must not be forgotten before it has begun
            self._threads = [*(known for known in self._threads if known.is_alive()), thread]
            thread.start()

    def event(self) -> threading.Event:
        return threading.Event()

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        with self._changed:
            if self._timer_thread is None:
                self._timer_thread = threading.Thread(target=self._run_timers, name="timers", daemon=True)
                self._timer_thread.start()
            heapq.heappush(self._timers, (boot_ms, next(self._order), timer))
            self._changed.notify()
        return timer

    def alive(self) -> list[str]:
        """The names of the bodies that still run."""
        return [thread.name for thread in self._threads if thread.is_alive()]

    def close(self, timeout_s: float = 10.0) -> list[str]:
        """End the timers and wait for all bodies; the names of those that did not end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        threads = [*self._threads, *([] if self._timer_thread is None else [self._timer_thread])]
        for thread in threads:
            thread.join(timeout_s)
        return [thread.name for thread in threads if thread.is_alive()]

    def _caught(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self.errors.append(error)

    def _run_timers(self) -> None:
        while (callback := self._next_due()) is not None:
            self._caught(callback)

    def _next_due(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                now_ms = self._clock.boot_ms()
                while self._timers and self._timers[0][2].callback is None:
                    heapq.heappop(self._timers)
                if self._timers and self._timers[0][0] <= now_ms:
                    return heapq.heappop(self._timers)[2].callback or (lambda: None)
                self._changed.wait((self._timers[0][0] - now_ms) / 1000 if self._timers else None)
        return None


class MortalEvent:
    """An event on which a killed worker does not wait for ever: nobody of its own is left to set it."""

    def __init__(self, event: Event, worker: WorkerRunner) -> None:
        self._event = event
        self._worker = worker
        self.set = event.set
        self.clear = event.clear
        self.is_set = event.is_set

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return self._event.wait(timeout)
        for _ in range(10_000):
            if self._event.wait(SLICE_MS / 1000):
                return True
            if self._worker.dead:
                raise Killed
        raise AssertionError("nobody sets the event that is waited for")


class WorkerRunner:
    """One worker's view of a runner: after `kill` nothing that it started goes on."""

    def __init__(self, base: BaseRunner) -> None:
        self._base = base
        self.dead = False
        self.started: list[str] = []
        """The names of all bodies, in the order of their start."""

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        self.started.append(name)
        self._base.spawn(name, lambda: self._alive(body))

    def event(self) -> MortalEvent:
        return MortalEvent(self._base.event(), self)

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> Timer:
        return self._base.call_at(boot_ms, lambda: self._alive(callback))

    def _alive(self, body: Callable[[], None]) -> None:
        if self.dead:
            return
        try:
            body()
        except Killed:
            self.dead = True
