"""The ledger: what really happened in the activities, whatever the kernel's own records say.

Every entry into business code is written before any effect, so that a test counts entries instead of believing logs.
A business write that was refused, because its round is over, is written here too (fen-zero-rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_demo.table_file import TableFile
from kernel import Context

FILE_NAME = "ledger.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    workflow_id TEXT NOT NULL, workflow_run INTEGER NOT NULL, step TEXT NOT NULL, attempt INTEGER NOT NULL,
    worker_id TEXT NOT NULL, pid INTEGER NOT NULL, at_ms INTEGER NOT NULL, took_ms INTEGER
);
CREATE TABLE IF NOT EXISTS refusals (
    object_id TEXT NOT NULL, fencing_token TEXT NOT NULL, installed TEXT NOT NULL, field TEXT NOT NULL,
    pid INTEGER NOT NULL, at_ms INTEGER NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry into an activity. `took_ms` is None when it never came back: its process died."""

    workflow_id: str
    workflow_run: int
    step: str
    attempt: int
    worker_id: str
    pid: int
    at_ms: int
    took_ms: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write of round `fencing_token` that changed nothing, because round `installed` was the object's."""

    object_id: str
    fencing_token: str
    installed: str
    field: str
    pid: int
    at_ms: int


class Ledger:
    """The ledger in `folder`. Its writes survive the death of any process, not a loss of power: it is evidence only."""

    def __init__(self, folder: Path) -> None:
        self._file = TableFile(folder / FILE_NAME, _SCHEMA, durability="normal")

    def entered(self, ctx: Context, pid: int, at_ms: int) -> int:
        """Write an entry; its number, for `left`."""
        values = (ctx.workflow_id, ctx.workflow_run, ctx.step or "", ctx.attempt, ctx.worker_id, pid, at_ms)
        with self._file.write() as db:
            return db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", values).lastrowid or 0

    def left(self, number: int, took_ms: int) -> None:
        self._file.change("UPDATE entries SET took_ms = ? WHERE rowid = ?", (took_ms, number))

    def refused(self, refusal: Refusal) -> None:
        self._file.change(
            "INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?)",
            (
                refusal.object_id,
                refusal.fencing_token,
                refusal.installed,
                refusal.field,
                refusal.pid,
                refusal.at_ms,
            ),
        )

    def entries(self) -> list[Entry]:
        """All entries in order."""
        columns = "workflow_id, workflow_run, step, attempt, worker_id, pid, at_ms, took_ms"
        return [Entry(*row) for row in self._file.rows(f"SELECT {columns} FROM entries ORDER BY rowid")]

    def refusals(self) -> list[Refusal]:
        """All refused writes in order."""
        columns = "object_id, fencing_token, installed, field, pid, at_ms"
        return [Refusal(*row) for row in self._file.rows(f"SELECT {columns} FROM refusals ORDER BY rowid")]

    def close(self) -> None:
        self._file.close()
