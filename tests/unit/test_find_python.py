"""`.ci/find-python`: what is found is run first, because a pyenv shim may exist and exit 127."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements_index import CHECKOUT

THIS_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def shim(folder: Path, name: str) -> Path:
    """What pyenv leaves on PATH for a version that this folder did not choose."""
    return executable(folder / name, 'echo "pyenv: command not found" >&2; exit 127')


def interpreter(path: Path, minor: str) -> Path:
    """A stand-in that answers the probe (`-c CODE MINOR`) as Python `minor` would."""
    return executable(path, f'[ "$1" = -c ] && [ "$3" = {minor} ] && echo "$0"')


def find(*minors: str, path: list[Path], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT / ".ci" / "find-python", *minors],
        env={"PATH": os.pathsep.join(map(str, path)), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_shim_that_exits_127_does_not_hide_the_python_behind_it(tmp_path: Path) -> None:
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        shim(tmp_path / "shims", name)
    works = interpreter(tmp_path / "bin" / "python3.13", "3.13")

    found = find(path=[tmp_path / "shims", tmp_path / "bin"])

    assert (found.stdout, found.stderr, found.returncode) == (f"{works}\n", "", 0)


def test_a_newer_python_of_pyenv_is_preferred_to_an_older_one_on_path(tmp_path: Path) -> None:
    shim(tmp_path / "bin", "python3.13")
    interpreter(tmp_path / "bin" / "python3.11", "3.11")
    interpreter(tmp_path / "home/.pyenv/versions/3.11.7/bin/python3", "3.11")
    newest = interpreter(tmp_path / "home/.pyenv/versions/3.12.1/bin/python3", "3.12")

    found = find(path=[tmp_path / "bin"], HOME=str(tmp_path / "home"))

    assert found.stdout == f"{newest}\n"


def test_pyenv_root_is_searched_too(tmp_path: Path) -> None:
    newest = interpreter(tmp_path / "root with blanks/versions/3.13.0/bin/python3", "3.13")

    found = find(path=[], HOME=str(tmp_path), PYENV_ROOT=str(tmp_path / "root with blanks"))

    assert found.stdout == f"{newest}\n"


def test_plain_python3_serves_when_it_is_of_a_suitable_version(tmp_path: Path) -> None:
    works = interpreter(tmp_path / "bin" / "python3", "3.12")

    assert find(path=[tmp_path / "bin"]).stdout == f"{works}\n"


def test_only_the_version_asked_for_is_given(tmp_path: Path) -> None:
    interpreter(tmp_path / "bin" / "python3.13", "3.13")
    older = interpreter(tmp_path / "bin" / "python3.11", "3.11")

    assert find("3.11", path=[tmp_path / "bin"]).stdout == f"{older}\n"


@pytest.mark.parametrize("others", [["3.10"], ["3.14"], []])
def test_without_a_suitable_python_one_line_names_the_cure(tmp_path: Path, others: list[str]) -> None:
    for minor in others:
        interpreter(tmp_path / "bin" / "python3", minor)
    executable(tmp_path / "bin" / "python3.13", "exit 1")  # lacks ensurepip, as Debian's does without python3-venv

    found = find(path=[tmp_path / "bin"])

    assert (found.stdout, found.returncode) == ("", 1)
    assert found.stderr.count("\n") == 1
    assert "apt-get install -y python3-venv" in found.stderr


def test_the_python_that_runs_this_test_is_found_and_never_inside_an_environment(tmp_path: Path) -> None:
    found = find(THIS_MINOR, path=[Path(sys.prefix) / "bin"]).stdout.strip()

    assert Path(found).is_file()
    assert not Path(found).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
    asked = subprocess.run([found, "-V"], capture_output=True, text=True, timeout=30).stdout
    assert asked.startswith(f"Python {THIS_MINOR}.")
