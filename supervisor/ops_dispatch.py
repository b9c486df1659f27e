"""`kernel-supervisor dispatch …`: accepted work that is not registered yet, read from the business objects themselves.

Exit status: 0 done, 1 failed, 2 usage, 69 the store can not be reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import click
import msgspec

from kernel.app import App, PortsRequest
from kernel.clock import SystemClock
from kernel.config import Config, load
from kernel.dispatch import DispatchSource, DueIntent
from kernel.errors import KernelError, Unavailable
from kernel.runtime import OBJECTS_FILE, open_objects, open_sources
from kernel.runtime.opening import has_file
from supervisor.cli_numbers import WholeNumber
from supervisor.ops_client import named_app
from supervisor.ops_shell import clock_text, data_folder, shell_command, span_text, visible

PAGE = 200
ERROR_SHOWN = 200


class Pending(msgspec.Struct, frozen=True):
    """One open intent as an operator sees it. `status` is `unreadable` for one that this kernel can not decode; the
    error then says why. Ages and times are by the source's clock."""

    source: str
    object_id: str
    status: str
    due_time: int
    age_ms: int | None = None
    fencing_token: str | None = None
    type: str | None = None
    biz_key: str | None = None
    tries: int = 0
    error: str | None = None


@click.group()
def dispatch() -> None:
    """Accepted work on its way to a workflow."""


@dispatch.command()
@click.option("--limit", type=WholeNumber(1, 100_000), default=PAGE, help="At most that many (default 200).")
@shell_command
def pending(limit: int, data_dir: str | None, config_file: str | None, app: str | None, as_json: bool) -> None:
    """Every intent that is not registered yet: its object, age, round, tries and last error; the next due first."""
    config = load({"data_dir": data_dir, "app": app}, file=config_file).config
    found: list[Pending] = []
    more = False
    declared = named_app(config)
    with ExitStack() as until:
        for source in open_dispatch_sources(config, declared, until):
            rows = _open_intents(source)
            found += islice(rows, limit - len(found))
            if len(found) == limit and next(rows, None) is not None:
                more = True
    if as_json:
        told = [msgspec.to_builtins(row) for row in found]
        answer = {"v": 1, "pending": told, "more": more, "declared": is_any_declared(declared)}
        click.echo(json.dumps(answer, ensure_ascii=True))
        return
    for row in found:
        click.echo(visible(_line(row)))
    if more:
        click.echo(f"… and more: only the first {limit} are shown (--limit)")
    if not found:
        click.echo(
            "every accepted object is registered"
            if is_any_declared(declared)
            else f"{config.app} declares no business objects: there was nothing to look at"
        )


def is_any_declared(app: App) -> bool:
    """Whether the application accepts work at all."""
    return bool(app.objects or app.source_makers)


def open_dispatch_sources(config: Config, app: App, until: ExitStack) -> list[DispatchSource]:
    """What the dispatchers of this tree look after; declared objects are closed when `until` ends. What does not exist
    yet is not made."""
    folder = data_folder(config)
    clock = SystemClock()
    embedded = config.mongodb_uri is None
    declared = () if embedded and not has_file(folder, OBJECTS_FILE) else app.objects
    objects = open_objects(config, folder, declared, clock, prepare=False)
    for opened in objects.values():
        until.callback(opened.close)
    return open_sources(app, PortsRequest(str(folder), {}, objects))


def _open_intents(source: DispatchSource) -> Iterator[Pending]:
    """All open intents of a source, page by page."""
    after: tuple[int, str] | None = None
    while page := source.due(after=after, limit=PAGE):
        for due in page:
            row = _read(source, due)
            if row is not None:
                yield row
        after = (page[-1].due_time, page[-1].object_id)


def _read(source: DispatchSource, due: DueIntent) -> Pending | None:
    """None for an intent that has ended since the page was read. What one object does to its reader, whose code may be
    the user's own, hides no other: only a store that does not answer ends the listing."""
    try:
        intent = source.read(due.object_id)
    except Unavailable:
        raise
    except Exception as error:
        what = error.code if isinstance(error, KernelError) else type(error).__name__
        return Pending(source.name, due.object_id, "unreadable", due.due_time, error=f"{what}: {error}")
    if intent is None or intent.due_time is None:
        return None
    return Pending(
        source.name,
        due.object_id,
        intent.status,
        intent.due_time,
        age_ms=max(0, source.now_ms() - intent.accepted_time),
        fencing_token=intent.fencing_token,
        type=intent.type,
        biz_key=intent.biz_key,
        tries=intent.tries,
        error=intent.error,
    )


def _line(row: Pending) -> str:
    age = "unknown" if row.age_ms is None else span_text(row.age_ms)
    told = f"{row.source}  {row.object_id}  {row.status}  age {age}  round {row.fencing_token or 'unknown'}"
    told += f"  tries {row.tries}  due {clock_text(row.due_time)}"
    return told if row.error is None else f"{told}  {row.error[:ERROR_SHOWN]}"
