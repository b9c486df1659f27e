"""The list of cells is whole: against the table, against the ports, and against every write that the kernel makes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

from tests.simulation.crash import inventory
from tests.simulation.crash.__main__ import main
from tests.simulation.crash.cells import CELLS, MODULES, listing
from tests.simulation.crash.fault import POINTS
from tests.simulation.crash.inventory import CALLS, EXEMPT_METHODS, EXEMPT_WRITES
from tests.simulation.crash.scenes import SCENES, play
from tests.simulation.crash.table import BOUNDARIES

COVERED = frozenset(scene.call for scene in SCENES)


def test_there_are_three_cells_for_each_of_the_61_boundaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out.splitlines()

    assert [boundary.number for boundary in BOUNDARIES] == [f"{number:02}" for number in range(1, 62)]
    assert len({cell.id for cell in CELLS}) == len(CELLS) == 61 * 3
    assert [line.split()[0] for line in printed[:-1]] == [boundary.number for boundary in BOUNDARIES]
    assert all("  a b c  " in line for line in printed[:-1])
    assert printed[-1].startswith("crash matrix: 61 boundaries, 183 cells, ")
    assert printed == listing()


def test_each_scene_is_of_a_boundary_of_the_table_and_has_a_name_of_its_own() -> None:
    numbers = {boundary.number for boundary in BOUNDARIES}
    assert {scene.boundary for scene in SCENES} == numbers
    assert len({scene.name for scene in SCENES}) == len(SCENES)
    assert all(scene.points and set(scene.points) <= set(POINTS) for scene in SCENES)
    assert {scene.play.__module__ for scene in SCENES} == {module.__name__ for module in MODULES}


def test_each_method_of_a_port_is_in_a_cell_or_exempted_with_a_reason() -> None:
    found = inventory.methods()

    assert inventory.uncovered_methods(found, COVERED) == []
    assert sorted({*CALLS, *EXEMPT_METHODS}) == found, "nothing is said of what is not there"
    assert not set(CALLS) & set(EXEMPT_METHODS)
    assert all(len(reason) > 20 for reason in EXEMPT_METHODS.values())


def test_each_write_of_the_kernel_is_in_a_cell_or_exempted_with_a_reason() -> None:
    found = inventory.writes()

    assert len(found) > 50
    assert inventory.uncovered_writes(found, COVERED) == []
    assert set(EXEMPT_WRITES) <= set(found)
    assert not set(EXEMPT_WRITES) & COVERED
    assert all(len(reason) > 20 for reason in EXEMPT_WRITES.values())


@pytest.mark.parametrize("verb", ["insert", "insert_all", "apply", "apply_all", "remove_all"])
def test_the_calls_that_stand_for_a_verb_of_the_store_are_made_by_it(verb: str) -> None:
    for call in CALLS[f"Store.{verb}"]:
        scene = next(scene for scene in SCENES if scene.call == call)
        fired = play(scene, scene.points[0]).fired
        assert ("×" in fired.what) == verb.endswith("_all"), fired.what


class Permits(Protocol):
    """A port as it might become."""

    def acquire(self) -> None: ...

    def borrow(self) -> None: ...


def test_a_method_that_is_new_fails_until_it_has_a_cell() -> None:
    module = ModuleType(__name__)
    module.Permits = Permits  # type: ignore[attr-defined]
    found = inventory.methods([module])

    assert found == ["Permits.acquire", "Permits.borrow"]
    assert inventory.uncovered_methods(found, COVERED) == ["Permits.borrow"]
    without = COVERED - {"permits.acquire"}
    assert inventory.uncovered_methods(found, without) == ["Permits.acquire", "Permits.borrow"]
    calls = {**CALLS, "Permits.borrow": ("permits.borrow",)}
    assert inventory.uncovered_methods(found, COVERED, calls) == ["Permits.borrow"], "a word for it is no cell yet"
    assert inventory.uncovered_methods(found, COVERED | {"permits.borrow"}, calls) == []


def test_a_write_that_is_new_fails_until_it_has_a_cell(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text('def rename(store):\n    store.apply(Transition("rename_step", "t", "k", (), ()))\n')
    found = inventory.writes([source])

    assert "rename_step" in found and "claim" in found
    assert inventory.uncovered_writes(found, COVERED) == ["rename_step"]
    assert inventory.uncovered_writes(found, COVERED | {"rename_step"}) == []


def test_a_boundary_without_a_scene_is_seen() -> None:
    assert [cell.id for cell in CELLS if not cell.scenes] == []
