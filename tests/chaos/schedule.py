"""The blows of a run: which, how long after the one before, and upon whom; all of it follows from the seed.

How far the work is when a blow falls is the machine's affair, so a seed names a run and does not repeat it exactly.
"""

from __future__ import annotations

import random
from typing import NamedTuple

DECK = (
    *("kill_worker",) * 7,
    *("kill_dispatcher",) * 2,
    *("kill_producer",) * 3,
    *("kill_redis",) * 1,
    *("kill_supervisor",) * 1,
    *("kill_everybody",) * 1,
    *("pause_worker",) * 1,
    *("pause_at_write",) * 3,
    *("pause_dispatcher",) * 1,
    *("wipe",) * 3,
    *("roll",) * 1,
)
"""One deck is dealt out whole before the next: no kind is left out of a run of a minute, however short its luck."""
SOAK_DECK = (
    *("kill_worker",) * 2,
    *("kill_dispatcher",) * 1,
    *("kill_producer",) * 3,
    *("pause_worker",) * 2,
    *("pause_dispatcher",) * 1,
    *("wipe",) * 3,
)
"""Of a run that watches memory: it kills the youngest only, so that most processes live from its begin to its end."""
AFTER_S = (0.6, 2.4)
"""A blow a second and a half; five of eight are kills."""
PAUSE_S = (0.3, 1.5)
"""How long a stopped process stays stopped beyond its lease."""
SOAK_SLOWER = 10.0
YOUNGEST = -1
"""A choice."""


class Blow(NamedTuple):
    """`after_s` is counted from the time of the blow before; `choice` says which of those that it may meet, in the
    order of their births (modulo their number); `beyond_s` is for pauses."""

    kind: str
    after_s: float
    choice: int
    beyond_s: float


def drawn(seed: int, seconds: float, *, soak: bool = False) -> list[Blow]:
    """The blows of a run of that many seconds; those of a soak are a tenth as many."""
    chance = random.Random(seed)
    blows: list[Blow] = []
    deck: list[str] = []
    at_s = 0.0
    while True:
        if not deck:
            deck = list(SOAK_DECK if soak else DECK)
            chance.shuffle(deck)
        after_s = round(chance.uniform(*AFTER_S) * (SOAK_SLOWER if soak else 1.0), 3)
        at_s += after_s
        if at_s > seconds:
            return blows
        choice, beyond_s = chance.randrange(1 << 16), round(chance.uniform(*PAUSE_S), 3)
        blows.append(Blow(deck.pop(), after_s, YOUNGEST if soak else choice, beyond_s))
