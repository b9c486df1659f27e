"""The crash matrix in simulation: 61 boundaries, each at its three points, and what the table says must follow.

Each scene of a cell is played with several interleavings. `scenes.play` fails a scene whose fault has not fired, checks
S1–S15 with each write and at the end, and that everything has come to its end in bounded simulated time.
"""

from __future__ import annotations

import pytest

from tests.simulation.crash.cells import CELLS, Cell
from tests.simulation.crash.scenes import SEEDS, play


@pytest.mark.req("flt-process-exit", "flt-random")
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=cell.id, marks=pytest.mark.crash(cell.boundary.number)) for cell in CELLS]
)
def test_a_cell(cell: Cell) -> None:
    assert cell.scenes
    for scene in cell.scenes:
        for seed in SEEDS:
            played = play(scene, cell.point, seed)
            assert played.fired.name == scene.call


@pytest.mark.parametrize("number", ["01", "19", "28", "47", "54", "57", "61"])
def test_a_play_is_its_seed_and_nothing_else(number: str) -> None:
    (cell,) = [cell for cell in CELLS if (cell.boundary.number, cell.point) == (number, "c")]
    first, again, other = (play(cell.scenes[0], cell.point, seed) for seed in (1, 1, 2))

    assert (first.moves, first.hash) == (again.moves, again.hash)
    assert first.hash != other.hash
