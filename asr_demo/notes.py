"""The business data of single jobs: notes with a round, a text, and the summary of that text.

A note is the authority of its business round. Every write carries the round in its condition, so that a late write of
an old round changes nothing (fen-cas, fen-zero-rows). It lies in a database of its own: the kernel never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_demo.table_file import TableFile

FILE_NAME = "notes.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (
    object_id TEXT PRIMARY KEY, fencing_token TEXT NOT NULL, status TEXT NOT NULL,
    transcript TEXT, segments TEXT, summary TEXT, error TEXT
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
    """The notes database at `folder`."""

    def __init__(self, folder: Path) -> None:
        self._file = TableFile(folder / FILE_NAME, _SCHEMA)

    def create(self, object_id: str, fencing_token: str) -> None:
        """A new note in its first round; an existing one is left as it is."""
        self._file.change(
            "INSERT INTO notes (object_id, fencing_token, status) VALUES (?, ?, 'processing')"
            " ON CONFLICT (object_id) DO NOTHING",
            (object_id, fencing_token),
        )

    def read(self, object_id: str) -> Note | None:
        rows = self._file.rows(
            "SELECT object_id, fencing_token, status, transcript, segments, summary, error"
            " FROM notes WHERE object_id = ?",
            (object_id,),
        )
        for row in rows:
            return Note(row[0], row[1], row[2], row[3], tuple(row[4].split(_SEPARATOR)) if row[4] else (), *row[5:])
        return None

    def page(self, after: str, limit: int) -> list[Note]:
        """At most `limit` notes in the order of their ids, behind `after`, without their texts."""
        rows = self._file.rows(
            "SELECT object_id, fencing_token, status FROM notes WHERE object_id > ? ORDER BY object_id LIMIT ?",
            (after, limit),
        )
        return [Note(*row, None, (), None, None) for row in rows]

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

    def close(self) -> None:
        self._file.close()

    def _update(self, statement: str, values: tuple[str | None, ...]) -> bool:
        return self._file.change(statement, values) == 1
