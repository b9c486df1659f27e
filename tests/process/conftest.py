"""Fixtures of the process tests: supervisors that end with the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.observe.tables import OBSERVE_TABLES
from kernel.runtime import STORE_FILE
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from supervisor.boot import Program
from supervisor.cli import main
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


@pytest.fixture
def observed(data_dir: Path) -> Iterator[SqliteProjection]:
    """The store of observations of a tree in the data folder."""
    data_dir.mkdir(exist_ok=True)
    store = SqliteProjection(data_dir / OBSERVE_FILE, SystemClock(), durability="normal", tables=OBSERVE_TABLES)
    store.prepare()
    yield store
    store.close()


@pytest.fixture
def durable(data_dir: Path) -> Iterator[SqliteStore]:
    """The durable store beside the observations: prepared, and with no instance in it."""
    data_dir.mkdir(mode=0o700, exist_ok=True)
    opened = SqliteStore(data_dir / STORE_FILE, SystemClock(), durability="normal")
    opened.prepare()
    yield opened
    opened.close()


@pytest.fixture
def operate(
    data_dir: Path, operate_on: Callable[[Path], Callable[..., CompletedProcess[str]]]
) -> Callable[..., CompletedProcess[str]]:
    """Run a command of the command line on this test's data folder, as `operate_on`."""
    return operate_on(data_dir)


@pytest.fixture
def operate_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], Callable[..., CompletedProcess[str]]]:
    """What runs commands of the command line on a data folder, in this process: starting an interpreter for each costs
    more than all the rest. `environ` is set for one call."""
    for name in [name for name in os.environ if name.startswith("KERNEL_") or name in ("MONGODB_URI", "REDIS_URL")]:
        monkeypatch.delenv(name)

    def run(folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([*arguments, "--data-dir", str(folder)])
        said = capsys.readouterr()
        return CompletedProcess(arguments, int(ended.value.code or 0), said.out, said.err)

    return lambda folder: partial(run, folder)
