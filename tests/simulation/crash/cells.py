"""All cells: each boundary of the table at each of its three points, with the scenes that play there."""

from __future__ import annotations

import re

import msgspec

from tests.simulation.crash import (
    claiming,
    dispatching,
    ending,
    limiting,
    publishing,
    showing,
    signalling,
    supervising,
    waiting,
    working,
)
from tests.simulation.crash.fault import POINTS, Point
from tests.simulation.crash.scenes import SCENES, Scene
from tests.simulation.crash.table import BOUNDARIES, Boundary

MODULES = (
    publishing, dispatching, claiming, limiting, working, ending, waiting, signalling, showing, supervising,
)  # fmt: skip
"""Where the scenes stand, in the order of the table; to import them is to have them in SCENES."""


class Cell(msgspec.Struct, frozen=True):
    """One boundary at one point."""

    boundary: Boundary
    point: Point
    scenes: tuple[Scene, ...]

    @property
    def id(self) -> str:
        """As `19-claim-cas-b`."""
        name = re.sub(r"\(.*?\)", "", self.boundary.name).replace("→", " to ").lower()
        return f"{self.boundary.number}-{'-'.join(re.findall('[a-z0-9]+', name))}-{self.point}"


def scenes_of(number: str) -> tuple[Scene, ...]:
    """Every scene of that boundary."""
    return tuple(scene for scene in SCENES if scene.boundary == number)


CELLS = [
    Cell(boundary, point, tuple(scene for scene in scenes_of(boundary.number) if point in scene.points))
    for boundary in BOUNDARIES
    for point in POINTS
]


def listing() -> list[str]:
    """The table as people read it: number, name, points that have scenes, the calls at which the fault is planted."""
    lines = []
    for boundary in BOUNDARIES:
        cells = [cell for cell in CELLS if cell.boundary == boundary]
        points = " ".join(cell.point for cell in cells if cell.scenes)
        calls = dict.fromkeys(scene.call for scene in scenes_of(boundary.number))
        lines.append(f"{boundary.number}  {boundary.name[:58]:58}  {points:5}  {', '.join(calls)}")
    played = sum(bool(cell.scenes) for cell in CELLS)
    lines.append(f"crash matrix: {len(BOUNDARIES)} boundaries, {played} cells, {len(SCENES)} scenes")
    return lines
