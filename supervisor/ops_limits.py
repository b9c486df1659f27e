"""`kernel-supervisor limits …`: what resources allow, who holds them, who waits, and how to change it while it runs.

Limits are facts of the durable store, so they are shown and set without Redis; then places and lines are unknown, and
one line says so. Exit status: 0 done, 1 failed, 2 usage, 69 the store can not be reached.
"""

from __future__ import annotations

import difflib
from contextlib import ExitStack
from typing import Any

import click
import msgspec

from kernel.app import App
from kernel.clock import SystemClock
from kernel.config import Config, Limit, load
from kernel.coordination.permits import Permits
from kernel.errors import CoordinationRejected, CoordinationUnavailable
from kernel.ids import check_resource
from kernel.limits import change_limit, in_force, kind_of, list_limits, read_limit, remove_limit
from kernel.observe.views import Snapshot
from kernel.permit_words import PermitStats
from kernel.runtime import embedded_redis_url, load_app, open_permits, open_store
from kernel.store.protocol import Store
from kernel.transitions.limits import LimitRecord
from supervisor.ops_client import open_stored
from supervisor.ops_explain import explained, holders_of, lines_of
from supervisor.ops_limit_text import limit_text
from supervisor.ops_shell import Given, clock_text, data_folder, say_json, shell_command, visible
from supervisor.ops_show import found
from supervisor.ops_snapshots import snapshots

HOLDERS_SHOWN = 20


@click.group()
def limits() -> None:
    """What resources allow, who holds them, and who waits for them."""


@limits.command("set")
@click.argument("resource")
@click.option("--max-concurrency", metavar="N", help="Calls at the same time, of all processes together; 0 = no limit.")
@click.option("--starts-per-second", metavar="N", help="Calls that start within one second; 0 = no limit.")
@shell_command
def set_(resource: str, max_concurrency: str | None, starts_per_second: str | None, **common: Any) -> None:
    """Change limits of RESOURCE; it binds everywhere within a second and interrupts no call."""
    if max_concurrency is None and starts_per_second is None:
        raise click.UsageError("say --max-concurrency, --starts-per-second or both")
    at_once = None if max_concurrency is None else _number(max_concurrency, "--max-concurrency")
    starts = None if starts_per_second is None else _number(starts_per_second, "--starts-per-second")
    with _Desk(prepare=True, **common) as desk:
        desk.change(resource, max_concurrency=at_once, max_starts_per_second=starts)


@limits.command()
@click.argument("resource")
@shell_command
def pause(resource: str, **common: Any) -> None:
    """Start no new call of RESOURCE; those that run go on, and what waits keeps waiting without failing."""
    with _Desk(prepare=True, **common) as desk:
        desk.change(resource, paused=True)


@limits.command()
@click.argument("resource")
@shell_command
def resume(resource: str, **common: Any) -> None:
    """Let RESOURCE go on under its limits."""
    with _Desk(prepare=True, **common) as desk:
        desk.change(resource, paused=False)


@limits.command()
@click.argument("resource")
@shell_command
def remove(resource: str, **common: Any) -> None:
    """Take back what was set for RESOURCE: what is declared holds again, and one that nobody declares is forgotten."""
    with _Desk(prepare=False, **common) as desk:
        desk.remove(resource)


@limits.command("list")
@click.argument("resources", metavar="[RESOURCE]...", nargs=-1)
@shell_command
def list_(resources: tuple[str, ...], **common: Any) -> None:
    """Each resource: declared and set limits, calls in flight, starts in the last second, who holds it, who waits."""
    with _Desk(prepare=False, **common) as desk:
        desk.print_rows([desk.row(resource) for resource in resources or desk.known()])


@limits.command()
@click.argument("name", metavar="WORKFLOW_ID|BIZ_KEY")
@shell_command
def explain(name: str, **common: Any) -> None:
    """Why one waits for a permit, as last seen: which limit, who holds it and since when, its place in line."""
    looking = (common["data_dir"], common["config_file"], common["app"])
    with _Desk(prepare=False, **common) as desk, snapshots(*looking) as observed:
        seen = found(observed, name, Given(*looking))
        answer = explained(
            seen, observed.now_ms(), lambda resource: desk.limit(resource)[0], desk.stats, observed.read.of_workflow
        )
        desk.print_explanation(seen, answer)


def _number(text: str, option: str) -> int:
    """A limit as typed. Checked here, because `int` would take `1_0` and `+1` as well."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise click.UsageError(f"{option}: a whole number from 0 (off) to 1,000,000, not {visible(text)[:40]}")
    return int(text)


class _Desk:
    """What one command works with: the store, and Redis as long as it answers."""

    def __init__(
        self, *, prepare: bool, data_dir: str | None, config_file: str | None, app: str | None, as_json: bool
    ) -> None:
        config = load({"data_dir": data_dir, "app": app}, file=config_file).config
        self._as_json = as_json
        self._settings = config.limits
        # Without --app, what the running workers declared is read from the store: nothing of theirs is imported.
        self._app = load_app(app) if app is not None else None
        self._of_app = None if self._app is None else self._app.limits
        self._open = ExitStack()
        self._store, self._permits = _opened(config, self._open, prepare=prepare)
        self.silence: str | None = None if self._permits is not None else "no Redis is known here"

    def __enter__(self) -> _Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # --- what holds ------------------------------------------------------------------------------------------

    def known(self) -> list[str]:
        """Every resource that somebody declared or set, by name."""
        rows = {record.resource for record in list_limits(self._store)}
        return sorted(rows | set(self._settings) | set(self._of_app or {}))

    def limit(self, resource: str) -> tuple[Limit, Limit | None, LimitRecord | None]:
        """(what holds, what is declared, what operators set) for one resource."""
        kind = kind_of(resource)
        own = read_limit(self._store, resource)
        of_kind = own if kind == resource else read_limit(self._store, kind)
        declared = self._declared(resource, own) or self._declared(kind, of_kind)
        return in_force([own, of_kind], declared or Limit()), declared, own

    def _declared(self, resource: str, record: LimitRecord | None) -> Limit | None:
        if resource in self._settings:
            return self._settings[resource]
        if self._of_app is not None:
            return self._of_app.get(resource)
        return None if record is None else record.declared

    def stats(
        self, resource: str, pair: tuple[str, str] | None = None, holders_max: int = HOLDERS_SHOWN
    ) -> PermitStats | None:
        """The resource in Redis; None once Redis has not answered, and then it is not asked again."""
        if self._permits is None or self.silence is not None:
            return None
        try:
            return self._permits.stats(resource, pair=pair, holders_max=holders_max)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            self.silence = str(error)
            return None

    # --- set, pause, resume, remove --------------------------------------------------------------------------

    def change(self, resource: str, **fields: Any) -> None:
        change_limit(self._store, resource, **fields)
        self._warn_of_a_stranger(resource)
        self._tell(resource)

    def remove(self, resource: str) -> None:
        if remove_limit(self._store, resource) is None:
            raise click.ClickException(f"nothing was set for {visible(resource)}")
        self._tell(resource)

    def _warn_of_a_stranger(self, resource: str) -> None:
        """On stderr, when nobody has declared that name: it is mistyped, or its workers are still to come. One of a
        tenant is made as he comes, and declared by its kind at most."""
        if kind_of(resource) != resource:
            return
        names = {record.resource for record in list_limits(self._store) if record.declared is not None}
        names |= {*self._settings, *(self._of_app or {}), *_of_steps(self._app)}
        if resource in names:
            return
        near = difflib.get_close_matches(resource, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        click.echo(f"warning: nobody has declared {resource}; {hint}limits remove takes this back", err=True)

    def _tell(self, resource: str) -> None:
        limit, _, _ = self.limit(resource)
        handed = self._hand_over(resource, limit)
        answer = {"v": 1, "resource": resource, **msgspec.to_builtins(limit), "handed": handed}
        if self._as_json:
            say_json(answer)
            return
        click.echo(f"{visible(resource)}  {limit_text(limit)}")
        self.say_silence()

    def _hand_over(self, resource: str, limit: Limit) -> int | None:
        """Free places go to those who wait, now and not when the next call ends (prm-raise). None: nobody knows."""
        if self._permits is None or self.silence is not None:
            return None
        try:
            return self._permits.sweep(resource, limit)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            self.silence = str(error)
            return None

    def say_silence(self) -> None:
        if self.silence is not None:
            click.echo(f"places and lines are unknown: {visible(self.silence)}", err=True)

    # --- list ------------------------------------------------------------------------------------------------

    def row(self, resource: str) -> dict[str, Any]:
        check_resource(resource, "resource")
        limit, declared, record = self.limit(resource)
        stats = self.stats(resource)
        stored = {} if record is None else msgspec.to_builtins(record)
        fields = ("max_concurrency", "max_starts_per_second", "paused")
        return {
            "resource": resource,
            **msgspec.to_builtins(limit),
            "declared": None if declared is None else msgspec.to_builtins(declared),
            "set": {field: stored[field] for field in fields if stored.get(field) is not None},
            "in_flight": None if stats is None else stats.held,
            "reserved": None if stats is None else stats.reserved,
            "starts_last_second": None if stats is None else stats.starts_last_second,
            "waiting": None if stats is None else stats.waiting,
            "waiting_by_lane": None if stats is None else list(stats.waiting_by_lane),
            "holders": None if stats is None else holders_of(stats.holders),
        }

    def print_rows(self, rows: list[dict[str, Any]]) -> None:
        if self._as_json:
            say_json({"v": 1, "resources": rows, "redis": self.silence or "ok"})
            return
        if not rows:
            click.echo("no resource has a limit")
        for row in rows:
            click.echo(visible(_row_text(row)))
            for holder in row["holders"] or ():
                expiry = clock_text(holder["expiry_ms"])
                click.echo(visible(f"    held by {holder['workflow_id']} {holder['step']}, lease until {expiry}"))
        self.say_silence()

    # --- explain ---------------------------------------------------------------------------------------------

    def print_explanation(self, seen: Snapshot, answer: dict[str, Any]) -> None:
        if self._as_json:
            say_json({"v": 1, **answer, "redis": self.silence or "ok"})
            return
        for line in lines_of(seen, answer):
            click.echo(visible(line))
        self.say_silence()


def _of_steps(app: App | None) -> set[str]:
    """What the application's steps ask for: a resource may be used without a declared limit."""
    definitions = () if app is None else app.definitions.values()
    return {step.resource for one in definitions for step in one.steps if step.resource is not None}


def _opened(config: Config, until: ExitStack, *, prepare: bool) -> tuple[Store, Permits | None]:
    """Store and places, both closed when `until` ends."""
    folder = data_folder(config)
    clock = SystemClock()
    store = open_store(config, folder, clock) if prepare else open_stored(config, clock)
    until.callback(store.close)
    opened = open_permits(config, config.redis_url or embedded_redis_url(folder), clock)
    if opened is None:
        return store, None
    until.callback(opened[1].close)
    return store, opened[0]


def _row_text(row: dict[str, Any]) -> str:
    limit = Limit(row["max_concurrency"], row["max_starts_per_second"], row["paused"])
    where = "set" if row["set"] else "declared" if row["declared"] is not None else "nobody declares it"
    text = f"{row['resource']:<24} {limit_text(limit)} ({where})"
    if row["in_flight"] is None:
        return text
    lanes = " ".join(f"P{lane} {size}" for lane, size in enumerate(row["waiting_by_lane"]))
    return (
        f"{text}  in flight {row['in_flight']}, started in the last second {row['starts_last_second']}, "
        f"waiting {row['waiting']} ({lanes})"
    )
