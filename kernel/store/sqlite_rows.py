"""Documents as SQLite rows: the whole document as msgpack, and beside it the declared columns as values of SQL.

Integers, floats and texts are stored as such, so that SQL compares them as `kernel.store.evaluate` does. Whatever
else a column may hold (true and false, bytes, maps, lists, null) is a blob of msgpack: it never equals a number
and never compares below one. An absent field is NULL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from kernel.errors import CorruptRecord, InvalidTransition
from kernel.records import Document
from kernel.store.conditional import AtMost, Differs, Equals, Exists, Missing, OneOf, parse
from kernel.store.evaluate import ABSENT, lookup
from kernel.store.projection import Totals
from kernel.store.protocol import Query, ScanGuard
from kernel.store.tables import Index, Table

BODY = "_document"
"""The column of the encoded document: no field can be called so."""
_INTEGERS = range(-(2**63), 2**63)
"""What SQLite stores as a number."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def to_body(document: Document) -> bytes:
    return _encode(document)


def to_document(body: bytes, table: str, key: str) -> Document:
    """Decode a stored body. Raises CorruptRecord naming the row."""
    try:
        document = _decode(body)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{table} {key!r}: the stored document does not decode: {error}") from None
    if not isinstance(document, dict):
        raise CorruptRecord(f"{table} {key!r}: the stored document is a {type(document).__name__}, no map")
    return document


def to_column(value: Any) -> int | float | str | bytes | None:
    """The SQL value of a field."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value in _INTEGERS:
        return value
    if isinstance(value, float) and not math.isnan(value):
        return value
    return None if value is ABSENT else _encode(value)


_SMALL = 2**62


def from_column(stored: Any) -> Any:
    """The field's value; None for an absent one."""
    return _decode(stored) if isinstance(stored, bytes) else stored


@lru_cache(maxsize=64)
def columns_of(table: Table) -> tuple[str, ...]:
    """The columns beside key and document."""
    return tuple(column for column in table.columns if column != table.key)


def column_values(columns: Sequence[str], document: Document) -> list[Any]:
    """The values of columns. Most are text, small numbers or absent, which SQL takes as they are."""
    found: list[Any] = []
    for column in columns:
        value = document.get(column, ABSENT) if "." not in column else lookup(document, parse(column))
        kind = type(value)
        if kind is str or (kind is int and -_SMALL < value < _SMALL):
            found.append(value)
        else:
            found.append(None if value is ABSENT else to_column(value))
    return found


# --- definition ---------------------------------------------------------------------------------------


def create_table(table: Table) -> str:
    # No types: SQLite would convert a text that looks like a number. The document comes last, so that a scan
    # reads the columns without walking over it.
    columns = "".join(f", {quoted(column)}" for column in columns_of(table))
    return f"CREATE TABLE {quoted(table.name)} ({quoted(table.key)} NOT NULL PRIMARY KEY{columns}, {BODY} NOT NULL)"


def create_index(table: Table, index: Index) -> str:
    unique = "UNIQUE " if index.unique else ""
    columns = ", ".join(quoted(column) for column in index.columns)
    partial = f" WHERE {quoted(index.present)} IS NOT NULL" if index.present else ""
    return f"CREATE {unique}INDEX {quoted(index.name)} ON {quoted(table.name)} ({columns}){partial}"


def quoted(name: str) -> str:
    return f'"{name}"'


# --- statements ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def select_body(table: str, column: str) -> str:
    return f"SELECT {BODY} FROM {quoted(table)} WHERE {quoted(column)} = ?"


@lru_cache(maxsize=64)
def select_row(table: str, key: str) -> str:
    return f"SELECT rowid, {BODY} FROM {quoted(table)} WHERE {quoted(key)} = ?"


@lru_cache(maxsize=64)
def insert_row(table: str, key: str, columns: tuple[str, ...]) -> str:
    names = ", ".join(quoted(name) for name in (key, *columns, BODY))
    places = ", ".join("?" * (len(columns) + 2))
    # A row that is there already is an answer and no error; the other rows of the transaction stay.
    return f"INSERT INTO {quoted(table)} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"


@lru_cache(maxsize=1024)
def update_row(table: str, columns: tuple[str, ...]) -> str:
    changes = "".join(f"{quoted(column)} = ?, " for column in columns)
    return f"UPDATE {quoted(table)} SET {changes}{BODY} = ? WHERE rowid = ?"


@lru_cache(maxsize=64)
def delete_row(table: str) -> str:
    return f"DELETE FROM {quoted(table)} WHERE rowid = ?"


@lru_cache(maxsize=64)
def keep_row(table: Table, newer_by: str) -> str:
    """A row of a projection: stored if there is none of its key, or none that is newer."""
    columns = columns_of(table)
    names = ", ".join(quoted(name) for name in (table.key, *columns, BODY))
    places = ", ".join("?" * (len(columns) + 2))
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in (*columns, BODY))
    return (
        f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({places}) ON CONFLICT ({quoted(table.key)}) "
        f"DO UPDATE SET {changes} WHERE {quoted(table.name)}.{quoted(newer_by)} <= excluded.{quoted(newer_by)}"
    )


def scan_rows(table: Table, query: Query) -> tuple[str, list[Any]]:
    """A page as one statement over columns, with its parameters. Raises InvalidTransition for another field."""
    _declared(table, query.columns)
    page, values = _page(table, query)
    return f"SELECT {', '.join(quoted(column) for column in query.columns)} {page}", values


def page_bodies(table: Table, query: Query) -> tuple[str, list[Any]]:
    """As `scan_rows`, but key and document of each row."""
    page, values = _page(table, query)
    return f"SELECT {quoted(table.key)}, {BODY} {page}", values


def _page(table: Table, query: Query) -> tuple[str, list[Any]]:
    _declared(table, (query.order, *(guard.field for guard in query.guards)))
    order, key = quoted(query.order), quoted(table.key)
    # `IS NOT NULL` stands here word for word as in the partial indexes: only then are they used (STORE §5).
    conditions, values = [f"{order} IS NOT NULL"], list[Any]()
    _add_guards(conditions, values, query.guards)
    # The key twice in an order would cost a sort.
    position = (order,) if query.order == table.key else (order, key)
    if query.after is not None:
        conditions.append(f"({', '.join(position)}) > ({', '.join('?' * len(position))})")
        values.extend((to_column(query.after[0]), query.after[1])[-len(position) :])
    where = " AND ".join(conditions)
    return (
        f"FROM {quoted(table.name)} WHERE {where} ORDER BY {', '.join(position)} LIMIT ?",
        [*values, query.limit],
    )


def total_rows(table: Table, wanted: Totals) -> tuple[str, list[Any]]:
    """Groups of rows as one statement: the columns of the group, its size, its least."""
    _declared(table, (*wanted.by, wanted.least, *(guard.field for guard in wanted.guards)))
    conditions, values = ["1"], list[Any]()
    _add_guards(conditions, values, wanted.guards)
    # The plus keeps an index of one column out, for a guard and for the groups: what most rows have would be looked up
    # in the table row by row, while an index that has all columns of the question answers it alone.
    conditions = [f"+{condition}" for condition in conditions]
    by = ", ".join(quoted(column) for column in wanted.by)
    groups = ", ".join(f"+{quoted(column)}" for column in wanted.by)
    statement = (
        f"SELECT {by}, COUNT(*), MIN({quoted(wanted.least)}) FROM {quoted(table.name)} "
        f"WHERE {' AND '.join(conditions)} GROUP BY {groups} ORDER BY COUNT(*) DESC, {by} LIMIT ?"
    )
    return statement, [*values, wanted.limit]


def _declared(table: Table, fields: Iterable[str]) -> None:
    names = {*table.columns, table.key}
    for field in fields:
        if field not in names:
            raise InvalidTransition(f"scan: {field!r} is no declared column of {table.name}")


def _add_guards(conditions: list[str], values: list[Any], guards: Iterable[ScanGuard]) -> None:
    for guard in guards:
        condition, more = _condition(guard)
        conditions.append(condition)
        values.extend(more)


def _condition(guard: ScanGuard) -> tuple[str, list[Any]]:
    field = quoted(guard.field)
    match guard:
        case Equals():
            return f"{field} = ?", [to_column(guard.value)]
        case OneOf():
            return f"{field} IN ({', '.join('?' * len(guard.values))})", [to_column(value) for value in guard.values]
        case AtMost():
            # Texts and blobs sort above all numbers, NULL compares with nothing.
            return f"{field} <= ?", [guard.value]
        case Exists():
            return f"{field} IS NOT NULL", []
        case Missing():
            return f"{field} IS NULL", []
        case Differs():
            return f"{field} IS NOT ?", [to_column(guard.value)]
