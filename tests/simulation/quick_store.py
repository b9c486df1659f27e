"""The reference store, with a memory of what its rows decode to: a run reads every row again and again."""

from __future__ import annotations

from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.records import Document
from kernel.store.conditional import parse
from kernel.store.evaluate import ABSENT, column_of, holds, lookup
from kernel.store.memory import MemoryStore
from kernel.store.protocol import Query
from kernel.store.tables import Table


class QuickStore(MemoryStore):
    """Answers as MemoryStore does. Documents of `rows` belong to the store: nobody changes them."""

    def __init__(self, clock: Clock, tables: dict[str, Table] | None = None) -> None:
        super().__init__(clock, tables)
        self._decoded: dict[tuple[str, str], tuple[bytes, Document]] = {}

    def rows(self, table: str) -> list[tuple[str, Document]]:
        """All rows of a table, in the order in which they came."""
        known = self._decoded
        found = []
        for key, stored in self._rows[table].items():
            entry = known.get((table, key))
            if entry is None or entry[0] is not stored:
                entry = known[table, key] = (stored, msgspec.msgpack.decode(stored))
            found.append((key, entry[1]))
        return found

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        order = parse(query.order)
        found = []
        for key, document in self.rows(query.table):
            at = lookup(document, order)
            if at is ABSENT or (query.after is not None and (at, key) <= query.after):
                continue
            if holds(document, query.guards, 0):
                found.append((at, key, document))
        found.sort(key=lambda row: (row[0], row[1]))
        return [tuple(column_of(row[2], column) for column in query.columns) for row in found[: query.limit]]
