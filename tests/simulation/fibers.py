"""Threads that one scheduler moves: greenlets on simulated time, of which exactly one runs until it reaches a port.

A fiber gives the baton back at every port call and at every wait; which one goes on is the seeded choice of the hub.
Nothing runs in between, so a run is a list of choices and the same seed makes the same list.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from greenlet import getcurrent, greenlet


class Dead(BaseException):
    """The process of this fiber is gone. Unwinds everything; each further port call raises it again, so that no
    `finally` of a dead process has an effect."""


class Owner(Protocol):
    """The process of a fiber, as far as the hub needs to know it."""

    name: str
    dead: bool
    paused: bool
    parked: list[Fiber]


class Fiber(greenlet):
    """One thread of one process."""

    def __init__(self, hub: Hub, owner: Owner, name: str, body: Callable[[], None]) -> None:
        super().__init__(self._live, hub.greenlet)
        self.hub = hub
        self.owner = owner
        self.name = name
        self.body = body
        self.waits = 0
        """Counts waits: a deadline of an earlier one is recognised and ignored."""
        self.blocked = False

    def _live(self) -> None:
        if self.owner.dead:
            return
        try:
            self.body()
        except Dead:
            pass
        except BaseException as error:
            self.hub.fault(self, error)

    def __repr__(self) -> str:
        return f"{self.owner.name}/{self.name}"


class Hub:
    """The scheduler and the true time. `step` is called before each move of a fiber, `fault` for what a body raises."""

    def __init__(self, rng: random.Random, now_ms: int) -> None:
        self.greenlet = getcurrent()
        self.rng = rng
        self.now_ms = now_ms
        self.ready: list[Fiber] = []
        self.stickiness = 0.0
        self.fault: Callable[[Fiber, BaseException], None] = lambda fiber, error: None
        self._last: Fiber | None = None
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    # --- for the hub's own greenlet ------------------------------------------------------------------------

    def move(self) -> bool:
        """Let one ready fiber go on until its next port call or wait; False when nobody is ready now."""
        while self.ready:
            at = self._choice()
            fiber = self.ready[at]
            self.ready[at] = self.ready[-1]
            self.ready.pop()
            if fiber.dead or fiber.owner.dead:
                continue
            if fiber.owner.paused:
                fiber.owner.parked.append(fiber)
                continue
            self._last = fiber
            fiber.switch()
            return True
        return False

    def _choice(self) -> int:
        if self.stickiness and self._last in self.ready and self.rng.random() < self.stickiness:
            return self.ready.index(self._last)
        return self.rng.randrange(len(self.ready))

    def pass_time(self, ms: int) -> None:
        """Time goes on; whatever has become due by then happens, in its order."""
        target = self.now_ms + ms
        while self._later and self._later[0][0] <= target:
            at_ms, _, action = heapq.heappop(self._later)
            self.now_ms = max(self.now_ms, at_ms)
            action()
        self.now_ms = target

    def jump(self, ms: int) -> None:
        """All of this time passes for everybody at once, as on a machine that was suspended."""
        self.now_ms += ms
        self.pass_time(0)

    @property
    def idle_ms(self) -> int | None:
        """How long until something is due; None when nothing ever is."""
        return max(0, self._later[0][0] - self.now_ms) if self._later else None

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        """Call `action` on the hub when the true time reaches `at_ms`. It must not switch."""
        heapq.heappush(self._later, (at_ms, next(self._order), action))

    def spawn(self, owner: Owner, name: str, body: Callable[[], None]) -> Fiber:
        """A new fiber, ready."""
        fiber = Fiber(self, owner, name, body)
        self.ready.append(fiber)
        return fiber

    def wake(self, fiber: Fiber) -> None:
        """Ready again, whatever it waited for."""
        if fiber.blocked:
            fiber.blocked = False
            self.ready.append(fiber)

    # --- for a running fiber -------------------------------------------------------------------------------

    def give_way(self) -> None:
        """The others may go on first; then this fiber does. Raises Dead."""
        fiber = current()
        if fiber.owner.dead:
            raise Dead
        self.ready.append(fiber)
        self.greenlet.switch()
        if fiber.owner.dead:
            raise Dead

    def block(self, timeout_ms: int | None) -> None:
        """Wait until `wake`, or for that long. Raises Dead."""
        fiber = current()
        if fiber.owner.dead:
            raise Dead
        fiber.blocked = True
        fiber.waits += 1
        if timeout_ms is not None:
            wait = fiber.waits
            self.at(self.now_ms + max(0, timeout_ms), lambda: self._time_out(fiber, wait))
        self.greenlet.switch()
        if fiber.owner.dead:
            raise Dead

    def sleep(self, ms: int) -> None:
        """Let that much time pass for this fiber."""
        self.block(ms)

    def _time_out(self, fiber: Fiber, wait: int) -> None:
        if fiber.waits == wait:
            self.wake(fiber)


def current() -> Fiber:
    """The fiber that runs."""
    fiber = getcurrent()
    assert isinstance(fiber, Fiber), "called outside of a fiber"
    return fiber


class FiberEvent:
    """As threading.Event, between fibers."""

    __slots__ = ("_flag", "_hub", "_waiting")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._flag = False
        self._waiting: list[Fiber] = []

    def set(self) -> None:
        self._flag = True
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._hub.wake(fiber)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        if self._flag:
            return True
        fiber = current()
        self._waiting.append(fiber)
        try:
            self._hub.block(None if timeout is None else round(timeout * 1000))
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
        return self._flag


class FiberLock:
    """As threading.Lock, between the fibers of one process: who finds it taken lets the others go on."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[Fiber] = []

    def acquire(self, blocking: bool = True) -> bool:
        while self._taken:
            if not blocking:
                return False
            fiber = current()
            self._waiting.append(fiber)
            fiber.hub.block(None)
        self._taken = True
        return True

    def release(self) -> None:
        self._taken = False
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            fiber.hub.wake(fiber)

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        # Nearly always free: no fiber gives way while it holds one, but for those that are meant to.
        if self._taken:
            return self.acquire()
        self._taken = True
        return True

    def __exit__(self, *_: object) -> None:
        if self._waiting:
            self.release()
        else:
            self._taken = False


class _Threading:
    """The module `threading` as engine modules see it during a run: locks are between fibers."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.Lock = FiberLock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def fiber_locks(modules: dict[str, Any]) -> Iterator[None]:
    """Inside, the kernel's own modules make locks for fibers: all fibers are one thread of the operating system, and
    a lock of that would wait for itself for ever."""
    changed = []
    for name, module in list(modules.items()):
        found = vars(module).get("threading") if name.startswith("kernel.") else None
        if found is not None:
            changed.append((module, found))
            module.threading = _Threading(found)
    try:
        yield
    finally:
        for module, found in changed:
            module.threading = found
