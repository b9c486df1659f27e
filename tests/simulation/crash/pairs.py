"""Second-order cells: a first fault somewhere, and then a blow to whoever goes on with what it has left."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from tests.simulation.crash.cells import CELLS
from tests.simulation.crash.fault import POINTS, Point
from tests.simulation.crash.scenes import Scene

SEED = 61
PAIRS = 200
"""So many are played in the suite in which the second blow has met somebody."""
CALLS_MAX = 12
"""The second blow comes at one of so many calls of the process that goes on."""


class Pair(msgspec.Struct, frozen=True):
    """A scene with its fault at `first`; the one who goes on with it is hit at its `after`-th call, at `second`."""

    number: int
    scene: Scene
    first: Point
    after: int
    second: Point

    def __str__(self) -> str:
        return (
            f"{self.number:3}  {self.scene.boundary}{self.first} {self.scene.name}, "
            f"then call {self.after} of whoever goes on, {self.second}"
        )


def pairs(count: int, seed: int = SEED) -> Iterator[Pair]:
    """The first `count` pairs of that seed: every cell is as likely, whatever scenes it has."""
    rng = random.Random(seed)
    for number in range(count):
        cell = rng.choice(CELLS)
        yield Pair(number, rng.choice(cell.scenes), cell.point, rng.randrange(CALLS_MAX), rng.choice(POINTS))
