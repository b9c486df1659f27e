"""What goes wrong in a run, how often, and the count of it that excuses an activity which runs once more.

Each run has a profile of its own: most faults are rare or absent in it and some are frequent, so that together the
runs meet many more combinations than one even mixture would.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Chances for each call of a port, and weights of what befalls whole processes."""

    refused: float
    """The call fails, nothing was done, and the caller knows."""
    lost_request: float
    """Nothing was done, and the caller does not know."""
    lost_reply: float
    """It was done, and the caller does not know."""
    late: float
    """The caller does not know, and it will be done later."""
    slow: float
    """The call takes seconds."""
    held: float
    """The call, or the whole process in it, is held up until others have written."""
    crash: float
    """The process ends before, in, or after the call."""
    redis: float
    """Any call to Redis fails, done or not done."""
    nemesis: float
    """Chance of a pause, crash, wipe, outage or jump of time, for each rule that is drawn."""
    estimate_ms: int
    """How far estimates of the store's clock are off."""
    stickiness: float
    """Chance that the fiber that moved last moves again."""
    proof: float
    """Chance that a death is proved by a supervisor; otherwise leases run out."""


_NEVER, _RARE, _OFTEN = 0.0, 0.004, 0.02


def draw_profile(rng: random.Random) -> Profile:
    """The profile of one run."""

    def some(*chances: float) -> float:
        return rng.choice(chances)

    return Profile(
        refused=some(_NEVER, _RARE, _OFTEN),
        lost_request=some(_NEVER, _RARE, _OFTEN),
        lost_reply=some(_NEVER, _RARE, _OFTEN),
        late=some(_NEVER, _NEVER, _RARE, _OFTEN),
        slow=some(_NEVER, _RARE, _OFTEN),
        held=some(_NEVER, 0.02, 0.06),
        crash=some(_NEVER, _RARE, 0.01),
        redis=some(_NEVER, _RARE, _OFTEN, 0.1),
        nemesis=some(0.0, 0.15, 0.4),
        estimate_ms=rng.choice((0, 0, 5, 50, 500)),
        stickiness=some(0.0, 0.0, 0.7, 0.95),
        proof=some(0.0, 0.5, 1.0),
    )


class Troubles:
    """What has befallen one process so far, by kind. An entry into business code that comes to nothing needs one."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.count = 0
        self.kinds: dict[str, int] = {}
        self.last_ms = 0
        self.until_ms = 0
        """Until when a call may be under way that takes long: what waits for it is late, too."""

    def note(self, kind: str) -> None:
        self.last_ms = self._now_ms()
        self.count += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
