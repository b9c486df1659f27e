"""The schema of a SQLite store: made once, and checked word for word at every start.

A missing table is made with its indexes. A table that is there must be exactly as declared: an index that was
dropped is not made again in silence, because rows that it would have refused may be in the table by now (A50); of a
derived table only the unique ones refuse any.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from kernel.errors import SchemaMismatch
from kernel.store import sqlite_rows as rows
from kernel.store.tables import Table

SCHEMA_VERSION = 1
"""Of the layout below and of the documents' indexes. A store with a higher one was made by a newer kernel."""
APPLICATION_ID = 0x574B5331
"""Marks the file as ours (in SQLite's header), so that nobody else's database is taken for an empty store."""

CLOCK = "kernel_clock"
_CREATE_CLOCK = (
    f"CREATE TABLE {CLOCK} (id INTEGER PRIMARY KEY CHECK (id = 1), boot_id NOT NULL, base_ms NOT NULL, "
    "offset_ms NOT NULL, mark_ms NOT NULL)"
)


def prepare(connection: sqlite3.Connection, path: str, tables: Iterable[Table]) -> None:
    """Make what is missing and check the rest, in one transaction. The caller holds the write lock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        check_version(connection, path, made=False)
        for statement in _missing(path, tables, _found(connection)):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def lacking(connection: sqlite3.Connection, path: str, tables: Iterable[Table]) -> tuple[str, ...]:
    """The tables and indexes that `prepare` would make. Raises SchemaMismatch for what is there and differs."""
    statements = _missing(path, tables, _found(connection))
    return tuple(statement.partition(" (")[0].removeprefix("CREATE ") for statement in statements)


def check_version(connection: sqlite3.Connection, path: str, *, made: bool = True) -> None:
    """Raises SchemaMismatch for the file of a newer kernel, for that of another program, and with `made` for one
    in which nothing was prepared yet."""
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if owner not in (0, APPLICATION_ID) or (version and owner != APPLICATION_ID):
        raise SchemaMismatch(f"store {path}: the file is the database of another program")
    if version == 0 and (found := _found(connection)):
        raise SchemaMismatch(f"store {path}: the file holds tables of another program: {', '.join(sorted(found)[:3])}")
    if version > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"store {path}: schema version {version} is newer than this kernel knows ({SCHEMA_VERSION}): upgrade it"
        )
    if made and version < SCHEMA_VERSION:
        raise SchemaMismatch(f"store {path}: the store has not been prepared: call prepare() first")


def is_made(connection: sqlite3.Connection) -> bool:
    """Whether the file holds anything at all, by whomever it was made."""
    return _pragma(connection, "user_version") != 0 or bool(_found(connection))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchall()[0][0])


def _found(connection: sqlite3.Connection) -> dict[str, str]:
    """Tables and indexes by name, as the text that made them."""
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    return dict(connection.execute(query).fetchall())


def _missing(path: str, tables: Iterable[Table], found: dict[str, str]) -> Iterator[str]:
    """The statements that make what is not there yet. Raises SchemaMismatch for what is there and differs."""
    if CLOCK not in found:
        yield _CREATE_CLOCK
    for table in tables:
        create = rows.create_table(table)
        indexes = {index.name: rows.create_index(table, index) for index in table.indexes}
        unique = {index.name for index in table.unique}
        if table.name not in found:
            yield create
            yield from indexes.values()
            continue
        if found[table.name] != create:
            raise SchemaMismatch(f"store {path}: table {table.name} differs from its declaration: {found[table.name]}")
        for name, statement in indexes.items():
            if name not in found and table.derived and name not in unique:
                yield statement
            elif name not in found:
                raise SchemaMismatch(
                    f"store {path}: {table.name} lacks an index that correctness rests on: {statement}"
                )
            elif found[name] != statement:
                raise SchemaMismatch(f"store {path}: index {name} differs from its declaration: {found[name]}")
