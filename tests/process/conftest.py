"""Fixtures of the process tests: supervisors that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.boot import Program
from tests.process.supervised import Supervised


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def supervise(data_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Start a supervisor; all of them are gone after the test."""
    started: list[Supervised] = []

    def start(what: Program | None = None, *, folder: Path | None = None, **settings: Any) -> Supervised:
        log_path = tmp_path / f"supervisor{len(started)}.log"
        started.append(Supervised(folder or data_dir, log_path, what, **settings))
        return started[-1]

    yield start
    for supervised in started:
        supervised.destroy()
