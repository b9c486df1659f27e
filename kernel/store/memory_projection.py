"""Projections in plain memory: the reference of the three, and the store of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.errors import InvalidTransition, TooLarge
from kernel.records import Document
from kernel.store.conditional import parse
from kernel.store.evaluate import ABSENT, column_of, holds, is_number, lookup
from kernel.store.memory import MemoryStore
from kernel.store.projection import REVISION, ROW_BYTES_MAX, Keep, Total, Totals, check_row, in_order
from kernel.store.protocol import Query
from kernel.store.tables import Table


class MemoryProjection(MemoryStore):
    """A `ProjectionStore` that lives and dies with its process."""

    def __init__(self, clock: Clock, tables: Mapping[str, Table]) -> None:
        super().__init__(clock, dict(tables))

    def keep_all(self, kept: Sequence[Keep]) -> int:
        rows = [(self._tables[keep.table], *_encoded(self._tables[keep.table], keep.document)) for keep in kept]
        with self._lock:
            return sum(self._keep(table, key, body) for table, key, body in rows)

    def rows(self, query: Query) -> list[Document]:
        key = self._tables[query.table].key
        places = self.scan(Query(query.table, query.guards, query.order, (key,), query.limit, query.after))
        return [document for (place,) in places if (document := self.get(query.table, place)) is not None]

    def totals(self, wanted: Totals) -> list[Total]:
        declared = {*self._tables[wanted.table].columns, self._tables[wanted.table].key}
        for column in (*wanted.by, wanted.least, *(guard.field for guard in wanted.guards)):
            if column not in declared:
                raise InvalidTransition(f"{wanted.table}: {column!r} is no declared column")
        with self._lock:
            documents: list[Document] = [msgspec.msgpack.decode(body) for body in self._rows[wanted.table].values()]
        found: dict[tuple[Any, ...], list[Any]] = {}
        for document in documents:
            if holds(document, wanted.guards, 0):
                values = tuple(column_of(document, column) for column in wanted.by)
                found.setdefault(values, []).append(column_of(document, wanted.least))
        groups = (
            Total(values, len(least), min((n for n in least if is_number(n)), default=None))
            for values, least in found.items()
        )
        return in_order(groups, wanted.limit)

    def _keep(self, table: Table, key: str, body: bytes) -> bool:
        rows, document = self._rows[table.name], msgspec.msgpack.decode(body)
        before = rows.get(key)
        if before is not None and msgspec.msgpack.decode(before)[REVISION] > document[REVISION]:
            return False
        for index in table.unique:
            values = tuple(lookup(document, parse(column)) for column in index.columns)
            holder = self._column(table, index.name).setdefault(values, key)
            if holder != key and holder in rows and ABSENT not in values:
                raise InvalidTransition(f"{table.name} {key!r}: another row has the same {', '.join(index.columns)}")
            self._column(table, index.name)[values] = key
            if len(values) == 1:  # what `find` and `remove` go by
                self._column(table, index.columns[0])[values[0]] = key
        rows[key] = body
        return True


def _encoded(table: Table, document: Document) -> tuple[str, bytes]:
    key = check_row(table, document)
    try:
        body = msgspec.msgpack.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidTransition(f"{table.name} {key!r}: can not be stored ({type(error).__name__})") from None
    if len(body) > ROW_BYTES_MAX:
        raise TooLarge(f"{table.name} {key!r}: the row has {len(body)} bytes, at most {ROW_BYTES_MAX} are kept")
    return key, body
