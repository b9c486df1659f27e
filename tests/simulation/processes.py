"""A logical process: its fibers, its clock, and its end. A new incarnation is a new process."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel.ids import SeededIds
from tests.simulation.fibers import Dead, Fiber, FiberEvent
from tests.simulation.troubles import Troubles

if TYPE_CHECKING:
    from tests.simulation.world import World


class ProcessClock:
    """The clocks of one process: a wall clock that may be wrong, a boot clock that only ever goes on."""

    def __init__(self, world: World, skew_ms: int) -> None:
        self._hub = world.hub
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return self._hub.now_ms + self.skew_ms

    def boot_ms(self) -> int:
        return self._hub.now_ms - BOOTED_MS


BOOTED_MS = 1_700_000_000_000


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Process:
    """One process, which is also the Runner of its engine (kernel.engine.ports.Runner)."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self.world = world
        self.name = name
        self.definition_keys: tuple[str, ...] = ()
        self.faulted_ms = 0
        """When a call of it was last befallen by anything."""
        self.dead = False
        self.paused = False
        self.parked: list[Fiber] = []
        self.troubles = Troubles(lambda: world.hub.now_ms)
        self.clock = ProcessClock(world, 0)
        self.ids = SeededIds(rng.getrandbits(64))
        off = world.profile.estimate_ms
        self.estimate_ms = rng.randint(-off, off) if off else 0
        """By how much this process's estimate of the store's clock runs ahead of it."""
        self._fibers: list[Fiber] = []

    # --- the Runner ----------------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        if self.dead:
            return
        if len(self._fibers) > 64:
            self._fibers = [fiber for fiber in self._fibers if not fiber.dead]
        self._fibers.append(self.world.hub.spawn(self, name, body))

    def event(self) -> FiberEvent:
        return FiberEvent(self.world.hub)

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        self.world.hub.at(boot_ms + BOOTED_MS, lambda: self._fire(timer))
        return timer

    def _fire(self, timer: _Timer) -> None:
        # On a fiber: the timer thread, too, may come late, and stands still with its process.
        if timer.callback is not None and not self.dead:
            self.spawn("timer", lambda: None if timer.callback is None else timer.callback())

    # --- life and death ------------------------------------------------------------------------------------

    def die(self) -> None:
        """As SIGKILL. Its fibers are unwound by `reap`; from here on nothing of it has an effect."""
        if not self.dead:
            self.dead = True
            self.troubles.note("crash")

    def reap(self) -> None:
        """Unwind what is left of a dead process. On the hub."""
        fibers, self._fibers = self._fibers, []
        for fiber in fibers:
            if not fiber.dead:
                try:
                    fiber.throw(Dead())
                except Dead:
                    pass  # it had not begun
            assert fiber.dead, f"{fiber} survives its process"
        self.parked.clear()

    def pause(self, ms: int) -> None:
        """As SIGSTOP, for that long: its timers do not fire either."""
        self.paused = True
        self.troubles.note("pause")
        pauses = self.troubles.kinds["pause"]
        self.world.hub.at(self.world.hub.now_ms + ms, lambda: self._over(pauses))

    def _over(self, pauses: int) -> None:
        if self.paused and self.troubles.kinds["pause"] == pauses:
            self.go_on()

    def go_on(self) -> None:
        """As SIGCONT."""
        self.paused = False
        parked, self.parked = self.parked, []
        self.world.hub.ready.extend(parked)
