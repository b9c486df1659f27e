"""A SQLite file of the demo's outside world, shared by all processes of a run: notes, shows, deliveries, the ledger.

Each stands for a system of its own, which the kernel never sees. One connection per process, made at the first use and
therefore after the fork; one transaction per call; safe for many threads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

_BUSY_S = 30.0

Row = tuple[Any, ...]


class TableFile:
    """The file at `path` with the tables of `schema`, which must be repeatable.

    `durability` full: an answered write survives a loss of power; normal: the death of any process.
    """

    def __init__(self, path: Path, schema: str, *, durability: Literal["full", "normal"] = "full") -> None:
        self._path = path
        self._schema = schema
        self._durability = durability
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            return self._opened().execute(query, values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows the statement changed."""
        with self.write() as db:
            return db.execute(statement, values).rowcount

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: kept when the block ends, undone when it raises."""
        with self._lock:
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            make_private(self._path)
            db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(f"PRAGMA synchronous = {self._durability}")
                db.executescript(self._schema)
            except sqlite3.Error:
                db.close()
                raise
            self._connection = db
        return self._connection


def make_private(path: Path) -> None:
    """An empty file for SQLite that only its owner may read, as SQLite's own would not be; log and index get its mode.

    One that is there is not opened: closing it would drop the locks that another connection of this process holds.
    Raises FileExistsError for a link, through which SQLite would write to whatever it names.
    """
    for name in (path, *(path.with_name(f"{path.name}-{part}") for part in ("wal", "shm", "journal"))):
        if name.is_symlink():
            raise FileExistsError(f"{name}: is a symbolic link")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
