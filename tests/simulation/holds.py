"""Calls that are held up until the world has changed under them: how a guard shows whether it guards.

A fault that waits for a time meets another writer only by luck. A call that is held waits for the others' writes
instead: it goes on right after the row has been written so and so often, or as soon as it would be done although the
row is another by then, or when exactly one of its own conditions keeps it from that, or at last after two minutes. The
second kind is the adversary of a condition that is missing: it waits for the moment at which the write does harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kernel.records import Document, bears_mark
from kernel.store.conditional import Due, Remove, Transition, parse
from kernel.store.evaluate import holds, lookup
from kernel.store.tables import TABLES
from tests.simulation.fibers import Fiber, current

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

HELD_MAX_MS = 120_000
ANY = ""
"""Stands for every row."""


class _Hold:
    def __init__(self, process: Process, fiber: Fiber | None, left: int, write: Transition | Remove | None) -> None:
        self.process = process
        self.fiber = fiber
        self.left = left
        self.write = write
        self.seen = b""
        """The row when the hold began."""
        self.do: Callable[[], object] | None = None
        """What is done then, where no fiber waits for it."""
        self.whole = False
        self.met = False
        """Waits until all of the write's conditions are met, not until one alone is not."""


class Holds:
    """Who is held, by the row that he waits for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, list[_Hold]] = {}

    def hold(self, process: Process, key: str, writes: int, *, whole: bool) -> None:
        """Hold the running fiber until so many writes on `key` were done by others; with `whole` its process stands
        still as well, so that it renews nothing meanwhile."""
        self._wait(_Hold(process, current(), writes, None), key, whole=whole)

    def hold_for_guard(self, process: Process, write: Transition | Remove, *, whole: bool, met: bool) -> None:
        """Hold the running fiber, which is about to send `write`, until the row has changed and yet all conditions of
        it are `met`, or exactly one of them is not; or until that is so once more."""
        hold = _Hold(process, current(), self._world.rng.choice((1, 1, 2, 2)), write)
        hold.seen, hold.met = self._stored(write), met
        if met or not self._ripe(hold):
            self._wait(hold, write.key, whole=whole)

    def send_later(self, process: Process, write: Transition, do: Callable[[], object]) -> None:
        """Do what was lost on its way as soon as exactly one condition of `write` is not met, or at last."""
        hold = _Hold(process, None, 1, write)
        hold.seen, hold.do = self._stored(write), do
        self._held.setdefault(write.key, []).append(hold)
        self._world.later(HELD_MAX_MS, lambda: self._let_go(hold, write.key))

    def _wait(self, hold: _Hold, key: str, *, whole: bool) -> None:
        hold.whole = whole
        self._held.setdefault(key, []).append(hold)
        if whole:
            hold.process.pause(HELD_MAX_MS)
            self._world.hub.give_way()
        else:
            hold.process.troubles.note("slow")
            hold.process.troubles.until_ms = self._world.hub.now_ms + HELD_MAX_MS
            self._world.hub.block(HELD_MAX_MS)
        if hold in self._held.get(key, ()):
            self._held[key].remove(hold)  # the time is over

    def written(self, key: str, *, renewed: bool = False) -> None:
        """Somebody has written that row."""
        for held in (key, ANY):
            for hold in list(self._held.get(held, ())):
                if self._ripe(hold) if hold.write is not None else not renewed:
                    self._count(hold, held)

    def _count(self, hold: _Hold, held: str) -> None:
        """One of the moments for which it waits; it goes on at the last."""
        hold.left -= 1
        if hold.left <= 0:
            self._let_go(hold, held)

    def _ripe(self, hold: _Hold) -> bool:
        """Whether one condition alone still keeps the write from being done; looks again when a time has come."""
        assert hold.write is not None
        stored = self._stored(hold.write)
        if not stored or (hold.met and stored == hold.seen):
            return False
        row: Document = msgspec.msgpack.decode(stored)
        now_ms = self._world.hub.now_ms
        fields = {guard.field for guard in hold.write.guards if not holds(row, (guard,), now_ms)}
        if isinstance(hold.write, Transition) and bears_mark(row, hold.write.commit_id):
            fields.add("commit_ids")
        times = [g.field for g in hold.write.guards if isinstance(g, Due) and g.field in fields]
        if len(times) == 1 and len(fields) == 1 + (not hold.met):
            at_ms = lookup(row, parse(times[0]))
            if isinstance(at_ms, int) and at_ms - now_ms < HELD_MAX_MS:
                self._world.hub.at(at_ms, lambda: self._look(hold))
        return len(fields) == (not hold.met)

    def _look(self, hold: _Hold) -> None:
        assert hold.write is not None
        if hold in self._held.get(hold.write.key, ()) and self._ripe(hold):
            self._count(hold, hold.write.key)

    def _stored(self, write: Transition | Remove) -> bytes:
        world = self._world
        store = world.store if write.table in TABLES else world.objects_store
        return store._rows[write.table].get(write.key, b"")

    def _let_go(self, hold: _Hold, key: str) -> None:
        if hold not in self._held[key]:
            return
        self._held[key].remove(hold)
        if hold.do is not None:
            self._world.later(1, hold.do)
        elif hold.whole:
            hold.process.go_on()
        elif hold.fiber is not None:
            self._world.hub.wake(hold.fiber)
