"""Projections in one SQLite file: many rows are one statement, one transaction and one wait for the lock.

SQL compares the revisions, so that no stored document is decoded to be replaced. It is a file of its own, because
nobody who commits work shall wait for the lock, the log or the fsync of those who only watch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from kernel.errors import CorruptRecord, InvalidTransition, TooLarge
from kernel.records import Document
from kernel.store import sqlite_rows
from kernel.store.projection import REVISION, ROW_BYTES_MAX, Keep, Total, Totals, by_table, check_row, in_order
from kernel.store.protocol import Query
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import Table

_Rows: TypeAlias = tuple[str, list[tuple[Any, ...]]]
"""One statement, and its values once for each row."""


class SqliteProjection(SqliteStore):
    """A `ProjectionStore` in one file, as `SqliteStore`."""

    def keep_all(self, kept: Sequence[Keep]) -> int:
        # Encoded before the lock is taken, so that others wait for the writing alone.
        work = [self._statement(name, documents) for name, documents in by_table(kept).items()]
        written = self._alone(partial(_kept, work))
        assert isinstance(written, int)
        return written

    def rows(self, query: Query) -> list[Document]:
        statement, values = sqlite_rows.page_bodies(self._tables[query.table], query)
        with self._reader() as connection:
            found = connection.execute(statement, values).fetchall()
        return [sqlite_rows.to_document(body, query.table, str(key)) for key, body in found]

    def totals(self, wanted: Totals) -> list[Total]:
        statement, values = sqlite_rows.total_rows(self._tables[wanted.table], wanted)
        with self._reader() as connection:
            found = connection.execute(statement, values).fetchall()
        try:
            groups = [
                Total(tuple(map(sqlite_rows.from_column, by)), count, least if isinstance(least, int) else None)
                for *by, count, least in found
            ]
        except ValueError as error:
            raise CorruptRecord(f"{wanted.table}: a column does not decode: {error}") from None
        return in_order(groups, wanted.limit)

    def _statement(self, name: str, documents: Sequence[Document]) -> _Rows:
        table = self._tables[name]
        return sqlite_rows.keep_row(table, REVISION), [_values(table, document) for document in documents]


def _values(table: Table, document: Document) -> tuple[Any, ...]:
    key = check_row(table, document)
    try:
        body = sqlite_rows.to_body(document)
        values = (key, *sqlite_rows.column_values(sqlite_rows.columns_of(table), document), body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidTransition(f"{table.name} {key!r}: can not be stored ({type(error).__name__})") from None
    if len(body) > ROW_BYTES_MAX:
        raise TooLarge(f"{table.name} {key!r}: the row has {len(body)} bytes, at most {ROW_BYTES_MAX} are kept")
    return values


def _kept(work: Sequence[_Rows], connection: sqlite3.Connection) -> int:
    """All of it in one transaction; the caller holds the lock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        written = sum(connection.executemany(statement, rows).rowcount for statement, rows in work)
        connection.execute("COMMIT")
        return written
    except sqlite3.IntegrityError as error:
        raise InvalidTransition(f"a row breaks a rule of its table: {error}") from None
    except sqlite3.DataError as error:
        raise TooLarge(f"a row is larger than SQLite takes: {error}") from None
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
