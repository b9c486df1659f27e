"""Redis loses everything: no fact changes by it (S12), and what can be done is known again in bounded time (L2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel.records import Document
from tests.simulation.roles import EngineProcess

if TYPE_CHECKING:
    from tests.simulation.world import World

SLACK_MS = 2_000
TROUBLED_MS = 125_000
"""So long may a trouble of a process have its effect: the longest for which one is slow, held up, or stands still."""


def wipe(world: World) -> None:
    """What FLUSHALL does. Later it is seen whether all that was to be done then is known to Redis again."""
    world.trace.add(world.hub.now_ms, "RULE", "Redis is wiped")
    rows = world.rows()
    if sum(row["status"] == "running" and "claim_token" not in row for _, row in rows) >= 3:
        world.sometimes.add("index wiped while 3 instances were runnable")
    before = facts(world)
    world.redis.wipe()
    if facts(world) != before:
        world.violation("S12", "the wipe of Redis has changed what is durable")
    wiped_ms = world.hub.now_ms
    due = {key: row for key, row in rows if _is_due(row, wiped_ms)}
    world.redis.lanes.pushed_ms.clear()
    seen = _Seen(world, due)
    bound_ms = world.settings.scan_ms + world.settings.poll_ms + SLACK_MS
    world.later(bound_ms, lambda: seen.check(wiped_ms))


def facts(world: World) -> dict[str, dict[str, bytes]]:
    """Every row of every table, as it is stored."""
    stores = (world.store, world.objects_store)
    return {name: dict(rows) for store in stores for name, rows in store._rows.items()}


def _is_due(row: Document, now_ms: int) -> bool:
    """Runnable, or waiting for a time that has come: somebody should act, and nobody does."""
    return "claim_token" not in row and "parked" not in row and row.get("claimable_time", now_ms + 1) <= now_ms


class _Seen:
    """What was to be done when Redis was wiped, and who was there to say so."""

    def __init__(self, world: World, due: dict[str, Document]) -> None:
        self._world = world
        self._due = due
        self._jumps = world.jumps
        self._engines = [p for p in world.living(EngineProcess) if not p.paused and not p.loop.draining]

    def check(self, wiped_ms: int) -> None:
        world = self._world
        if world.jumps != self._jumps or wiped_ms < world.jumped_ms + TROUBLED_MS:
            return
        well = [engine for engine in self._engines if self._is_well(engine, wiped_ms)]
        left = [key for key, row in self._due.items() if self._stands(key, row)]
        if not well or not self._due:
            return
        for key in left:
            if key not in world.redis.lanes.pushed_ms:
                row = self._due[key]
                world.violation("L2", f"{key} ({row['status']}) is not indexed again since the wipe, {well[0].name}")
        world.sometimes.add("all indexed again after a wipe")

    def _is_well(self, engine: EngineProcess, wiped_ms: int) -> bool:
        """Nothing has befallen it that could have kept it from its sweep."""
        last_ms = max(engine.troubles.last_ms, engine.faulted_ms)
        return not engine.dead and not engine.loop.draining and last_ms + TROUBLED_MS < wiped_ms

    def _stands(self, key: str, before: Document) -> bool:
        """Whether it is as it was then."""
        row = self._world.row(key)
        return row is not None and row["revision"] == before["revision"] and "claim_token" not in row
