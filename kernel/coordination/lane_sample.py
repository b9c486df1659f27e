"""Two looks at the heads of the lanes: which of those that were due were taken in between (lane-stats-use).

For people who ask why a lane does not move. Plain reads beside the pop script, so that no pop pays for it: a pop takes
the earliest due first, so whoever was due at the first look and is gone, or due only later than that, was taken, and
perhaps given back. A sweep that pushes somebody again moves his due time by the milliseconds between two clocks, and
that is no move. Who came and went between the two looks is not counted: that lane has no backlog.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kernel.coordination.keys import LANES, Keys
from kernel.coordination.scripts import ScriptRunner

HEADS_MAX = 1_000
"""Members per lane that a look remembers: a lane that gives out more between two looks is told as "at least"."""


class Heads(msgspec.Struct, frozen=True):
    """The members at the front of each lane that were due at `due_ms`, the oldest first, as Redis has them."""

    due_ms: int
    lanes: list[list[bytes]]

    def oldest(self, lane: int) -> str | None:
        """Who has waited longest, for people: a member that no kernel wrote may hold any bytes."""
        members = self.lanes[lane]
        return members[0].decode(errors="backslashreplace") if members else None


class LaneSample:
    """Reads the lanes of one namespace. Raises as `Lanes` does: CoordinationUnavailable, CoordinationRejected."""

    def __init__(self, runner: ScriptRunner, keys: Keys) -> None:
        self._runner = runner
        self._lanes = keys.lanes

    def heads(self, due_ms: int, count: int = HEADS_MAX) -> Heads:
        """Up to `count` members of each lane that were due at `due_ms` (ms, the clock of Redis)."""
        words = ("-inf", due_ms, "LIMIT", 0, count)
        return Heads(due_ms, [self._runner.command("ZRANGEBYSCORE", lane, *words) for lane in self._lanes])

    def taken(self, before: Heads) -> list[int]:
        """How many of each lane's heads are not due there any more, as they were at the first look."""
        return [self._taken(lane, before.lanes[lane], before.due_ms) for lane in range(LANES)]

    def _taken(self, lane: int, members: Sequence[bytes], due_ms: int) -> int:
        if not members:
            return 0
        scores = self._runner.command("ZMSCORE", self._lanes[lane], *members)
        return sum(score is None or float(score) > due_ms for score in scores)
