"""The driver's client: made lazily in the process that uses it, with bounded waits and the promised concerns.

A client that crossed a fork shares sockets, locks and monitor threads with its parent and hangs sooner or later
(A55, A56). So nothing is made before the first use, and every use compares the process (dc-fork-safety).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pymongo
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.collection import Collection as Rows
from pymongo.database import Database
from pymongo.errors import ConfigurationError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from kernel.errors import InvalidConfig, StoreUnavailable, WrongProcess
from kernel.records import Document
from kernel.store.mongo_codec import CODEC, FOREIGN_CODEC
from kernel.store.mongo_errors import INVALID_URI, is_unresolved

CLOSE_S = 0.5

_SCHEME, _SRV_SCHEME = "mongodb://", "mongodb+srv://"
_HOST_NAME = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+\.?")


class Table(NamedTuple):
    """One collection twice: for writes and proposals, and for reads that must show acknowledged writes."""

    writes: Rows[Document]
    majority: Rows[Document]


class Connection(NamedTuple):
    """An open client and what is used of it."""

    client: MongoClient[Document]
    database: Database[Document]
    tables: Mapping[str, Table]


class Opener:
    """Opens one connection for one process, at the first use, and refuses every other process.

    `timeout_ms` bounds each search for a server and each connection attempt, for whatever the driver does by itself;
    how long a call may take in all is said at the call (`pymongo.timeout`). `foreign` are those of `tables` that belong
    to users.
    """

    def __init__(
        self,
        uri: str,
        database: str,
        tables: Sequence[str],
        timeout_ms: int,
        listeners: Sequence[Any],
        foreign: Collection[str] = (),
    ) -> None:
        self.hosts = checked_hosts(uri)
        self._uri = uri
        self._database = database
        self._tables = tuple(tables)
        self._timeout_ms = timeout_ms
        self._listeners = tuple(listeners)
        self._foreign = frozenset(foreign)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """The connection of this process. Raises WrongProcess, InvalidConfig for a URI that can not be used,
        and StoreUnavailable where its name can not be resolved."""
        pid = os.getpid()
        if self._pid is None:
            # Before the lock is taken: a fork that catches it taken leaves a child that is refused, not one that hangs.
            self._pid = pid
        if self._pid != pid:
            raise WrongProcess("this MongoDB store was opened in another process; make one after the fork")
        if self._connection is None:
            with self._lock:
                if self._connection is None:
                    self._connection = self._opened()
        return self._connection

    def close(self) -> None:
        """Close the connection if this process made one. A child leaves its parent's as it is: even letting go of it
        would run the driver's clean-up on shared sockets."""
        if self._connection is not None and self._pid == os.getpid():
            connection, self._connection = self._connection, None
            # It tells the server that its sessions end: a courtesy, for which a lost server is not waited for.
            with pymongo.timeout(CLOSE_S):
                connection.client.close()

    def _opened(self) -> Connection:
        try:
            client: MongoClient[Document] = MongoClient(
                self._uri,
                serverSelectionTimeoutMS=self._timeout_ms,
                connectTimeoutMS=self._timeout_ms,
                socketTimeoutMS=2 * self._timeout_ms,
                retryWrites=True,
                retryReads=True,
                appname="workflow-kernel",
                event_listeners=self._listeners,
            )
        except ConfigurationError as error:
            if is_unresolved(error):  # by a driver that asks for the hosts when it is made
                raise StoreUnavailable(f"the name {self.hosts} of MongoDB can not be resolved") from None
            raise InvalidConfig(INVALID_URI) from None
        except (PyMongoError, ValueError, TypeError):
            raise InvalidConfig(INVALID_URI) from None
        database = client.get_database(
            self._database,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            write_concern=WriteConcern(w="majority", j=True),
            read_concern=ReadConcern("local"),
        )
        majority = ReadConcern("majority")
        tables = {}
        for name in self._tables:
            codec = FOREIGN_CODEC if name in self._foreign else CODEC
            rows = database.get_collection(name, codec_options=codec)
            tables[name] = Table(rows, rows.with_options(read_concern=majority))
        return Connection(client, database, tables)


def checked_hosts(uri: str) -> str:
    """`host:port, …` of a URI, for messages. Raises InvalidConfig in one line that shows nothing of the URI."""
    if uri.startswith(_SRV_SCHEME):
        # Its hosts are in the DNS; asking there is the client's business.
        host = uri.removeprefix(_SRV_SCHEME).rpartition("@")[2].partition("/")[0].partition("?")[0]
        if _HOST_NAME.fullmatch(host) is None:
            raise InvalidConfig(INVALID_URI)
        return host
    if not uri.startswith(_SCHEME):
        raise InvalidConfig(INVALID_URI)
    try:
        nodes = parse_uri(uri, validate=True, warn=False)["nodelist"]
    except (PyMongoError, ValueError, TypeError):
        raise InvalidConfig(INVALID_URI) from None
    return ", ".join(host if port is None else f"{host}:{port}" for host, port in nodes)
