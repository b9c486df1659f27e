"""The shared resource of the live-summary story: a show that is live, and has a recording once it has ended.

It belongs to somebody else, a streaming platform: nothing tells when it ends, one has to look. Only the observer
workflow looks again and again; everybody else is told, and reads it once when woken (fan-observer).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_demo.table_file import TableFile

FILE_NAME = "shows.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS shows (
    show_id TEXT PRIMARY KEY, title TEXT NOT NULL, generation INTEGER NOT NULL, recording TEXT
);
"""


@dataclass(frozen=True, slots=True)
class Show:
    """A show as the platform tells it now. `generation` is the broadcast's number: a repeat has another one.

    `recording` is the path of the recording, None while the show is live.
    """

    show_id: str
    title: str
    generation: int
    recording: str | None


class Shows:
    """The platform's list of shows, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._file = TableFile(folder / FILE_NAME, _SCHEMA)

    def announce(self, show: Show) -> None:
        """A show begins; one that is known already is left as it is."""
        self._file.change(
            "INSERT INTO shows VALUES (?, ?, ?, ?) ON CONFLICT (show_id) DO NOTHING",
            (show.show_id, show.title, show.generation, show.recording),
        )

    def end(self, show_id: str, generation: int, recording: str) -> bool:
        """The broadcast is over and its recording is there; whether this said so first."""
        statement = "UPDATE shows SET recording = ? WHERE show_id = ? AND generation = ? AND recording IS NULL"
        return self._file.change(statement, (recording, show_id, generation)) == 1

    def read(self, show_id: str) -> Show | None:
        rows = self._file.rows("SELECT show_id, title, generation, recording FROM shows WHERE show_id = ?", (show_id,))
        return Show(*rows[0]) if rows else None

    def close(self) -> None:
        self._file.close()
