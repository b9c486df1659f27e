"""What commands that start and steer work with: settings, the publisher's client, an answer on stdout."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import click

from kernel.app import App
from kernel.client import Client
from kernel.clock import Clock
from kernel.config import Config, load
from kernel.errors import InvalidConfig, KernelError
from kernel.ids import check_id, workflow_id_for
from kernel.records import Instance
from kernel.runtime import STORE_FILE, embedded_redis_url, load_app, open_client, open_store
from kernel.runtime.opening import has_file
from kernel.store.protocol import Query, Store
from supervisor.ops_shell import data_folder, say_json, visible
from supervisor.ops_tree import look


def settings(data_dir: str | None, config_file: str | None, app: str | None = None) -> Config:
    """The settings of a command; its flags win."""
    return load({"data_dir": data_dir, "app": app}, file=config_file).config


def named_app(config: Config) -> App:
    """The application of the option or the settings. Raises InvalidConfig; where none is named, with the name that the
    tree of the data folder was started with. It is only told: which module that is here, and whether whoever answers in
    a folder of others is to be believed, is for the caller to say."""
    if config.app is not None:
        return load_app(config.app)
    try:
        app = look(config).app
    except (OSError, KernelError):
        app = None
    if app is None:
        return load_app(None)
    raise InvalidConfig(f"app: name your application; the tree that runs here has --app {shlex.quote(app)}")


class NothingStored:
    """The durable store of a tree that never ran: looking must make no file."""

    def get(self, _table: str, _key: str) -> None:
        return None

    def scan(self, _query: Query) -> list[tuple[Any, ...]]:
        return []

    def close(self) -> None:
        pass


def is_never_made(config: Config) -> bool:
    """Whether the embedded store is meant, and nobody has made it yet. Raises StoreUnavailable without a folder."""
    return config.mongodb_uri is None and not has_file(data_folder(config), STORE_FILE)


def open_stored(config: Config, clock: Clock) -> Store:
    """The durable store as it is, for reading by key and page; `close` it. Raises as `open_store`."""
    if is_never_made(config):
        return cast(Store, NothingStored())
    return open_store(config, data_folder(config), clock, prepare=False)


@contextmanager
def client_of(config: Config, *, prepare: bool = True) -> Iterator[Client]:
    """The publisher's client of the tree; closed at the end. Without `prepare` the store is taken as it is."""
    folder = data_folder(config)
    with open_client(config, folder, config.redis_url or embedded_redis_url(folder), prepare=prepare) as client:
        yield client


def find(get: Callable[[str], Instance | None], name: str) -> Instance | None:
    """The instance that `name` means: of that workflow_id, or else of that biz_key, whose workflow_id follows from it.
    Raises InvalidId for what can be neither."""
    check_id(name, "workflow_id")
    return get(name) or get(workflow_id_for(name))


def known(get: Callable[[str], Instance | None], name: str) -> Instance:
    """As `find`; one line and exit status 1 where there is none."""
    instance = find(get, name)
    if instance is None:
        raise click.ClickException(f"workflow {visible(name)} does not exist")
    return instance


def say_answer(answer: dict[str, Any], *, as_json: bool) -> None:
    """What a command did: one JSON object, or a line for each field."""
    if as_json:
        say_json(answer)
        return
    for name, value in answer.items():
        if name != "v":
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            click.echo(f"{name}  {visible(str(shown))}")
