"""`.ci/make-venv`: an environment is made once, refreshed when pyproject.toml changed, and repaired when broken."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.requirements_index import CHECKOUT

# Stands for Python: writes down what it was asked to do; `-m venv` copies itself into the new environment.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-V "*) echo "Python 3.13.0"; exit ;;
    "-c "*) exit ;;
    "-m venv") mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
esac
echo "$*" >>{log}
"""


class Place:
    """A checkout with nothing but .ci and pyproject.toml, and a log of what was run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.log = root / "log"
        self.log.touch()
        self.python = root / "python"
        self.python.write_text(FAKE_PYTHON.format(log=self.log))
        self.python.chmod(0o755)
        shutil.copytree(CHECKOUT / ".ci", self.root / ".ci")
        (self.root / "pyproject.toml").write_text("[project]\n")

    def start(self, extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / ".ci" / "make-venv", ".venv", extra],
            env=os.environ | {"PYTHON": str(self.python)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def make(self, extra: str) -> list[str]:
        """Run make-venv to its end; the steps that it took."""
        before = len(self.steps())
        process = self.start(extra)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
        return self.steps()[before:]

    def steps(self) -> list[str]:
        return [" ".join(line.split()[1:3]) for line in self.log.read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_first_run_makes_the_environment_and_the_second_does_nothing(place: Place) -> None:
    assert place.make("dev") == ["venv --clear", "pip install"]
    assert place.make("dev") == []


def test_an_environment_for_development_serves_the_demo_but_not_the_reverse(place: Place) -> None:
    assert place.make("demo") == ["venv --clear", "pip install"]
    assert place.make("dev") == ["pip install"]
    assert place.make("demo") == []


def test_a_changed_pyproject_is_installed_again_into_the_same_environment(place: Place) -> None:
    place.make("dev")
    (place.root / "pyproject.toml").write_text("[project]\nversion = '2'\n")

    assert place.make("demo") == ["pip install"]
    assert place.make("dev") == ["pip install"]
    assert place.make("dev") == []


def test_an_environment_whose_python_is_gone_is_made_anew(place: Place) -> None:
    place.make("dev")
    (place.root / ".venv/bin/python").unlink()

    assert place.make("dev") == ["venv --clear", "pip install"]


def test_a_moved_checkout_is_installed_again(place: Place, tmp_path: Path) -> None:
    """An editable install points at the folder where it was made."""
    place.make("dev")
    place.root = place.root.rename(tmp_path / "moved")

    assert place.make("dev") == ["pip install"]


def test_two_at_once_install_once(place: Place) -> None:
    both = [place.start("dev"), place.start("dev")]

    for process in both:
        process.communicate(timeout=30)

    assert [process.returncode for process in both] == [0, 0]
    assert place.steps() == ["venv --clear", "pip install"]
