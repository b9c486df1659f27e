"""Looking at the stores of a configuration without a write, for `doctor`. What is opened here is closed here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from kernel.clock import Clock
from kernel.config import Config, Loaded
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.facts import RedisFacts, examine
from kernel.coordination.scripts import ScriptRunner
from kernel.errors import CorruptRecord, InvalidConfig, UnknownVersion
from kernel.records import to_instance
from kernel.runtime.opening import STORE_FILE, has_file
from kernel.store.conditional import AtMost, Exists, Missing
from kernel.store.facts import StoreFacts
from kernel.store.mongo import MongoStore
from kernel.store.mongo_client import checked_hosts
from kernel.store.protocol import Query, Store
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import DEFINITIONS, INSTANCES, TABLES, Table

ROWS_MAX = 1_000
"""So many rows of a kind are counted at most."""
READ_MAX = 100
"""So many due rows are read whole, to see whether they can be."""
_LIVE_PERIODS = 3
_REDIS_LIMIT_S = 2.0


class Due(msgspec.Struct, frozen=True):
    """What a worker could take now of one version, and for how many ms the oldest of it is due."""

    count: int
    oldest_ms: int


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for somebody's help, each up to ROWS_MAX."""

    parked: int
    deferred: Mapping[str, int]
    """`type@fingerprint` that no live worker has → workflows that wait for it."""
    live: Mapping[str, int]
    """The versions that some worker has reported within `live_ms`, three scan periods → how many ms ago; it may be
    gone since."""
    live_ms: int
    due: Mapping[str, Due]
    """What a worker could take now, by `type@fingerprint`."""
    damaged: tuple[str, ...] = ()
    """The workflow_ids of due rows that do not decode, among the READ_MAX oldest: there they come to lie."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One store: its facts, its clock minus this machine's in ms, and its rows where those were asked for."""

    facts: StoreFacts
    ahead_ms: int
    rows: Rows | None = None


def examine_store(
    config: Config,
    data_dir: Path,
    clock: Clock,
    *,
    file: str = STORE_FILE,
    mongodb_uri: str | None = None,
    tables: Mapping[str, Table] = TABLES,
) -> Examined | None:
    """The durable store, or another one with `tables`; None for a file that no start has made yet.

    Raises StoreUnavailable, SchemaMismatch or InvalidConfig. A store whose tables are all there is asked for its rows.
    """
    uri = mongodb_uri if mongodb_uri is not None else config.mongodb_uri
    lease_ms = round(config.lease_s * 1000)
    store: MongoStore | SqliteStore
    if uri is not None:
        store = MongoStore(uri, config.mongodb_database, clock, timeout_ms=max(100, lease_ms // 6), tables=tables)
    elif (data_dir / file).is_file() and has_file(data_dir, file):
        store = SqliteStore(data_dir / file, clock, durability=config.durability, lease_ms=lease_ms, tables=tables)
    else:
        return None
    try:
        facts = store.examine()
        ahead_ms = store.now_ms() - clock.wall_ms()
        has_rows = INSTANCES in tables and not facts.lacking
        return Examined(facts=facts, ahead_ms=ahead_ms, rows=_rows(store, config) if has_rows else None)
    finally:
        store.close()


def check_addresses(loaded: Loaded) -> None:
    """Raise InvalidConfig for the address of a store that no start would take, with the place where it stands and none
    of its text. Nobody is asked whether it answers."""
    readers: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("mongodb_uri", checked_hosts),
        ("observe_mongodb_uri", checked_hosts),
        ("redis_url", parse_redis_url),
    )
    for name, read in readers:
        address = getattr(loaded.config, name)
        try:
            if address is not None:
                read(address)
        except InvalidConfig as error:
            _, _, why = str(error).partition(": ")
            raise InvalidConfig(f"{name} ({loaded.origins[name].text}): {why}") from None


def examine_redis(config: Config, redis_url: str, clock: Clock) -> tuple[RedisFacts, int]:
    """The server's facts, and its clock minus this machine's in ms. Raises CoordinationUnavailable or InvalidConfig."""
    runner = ScriptRunner(parse_redis_url(redis_url).connection, clock, call_timeout_s=_REDIS_LIMIT_S)
    try:
        facts = examine(runner)
        return facts, facts.time_ms - clock.wall_ms()
    finally:
        runner.close()


def _rows(store: Store, config: Config) -> Rows:
    deferred: dict[str, int] = {}
    for (key,) in _page(store, INSTANCES, "definition_key", "deferred"):
        deferred[key] = deferred.get(key, 0) + 1
    now_ms = store.now_ms()
    due = _due(store, now_ms)
    damaged = tuple(workflow_id for _, _, workflow_id in due[:READ_MAX] if _is_damaged(store, workflow_id))
    return Rows(
        parked=len(_page(store, INSTANCES, "created_time", "parked")),
        deferred=deferred,
        live=live_versions(store, config, ROWS_MAX),
        live_ms=_live_ms(config),
        due=_counted(due, now_ms, damaged),
        damaged=damaged,
    )


def live_versions(store: Store, config: Config, most: int) -> dict[str, int]:
    """The versions (`type@fingerprint`) that some worker has reported within three scan periods, at most so many of
    them → how many ms ago. Raises StoreUnavailable."""
    now_ms = store.now_ms()
    columns, after = ("definition_key", "seen_time"), (now_ms - _live_ms(config) - 1, "")
    seen = store.scan(Query(DEFINITIONS, (), "seen_time", columns, most, after))
    return {str(key): max(0, now_ms - seen_time) for key, seen_time in seen}


def _live_ms(config: Config) -> int:
    return round(config.scan_s * 1000) * _LIVE_PERIODS


def _due(store: Store, now_ms: int) -> list[tuple[int, str, str]]:
    """Since when, `type@fingerprint` and workflow_id; the oldest comes first."""
    waits = (AtMost("claimable_time", now_ms), Missing("parked"))
    columns = ("claimable_time", "definition_key", "workflow_id")
    found = store.scan(Query(table=INSTANCES, guards=waits, order="claimable_time", columns=columns, limit=ROWS_MAX))
    return [(since_ms, str(key), str(workflow_id)) for since_ms, key, workflow_id in found]


def _is_damaged(store: Store, workflow_id: str) -> bool:
    try:
        document = store.get(INSTANCES, workflow_id)
        if document is not None:
            to_instance(document)
    except (CorruptRecord, UnknownVersion):
        return True
    return False


def _counted(found: Sequence[tuple[int, str, str]], now_ms: int, damaged: Collection[str]) -> dict[str, Due]:
    due: dict[str, Due] = {}
    for since_ms, key, workflow_id in found:
        if workflow_id not in damaged:
            known = due.get(key, Due(0, now_ms - since_ms))
            due[key] = Due(known.count + 1, known.oldest_ms)
    return due


def _page(store: Store, table: str, order: str, present: str) -> list[tuple[str]]:
    query = Query(table=table, guards=(Exists(present),), order=order, columns=(order,), limit=ROWS_MAX)
    return [(str(value),) for (value,) in store.scan(query)]
