"""Does a SQLite store take writes now, and if not, who keeps it from that? Asked for `doctor`, without a change.

Reading tells nothing about it: readers of a WAL never wait for a writer, so a store that a stopped process has locked
answers every question. The probe waits in the same line as every writer, on a descriptor of its own. SQLite's write
lock needs no room on the disk: that is asked for apart, where the log grows.
"""

from __future__ import annotations

import os
import sqlite3
from typing import NamedTuple

from kernel.errors import StoreUnavailable
from kernel.store import sqlite_files
from kernel.store.disk import full_disk
from kernel.store.sqlite_group import Slot, WriteGroup
from kernel.store.sqlite_lock import LockFile

PROBE_WAIT_MS = 2_000
"""Writers hold the lock for a few ms, with a slow disk for some hundred."""
_SHM_WRITE_BYTE = 120
"""The byte of the WAL's index that SQLite's writer locks (its file format, WAL_WRITE_LOCK)."""


class WriteSide(NamedTuple):
    """`fault` None: it takes writes. `is_locked`: because somebody holds a lock of it, `holder` where the system tells
    who; `is_full`: the disk is; otherwise the file or the disk is at fault in another way."""

    fault: str | None = None
    is_locked: bool = False
    holder: int | None = None
    is_full: bool = False


def probe(path: str) -> WriteSide:
    """Take both locks of a writer and give them back, the lock file's, then SQLite's own; then look for room on the
    disk. `path` is a store."""
    lock = LockFile(f"{path}-lock")
    if lock.refusal is not None:
        return WriteSide(lock.refusal)
    codes: list[int] = []

    def take(slots: list[Slot[None]]) -> None:
        for slot in slots:
            try:
                sqlite_files.try_write(path)
                slot.done = [None]
            except sqlite3.Error as error:
                codes.append(sqlite_files.primary_code(error))
                slot.error = sqlite_files.translated(error, path)

    try:
        WriteGroup(lock, take, PROBE_WAIT_MS).submit(None)
    except StoreUnavailable as error:
        is_locked = not codes or codes[-1] in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        is_full = sqlite3.SQLITE_FULL in codes
        return WriteSide(str(error), is_locked, _holder(path) if is_locked else None, is_full)
    finally:
        lock.close()
    full = full_disk(os.path.dirname(path))
    return WriteSide() if full is None else WriteSide(f"store {path}: {full}", is_full=True)


def _holder(path: str) -> int | None:
    """The process that holds the lock file, or else SQLite's write lock; None where /proc/locks does not tell it."""
    try:
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except (OSError, ValueError):
        return None
    for name, kind in ((f"{path}-lock", "FLOCK"), (f"{path}-shm", "POSIX")):
        try:
            found = os.stat(name)
        except OSError:
            continue
        for words in lines:
            # `5: FLOCK ADVISORY WRITE 13473 fe:00:2654441 0 EOF`; one that waits has `->` behind the number.
            if len(words) != 8 or words[1] != kind or words[3] != "WRITE" or not words[4].isdigit():
                continue
            is_meant = kind == "FLOCK" or _covers(words[6], words[7])
            if is_meant and words[5].rpartition(":")[2] == str(found.st_ino) and _has_open(int(words[4]), found):
                return int(words[4])
    return None


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Whether that process has the file open: its inode's number alone may be that of a file on another disk, and the
    disk's number is another one in /proc/locks than in `stat` where file systems are stacked."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(os.path.samestat(os.stat(entry.path), file) for entry in entries)
    except OSError:
        return False


def _covers(first: str, last: str) -> bool:
    return int(first) <= _SHM_WRITE_BYTE and (last == "EOF" or int(last) >= _SHM_WRITE_BYTE)
