"""Who waits for a permit counts on the line, which is Redis': whoever stands in none is asked about soon (L2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel.records import Document
from tests.simulation.wipes import SLACK_MS, TROUBLED_MS

if TYPE_CHECKING:
    from tests.simulation.world import World


class Lines:
    """The look at the rows once the faults have stopped and their effects are over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._from_ms = world.calm_ms + TROUBLED_MS
        self._bound_ms = 2 * (world.settings.scan_ms + world.settings.poll_ms) + SLACK_MS
        self._forgotten: dict[tuple[str, int], int] = {}
        """Workflow and revision → since when it rests without a place in line."""

    def check(self) -> None:
        """Raises Violation for one that rests so for longer than it takes to scan, twice."""
        world, now_ms = self._world, self._world.hub.now_ms
        if now_ms < max(self._from_ms, world.jumped_ms + TROUBLED_MS):
            return
        found = {(key, row["revision"]) for key, row in world.rows() if self._is_forgotten(key, row, now_ms)}
        self._forgotten = {one: self._forgotten.get(one, now_ms) for one in found}
        for (key, _), since_ms in self._forgotten.items():
            if now_ms - since_ms > self._bound_ms:
                wait = (world.row(key) or {}).get("permit_wait")
                world.violation("L2", f"{key} waits for {wait} and stands in no line for {now_ms - since_ms} ms")

    def _is_forgotten(self, key: str, row: Document, now_ms: int) -> bool:
        wait = row.get("permit_wait")
        if wait is None or "claim_token" in row or "parked" in row or row["claimable_time"] <= now_ms:
            return False
        return (key, wait["step"]) not in self._world.redis.permits.of(wait["resource"]).line
