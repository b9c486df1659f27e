"""Where summaries are delivered: somebody else's inbox, which takes one row per delivery key and counts.

A sender that does not know whether its delivery arrived sends it again under the same key; that is recognised and makes
no row. Two rows for one subscription would be two deliveries: the count of those must stay zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_demo.table_file import TableFile

FILE_NAME = "receiver.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS deliveries (
    delivery_key TEXT PRIMARY KEY, subscription_id TEXT NOT NULL, text TEXT NOT NULL, at_ms INTEGER NOT NULL,
    repeats INTEGER NOT NULL DEFAULT 0
);
"""


@dataclass(frozen=True, slots=True)
class Received:
    """What has arrived: rows, rows too many for their subscription, and repeats that were recognised."""

    deliveries: int = 0
    duplicates: int = 0
    repeats: int = 0


class Receiver:
    """The inbox in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._file = TableFile(folder / FILE_NAME, _SCHEMA)

    def deliver(self, delivery_key: str, subscription_id: str, text: str, at_ms: int) -> None:
        """Take a delivery; a repeat of its key changes nothing but its count."""
        self._file.change(
            "INSERT INTO deliveries VALUES (?, ?, ?, ?, 0)"
            " ON CONFLICT (delivery_key) DO UPDATE SET repeats = repeats + 1",
            (delivery_key, subscription_id, text, at_ms),
        )

    def received(self) -> Received:
        query = "SELECT count(*), count(*) - count(DISTINCT subscription_id), total(repeats) FROM deliveries"
        deliveries, duplicates, repeats = self._file.rows(query)[0]
        return Received(deliveries, duplicates, int(repeats))

    def text(self, subscription_id: str) -> str | None:
        """What was delivered for this subscription, the first if there are several."""
        query = "SELECT text FROM deliveries WHERE subscription_id = ? ORDER BY rowid LIMIT 1"
        rows = self._file.rows(query, (subscription_id,))
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        self._file.close()
