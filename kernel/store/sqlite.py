"""The embedded durable store: one SQLite file, for all processes of one machine.

A row is a key, the whole document as msgpack, and one SQL column for each declared column (kernel.store.tables).
A write reads the document, runs `kernel.store.evaluate` on it in Python, and writes it back, in one transaction
under a lock that all processes wait for in order:

| file | noun |
| --- | --- |
| `sqlite_lock` | the lock file |
| `sqlite_group` | the line of writers in this process: they share lock, transaction and fsync |
| `sqlite_commit` | one batch as one transaction, and what the outcome of its COMMIT means |
| `sqlite_clock` | store-now: shared by all processes, never earlier |
| `sqlite_rows` | documents as rows, statements |
| `sqlite_schema` | tables, indexes, version |
| `sqlite_files` | connections, and the driver's errors in the kernel's words |
| `sqlite_probe` | whether it takes writes now, and who or what keeps it from that |

`durability="full"` makes every answered write survive a loss of power (one fsync a batch); with "normal" it
survives the death of any process, and a loss of power may take back the last ones (DECISIONS 22).
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kernel.clock import Clock
from kernel.errors import CorruptRecord, InvalidTransition, SchemaMismatch, StoreUnavailable, WrongProcess
from kernel.records import Document
from kernel.store import sqlite_clock, sqlite_files, sqlite_probe, sqlite_rows, sqlite_schema
from kernel.store.conditional import Answer, Insert, InsertAnswer, Remove, RemoveAnswer, Transition
from kernel.store.facts import StoreFacts
from kernel.store.protocol import Query
from kernel.store.sqlite_commit import Committer, Task, Work, Write
from kernel.store.sqlite_files import Durability
from kernel.store.sqlite_group import BATCH_WRITES_MAX, WriteGroup
from kernel.store.sqlite_lock import LockFile
from kernel.store.tables import TABLES, Table

IDLE_READERS_MAX = 4

_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
"""The open stores of this process, for the one thing that a forked child must do with them: forget them."""


class SqliteStore:
    """A store in the file `path`, with `path`-lock beside it. The lock file is opened at once, the database at its
    first use; only the process that made this object may use it.

    `lease_ms` is the claims' lease: a write waits for the lock at most a sixth of it (or `lock_wait_ms`), and a
    step of the wall clock by more than a third of it is absorbed (DECISIONS detail 9).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        *,
        durability: Durability = "full",
        lease_ms: int = 30_000,
        lock_wait_ms: int | None = None,
        tables: Mapping[str, Table] | None = None,
        boot_id: str | None = None,
    ) -> None:
        # Two names of one file must not have two lock files.
        self.path = os.path.realpath(path)
        self._tables = TABLES if tables is None else tables
        self._pid = os.getpid()
        self._committer = Committer(
            self.path,
            clock,
            durability=durability,
            tables=self._tables,
            boot_id=sqlite_clock.boot_id() if boot_id is None else boot_id,
            step_max_ms=lease_ms // 3,
        )
        self._lock = LockFile(f"{self.path}-lock")
        self._group: WriteGroup[Work] = WriteGroup(
            self._lock, self._committer.run, lease_ms // 6 if lock_wait_ms is None else lock_wait_ms
        )
        self._readers: deque[sqlite3.Connection] = deque()
        self._open = True
        _stores.add(self)

    # --- writing --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make what is missing, check version, tables and indexes. Raises SchemaMismatch or StoreUnavailable."""
        tables = tuple(self._tables.values())
        self._alone(lambda connection: sqlite_schema.prepare(connection, self.path, tables))
        self._alone(self._committer.read_clock)

    def insert(self, insert: Insert) -> InsertAnswer:
        return cast(InsertAnswer, self._written((insert,))[0])

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return cast(list[InsertAnswer], self._written(tuple(inserts)))

    def apply(self, transition: Transition) -> Answer:
        return cast(Answer, self._written((transition,))[0])

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return cast(list[Answer], self._written(tuple(transitions)))

    def remove(self, remove: Remove) -> RemoveAnswer:
        return cast(RemoveAnswer, self._written((remove,))[0])

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return cast(list[RemoveAnswer], self._written(tuple(removes)))

    def checkpoint(self) -> bool:
        """Move the log into the database and cut it: housekeeping, at any time, by anybody. False while a reader
        still needs the log."""
        return bool(self._alone(sqlite_files.shrink_log))

    def _written(self, writes: tuple[Write, ...]) -> list[object]:
        """The answers to `writes`, many of them in several transactions. The first error among them is raised
        after all have been tried."""
        self._check_process()
        answers: list[object] = []
        for start in range(0, len(writes), BATCH_WRITES_MAX):
            part = writes[start : start + BATCH_WRITES_MAX]
            answers.extend(self._group.submit(part, len(part)))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _alone(self, task: Task) -> object:
        self._check_process()
        return self._group.submit(task)[0]

    # --- reading --------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        self._check_process()
        if self._committer.clock_state is None:
            try:
                with self._reader() as connection:
                    return self._committer.read_clock(connection).now_ms
            except (StoreUnavailable, SchemaMismatch):
                pass  # an estimate needs no store
        return self._committer.tick().now_ms

    def get(self, table: str, key: str) -> Document | None:
        return self._found(table, self._tables[table].key, key)

    def find(self, table: str, column: str, value: str) -> Document | None:
        if not any(index.columns[0] == column for index in self._tables[table].unique):
            raise InvalidTransition(f"find: {column!r} is no unique column of {table}")
        return self._found(table, column, value)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        statement, values = sqlite_rows.scan_rows(self._tables[query.table], query)
        with self._reader() as connection:
            found = connection.execute(statement, values).fetchall()
        try:
            return [tuple(map(sqlite_rows.from_column, row)) for row in found]
        except ValueError as error:
            raise CorruptRecord(f"{query.table}: a column does not decode: {error}") from None

    def _found(self, table: str, column: str, value: str) -> Document | None:
        statement = sqlite_rows.select_body(table, column)
        with self._reader() as connection:
            found = connection.execute(statement, (value,)).fetchall()
        return sqlite_rows.to_document(found[0][0], table, value) if found else None

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for one statement that is read to its end: an open one would keep the log from shrinking."""
        self._check_process()
        connection = self._idle_reader()
        try:
            if connection is None:
                connection = sqlite_files.open_reader(self.path)
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise sqlite_files.translated(error, self.path) from None
            raise
        is_lasting = not isinstance(connection, sqlite_files.Frozen)
        if self._open and is_lasting and len(self._readers) < IDLE_READERS_MAX:
            self._readers.append(connection)
        else:
            connection.close()

    def _idle_reader(self) -> sqlite3.Connection | None:
        try:
            return self._readers.pop()
        except IndexError:
            return None

    def examine(self) -> StoreFacts:
        """How the file is, without a write. Raises StoreUnavailable, or SchemaMismatch where a start would."""
        with self._reader() as connection:
            lacking = sqlite_schema.lacking(connection, self.path, tuple(self._tables.values()))
        fault, is_locked, holder, is_full = sqlite_probe.probe(self.path)
        return StoreFacts(
            kind="sqlite",
            where=self.path,
            server=f"SQLite {sqlite3.sqlite_version}",
            lacking=lacking,
            is_writable=fault is None,
            write_fault=fault,
            is_locked=is_locked,
            lock_holder=holder,
            is_full=is_full,
        )

    # --- life -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files. Calls that are under way end first or fail with StoreUnavailable."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        _stores.discard(self)
        try:
            if self._committer.connection() is not None:
                # Under the lock: closing the last connection moves the log into the database.
                self._group.submit(lambda connection: self._committer.close())
        except StoreUnavailable:
            self._committer.close()
        self._lock.close()
        while (reader := self._idle_reader()) is not None:
            reader.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(f"store {self.path}: opened by process {self._pid}, used in {os.getpid()}; open it anew")
        if not self._open:
            raise StoreUnavailable(f"store {self.path}: it was closed")

    def forget_in_child(self) -> None:
        """After a fork: drop the lock file, and make sure that the connections are never closed here, not even by
        the garbage collector: SQLite would take the parent's locks for this process's own."""
        import ctypes

        self._lock.forget_in_child()
        inherited = [*self._readers, self._committer.connection()]
        for connection in inherited:
            if connection is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _forget_in_child() -> None:
    for store in list(_stores):
        store.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
