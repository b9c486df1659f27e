"""Whether the durable store answers, is up to date and takes writes: looked at again and again, without a write."""

from __future__ import annotations

from pathlib import Path

from kernel.clock import Clock
from kernel.config import Config
from kernel.errors import SchemaMismatch, StoreUnavailable
from kernel.runtime.opening import STORE_FILE
from kernel.store.facts import StoreFacts
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES

EXAMINE_EVERY_MS = 5_000
"""Tables and indexes change with a start or a migration, and cost several calls to look at; in between, one row is
asked for."""
TIMEOUT_MS = 1_500
_NOBODY = "0" * 32


class StoreProbe:
    """One process's eye on the durable store. For one thread."""

    def __init__(self, config: Config, data_dir: Path, clock: Clock) -> None:
        self._config = config
        self._path = data_dir / STORE_FILE
        self._clock = clock
        self._store: MongoStore | SqliteStore | None = None
        self._facts: StoreFacts | None = None
        self._examined_ms = 0

    @property
    def store(self) -> Store:
        """The store, opened as it is. Raises StoreUnavailable or InvalidConfig."""
        return self._opened()

    def look(self) -> StoreFacts:
        """How the store is now. Raises StoreUnavailable when it does not answer or is not there, SchemaMismatch when
        it is not the one that this kernel knows."""
        store, now_ms = self._opened(), self._clock.boot_ms()
        if self._facts is None or now_ms - self._examined_ms >= EXAMINE_EVERY_MS:
            self._facts = None
            facts = store.examine()
            if facts.lacking:
                raise SchemaMismatch(f"{facts.where}: {', '.join(facts.lacking)} is lacking")
            self._facts, self._examined_ms = facts, now_ms
        store.get(INSTANCES, _NOBODY)
        return self._facts

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _opened(self) -> MongoStore | SqliteStore:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> MongoStore | SqliteStore:
        config = self._config
        if config.mongodb_uri is not None:
            return MongoStore(config.mongodb_uri, config.mongodb_database, self._clock, timeout_ms=TIMEOUT_MS)
        if not self._path.is_file():
            raise StoreUnavailable(f"{self._path}: there is no store yet")
        lease_ms = round(config.lease_s * 1000)
        return SqliteStore(self._path, self._clock, durability=config.durability, lease_ms=lease_ms)
