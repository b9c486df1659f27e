"""Pytest plugin: a MongoDB for the tests, and stores on it.

The server is SecantusDB with four repairs (tests.support.secantus_launcher), one for the whole run, or the one that
`MONGODB_URI` or `KERNEL_TEST_MONGO_URI` names; then the tests marked `stand_in` (the canaries of the repairs) are left
out. A stand-in that is not installed or does not start fails every test that wants it.

Every store is under the allow-list (tests.support.mongo_allowlist): the test that said a word outside it fails.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pymongo
import pytest
from pymongo.database import Database

from kernel.clock import Clock, SystemClock
from kernel.ids import RandomIds
from kernel.records import Document
from kernel.store.mongo import MongoStore
from kernel.store.tables import TABLES, Table
from tests.support.mongo_allowlist import AllowList

CHECKOUT = Path(__file__).resolve().parents[2]
START_S = 30.0
TIMEOUT_MS = 5_000


def given_uri() -> str | None:
    """The server to use instead of the stand-in."""
    return os.environ.get("KERNEL_TEST_MONGO_URI") or os.environ.get("MONGODB_URI") or None


class StandIn:
    """A SecantusDB process of our own, on the loopback, with its data in `folder`: for one run, or to be killed."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.options = options
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, or start again on the same port and data; returns when connections are accepted."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.support.secantus_launcher", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--storage-path", str(self._folder / "data")]
        command += ["--log-level", "WARNING", "--enable-test-commands", *self.options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = _first_line(self._process.stdout)
        if not line.strip().isdigit():
            self.kill()
            raise RuntimeError(f"the MongoDB stand-in does not start:\n{(self._folder / 'log').read_text()[-2000:]}")
        self.port = int(line)

    def stop(self) -> None:
        """End it in order, so that all of its data is on disk."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_S)
            self.kill()

    def kill(self) -> None:
        """End it as the kernel's OOM killer would: SIGKILL."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None


def _first_line(stdout: IO[bytes]) -> bytes:
    readable, _, _ = select.select([stdout], [], [], START_S)
    return stdout.readline() if readable else b""


class MongoServer:
    """The server of this run; `driver` is a client for what tests look at or prepare behind the store's back."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.driver: pymongo.MongoClient[Document] = pymongo.MongoClient(uri, tz_aware=True, w="majority", journal=True)
        self.driver.admin.command("ping")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stand_in: holds for the MongoDB stand-in only, not for a server that was given")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if given_uri() is None:
        return
    left_out = [item for item in items if item.get_closest_marker("stand_in")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoServer]:
    """The one server of this run."""
    given = given_uri()
    if given is not None:
        server = MongoServer(given)
        yield server
        server.driver.close()
        return
    with stand_in() as started:
        server = MongoServer(started.uri)
        yield server
        server.driver.close()


@contextlib.contextmanager
def stand_in(*options: str) -> Iterator[StandIn]:
    """A started stand-in that ends, with its data, when the block does."""
    folder = Path(tempfile.mkdtemp(prefix="kernel-mongo-"))
    server = StandIn(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


class MongoStores:
    """Makes stores. Each call has a fresh, prepared database unless it names one of an earlier call."""

    def __init__(self, server: MongoServer) -> None:
        self.server = server
        self.allow_list = AllowList()
        self.databases: list[str] = []
        self._stores: list[MongoStore] = []

    def __call__(
        self,
        *,
        clock: Clock | None = None,
        tables: Mapping[str, Table] | None = None,
        database: str | None = None,
        uri: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        prepare: bool = True,
        listeners: Sequence[Any] = (),
        kind: type[MongoStore] = MongoStore,
    ) -> MongoStore:
        if tables is not None:
            self.allow_list.know(tables.values())
        name = database or self.fresh_name()
        store = kind(
            uri or self.server.uri,
            name,
            clock or SystemClock(),
            timeout_ms=timeout_ms,
            tables=TABLES if tables is None else tables,
            listeners=(self.allow_list, *listeners),
        )
        self._stores.append(store)
        if prepare:
            store.prepare()
        return store

    def fresh_name(self) -> str:
        """The name of a database that nobody has, dropped after the test."""
        self.databases.append(f"kernel_test_{RandomIds().token()[:16]}")
        return self.databases[-1]

    def raw(self, database: str | None = None) -> Database[Document]:
        """A database as the driver sees it; by default the newest."""
        return self.server.driver[database or self.databases[-1]]

    def end(self) -> None:
        """Close and drop everything."""
        for store in self._stores:
            store.close()
        for name in self.databases:
            self.server.driver.drop_database(name)


@pytest.fixture
def mongo_store(mongo_server: MongoServer) -> Iterator[MongoStores]:
    """`mongo_store()` is a MongoStore on a fresh database that is dropped after the test."""
    stores = MongoStores(mongo_server)
    try:
        yield stores
    finally:
        stores.end()
    assert not stores.allow_list.refused, "said to MongoDB, but not allowed:\n" + "\n".join(stores.allow_list.refused)
