"""Opening the files of a SQLite store, and what its driver's errors mean.

WAL, because readers then never wait for a writer. Commits and checkpoints both happen only under the lock file:
besides fairness this keeps SQLite's WAL-reset race (3.7.0 to 3.51.2: a checkpoint beside a commit that starts the
log anew) from ever having two parties.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Literal
from urllib.parse import quote

from kernel.errors import KernelError, SchemaMismatch, StoreUnavailable
from kernel.store import sqlite_schema

Durability = Literal["full", "normal"]

BUSY_MS = 1000
"""How long SQLite itself waits for a lock: only other programs than ours ever hold one against us."""
SHRINK_MS = 100
CHECKPOINT_PAGES = 4000
"""Pages of the log (16 MiB) after which a commit moves them into the database. SQLite's own 1,000 made that, with its
fsync, half the price of a commit: most pages of a busy store change again before they are moved."""
WAL_BYTES_KEPT = 16 * 1024 * 1024

_WRONG_FILE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA})
_MEANING = {
    sqlite3.SQLITE_BUSY: "another program holds its lock",
    sqlite3.SQLITE_LOCKED: "another program holds its lock",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it can not be written (read-only)",
    sqlite3.SQLITE_CANTOPEN: "it can not be opened",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a backup",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database",
    sqlite3.SQLITE_NOMEM: "out of memory",
}


def make_file(path: str) -> None:
    """Make an empty database that only its owner may read; its log and index get the same mode from SQLite.

    The caller holds the lock file. Only a file that is not there may be opened here: closing it would drop the
    locks that SQLite holds on it for another connection of this process.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"store {path}: {error.strerror}") from None


def is_made(path: str) -> bool:
    """Whether there is a store in that file. Between its making and its first transaction it is there and empty; what
    else may be wrong with it is told by who opens it."""
    if not os.path.exists(path):
        return False
    try:
        with closing(_connect(path)) as connection:
            return sqlite_schema.is_made(connection)
    except sqlite3.Error:
        return True


def open_writer(path: str, durability: Durability) -> sqlite3.Connection:
    """The one connection that writes. The caller holds the lock file."""
    make_file(path)
    connection = _connect(path)
    try:
        # First of all, because the journal mode is a lasting change of somebody's file.
        sqlite_schema.check_version(connection, path, made=False)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        if mode != "wal":
            raise StoreUnavailable(f"store {path}: this file system does not allow a write-ahead log")
        connection.execute(f"PRAGMA synchronous = {durability.upper()}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    except BaseException:
        connection.close()
        raise
    return connection


class Frozen(sqlite3.Connection):
    """It reads the file as it is and looks for no change of it: for one statement only."""


def open_reader(path: str) -> sqlite3.Connection:
    """A connection that only reads, of a store that was prepared.

    A reader makes the log's files where nobody has the store open. Who may not write in its folder gets a `Frozen` one
    instead (ops-readonly): without a log there is nobody who writes.
    """
    try:
        return _checked(_connect(path), path)
    except sqlite3.OperationalError as error:
        is_refused = primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not is_refused or not os.path.exists(path) or os.path.lexists(f"{path}-wal"):
            raise
    place = f"file:{quote(path)}?mode=ro&immutable=1"
    return _checked(sqlite3.connect(place, uri=True, isolation_level=None, factory=Frozen), path)


def _checked(connection: sqlite3.Connection, path: str) -> sqlite3.Connection:
    try:
        connection.execute("PRAGMA query_only = ON")
        sqlite_schema.check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def try_write(path: str) -> None:
    """Take SQLite's own write lock and give it back, with nothing written and no setting of the file changed. The
    caller holds the lock file: closing the last connection moves the log into the database."""
    connection = _connect(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _connect(path: str) -> sqlite3.Connection:
    # A database behind a link is one that its owner moved: its path was resolved, so that log and lock lie beside it. A
    # link in place of a log is a trap: SQLite would write pages to whatever it names.
    for name in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        if os.path.islink(name):
            raise StoreUnavailable(f"store {name}: is a symbolic link")
    # Transactions are begun by hand: the module's own would begin them too late and as readers, which SQLite
    # then refuses to make writers (SQLITE_BUSY_SNAPSHOT).
    return sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)


def shrink_log(connection: sqlite3.Connection) -> bool:
    """Move the whole log into the database and cut its file; False while a reader still needs it.

    The caller holds the lock file, so this waits for readers about as long as a few of their statements take.
    """
    connection.execute(f"PRAGMA busy_timeout = {SHRINK_MS}")
    try:
        return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0] == 0)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; SQLITE_ERROR for what the driver itself refused."""
    code = getattr(error, "sqlite_errorcode", None)
    return int(code) & 0xFF if code is not None else sqlite3.SQLITE_ERROR


def translated(error: sqlite3.Error, path: str) -> KernelError:
    """The kernel's error for a failure before COMMIT: nothing was written."""
    code = primary_code(error)
    text = _MEANING.get(code, " ".join(str(error).split()))
    name = getattr(error, "sqlite_errorname", None)
    line = f"store {path}: {text}" + (f" ({name})" if name else "")
    if code in _WRONG_FILE or str(error).startswith("no such "):
        return SchemaMismatch(line)
    return StoreUnavailable(line)
