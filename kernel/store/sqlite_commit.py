"""One batch of writes as one transaction: each judged by itself, all made durable together.

The caller holds the write lock and hands over the slots of `kernel.store.sqlite_group`. A missed write, a
duplicate, or a row that does not decode is the answer of its own slot and does not touch the others; a fault of
the file is the answer of all. A batch that changed nothing is rolled back, so that it costs no fsync.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeAlias

import msgspec

from kernel.clock import Clock
from kernel.errors import CorruptRecord, InvalidTransition, KernelError, OutcomeUnknown, StoreUnavailable
from kernel.store import sqlite_clock, sqlite_files, sqlite_rows, sqlite_schema
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
    Removed,
    Transition,
)
from kernel.store.evaluate import changed, removable
from kernel.store.sqlite_clock import ClockState
from kernel.store.sqlite_files import Durability
from kernel.store.sqlite_group import Slot
from kernel.store.tables import Table

Write: TypeAlias = Transition | Insert | Remove
Task: TypeAlias = Callable[[sqlite3.Connection], object]
Work: TypeAlias = tuple[Write, ...] | Task
"""Writes for the shared transaction, or something to be done alone with the connection."""

_WROTE = (Applied, Inserted, Removed)
_field_of = attrgetter("field")

LOG_CHECK_COMMITS = 256
LOG_BYTES_MAX = 4 * sqlite_files.WAL_BYTES_KEPT
"""From this size readers have kept the log from starting anew for too long: a commit then cuts it."""

_SELECT_CLOCK = f"SELECT boot_id, base_ms, offset_ms, mark_ms FROM {sqlite_schema.CLOCK}"
_PUT_CLOCK = (
    f"INSERT OR REPLACE INTO {sqlite_schema.CLOCK} (id, boot_id, base_ms, offset_ms, mark_ms) VALUES (1, ?, ?, ?, ?)"
)
_log = logging.getLogger("kernel.store")


class Committer:
    """The write connection of one process and everything that happens on it."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        durability: Durability,
        tables: Mapping[str, Table],
        boot_id: str,
        step_max_ms: int,
    ) -> None:
        self._path = path
        self._clock = clock
        self._durability = durability
        self._tables = tables
        self._boot_id = boot_id
        self._step_max_ms = step_max_ms
        self._connection: sqlite3.Connection | None = None
        self._checked = False
        self._file = (0, 0)
        self._commits = 0
        self.clock_state: ClockState | None = None
        """As last read or written by this process."""

    def run(self, slots: list[Slot[Work]]) -> None:
        """Fill every slot with its answers or its error."""
        writing = [slot for slot in slots if isinstance(slot.work, tuple)]
        try:
            self._check_file()
            connection = self._opened()
            for slot in slots:
                if not isinstance(slot.work, tuple):
                    self._do_alone(slot, slot.work, connection)
            if writing:
                self._write(connection, writing)
        except sqlite3.Error as error:
            self._fail(slots, sqlite_files.translated(error, self._path))
        except KernelError as error:
            self._fail(slots, error)

    def tick(self) -> sqlite_clock.Tick:
        """Store-now by what this process knows, without asking the store."""
        return sqlite_clock.tick(self.clock_state, sqlite_clock.read(self._clock, self._boot_id), self._step_max_ms)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connection(self) -> sqlite3.Connection | None:
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite_files.open_writer(self._path, self._durability)
            found = os.stat(self._path)
            self._file = (found.st_dev, found.st_ino)
            self._checked = False
        return self._connection

    def _check_file(self) -> None:
        """A file that was removed or replaced under a running process is no store any more: writes to it would be
        answered and seen by nobody."""
        if self._connection is None:
            return
        try:
            found = os.stat(self._path)
        except OSError:
            raise StoreUnavailable(f"store {self._path}: the file was removed") from None
        if (found.st_dev, found.st_ino) != self._file:
            raise StoreUnavailable(f"store {self._path}: the file was replaced; what is open here is another one")

    def _fail(self, slots: Sequence[Slot[Work]], fault: KernelError) -> None:
        """Tell every slot that has no answer yet, and start afresh: after a fault of the file the state of the
        connection is not worth guessing."""
        for slot in slots:
            if not slot.done and slot.error is None:
                slot.error = type(fault)(*fault.args)  # one each: a raised error belongs to its thread
        try:
            self.close()
        except sqlite3.Error:
            pass  # the file is at fault, which the callers were just told

    def _do_alone(self, slot: Slot[Work], task: Task, connection: sqlite3.Connection) -> None:
        try:
            slot.done = [task(connection)]
        except sqlite3.Error as error:
            slot.error = sqlite_files.translated(error, self._path)
        except KernelError as error:
            slot.error = error

    def _write(self, connection: sqlite3.Connection, slots: list[Slot[Work]]) -> None:
        if not self._checked:
            sqlite_schema.check_version(connection, self._path)
            self._checked = True
        connection.execute("BEGIN IMMEDIATE")
        answers: list[list[object]] = []
        try:
            tick = self.read_clock(connection)
            wrote = False
            for slot in slots:
                assert isinstance(slot.work, tuple)
                outcomes = [self._outcome(connection, write, tick.now_ms) for write in slot.work]
                wrote = wrote or any(isinstance(outcome, _WROTE) for outcome in outcomes)
                answers.append(outcomes)
            if wrote:
                if tick.state != self.clock_state:
                    self._keep_clock(connection, tick)
                self._commit(connection)
        finally:
            _roll_back(connection)
        for slot, outcomes in zip(slots, answers, strict=True):
            slot.done = outcomes
        if wrote:
            self._bound_log(connection)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            fault = sqlite_files.translated(error, self._path)
            if sqlite_files.primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                raise fault from None  # the frame that makes the others count was not written
            # All frames may be in the log and only their fsync failed: a recovery of the log would find them.
            raise OutcomeUnknown(f"{fault}; the commit may or may not survive") from None

    def _outcome(self, connection: sqlite3.Connection, write: Write, now_ms: int) -> object:
        try:
            if isinstance(write, Insert):
                return self._insert(connection, write)
            if isinstance(write, Remove):
                return self._remove(connection, write, now_ms)
            return self._apply(connection, write, now_ms)
        except CorruptRecord as error:
            return error
        except sqlite3.IntegrityError as error:
            return InvalidTransition(f"{write.table} {write.key!r}: {write.name} breaks a rule of the table: {error}")
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError, msgspec.MsgspecError) as error:
            # Of the row or of the write, and before any statement that writes: the others go on.
            return CorruptRecord(f"{write.table} {write.key!r}: {write.name} can not be applied: {error}")

    def _apply(self, connection: sqlite3.Connection, transition: Transition, now_ms: int) -> Answer:
        table = self._tables[transition.table]
        found = connection.execute(sqlite_rows.select_row(table.name, table.key), (transition.key,)).fetchall()
        if not found:
            return MISSED
        rowid, body = found[0]
        document = changed(sqlite_rows.to_document(body, table.name, transition.key), transition, now_ms)
        if document is None:
            return MISSED
        columns = _touched(table, tuple(map(_field_of, transition.changes)))
        values = sqlite_rows.column_values(columns, document)
        statement = sqlite_rows.update_row(table.name, columns)
        connection.execute(statement, (*values, sqlite_rows.to_body(document), rowid))
        return Applied(document)

    def _insert(self, connection: sqlite3.Connection, insert: Insert) -> InsertAnswer:
        table = self._tables[insert.table]
        columns = sqlite_rows.columns_of(table)
        body = sqlite_rows.to_body(insert.document)
        values = (insert.key, *sqlite_rows.column_values(columns, insert.document), body)
        cursor = connection.execute(sqlite_rows.insert_row(table.name, table.key, columns), values)
        if cursor.rowcount == 1:
            return Inserted(sqlite_rows.to_document(body, table.name, insert.key))
        return Duplicate(self._duplicate_field(connection, table, insert))

    def _remove(self, connection: sqlite3.Connection, remove: Remove, now_ms: int) -> RemoveAnswer:
        table = self._tables[remove.table]
        found = connection.execute(sqlite_rows.select_row(table.name, table.key), (remove.key,)).fetchall()
        if not found:
            return MISSED
        rowid, body = found[0]
        if not removable(sqlite_rows.to_document(body, table.name, remove.key), remove, now_ms):
            return MISSED
        connection.execute(sqlite_rows.delete_row(table.name), (rowid,))
        return REMOVED

    def _duplicate_field(self, connection: sqlite3.Connection, table: Table, insert: Insert) -> str:
        if connection.execute(sqlite_rows.select_row(table.name, table.key), (insert.key,)).fetchall():
            return table.key
        for index in table.unique:
            field = index.columns[0]
            value = sqlite_rows.to_column(insert.document.get(field))
            if connection.execute(sqlite_rows.select_body(table.name, field), (value,)).fetchall():
                return field
        return table.unique[-1].columns[0]

    def read_clock(self, connection: sqlite3.Connection) -> sqlite_clock.Tick:
        """Store-now by what all processes share."""
        found = connection.execute(_SELECT_CLOCK).fetchall()
        self.clock_state = ClockState(*found[0]) if found else None
        return self.tick()

    def _keep_clock(self, connection: sqlite3.Connection, tick: sqlite_clock.Tick) -> None:
        state = tick.state
        connection.execute(_PUT_CLOCK, (state.boot_id, state.base_ms, state.offset_ms, state.mark_ms))
        self.clock_state = state
        if tick.absorbed_ms:
            _log.warning(
                "the wall clock stepped by %d ms; store-now goes on without that step until this machine restarts",
                tick.absorbed_ms,
            )

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Readers that always overlap keep SQLite from starting its log anew; now and then look at its size."""
        self._commits += 1
        if self._commits % LOG_CHECK_COMMITS:
            return
        try:
            if os.stat(f"{self._path}-wal").st_size > LOG_BYTES_MAX:
                sqlite_files.shrink_log(connection)
        except (OSError, sqlite3.Error) as error:
            _log.warning("store %s: the log could not be shortened: %s", self._path, error)


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        pass  # it must not take the place of the fault that led here, after which the connection is closed anyway


@lru_cache(maxsize=4096)
def _touched(table: Table, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of which a change touches the field, something in it, or the map that it stands in."""
    return tuple(column for column in sqlite_rows.columns_of(table) if any(_overlap(column, field) for field in fields))


def _overlap(column: str, field: str) -> bool:
    return f"{column}.".startswith(f"{field}.") or f"{field}.".startswith(f"{column}.")
