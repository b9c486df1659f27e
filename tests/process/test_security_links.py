"""Links planted in the run directory (RELIABILITY §8, run directory): nothing is ever written through one.

Sockets, the server's log, the lock and the run file are in `test_security_surface` and `test_run_dir`; here are the
files of stores, of the log and of the demo. Each is met twice: as a link to a file of somebody, and to a name where
nothing is yet. A store itself may be a link: its owner moved it (conformance/test_sqlite_files).
"""

from __future__ import annotations

import gc
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from asr_demo.asr_tasks import FILE_NAME as TASKS
from asr_demo.asr_tasks import TaskTable
from asr_demo.notes import FILE_NAME as NOTES
from asr_demo.notes import Notes
from kernel.clock import SystemClock
from kernel.errors import StoreUnavailable
from kernel.observe.tables import OBSERVE_TABLES
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from supervisor.log_sink import LogSink


def truth(path: Path) -> None:
    with closing(SqliteStore(path, SystemClock(), durability="normal")) as store:
        store.prepare()
        store.now_ms()


def projection(path: Path) -> None:
    with closing(SqliteProjection(path, SystemClock(), durability="normal", tables=OBSERVE_TABLES)) as store:
        store.prepare()


def notes(path: Path) -> None:
    with closing(Notes(path.parent)) as opened:
        opened.create("note-1", "f1")


def tasks(path: Path) -> None:
    with closing(TaskTable(path.parent)):
        pass


def log_file(path: Path) -> None:
    LogSink.to_file(str(path)).write("a line")


MAKERS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    *((f"store.sqlite{suffix}", truth) for suffix in ("-wal", "-shm", "-journal", "-lock")),
    *((f"observe.sqlite{suffix}", projection) for suffix in ("-wal", "-shm", "-journal", "-lock")),
    *((f"{NOTES}{suffix}", notes) for suffix in ("", "-wal", "-shm", "-journal")),
    *((f"{TASKS}{suffix}", tasks) for suffix in ("", "-wal", "-shm", "-journal")),
    ("kernel.log", log_file),
)


@pytest.mark.parametrize(("name", "use"), MAKERS)
@pytest.mark.parametrize("there", ["a file", "nothing"])
def test_nothing_is_written_through_a_planted_link(
    tmp_path: Path, name: str, use: Callable[[Path], None], there: str
) -> None:
    target, folder = tmp_path / "elsewhere" / "target", tmp_path / "data"
    target.parent.mkdir()
    folder.mkdir(mode=0o700)
    if there == "a file":
        target.touch()  # empty, as SQLite takes it for a database of its own; content would be refused anyway
    (folder / name).symlink_to(target)
    opened = folder / re.sub("-(wal|shm|journal|lock)$", "", name)

    with suppress(StoreUnavailable, OSError, sqlite3.Error):
        use(opened)

    gc.collect()  # a connection that was half made ends here
    left = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    assert left == ({"target": b""} if there == "a file" else {})
