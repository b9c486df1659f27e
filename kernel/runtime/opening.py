"""Opening what a process works with: the application, the durable store, the lanes, a publisher's client.

Nothing is kept here; whoever opens something owns it, in the process that opened it (dc-fork-safety).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from kernel.app import App, PortsRequest
from kernel.business_objects import BusinessObjects
from kernel.client import Client
from kernel.clock import Clock, SystemClock
from kernel.closing import Closing
from kernel.config import Config
from kernel.coordination.dispatch_index import Announcer, DispatchIndex
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.keys import Keys
from kernel.coordination.lanes import LanePolicy, Lanes
from kernel.coordination.permits import Permits
from kernel.coordination.ready_queue import LaneQueue
from kernel.coordination.scripts import ScriptRunner
from kernel.coordination.stream_news import StreamNews
from kernel.coordination.streams import Streams, StreamTerms
from kernel.dispatch import DispatchSource
from kernel.engine.ports import ReadyQueue, Runner
from kernel.engine.threads import ThreadRunner
from kernel.errors import (
    CoordinationUnavailable,
    InvalidConfig,
    InvalidName,
    KernelError,
    StoreUnavailable,
    Unavailable,
)
from kernel.ids import IdSource, RandomIds, check_name
from kernel.objects import Objects
from kernel.runtime.observer import open_observer
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_files import is_made
from kernel.streams import ClientStreams, NoStreams, StreamSettings

STORE_FILE = "store.sqlite"
OBJECTS_FILE = "objects.sqlite"
RUN_FILE = "run.json"


class NoQueue:
    """The ready queue of a process without Redis: never there, so everything goes by the durable store."""

    def push(self, candidates: object, *, wake: bool = True) -> None:
        raise CoordinationUnavailable("no Redis is configured")

    def pop(self, n: int) -> Any:
        raise CoordinationUnavailable("no Redis is configured")


def load_app(path: str | None) -> App:
    """The App at `module:attribute`, with the working directory importable. Raises InvalidConfig with one line,
    and Unavailable when it opens something as it is imported that does not answer."""
    if path is None:
        raise InvalidConfig("app: name your application, for example --app flows:app")
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(f"app: {path}: there is no module {error.name!r}") from error
    except Unavailable:
        raise  # it opens a store when it is imported, and that is away: no fault of the application
    except KernelError as error:
        raise InvalidConfig(f"app: {path}: {error}") from error
    except Exception as error:
        raise InvalidConfig(f"app: {path}: importing it failed: {type(error).__name__}: {error}") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise InvalidConfig(f"app: {path}: expected a kernel.App named {attribute!r}, found {found}")
    return app


def open_store(config: Config, data_dir: Path, clock: Clock, *, prepare: bool = True) -> Store:
    """The durable store of `config`, prepared. Raises StoreUnavailable, SchemaMismatch or InvalidConfig.

    Without `prepare` it is taken as it is: enough for reading, also while somebody holds the write lock.
    """
    lease_ms = round(config.lease_s * 1000)
    store: Store
    if config.mongodb_uri is not None:
        store = MongoStore(config.mongodb_uri, config.mongodb_database, clock, timeout_ms=max(100, lease_ms // 6))
    else:
        store = SqliteStore(data_dir / STORE_FILE, clock, durability=config.durability, lease_ms=lease_ms)
    if prepare:
        _prepare(store, {})
    return store


def has_file(data_dir: str | os.PathLike[str], name: str) -> bool:
    """Whether an embedded store was made there. Not whether the file exists: a start makes it first, and then what is
    in it, and who looks in between finds nothing and is not told of a fault."""
    return is_made(os.path.join(data_dir, name))


def open_objects(
    config: Config,
    data_dir: str | os.PathLike[str],
    declarations: Sequence[Objects],
    clock: Clock,
    *,
    ids: IdSource | None = None,
    prepare: bool = True,
) -> dict[str, BusinessObjects]:
    """The business objects of an App by name: embedded in a file of their own, on MongoDB in the collections that they
    name. Raises StoreUnavailable, SchemaMismatch or InvalidConfig.

    Without `prepare` they are taken as they are, as by `open_store`.
    """
    ids = ids or RandomIds()
    lease_ms = round(config.lease_s * 1000)
    opened: dict[str, BusinessObjects] = {}
    for database in dict.fromkeys(_database_of(config, declared) for declared in declarations):
        here = [declared for declared in declarations if _database_of(config, declared) == database]
        tables = {declared.place: declared.table for declared in here}
        store: Store
        if config.mongodb_uri is not None:
            timeout_ms = max(100, lease_ms // 6)
            store = MongoStore(config.mongodb_uri, database, clock, timeout_ms=timeout_ms, tables=tables)
        else:
            path = Path(data_dir) / OBJECTS_FILE
            store = SqliteStore(path, clock, durability=config.durability, lease_ms=lease_ms, tables=tables)
        if prepare:
            _prepare(store, opened)
        opened |= {declared.name: BusinessObjects(declared, store, ids) for declared in here}
    return opened


def _prepare(store: Store, others: Mapping[str, BusinessObjects]) -> None:
    """Prepare a store; when it can not be, neither it nor the others opened before it stay open."""
    try:
        store.prepare()
    except KernelError:
        store.close()
        for other in others.values():
            other.close()
        raise


def _database_of(config: Config, declared: Objects) -> str:
    """Embedded there is one file for all; a database is MongoDB's."""
    return "" if config.mongodb_uri is None else declared.database or config.mongodb_database


def open_sources(app: App, request: PortsRequest) -> list[DispatchSource]:
    """Every dispatch source of an App: its declared objects, and what its own functions open. Raises InvalidConfig
    for a source without a name, or with that of another."""
    sources: list[DispatchSource] = list(request.objects.values())
    for make in app.source_makers:
        source = make(request)
        name = getattr(source, "name", None)
        try:
            check_name(name, "dispatch source")
        except InvalidName as error:
            raise InvalidConfig(f"{error}, in what a function of App.dispatch_sources opened") from None
        if any(other.name == name for other in sources):
            raise InvalidConfig(f"two dispatch sources have the name {name!r}")
        sources.append(source)
    return sources


def open_lanes(config: Config, redis_url: str | None, clock: Clock) -> tuple[Lanes, ScriptRunner] | None:
    """The lanes on the Redis at `redis_url`; None without one. Nothing is connected yet."""
    if redis_url is None:
        return None
    endpoint = parse_redis_url(redis_url)
    scripts = ScriptRunner(endpoint.connection, clock, call_timeout_s=config.redis_budget_s * 0.4)
    policy = LanePolicy(config.lane_weights, config.lane_burst)
    return Lanes(scripts, Keys(config.namespace), policy), scripts


def open_permits(config: Config, redis_url: str | None, clock: Clock) -> tuple[Permits, ScriptRunner] | None:
    """The places of resources on the Redis at `redis_url`; None without one. Nothing is connected yet.

    Each call makes connections and a breaker of its own: whoever renews never waits for those who acquire.
    """
    if redis_url is None:
        return None
    scripts = ScriptRunner(parse_redis_url(redis_url).connection, clock, call_timeout_s=config.redis_budget_s * 0.4)
    lease_ms, wait_ms = round(config.permit_lease_s * 1000), round(config.permit_wait_s * 1000)
    return Permits(scripts, Keys(config.namespace), lease_ms=lease_ms, wait_ms=wait_ms), scripts


def open_streams(config: Config, redis_url: str | None, clock: Clock) -> tuple[Streams, ScriptRunner] | None:
    """Client streams on the Redis at `redis_url`; None without one. Nothing is connected yet.

    Connections and breaker are their own: frames that wait for a slow Redis hold up nobody who pushes or renews.
    """
    if redis_url is None:
        return None
    scripts = ScriptRunner(parse_redis_url(redis_url).connection, clock, call_timeout_s=config.redis_budget_s * 0.4)
    return Streams(scripts, Keys(config.namespace), StreamTerms.of(config)), scripts


def _client_streams(
    config: Config, redis_url: str | None, runner: Runner, ids: IdSource, clock: Clock
) -> tuple[ClientStreams, list[Callable[[], None]]]:
    """Streams for a publisher, who also follows them, and what closes them."""
    opened, settings = open_streams(config, redis_url, clock), StreamSettings.of(config)
    if opened is None or redis_url is None:
        return ClientStreams(NoStreams(), runner=runner, clock=clock, ids=ids, settings=settings), []
    connector, channel = parse_redis_url(redis_url).connection, Keys(config.namespace).stream_channel
    news = StreamNews(connector, channel, clock, ids.fraction, runner)
    streams = ClientStreams(opened[0], runner=runner, clock=clock, ids=ids, settings=settings, news=news)
    return streams, [opened[1].close, news.close]


def embedded_redis_url(data_dir: str | os.PathLike[str]) -> str | None:
    """The Redis of the tree that runs in `data_dir`; None when none does: work then starts with the next scan."""
    try:
        run = msgspec.json.decode((Path(data_dir) / RUN_FILE).read_bytes(), type=dict[str, Any])
        return f"unix://{quote(str(run['redis']))}"
    except (OSError, KeyError, msgspec.MsgspecError):
        return None


def open_client(
    config: Config, data_dir: str | os.PathLike[str], redis_url: str | None, *, prepare: bool = True
) -> Client:
    """A publisher's client. It needs no App and imports no activity (spl-publisher-light).

    `redis_url` None: nobody is told of new work, and it starts with the next scan. `close` the client, or use it as
    `with open_client(…) as client`: it has a file or connections of its own. Raises StoreUnavailable, also where the
    stores lie in the data folder and no tree has made it yet; SchemaMismatch; InvalidConfig.
    """
    if config.mongodb_uri is None and not os.path.isdir(data_dir):
        folder = os.path.abspath(data_dir)
        raise StoreUnavailable(f"there is no data folder {folder}: the first start of a tree there makes it")
    clock, ids = SystemClock(), RandomIds()
    store = open_store(config, Path(data_dir), clock, prepare=prepare)
    opened = open_lanes(config, redis_url, clock)
    queue: ReadyQueue = NoQueue() if opened is None else LaneQueue(opened[0], store.now_ms)
    runner = ThreadRunner(clock)
    streams, closers = _client_streams(config, redis_url, runner, ids, clock)
    closers += [store.close] if opened is None else [store.close, opened[1].close]
    try:
        seen = open_observer(config, data_dir, clock, runner, store.now_ms)
    except InvalidConfig:
        Closing(closers).close()
        raise
    # Closed first of all, readers before them: what the observer has to write still needs the store's clock.
    closers += [seen.close, streams.close]
    seen.close_at_exit()
    return Client(
        *(store, queue, clock, ids, runner.event()),
        input_bytes_max=config.input_bytes_max,
        streams=streams,
        observer=seen.observer,
        closers=closers,
    )


def open_announcer(config: Config, redis_url: str | None) -> Announcer:
    """What `Requests` takes as `announce`: tells dispatchers of a fresh intent, best effort (dsp-candidate-add). Close
    it as the client; `redis_url` None: nobody is told, and the scan finds it."""
    opened = open_lanes(config, redis_url, SystemClock())
    if opened is None:
        return Announcer(None)
    return Announcer(DispatchIndex(opened[1], Keys(config.namespace), RandomIds()), opened[1].close)
