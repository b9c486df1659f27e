"""The catalogue of mutants follows the code: each fault still fits its place, and each named test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Edit, Mutant, OutOfDate, restore


def test_every_mutant_of_the_specification_is_there_once() -> None:
    assert [mutant.name for mutant in MUTANTS] == [f"M{number}" for number in range(1, 19)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fault_fits_into_the_code_as_it_is(mutant: Mutant, tmp_path: Path) -> None:
    for edit in mutant.edits:
        copy = tmp_path / edit.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / edit.file).read_text(encoding="utf-8"), encoding="utf-8")

    before = mutant.apply(tmp_path)

    for path, text in before.items():
        changed = path.read_text(encoding="utf-8")
        assert changed != text
        if path.suffix == ".py":
            compile(changed, str(path), "exec")
    restore(before)
    assert all(path.read_text(encoding="utf-8") == text for path, text in before.items())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_named_tests_exist(mutant: Mutant) -> None:
    for node in mutant.tests:
        file, _, name = node.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name or 'test_'}", text, re.MULTILINE), node


def test_a_place_that_has_changed_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n", encoding="utf-8")
    stale = Mutant("M0", "", (Edit("a.py", "x = 1", "x = 3"), Edit("a.py", "z = 1", "z = 2")), ())

    with pytest.raises(OutOfDate, match=r"M0: a\.py holds 0 times: 'z = 1'"):
        stale.apply(tmp_path)

    assert (tmp_path / "a.py").read_text(encoding="utf-8") == "x = 1\ny = 2\n"


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["M99"]) == 2
    assert "there is no mutant M99" in capsys.readouterr().err
