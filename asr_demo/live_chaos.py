"""`--chaos`: every process of the tree is killed at least once, and Redis is emptied, in an order drawn from a seed.

The seed fixes the blows, their order and the pauses between them; how far the work is when one falls is the machine's
affair. One process is spared for as long as it has a late write to make (`asr_demo.live_failed_round`).
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from asr_demo.live_tree import Tree
from kernel import RandomIds

SEED_MAX = 2**31 - 1
WIPES, EXTRA_KILLS = 2, 3
USERS_PER_KILL = 25
"""The more users there are, the longer the run is: one more kill for so many."""
_PAUSE_FIRST_S, _PAUSE_LAST_S = 0.5, 1.5
_AGAIN_S = 0.2


class Blow(NamedTuple):
    """What is struck (`wipe`, `supervisor`, or a child's name as in `status`), and how long after the one before."""

    target: str
    after_s: float


def fresh_seed() -> int:
    return int(RandomIds().fraction() * SEED_MAX)


def drawn(seed: int, workers: int, dispatchers: int, users: int) -> list[Blow]:
    """The blows of this seed for such a tree and so many users: the same on every machine and with every Python."""
    children = [f"worker-{n}" for n in range(workers)] + [f"dispatcher-{n}" for n in range(dispatchers)]
    numbers = _Numbers(seed)
    targets = [*children, "asr", "valkey", "supervisor", *["wipe"] * WIPES]
    targets += [children[numbers.below(len(children))] for _ in range(EXTRA_KILLS + users // USERS_PER_KILL)]
    blows = []
    while targets:
        target = targets.pop(numbers.below(len(targets)))
        pause_s = _PAUSE_FIRST_S + (_PAUSE_LAST_S - _PAUSE_FIRST_S) * numbers.below(1000) / 1000
        blows.append(Blow(target, round(pause_s, 3)))
    return blows


class _Numbers:
    """Whole numbers that follow from a seed alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0

    def below(self, limit: int) -> int:
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}:{self._count}".encode()).digest()
        return int.from_bytes(digest[:8]) % limit


class Chaos:
    """Strikes `tree` when it is time; asked again and again by the driver. `spared`: the process that must live now."""

    def __init__(self, blows: list[Blow], tree: Tree, spared: Callable[[], int | None], now_s: float) -> None:
        self._blows = deque(blows)
        self._tree = tree
        self._spared = spared
        self._next_s = now_s + (blows[0].after_s if blows else 0.0)
        self.killed: list[int] = []
        self.wipes = 0

    @property
    def is_over(self) -> bool:
        return not self._blows

    def strike(self, now_s: float) -> str | None:
        """The next blow if its time has come; what was done, in words."""
        if not self._blows or now_s < self._next_s:
            return None
        blow = self._blows.popleft()
        done = self._struck(blow.target)
        if done is None:
            # Spared, or just not there: its turn comes again after the others'.
            self._blows.append(blow)
            self._next_s = now_s + _AGAIN_S
        elif self._blows:
            self._next_s = now_s + self._blows[0].after_s
        return done

    def _struck(self, target: str) -> str | None:
        spared = self._spared()
        if target == "wipe":
            if not self._tree.wipe_redis():
                return None
            self.wipes += 1
            return "chaos: Redis is empty"
        if target == "supervisor":
            if spared is not None:
                return None  # its end would end all its children
            self.killed.append(self._tree.kill_supervisor())
            return f"chaos: SIGKILL supervisor (pid {self.killed[-1]}), and another one starts"
        for child in self._tree.children():
            if child["name"] == target and child["state"] == "RUNNING" and child["pid"] not in (None, spared):
                os.kill(child["pid"], signal.SIGKILL)
                self.killed.append(child["pid"])
                return f"chaos: SIGKILL {target} (pid {child['pid']})"
        return None
