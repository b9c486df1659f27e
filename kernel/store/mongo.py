"""The durable store on MongoDB: every verb is one command of the server (clm-atomic).

A transition is one `find_one_and_update`: guards are its filter, changes its update, and the answer is the row after
it. Rows are found by the table's own key under a unique index; `_id` is the driver's and nothing asks for it
(id-workflow-id). Writes are acknowledged by a majority and journaled; `get` and `find` read what a majority has, so
that they decide about a write whose answer was lost. What is sent is made by `mongo_compile`, and what comes back
broken is named by `mongo_errors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError

from kernel.clock import Clock
from kernel.errors import InvalidTransition, OutcomeUnknown, StoreUnavailable, Unavailable
from kernel.records import Document
from kernel.store import mongo_schema
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
)
from kernel.store.evaluate import column_of
from kernel.store.facts import StoreFacts
from kernel.store.mongo_client import Opener
from kernel.store.mongo_clock import ServerClock
from kernel.store.mongo_codec import CODEC, decoded, encoded, named_times, stored, text
from kernel.store.mongo_compile import page_of, removal_of, write_of
from kernel.store.mongo_errors import DUPLICATE_KEY, translated
from kernel.store.protocol import Query
from kernel.store.tables import TABLES, Table

PREPARE_S = 300.0
BATCH_ROWS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
BULK_ROW_S = 0.005
"""How much longer a batch may take for each of its rows."""

_NO_ID = {"_id": 0}


class MongoStore:
    """A store in the database `database` at `uri`; opens its client at the first use, after the fork.

    `clock` measures durations only. `timeout_ms` bounds a call in all, the search for a server and the driver's own
    repetitions included; it is at most a sixth of the lease (RELIABILITY 2.7). Only `prepare`, which may build
    indexes, and bulk inserts, by their size, may take longer. `listeners` are handed to the driver
    (pymongo.monitoring). Raises InvalidConfig for a URI that is none.
    """

    def __init__(
        self,
        uri: str,
        database: str,
        clock: Clock,
        *,
        timeout_ms: int = 5_000,
        tables: Mapping[str, Table] | None = None,
        listeners: Sequence[Any] = (),
    ) -> None:
        self._tables = dict(TABLES if tables is None else tables)
        self._call_s = timeout_ms / 1000
        self._server_clock = ServerClock(clock, self._server_ms)
        foreign = tuple(name for name, table in self._tables.items() if table.foreign)
        self._opener = Opener(uri, database, tuple(self._tables), timeout_ms, listeners, foreign)

    def prepare(self) -> None:
        """Make and check indexes and schema version; safe to run in many processes at once (rec-indexes)."""
        self._server_ms()  # a server that is not there is told within the ordinary time
        # Every part of it may be done again, so nothing that was lost on the way is unknown for long.
        with self._translated("prepare", writing=False, limit_s=max(PREPARE_S, self._call_s)):
            mongo_schema.prepare(self._opener.connection().database, self._tables.values())

    def now_ms(self) -> int:
        """The server's clock as estimated by `mongo_clock`."""
        # Asking for the connection also refuses another process, before a lock of the parent's is touched.
        return self._server_clock.now_ms(self._opener.connection().client.primary)

    def insert(self, insert: Insert) -> InsertAnswer:
        table, rows = self._tables[insert.table], self._opener.connection().tables[insert.table]
        row = _row(table, insert)
        stored_row = decoded(encoded(_named(insert), row), foreign=table.foreign)
        with self._translated(_named(insert)):
            try:
                rows.writes.insert_one(row)
            except DuplicateKeyError as error:
                failure = error.details or {}
            else:
                return Inserted(stored_row)
        return self._duplicate(table, row, failure) or Inserted(stored_row)

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        """Bulk writes of up to a thousand rows. Nothing is sent when one of the rows can not be stored."""
        rows = [_row(self._tables[insert.table], insert) for insert in inserts]
        data = [encoded(_named(insert), row) for insert, row in zip(inserts, rows, strict=True)]
        answers: list[InsertAnswer] = [
            Inserted(decoded(item, foreign=self._tables[insert.table].foreign))
            for insert, item in zip(inserts, data, strict=True)
        ]
        written = False
        try:
            for name, places in _batches(inserts, data):
                table = self._tables[name]
                failures = self._insert_many(table, [rows[place] for place in places])
                written = True
                for failure in failures:
                    place = places[failure["index"]]
                    answers[place] = self._duplicate(table, rows[place], failure) or answers[place]
        except StoreUnavailable as error:
            # "Nothing was written" is true of one batch only.
            if written:
                raise OutcomeUnknown(str(error)) from None
            raise
        return answers

    def apply(self, transition: Transition) -> Answer:
        table, rows = self._tables[transition.table], self._opener.connection().tables[transition.table]
        write = write_of(table, transition)
        with self._translated(_named(transition)):
            row = rows.writes.find_one_and_update(
                write.filter, write.update, projection=_NO_ID, return_document=ReturnDocument.AFTER
            )
        return MISSED if row is None else Applied(named_times(row) if table.foreign else row)

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        """One after the other: a bulk write does not tell which of its transitions hit."""
        return [self.apply(transition) for transition in transitions]

    def remove(self, remove: Remove) -> RemoveAnswer:
        wanted = removal_of(self._tables[remove.table], remove)
        rows = self._opener.connection().tables[remove.table]
        with self._translated(_named(remove)):
            removed = rows.writes.delete_one(wanted).deleted_count
        return REMOVED if removed else MISSED

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        """One after the other: a bulk write does not tell which of its removals hit."""
        return [self.remove(remove) for remove in removes]

    def get(self, table: str, key: str) -> Document | None:
        return self._read(table, self._tables[table].key, key)

    def find(self, table: str, column: str, value: str) -> Document | None:
        known = self._tables[table]
        if column != known.key and all(index.columns != (column,) for index in known.unique):
            raise InvalidTransition(f"{table}: {column!r} is no unique column")
        return self._read(table, column, value)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        rows = self._opener.connection().tables[query.table]
        page = page_of(self._tables[query.table], query)
        if query.limit < 1:
            return []
        with self._translated(f"scan of {query.table}", writing=False):
            cursor = rows.writes.find(page.filter, page.projection, sort=page.sort, limit=query.limit)
            # One batch, so that no cursor outlives a worker that dies here.
            found = list(cursor.batch_size(query.limit))
        if self._tables[query.table].foreign:
            found = [named_times(row) for row in found]
        return [tuple(column_of(row, column) for column in query.columns) for row in found]

    def examine(self) -> StoreFacts:
        """How the server and the database are, without a write. Raises as `prepare`."""
        connection = self._opener.connection()
        with self._translated("look at the server", writing=False):
            hello = connection.database.command("hello", codec_options=CODEC)
            version = connection.client.server_info()["version"]
            lacking = mongo_schema.lacking(connection.database, self._tables.values())
        return StoreFacts(
            kind="mongodb",
            where=self._opener.hosts,
            server=f"MongoDB {version}",
            lacking=lacking,
            set_name=hello.get("setName") or ("mongos" if hello.get("msg") == "isdbgrid" else None),
            is_writable=bool(hello.get("isWritablePrimary", True)),
        )

    def close(self) -> None:
        """Close the client. A later call opens a new one."""
        self._opener.close()

    def _read(self, table: str, column: str, value: str) -> Document | None:
        rows = self._opener.connection().tables[table]
        wanted = {column: {"$eq": text(column, value)}}
        with self._translated(f"read of {table}", writing=False):
            row = rows.majority.find_one(wanted, _NO_ID)
        return named_times(row) if row is not None and self._tables[table].foreign else row

    def _insert_many(self, table: Table, rows: list[Document]) -> list[Mapping[str, Any]]:
        """Insert one batch; the failures are those of rows that another row keeps out."""
        collection = self._opener.connection().tables[table.name].writes
        what = f"insert of {len(rows)} rows into {table.name}"
        with self._translated(what, limit_s=self._call_s + BULK_ROW_S * len(rows)):
            try:
                collection.insert_many(rows, ordered=False)
            except BulkWriteError as error:
                details = error.details
            else:
                return []
        failures: list[Mapping[str, Any]] = details.get("writeErrors", [])
        other = [failure["code"] for failure in failures if failure["code"] != DUPLICATE_KEY]
        if other or details.get("writeConcernErrors"):
            raise OutcomeUnknown(f"{what}: MongoDB does not confirm all of them (codes {other})")
        return failures

    def _duplicate(self, table: Table, row: Document, failure: Mapping[str, Any]) -> Duplicate | None:
        """Which column another row has already, the key before all others; None when that other row is this one.

        The driver made a fresh `_id` for this request, so a row that has it is the first copy of the same request,
        whose answer was lost and which the driver sent again (A52): it is no duplicate, it is in. MongoDB complains
        of `_id` first and of the key, whose index is the oldest, next; a server with another order is asked.
        """
        column = next(iter(failure.get("keyPattern", {})), table.key)
        if column == "_id":
            return None
        if column != table.key:
            wanted = {table.key: {"$eq": row[table.key]}}
            with self._translated(f"read of {table.name}", writing=False):
                other = self._opener.connection().tables[table.name].majority.find_one(wanted, {"_id": 1})
            if other is not None:
                return Duplicate(table.key) if other["_id"] != row["_id"] else None
        return Duplicate(column)

    def _server_ms(self) -> int:
        with pymongo.timeout(self._call_s), translated("hello", self._opener.hosts, writing=False):
            reply = self._opener.connection().database.command("hello", codec_options=CODEC)
        return int(reply["localTime"])

    @contextmanager
    def _translated(self, what: str, *, writing: bool = True, limit_s: float | None = None) -> Iterator[None]:
        """Run calls of the driver within `limit_s` and in the kernel's errors."""
        try:
            with pymongo.timeout(limit_s or self._call_s), translated(what, self._opener.hosts, writing=writing):
                yield
        except Unavailable:
            self._server_clock.distrust()
            raise


def _named(write: Insert | Transition | Remove) -> str:
    return f"{write.name} of {write.table} {write.key!r}"


def _row(table: Table, insert: Insert) -> Document:
    """The row to send. Raises InvalidTransition when it lacks its key or a unique column: both are for ever."""
    document = insert.document
    if document.get(table.key) != text(table.key, insert.key):
        raise InvalidTransition(f"{_named(insert)}: {table.key} of the document differs from the key")
    for index in table.unique:
        for column in index.columns:
            if index.present is None or column in document:
                text(column, document.get(column))
    row: Document = stored("", document)
    return row


def _batches(inserts: Sequence[Insert], data: Sequence[bytes]) -> Iterator[tuple[str, list[int]]]:
    """The places of rows that go into one table with one request of the driver."""
    for name in dict.fromkeys(insert.table for insert in inserts):
        places: list[int] = []
        size = 0
        for place, insert in enumerate(inserts):
            if insert.table != name:
                continue
            if len(places) == BATCH_ROWS or (places and size + len(data[place]) > BATCH_BYTES):
                yield name, places
                places, size = [], 0
            places.append(place)
            size += len(data[place])
        yield name, places
