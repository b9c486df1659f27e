"""The speech service's tasks, in one SQLite file: what a caller was promised outlives a kill of the service.

One process owns the file, and one connection, behind a lock, serves all its threads. `synchronous=NORMAL` in
WAL mode keeps every commit through SIGKILL; a power cut may lose the latest ones, which the callers' idempotency
keys then make good.

A task that has its answer still says `running` until `answer_ms`: a repeat of a known recording takes as long as
the first recognition did, so that callers meet the same timing. Whether that moment has passed is settled when
somebody asks. The clock and the ids are SQLite's: a task outlives the process that took it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from asr_demo.asr_protocol import Problem, Segment, Stats, TaskState, TaskStatus
from asr_demo.table_file import make_private

FILE_NAME = "asr_tasks.sqlite3"
KEEP_FINISHED_MS = 7 * 24 * 3600 * 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    task_id         TEXT PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    request_sha256  TEXT NOT NULL,
    audio_path      TEXT NOT NULL,
    audio_sha256    TEXT NOT NULL,
    audio_s         REAL NOT NULL,
    status          TEXT NOT NULL,
    crashes         INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    min_delay_ms    INTEGER NOT NULL,
    fail_reason     TEXT NOT NULL,
    answer_ms       INTEGER,
    problem_code    TEXT,
    problem_message TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS tasks_open ON tasks (status, answer_ms);
CREATE TABLE IF NOT EXISTS results (
    audio_sha256 TEXT PRIMARY KEY,
    segments     BLOB NOT NULL,
    took_ms      INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS fault_uses (
    faults TEXT NOT NULL, name TEXT NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (faults, name)
) STRICT;
"""


class KeyConflict(Exception):
    """This idempotency key belongs to a task that was submitted with another body."""


class QueueFull(Exception):
    """As many tasks wait as the service is willing to hold."""


class NewTask(NamedTuple):
    """What a submit brings: the checked recording, and the faults that this task is to meet."""

    idempotency_key: str
    request_sha256: str
    audio_path: str
    audio_sha256: str
    audio_s: float
    min_delay_ms: int = 0
    fail_reason: str = ""


class Work(NamedTuple):
    """A recording that somebody waits for and that nobody has recognised yet."""

    task_id: str
    audio_path: str
    audio_sha256: str
    audio_s: float


class TaskTable:
    """All reads and writes of the service's file. Every method is one transaction."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        path = folder / FILE_NAME
        make_private(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        with self._write() as db:
            kept_since = _now_ms(db) - KEEP_FINISHED_MS
            db.execute("DELETE FROM tasks WHERE status IN ('succeeded', 'failed') AND created_ms < ?", (kept_since,))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def submit(self, task: NewTask, queue_limit: int) -> tuple[str, bool]:
        """Return (task_id, whether it was created now). The same key and body always gives the same task.

        Raises KeyConflict, QueueFull.
        """
        with self._write() as db:
            known = self._known(db, task.idempotency_key, task.request_sha256)
            if known is not None:
                return known, False
            waiting = db.execute(
                "SELECT count(*) FROM tasks WHERE status IN ('queued', 'running') AND answer_ms IS NULL"
            ).fetchone()[0]
            if waiting >= queue_limit:
                raise QueueFull
            task_id = _fresh_id(db)
            now = _now_ms(db)
            answer_ms = self._answer_time(db, task, now)
            status = "queued" if answer_ms is None else "running"
            db.execute(
                "INSERT INTO tasks (task_id, idempotency_key, request_sha256, audio_path, audio_sha256, audio_s,"
                " min_delay_ms, fail_reason, status, created_ms, answer_ms) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (task_id, *task, status, now, answer_ms),
            )
            self._add(db, "asr_submits")
            return task_id, True

    def submitted(self, idempotency_key: str, request_sha256: str) -> str | None:
        """Return the task_id that this key has, if any. Raises KeyConflict."""
        with self._write() as db:
            return self._known(db, idempotency_key, request_sha256)

    def state(self, task_id: str) -> TaskState | None:
        """Return the task as a caller sees it now, None if there is no such task."""
        with self._write() as db:
            self._settle(db)
            row = db.execute(
                "SELECT status, audio_s, segments, problem_code, problem_message"
                " FROM tasks LEFT JOIN results USING (audio_sha256) WHERE task_id = ?",
                (task_id,),
            ).fetchone()
        return None if row is None else _state(task_id, row)

    def begin_recognition(self) -> Work | None:
        """Mark the oldest task whose recording is unknown as running and return it.

        A task that was running when the service was killed is such a task again, and the oldest one.
        """
        with self._write() as db:
            row = db.execute(
                "SELECT task_id, audio_path, audio_sha256, audio_s FROM tasks"
                " WHERE status IN ('queued', 'running') AND answer_ms IS NULL ORDER BY rowid LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            work = Work(*row)
            db.execute("UPDATE tasks SET status = 'running' WHERE task_id = ?", (work.task_id,))
            self._add(db, "recogniser_starts")
            return work

    def keep_result(self, audio_sha256: str, segments: Sequence[Segment], took_ms: int) -> None:
        """Answer every task that waits for this recording, and those that will be submitted later."""
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO results (audio_sha256, segments, took_ms) VALUES (?,?,?)",
                (audio_sha256, msgspec.json.encode(list(segments)), took_ms),
            )
            db.execute(
                "UPDATE tasks SET status = 'running', answer_ms = max(?, created_ms + min_delay_ms)"
                " WHERE audio_sha256 = ? AND status IN ('queued', 'running') AND answer_ms IS NULL",
                (_now_ms(db), audio_sha256),
            )
            self._add(db, "recognitions")

    def fail_recording(self, audio_sha256: str, problem: Problem) -> None:
        """End every task that waits for this recording: recognising it again would fail again."""
        with self._write() as db:
            db.execute(
                "UPDATE tasks SET status = 'failed', problem_code = ?, problem_message = ?"
                " WHERE audio_sha256 = ? AND status IN ('queued', 'running') AND answer_ms IS NULL",
                (problem.code, problem.message, audio_sha256),
            )

    def count_crash(self, task_id: str) -> int:
        """Return how often the recogniser of this task has died by itself, this time included."""
        with self._write() as db:
            db.execute("UPDATE tasks SET crashes = crashes + 1 WHERE task_id = ?", (task_id,))
            row = db.execute("SELECT crashes FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
        return 0 if row is None else int(row[0])

    def forget(self, task_id: str) -> bool:
        """Remove the task as if it had never been. Returns whether it was there."""
        with self._write() as db:
            return db.execute("DELETE FROM tasks WHERE task_id = ?", (task_id,)).rowcount == 1

    def count(self, name: str) -> None:
        with self._write() as db:
            self._add(db, name)

    def use_fault(self, faults: str, name: str, limit: int) -> bool:
        """Use up one of `limit` occurrences of fault `name` of the set `faults`; False when none is left."""
        if limit <= 0:
            return False
        with self._write() as db:
            db.execute("INSERT OR IGNORE INTO fault_uses VALUES (?, ?, 0)", (faults, name))
            used = db.execute(
                "UPDATE fault_uses SET used = used + 1 WHERE faults = ? AND name = ? AND used < ?",
                (faults, name, limit),
            )
            return used.rowcount == 1

    def stats(self) -> Stats:
        with self._write() as db:
            self._settle(db)
            counters = dict(db.execute("SELECT name, value FROM counters"))
            by_status = dict(db.execute("SELECT status, count(*) FROM tasks GROUP BY status"))
        return Stats(**{field: int((counters | by_status).get(field, 0)) for field in Stats.__struct_fields__})

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _settle(self, db: sqlite3.Connection) -> None:
        """End the tasks whose answer is due."""
        db.execute(
            "UPDATE tasks SET status = CASE fail_reason WHEN '' THEN 'succeeded' ELSE 'failed' END,"
            " problem_code = CASE fail_reason WHEN '' THEN NULL ELSE 'provider_failed' END,"
            " problem_message = nullif(fail_reason, '')"
            " WHERE status IN ('queued', 'running') AND answer_ms <= ?",
            (_now_ms(db),),
        )

    @staticmethod
    def _known(db: sqlite3.Connection, key: str, request_sha256: str) -> str | None:
        row = db.execute("SELECT task_id, request_sha256 FROM tasks WHERE idempotency_key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[1] != request_sha256:
            raise KeyConflict
        return str(row[0])

    @staticmethod
    def _answer_time(db: sqlite3.Connection, task: NewTask, now: int) -> int | None:
        """When the task's end may be told; None while its recording must still be recognised."""
        if task.fail_reason:
            return now + task.min_delay_ms
        row = db.execute("SELECT took_ms FROM results WHERE audio_sha256 = ?", (task.audio_sha256,)).fetchone()
        return None if row is None else now + max(int(row[0]), task.min_delay_ms)

    @staticmethod
    def _add(db: sqlite3.Connection, name: str) -> None:
        db.execute("INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,))


def _now_ms(db: sqlite3.Connection) -> int:
    """Milliseconds since the epoch (the Julian day 2440587.5)."""
    return int(db.execute("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)").fetchone()[0])


def _fresh_id(db: sqlite3.Connection) -> str:
    return str(db.execute("SELECT 'asr-' || lower(hex(randomblob(16)))").fetchone()[0])


def _state(task_id: str, row: tuple[TaskStatus, float, bytes | None, str | None, str | None]) -> TaskState:
    status, audio_s, encoded, code, message = row
    if status == "failed":
        problem = Problem(code or "failed", message or "the recogniser gave no reason")
        return TaskState(task_id, status, audio_s, problem=problem)
    if status != "succeeded" or encoded is None:
        return TaskState(task_id, status, audio_s)
    segments = msgspec.json.decode(encoded, type=tuple[Segment, ...])
    return TaskState(task_id, status, audio_s, " ".join(segment.text for segment in segments), segments)
