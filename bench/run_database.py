"""The database of one run on a MongoDB that is not ours alone: made by the run, and dropped at its end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from bench.bare_commits import ROW, rate_of
from kernel.errors import InvalidConfig, StoreUnavailable
from kernel.store.mongo_client import Opener
from kernel.store.mongo_errors import translated

PREFIX = "kernel_bench_"
"""Every name of such a database begins with it: what a run that was killed leaves is found by it."""
_BARE = "bench_bare"
_TIMEOUT_MS = 10_000
_DROPS_MAX = 5


class RunDatabase:
    """A database of a name that nobody has. Raises InvalidConfig for a URI that is none; connects with `check`."""

    def __init__(self, uri: str, name: str | None = None) -> None:
        self.uri = uri
        self.name = f"{PREFIX}{secrets.token_hex(6)}" if name is None else name
        self._opener = Opener(uri, self.name, (_BARE,), _TIMEOUT_MS, ())

    def check(self) -> str:
        """What answers there, without credentials: `MongoDB 8.0.4 at host:port`.

        Raises StoreUnavailable when nobody does, and InvalidConfig for a refused user and for a database that has
        something in it: it is somebody's, and would be dropped.
        """
        with self._asked("look at the server"):
            connection = self._opener.connection()
            version = connection.client.server_info()["version"]
            others = connection.database.list_collection_names()
        if others:
            raise InvalidConfig(f"database {self.name} is there already, so this run may not drop it")
        return f"MongoDB {version} at {self._opener.hosts}"

    def bare_commits_per_s(self, slices: int, slice_s: float) -> list[float]:
        """Insert documents of 100 bytes one by one, each acknowledged as the store's are (a majority, journaled), in
        `slices` slices of about `slice_s`; inserts per second of each. Raises StoreUnavailable."""
        with self._asked("bare inserts"):
            rows = self._opener.connection().tables[_BARE].writes
            rates = [rate_of(lambda: rows.insert_one({"body": ROW}), slice_s) for _ in range(slices)]
            rows.drop()
        return rates

    def drop(self) -> None:
        """Drop it, when nobody of the run is left. Raises StoreUnavailable.

        A write that a killed process had sent may arrive behind the drop and make the database again: it is looked for.
        """
        for _ in range(_DROPS_MAX):
            with self._asked("drop the database of the run"):
                client = self._opener.connection().client
                client.drop_database(self.name)
                if self.name not in client.list_database_names():
                    return
        raise StoreUnavailable(f"database {self.name} is made again by somebody each time it is dropped")

    def close(self) -> None:
        self._opener.close()

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        with translated(what, self._opener.hosts, writing=False):
            yield
