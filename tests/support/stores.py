"""The three stores by name, each fresh and prepared, and a way to open one of them again from another process.

`memory` and `sqlite` run on a clock that the test sets; MongoDB decides by its own. A suite for all of them
therefore writes times relative to `store.now_ms()`, and far enough from it: `HOUR_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kernel.clock import Clock, ManualClock, SystemClock
from kernel.observe.tables import OBSERVE_TABLES
from kernel.store.memory import MemoryStore
from kernel.store.memory_projection import MemoryProjection
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import Table

HOUR_MS = 3_600_000
STORES = ("memory", "sqlite", "mongo")
SHARED_STORES = ("sqlite", "mongo")
"""Those that several processes can use at once."""


class Address(NamedTuple):
    """Where another process finds a store: kind, file or URI, and the database in it."""

    kind: str
    place: str
    database: str = ""


def memory_store(clock: Clock | None = None, tables: Mapping[str, Table] | None = None) -> MemoryStore:
    return MemoryStore(clock or ManualClock(), dict(tables) if tables is not None else None)


def sqlite_store(
    folder: Path, clock: Clock | None = None, tables: Mapping[str, Table] | None = None, *, durability: str = "normal"
) -> SqliteStore:
    """A prepared store in `folder`. The caller closes it."""
    chosen = "full" if durability == "full" else "normal"
    store = SqliteStore(folder / "store.db", clock or ManualClock(), durability=chosen, tables=tables)
    store.prepare()
    return store


def memory_projection(clock: Clock | None = None) -> MemoryProjection:
    """An empty store of observations."""
    return MemoryProjection(clock or ManualClock(), OBSERVE_TABLES)


def sqlite_projection(folder: Path, clock: Clock | None = None, *, prepare: bool = True) -> SqliteProjection:
    """A store of observations in `folder`. The caller closes it."""
    path = folder / "observe.sqlite"
    store = SqliteProjection(path, clock or ManualClock(), durability="normal", tables=OBSERVE_TABLES)
    if prepare:
        store.prepare()
    return store


def store_at(address: Address, durability: str = "normal") -> Store:
    """Open the store at `address` on the clock of this machine. The caller closes it."""
    if address.kind == "sqlite":
        return SqliteStore(address.place, SystemClock(), durability="full" if durability == "full" else "normal")
    from kernel.store.mongo import MongoStore  # the driver takes half a second to load, eight times on two cores

    return MongoStore(address.place, address.database, SystemClock(), timeout_ms=10_000)
