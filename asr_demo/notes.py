"""The demo's business data: notes with a round, a transcript and a summary, and a ledger of what really ran.

A note is the authority of its business round. Every write carries the round in its condition, so that a late write of
an old round changes nothing (fen-cas, fen-zero-rows). It lies in a database of its own: the kernel never sees it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "notes.sqlite"
_BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (
    object_id TEXT PRIMARY KEY, fencing_token TEXT NOT NULL, status TEXT NOT NULL,
    transcript TEXT, segments TEXT, summary TEXT, error TEXT
);
CREATE TABLE IF NOT EXISTS entries (
    workflow_id TEXT NOT NULL, workflow_run INTEGER NOT NULL, step TEXT NOT NULL, attempt INTEGER NOT NULL,
    worker_id TEXT NOT NULL, pid INTEGER NOT NULL, at_ms INTEGER NOT NULL
);
"""
_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class Note:
    """One business object as it is now."""

    object_id: str
    fencing_token: str
    status: str
    transcript: str | None
    segments: tuple[str, ...]
    summary: str | None
    error: str | None


class Notes:
    """The notes database at `folder`. One connection per process, made at the first use."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def create(self, object_id: str, fencing_token: str) -> None:
        """A new note in its first round; an existing one is left as it is."""
        with self._write() as db:
            db.execute(
                "INSERT INTO notes (object_id, fencing_token, status) VALUES (?, ?, 'processing')"
                " ON CONFLICT (object_id) DO NOTHING",
                (object_id, fencing_token),
            )

    def read(self, object_id: str) -> Note | None:
        with self._lock:
            row = (
                self._opened()
                .execute(
                    "SELECT object_id, fencing_token, status, transcript, segments, summary, error"
                    " FROM notes WHERE object_id = ?",
                    (object_id,),
                )
                .fetchone()
            )
        if row is None:
            return None
        segments = tuple(row[4].split(_SEPARATOR)) if row[4] else ()
        return Note(row[0], row[1], row[2], row[3], segments, row[5], row[6])

    def save_transcript(self, object_id: str, fencing_token: str, transcript: str, segments: tuple[str, ...]) -> bool:
        """Whether the write hit: False when another round is installed or the note is gone."""
        joined = _SEPARATOR.join(" ".join(segment.split()) for segment in segments)
        return self._update(
            "UPDATE notes SET transcript = ?, segments = ? WHERE object_id = ? AND fencing_token = ?",
            (transcript, joined, object_id, fencing_token),
        )

    def save_summary(self, object_id: str, fencing_token: str, summary: str) -> bool:
        """Whether the write hit."""
        return self._update(
            "UPDATE notes SET summary = ? WHERE object_id = ? AND fencing_token = ?",
            (summary, object_id, fencing_token),
        )

    def end(self, object_id: str, fencing_token: str, status: str, error: str | None = None) -> bool:
        """Close the round as `completed` or `failed`; repeated calls write the same (fin-idempotent)."""
        return self._update(
            "UPDATE notes SET status = ?, error = ? WHERE object_id = ? AND fencing_token = ?",
            (status, error, object_id, fencing_token),
        )

    def entered(
        self, workflow_id: str, workflow_run: int, step: str, attempt: int, worker_id: str, pid: int, at_ms: int
    ) -> None:
        """One entry into business code, written before any effect: what a test counts instead of logs."""
        with self._write() as db:
            db.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
                (workflow_id, workflow_run, step, attempt, worker_id, pid, at_ms),
            )

    def entries(self) -> list[tuple[str, str, int, int]]:
        """All entries in order: (workflow_id, step, attempt, pid)."""
        with self._lock:
            rows = self._opened().execute("SELECT workflow_id, step, attempt, pid FROM entries ORDER BY rowid")
            return [tuple(row) for row in rows.fetchall()]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _update(self, statement: str, values: tuple[str | None, ...]) -> bool:
        with self._write() as db:
            return db.execute(statement, values).rowcount == 1

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(_SCHEMA)
            self._connection = db
        return self._connection
