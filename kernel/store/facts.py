"""How a durable store is, seen without a write: for `doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one store says of itself. `lacking` are tables and indexes that a start would make."""

    kind: Literal["sqlite", "mongodb"]
    where: str
    """The file, or the hosts without user and password."""
    server: str
    """Program and version."""
    lacking: tuple[str, ...] = ()
    set_name: str | None = None
    """MongoDB: the name of the replica set; None for a server without one."""
    is_writable: bool = True
    write_fault: str | None = None
    """SQLite: why it takes no writes now."""
    is_locked: bool = False
    """SQLite: that is because somebody holds its write lock."""
    lock_holder: int | None = None
    """SQLite: the process that does, where the operating system tells."""
    is_full: bool = False
    """SQLite: it takes no writes because its disk is full."""
