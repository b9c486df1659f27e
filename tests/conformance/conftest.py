"""Each test that asks for `store` runs on every store; `shared` is one that other processes can open too.

Memory and SQLite are fresh for every test; of MongoDB the rows are, because closing a client takes half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.observe.tables import OBSERVE_TABLES
from kernel.store.projection import ProjectionStore
from kernel.store.protocol import Store
from kernel.store.tables import TABLES, Table
from tests.support.mongo_server import MongoServer, MongoStores
from tests.support.stores import (
    SHARED_STORES,
    STORES,
    Address,
    memory_projection,
    memory_store,
    sqlite_projection,
    sqlite_store,
)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the memory and the SQLite store."""
    return ManualClock()


@pytest.fixture(scope="package")
def emptied_mongo(mongo_server: MongoServer) -> Iterator[tuple[MongoStores, Store]]:
    stores = MongoStores(mongo_server)
    try:
        yield stores, stores()
    finally:
        stores.end()


@pytest.fixture
def mongo(emptied_mongo: tuple[MongoStores, Store]) -> Iterator[tuple[MongoStores, Store]]:
    """A prepared MongoStore without a row, under the allow-list."""
    stores, store = emptied_mongo
    stores.allow_list.refused.clear()
    yield stores, store
    for table in TABLES:
        stores.raw()[table].delete_many({})
    assert not stores.allow_list.refused, "said to MongoDB, but not allowed:\n" + "\n".join(stores.allow_list.refused)


MakeStore = Callable[..., Store]


@pytest.fixture
def make_store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[MakeStore]:
    """`make_store(kind)` is a prepared store without a row that ends with the test; `tables` may be of its own."""
    made: list[Store] = []

    def make(kind: str, tables: Mapping[str, Table] | None = None) -> Store:
        if kind == "mongo":
            if tables is None:
                only: Store = request.getfixturevalue("mongo")[1]
                return only
            stores: MongoStores = request.getfixturevalue("mongo_store")
            return stores(tables=tables)
        folder = tmp_path / f"store-{len(made)}"
        folder.mkdir()
        store: Store = memory_store(clock, tables) if kind == "memory" else sqlite_store(folder, clock, tables)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: MakeStore) -> Store:
    """Each store in turn."""
    return make_store(request.param)


@pytest.fixture(params=STORES)
def projection(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[ProjectionStore]:
    """Each store of observations in turn, prepared and without a row."""
    if request.param == "memory":
        yield memory_projection(clock)
    elif request.param == "sqlite":
        sqlite = sqlite_projection(tmp_path, clock)
        yield sqlite
        sqlite.close()
    else:
        from kernel.store.mongo_projection import MongoProjection  # the driver takes half a second to load

        stores: MongoStores = request.getfixturevalue("mongo_store")
        made = stores(tables=OBSERVE_TABLES, kind=MongoProjection)
        assert isinstance(made, MongoProjection)
        yield made


class Shared:
    """A prepared store and the address at which other processes open it."""

    def __init__(self, store: Store, address: Address) -> None:
        self.store = store
        self.address = address


@pytest.fixture(params=SHARED_STORES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    """Each store that several processes can use, on the clock of this machine."""
    if request.param == "mongo":
        stores, store = request.getfixturevalue("mongo")
        yield Shared(store, Address("mongo", stores.server.uri, stores.databases[-1]))
        return
    sqlite = sqlite_store(tmp_path, SystemClock())
    yield Shared(sqlite, Address("sqlite", sqlite.path))
    sqlite.close()
