"""All 61 boundaries of the crash matrix (RELIABILITY §5): at each a real process is killed, on both sides of the call.

Which test does so its marks say, and pytest itself is asked for them; that a mark tells the truth its plugin sees to:
a test that has not seen an arm of that point fire does not pass (`tests/support/crash_marks.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.crash_marks import BOUNDARIES, FOLDERS
from tests.support.program import CHECKOUT
from tests.support.requirements_index import REQUIREMENTS

TABLE = REQUIREMENTS.with_name("RELIABILITY.md")
ROW = re.compile(r"\| (\d\d) \| ([^|]+?) \|")


@pytest.mark.req("dc-tests-fault", "flt-process-exit")
def test_at_every_boundary_a_real_process_is_killed_before_and_after_the_call() -> None:
    files = [path for folder in FOLDERS for path in sorted((CHECKOUT / folder).rglob("test_*.py"))]
    marked = [str(path) for path in files if "mark.crash(" in path.read_text()]  # the others need not be imported
    command = [sys.executable, "-m", "pytest", *marked, "--crash-report", "-q", "-p", "no:cacheprovider"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "WITHOUT")}
    ended = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=100)
    print(ended.stdout)

    lines = [line for line in ended.stdout.splitlines() if re.match(r"\d\d (before|-)", line)]
    assert [line[:2] for line in lines] == list(BOUNDARIES)
    assert "61 of 61 boundaries: killed on both sides of the call" in ended.stdout
    assert ended.returncode == 0, ended.stderr


def test_the_boundaries_are_those_of_the_specification() -> None:
    """In its own words; where it is not at hand, their number is."""
    assert list(BOUNDARIES) == [f"{number:02}" for number in range(1, 62)]
    if TABLE.exists():
        assert dict(ROW.findall(TABLE.read_text())) == BOUNDARIES


LYING = """
import pytest

seen = []

@pytest.mark.fault
@pytest.mark.crash("19", "before")
def test_that_kills_nobody():
    pass

@pytest.mark.fault
@pytest.mark.crash("19", "after")
def test_that_kills():
    from tests.support.crash_proof import proved
    proved.add("after")

@pytest.mark.crash("20", "before")
@pytest.mark.crash("20", "after")
def test_with_no_process():
    pass
"""


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Pytest on a checkout that has these tests and no others."""
    folder = tmp_path / "tests" / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    marks = "markers =\n    fault: f\n    crash(boundary, point): c\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = -p no:cacheprovider\n{marks}")
    (folder / "test_it.py").write_text(LYING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.crash_marks", "-q", *options]
    env = {"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin", "PY_COLORS": "0"}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)


def test_a_boundary_without_a_real_process_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "--crash-report")

    assert ended.returncode != 0
    assert "\n19 before ---- after  claim CAS\n     tests/faults/test_it.py::test_that_kills_nobody\n" in ended.stdout
    assert "\n20 ------ ---- -----  fingerprint mismatch" in ended.stdout, "a mark alone is no process"
    assert "1 of 61 boundaries: killed on both sides of the call\n01 lacks a real process" in ended.stdout
    assert "\n19 lacks" not in ended.stdout


def test_a_mark_that_says_what_did_not_happen_fails_its_test(tmp_path: Path) -> None:
    ended = run(tmp_path)

    assert ended.returncode == 1
    assert "no arm was seen to have fired: ['before']" in ended.stdout
    assert "1 failed, 2 passed" in ended.stdout
