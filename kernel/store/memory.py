"""The reference interpreter: plain Python under one lock, also the simulator's store.

Rows are kept encoded, so that nothing that a caller holds can change what is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.records import Document
from kernel.store.conditional import (
    MISSED,
    REMOVED,
    Answer,
    Applied,
    Duplicate,
    Insert,
    InsertAnswer,
    Inserted,
    Remove,
    RemoveAnswer,
    Transition,
    parse,
)
from kernel.store.evaluate import ABSENT, changed, column_of, holds, lookup, removable
from kernel.store.protocol import Query
from kernel.store.tables import TABLES, Table


class MemoryStore:
    """A store that lives and dies with its process. `clock` is the store's clock."""

    def __init__(self, clock: Clock, tables: dict[str, Table] | None = None) -> None:
        self._clock = clock
        self._tables = TABLES if tables is None else tables
        self._rows: dict[str, dict[str, bytes]] = {name: {} for name in self._tables}
        self._unique: dict[tuple[str, str], dict[Any, str]] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Nothing to prepare: the tables are in `kernel.store.tables`."""

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def insert(self, insert: Insert) -> InsertAnswer:
        table = self._tables[insert.table]
        with self._lock:
            rows = self._rows[insert.table]
            if insert.key in rows:
                return Duplicate(table.key)
            for index in table.unique:
                if insert.document.get(index.columns[0]) in self._column(table, index.columns[0]):
                    return Duplicate(index.columns[0])
            rows[insert.key] = msgspec.msgpack.encode(insert.document)
            for index in table.unique:
                column = index.columns[0]
                if column in insert.document:
                    self._column(table, column)[insert.document[column]] = insert.key
            return Inserted(_decoded(rows[insert.key]))

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return [self.insert(insert) for insert in inserts]

    def apply(self, transition: Transition) -> Answer:
        with self._lock:
            rows = self._rows[transition.table]
            stored = rows.get(transition.key)
            if stored is None:
                return MISSED
            now_ms = self._clock.wall_ms()
            document = changed(_decoded(stored), transition, now_ms)
            if document is None:
                return MISSED
            rows[transition.key] = msgspec.msgpack.encode(document)
            return Applied(document)

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return [self.apply(transition) for transition in transitions]

    def remove(self, remove: Remove) -> RemoveAnswer:
        with self._lock:
            rows = self._rows[remove.table]
            stored = rows.get(remove.key)
            if stored is None:
                return MISSED
            document = _decoded(stored)
            if not removable(document, remove, self._clock.wall_ms()):
                return MISSED
            del rows[remove.key]
            table = self._tables[remove.table]
            for index in table.unique:
                self._column(table, index.columns[0]).pop(document.get(index.columns[0]), None)
            return REMOVED

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return [self.remove(remove) for remove in removes]

    def get(self, table: str, key: str) -> Document | None:
        with self._lock:
            stored = self._rows[table].get(key)
        return None if stored is None else _decoded(stored)

    def find(self, table: str, column: str, value: str) -> Document | None:
        with self._lock:
            key = self._column(self._tables[table], column).get(value)
            stored = None if key is None else self._rows[table].get(key)
        return None if stored is None else _decoded(stored)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        table = self._tables[query.table]
        with self._lock:
            documents = [(key, _decoded(stored)) for key, stored in self._rows[query.table].items()]
        found = []
        for key, document in documents:
            at = lookup(document, parse(query.order))
            if at is ABSENT or not holds(document, query.guards, 0):
                continue
            if query.after is None or (at, key) > query.after:
                found.append((at, key, document))
        found.sort(key=lambda row: (row[0], row[1]))
        assert set(query.columns) <= {*table.columns, table.key}
        return [tuple(column_of(row[2], column) for column in query.columns) for row in found[: query.limit]]

    def close(self) -> None:
        """Forget everything."""

    def _column(self, table: Table, column: str) -> dict[Any, str]:
        return self._unique.setdefault((table.name, column), {})


def _decoded(stored: bytes) -> Document:
    document: Document = msgspec.msgpack.decode(stored)
    return document
