"""`workflow list`: workflows by type, state and what they wait for, and counts of them (ops-find, ops-aggregate)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import click
import msgspec

from kernel.errors import InvalidPriority
from kernel.ids import check_name, check_resource
from kernel.observe.reading import BY, Column, Count, Line, Page, Wanted
from kernel.observe.views import Waiting
from kernel.states import INSTANCE_STATUSES, InstanceStatus, lane_of
from supervisor.cli_numbers import WholeNumber
from supervisor.ops_hindrance import Hindrance, standstill
from supervisor.ops_now import Holder, brief, is_due
from supervisor.ops_shell import APP_UNKNOWN, Given, aligned, clock_text, say_json, span_text, store_command, visible
from supervisor.ops_snapshots import Snapshots, snapshots
from supervisor.ops_workers import Workers

LIMIT_MAX = 100
_COLUMNS: dict[str, Column] = {
    "type": "type",
    "status": "status",
    "lane": "business_priority",
    "step": "current_step",
    "waiting": "waiting",
    "on": "waiting_on",
    "error": "error_code",
}
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|min|m|h|d)")


def span_ms(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """A duration as `90s`, `10m`, `1.5h` or `7d`, in milliseconds."""
    if value is None:
        return None
    found = _SPAN.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{visible(value)[:40]!r} is no duration: a number with s, m, h or d, as 10m")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def lane_number(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """A lane as P0–P3, its number, or the name of its priority."""
    if value is None:
        return None
    text = value.removeprefix("P").removeprefix("p")
    try:
        return lane_of(int(text) if text.isascii() and text.isdecimal() and len(text) == 1 else text)
    except InvalidPriority:
        raise click.BadParameter(f"{visible(value)[:40]!r} is no lane: P0, P1, P2 or P3") from None


@click.command("list")
@click.option("--type", "type_", metavar="TYPE", help="Only workflows of that type.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(INSTANCE_STATUSES), help="May be repeated.")
@click.option("--waiting", type=click.Choice(get_args(Waiting)), help="What they wait for, as of their last event.")
@click.option("--on", metavar="NAME", help="And for that signal type, resource or step.")
@click.option("--step", metavar="STEP", help="Only those that are at that step.")
@click.option("--lane", callback=lane_number, metavar="P0…P3", help="Only those of that lane: of that source.")
@click.option("--older-than", callback=span_ms, metavar="10m", help="Only those created at least so long ago.")
@click.option("--since", callback=span_ms, metavar="1h", help="Only those created at most so long ago.")
@click.option("--error", "error_code", metavar="CODE", help="Only those whose error has that code.")
@click.option("--limit", type=WholeNumber(1, LIMIT_MAX), default=50, help="Rows of a page (default 50, at most 100).")
@click.option("--after", metavar="TOKEN", help="The page after the one that named this token.")
@click.option("--count", "counted", is_flag=True, help="How many, by type, status and what they wait for.")
@click.option("--by", multiple=True, type=click.Choice(tuple(_COLUMNS)), help="Count by this instead; may be repeated.")
@store_command
def list_(
    type_: str | None,
    statuses: tuple[InstanceStatus, ...],
    waiting: Any,
    on: str | None,
    step: str | None,
    lane: int | None,
    older_than: int | None,
    since: int | None,
    error_code: str | None,
    limit: int,
    after: str | None,
    counted: bool,
    by: tuple[str, ...],
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Where workflows stand and the one thing that each waits for, the newest first."""
    if after is not None and (counted or by):
        raise click.UsageError("--count counts everything: it has no pages, so no --after")
    for value, option in ((type_, "--type"), (step, "--step"), (error_code, "--error")):
        if value is not None:
            check_name(value, option)
    if on is not None:
        check_resource(on, "--on")
    with snapshots(data_dir, config_file) as desk:
        now_ms, token = _place(after, desk.now_ms())
        wanted = Wanted(
            type=type_,
            statuses=tuple(dict.fromkeys(statuses)),
            waiting=waiting,
            waiting_on=on,
            step=step,
            lane=lane,
            created_before_ms=None if older_than is None else now_ms - older_than,
            created_after_ms=None if since is None else now_ms - since,
            error_code=error_code,
        )
        if counted or by:
            columns = tuple(_COLUMNS[name] for name in by) or BY
            counts = desk.read.counts(wanted, by=columns)
            _say_counts(counts, columns, desk.now_ms(), as_json=as_json)
            empty = not counts
        else:
            page = desk.read.page(wanted, after=token, limit=limit)
            workers = Workers(desk.config)
            claims = {} if as_json else _claims(desk, page.rows, workers)
            given = Given(data_dir, config_file, APP_UNKNOWN if desk.config.app is None else None)
            still = None if as_json else _standstill(page.rows, claims, now_ms, workers, given)
            _say_page(page, now_ms, claims, still, as_json=as_json)
            empty = not page.rows
        if empty and not as_json:
            click.echo(f"no workflow is known that fits{desk.why_nothing()}", err=True)


def _place(after: str | None, now_ms: int) -> tuple[int, str | None]:
    """The moment from which ages are counted, and the reader's token. Ours carries the moment of the first page, so
    that `--older-than` means the same on every page; the reader refuses its own with another question."""
    if after is None:
        return now_ms, None
    moment, dot, token = after.partition(".")
    if not (dot and token and moment.isascii() and moment.isdecimal() and len(moment) <= 15):
        raise click.UsageError("--after: no page token of this list; begin again without it")
    return int(moment), token


# --- saying it ---------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What is known of a claim that is at work: the lease as last seen, and whether its worker runs."""

    lease_until: int | None = None
    holder: Holder = "unknown"


def _claims(desk: Snapshots, rows: Sequence[Line], workers: Workers) -> dict[str, Claim]:
    """By biz_key, of those that are being executed: a list reads columns, and the worker is in the whole snapshot."""
    found = dict[str, Claim]()
    for row in rows:
        seen = desk.read.get(row.biz_key) if row.waiting == "step" else None
        if seen is not None and seen.revision == row.revision:
            found[row.biz_key] = Claim(seen.lease_until, workers.holder(seen))
    return found


def _say_page(
    page: Page[Line], now_ms: int, claims: Mapping[str, Claim], still: Hindrance | None, *, as_json: bool
) -> None:
    token = None if page.next is None else f"{now_ms}.{page.next}"
    if as_json:
        say_json({"v": 1, "workflows": [msgspec.to_builtins(row) for row in page.rows], "next": token})
        return
    for line in table_of(page.rows, now_ms, claims):
        click.echo(visible(line))
    beside = [] if token is None else [f"more: --after {token}"]
    if still is not None:
        beside.append(f"what is due is not taken: {still.text}; try: {still.help}")
    if beside:
        click.echo(visible("; ".join(beside)), err=True)


def _standstill(
    rows: Sequence[Line], claims: Mapping[str, Claim], now_ms: int, workers: Workers, given: Given
) -> Hindrance | None:
    """Why nobody takes anything of what is due in the table, where that is seen."""
    if not any(_is_due(row, claims.get(row.biz_key, Claim()), now_ms) for row in rows):
        return None
    return standstill(workers.tree, given, is_alone=workers.owns_store)


def _is_due(row: Line, claim: Claim, now_ms: int) -> bool:
    return is_due(row.waiting, row.waiting_until, now_ms, lease_until=claim.lease_until, holder=claim.holder)


def table_of(rows: Sequence[Line], now_ms: int, claims: Mapping[str, Claim]) -> list[str]:
    """A row each; ids in full, because they are what the next command is given. What has ended has no age any more:
    there it is how long it took."""
    heads = ("WORKFLOW", "TYPE", "STATUS", "LANE", "STEP", "AGE", "WAITS FOR", "ERROR", "BIZ KEY")
    return aligned(heads, [_cells(row, now_ms, claims.get(row.biz_key, Claim())) for row in rows]) if rows else []


def _cells(row: Line, now_ms: int, claim: Claim) -> tuple[str, ...]:
    ended = row.finish_time
    age = span_text((now_ms if ended is None else ended) - row.created_time)
    waits = brief(
        row.waiting, row.waiting_on, row.waiting_until, now_ms, lease_until=claim.lease_until, holder=claim.holder
    )
    return (
        row.workflow_id,
        row.type,
        row.status,
        f"P{row.business_priority}",
        row.current_step or "-",
        age if ended is None else f"took {age}",
        waits or "-",
        row.error_code or "-",
        row.biz_key,
    )


def _say_counts(counts: Sequence[Count], columns: Sequence[Column], now_ms: int, *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                **{column: getattr(count, column) for column in columns},
                "n": count.n,
                "oldest_waiting_since": count.oldest_waiting_since,
            }
            for count in counts
        ]
        say_json({"v": 1, "counts": rows, "total": sum(count.n for count in counts)})
        return
    if not counts:
        return
    names = {column: name for name, column in _COLUMNS.items()}
    heads = ("COUNT", *(names[column].upper() for column in columns), "OLDEST WAIT")
    for line in aligned(heads, [_count_cells(count, columns, now_ms) for count in counts]):
        click.echo(visible(line))


def _count_cells(count: Count, columns: Sequence[Column], now_ms: int) -> tuple[str, ...]:
    values = (getattr(count, column) for column in columns)
    since = count.oldest_waiting_since
    oldest = "-" if since is None else f"{span_text(now_ms - since)} (since {clock_text(since)})"
    return (str(count.n), *("-" if value is None else str(value) for value in values), oldest)
