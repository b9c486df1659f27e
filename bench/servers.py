"""Servers that a run of the tree uses instead of embedded ones: the options, and what does not go with them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import click

Durability = Literal["full", "normal", "majority"]
MAJORITY: Durability = "majority"
"""What a commit of a MongoDB survives: every write is acknowledged by a majority, and journaled."""
EMBEDDED = "embedded"
_PASSWORD = re.compile("@|password", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Their addresses, which may hold passwords: never shown. None is the embedded one."""

    redis_url: str | None = field(default=None, repr=False)
    store_uri: str | None = field(default=None, repr=False)


ALL_EMBEDDED = Servers()


def redis_url_of(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """A command line is everybody's to read, so that a URL with a password comes from the environment."""
    if url is not None and "@" in url:
        raise click.BadParameter("a command line is for all to read, so put the URL into REDIS_URL and say --redis env")
    return os.environ.get("REDIS_URL", "") if url == "env" else url


def store_uri_of(context: click.Context, parameter: click.Parameter, uri: str | None) -> str | None:
    """The same for MongoDB, from where the settings of a tree have it."""
    if uri is not None and _PASSWORD.search(uri):
        raise click.BadParameter(
            "a command line is for all to read, so put the URI into MONGODB_URI and say --store env"
        )
    if uri != "env":
        return uri
    from kernel.config import load  # loads msgspec

    given = load(file=os.devnull).config.mongodb_uri
    if given is None:
        raise click.BadParameter("MONGODB_URI is not set")
    return given


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where the tree that is measured has its store and its Redis."""
    for option in (
        click.option(
            "--store",
            "store_uri",
            metavar="URI|env",
            callback=store_uri_of,
            help="Use that MongoDB, or the one of MONGODB_URI (an embedded store).",
        ),
        click.option(
            "--redis",
            "redis_url",
            metavar="URL|env",
            callback=redis_url_of,
            help="Use that server, or the one of REDIS_URL (an embedded one).",
        ),
    ):
        command = option(command)
    return command


def store_words(store: str, durability: str) -> str:
    """Which store it was, as `bench.tree_place` names it, and what a commit of it survives; for people."""
    if store == EMBEDDED:
        return f"embedded store, durability {durability}"
    return f"{store}, acknowledged by a majority and journaled"


def where(redis: str, store: str, file_system: str, load: float) -> dict[str, object]:
    """What a report says of the place: the disk of this machine says something of the embedded store alone."""
    disk = file_system if store == EMBEDDED else "the disk of the store's server"
    return {"redis": redis, "store": store, "file_system": disk, "load_before": load}


def durability_of(servers: Servers, given: Durability | None, usual: Durability) -> Durability:
    """What a commit survives. Raises UsageError: a MongoDB of others is not told what it is to keep."""
    if servers.store_uri is None:
        return given or usual
    if given is not None:
        raise click.UsageError(
            "--durability: is of the embedded store; to the MongoDB of --store every write is one of a majority"
        )
    return MAJORITY


def check_faults(servers: Servers, *, flush: bool, observation_outage: bool) -> None:
    """Raises UsageError for a fault that would hit others than this run, or can not be made there."""
    if flush and servers.redis_url is not None:
        raise click.UsageError("--flush-every: empties a whole server, and the one of --redis is not this run's alone")
    if observation_outage and servers.store_uri is not None:
        raise click.UsageError(
            "--observation-outage: stops the embedded store of observations; it goes without --store"
        )
