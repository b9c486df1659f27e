"""What a sweep of the inbox remembers: the signals for which there was nothing to do, and how their workflow stood.

Whether a pending signal matches depends on the record of its workflow alone, and whatever changes that record for the
better raises its revision: only taking and renewing a claim do not, and nobody is woken under a claim (B-19).
"""

from __future__ import annotations

import msgspec

KNOWN_MAX = 32_768


class Standing(msgspec.Struct, frozen=True):
    """How the workflow of a pending signal stands, from its columns; all None for one that is not there."""

    status: str | None = None
    finish_time: int | None = None
    revision: int | None = None


class VainLooks:
    """Bounded, and lost with the process: what is not known costs one more reading. For one thread at a time.

    What two turns through the inbox have not met again is gone from it, and from here. A full memory takes no more
    before the next turn: it would else throw out each entry right before the turn comes back to it.
    """

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        self._max = known_max
        self._now: dict[str, Standing] = {}
        self._before: dict[str, Standing] = {}

    def knows(self, signal_id: str, standing: Standing) -> bool:
        """Whether it was looked at already while its workflow stood just like that."""
        if self._before.get(signal_id) == standing:
            self.add(signal_id, standing)
            return True
        return self._now.get(signal_id) == standing

    def add(self, signal_id: str, standing: Standing) -> None:
        if len(self._now) < self._max or signal_id in self._now:
            self._now[signal_id] = standing

    def turn(self) -> None:
        """The end of the inbox is reached; the next page is its first again."""
        self._before, self._now = self._now, {}

    def __len__(self) -> int:
        return len(self._now) + len(self._before)
