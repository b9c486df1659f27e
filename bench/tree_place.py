"""Where one tree of a run has its store and its Redis: in its folder, or on servers that were given.

On a server that was given the tree has a database, or a namespace, of its own, which is gone afterwards, however the
run ends: nothing that lay there before is read, changed or removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from bench.bare_commits import bare_commits_per_s
from bench.redis_calls import RedisCalls
from bench.run_database import RunDatabase
from bench.servers import EMBEDDED, Durability, Servers
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.errors import KernelError
from kernel.runtime import open_client, open_store
from kernel.store.protocol import Store


@dataclass(frozen=True, kw_only=True)
class TreePlace:
    """The place of one tree, as long as it is open."""

    folder: Path
    flags: dict[str, object] = field(repr=False)
    """The settings that lead a tree there; they hold passwords."""
    redis: str
    """For people and reports: `embedded`, or the address."""
    store: str
    """For people and reports: `embedded`, or server and address."""
    bare_commits_per_s: Callable[[int, float], list[float]]
    """The yardstick: single-row commits a second of that store in each of so many slices of so many seconds."""


class Tools(NamedTuple):
    """What measures a tree, and gives it its work."""

    store: Store
    calls: RedisCalls
    client: Client


@contextmanager
def open_tools(config: Config, folder: Path, redis_url: str) -> Iterator[Tools]:
    """Opened on the stores of a tree that runs. Raises StoreUnavailable and InvalidConfig."""
    with (
        closing(open_store(config, folder, SystemClock())) as store,
        closing(RedisCalls(redis_url)) as calls,
        # Closed before its store may be dropped: what it still has to write would make that again.
        closing(open_client(config, folder, redis_url)) as client,
    ):
        yield Tools(store, calls, client)


@contextmanager
def open_place(servers: Servers, durability: Durability, folder: Path) -> Iterator[TreePlace]:
    """A place for one tree, whose data folder is `folder`. The tree, and every client of it, ends inside the block.

    Raises InvalidConfig for an address that can not be used, CoordinationUnavailable or StoreUnavailable for a server
    that does not answer.
    """
    with ExitStack() as stack:
        redis, redis_flags = _redis(servers.redis_url, stack)
        store, store_flags, bare = _store(servers.store_uri, durability, folder, stack)
        yield TreePlace(
            folder=folder, flags={**redis_flags, **store_flags}, redis=redis, store=store, bare_commits_per_s=bare
        )


def _redis(url: str | None, stack: ExitStack) -> tuple[str, dict[str, object]]:
    """What to call it, and the settings of the tree."""
    if url is None:
        return EMBEDDED, {}
    calls = stack.enter_context(closing(RedisCalls(url)))
    calls.ping()
    namespace = f"bench_{secrets.token_hex(6)}"
    stack.callback(_gone, f"the keys of the namespace {namespace}", partial(calls.remove_namespace, namespace))
    return calls.address, {"redis_url": url, "namespace": namespace}


def _store(
    uri: str | None, durability: Durability, folder: Path, stack: ExitStack
) -> tuple[str, dict[str, object], Callable[[int, float], list[float]]]:
    """What to call it, the settings of the tree, and the yardstick."""
    if uri is None:
        assert durability != "majority"
        return EMBEDDED, {"durability": durability}, partial(bare_commits_per_s, folder, durability)
    database = RunDatabase(uri)
    stack.callback(database.close)
    name = database.check()
    stack.callback(_gone, f"the database {database.name}", database.drop)
    return name, {"mongodb_uri": uri, "mongodb_database": database.name}, database.bare_commits_per_s


def _gone(what: str, remove: Callable[[], None]) -> None:
    """Remove it, or say that it stays: the error that ended the run is the one to be told."""
    try:
        remove()
    except KernelError as error:
        click.echo(f"left behind: {what}: {error}", err=True)
