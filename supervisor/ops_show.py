"""`workflow show | watch | attempts`: one workflow on one screen, its changes as they come, every attempt of its steps.

Show and watch read the snapshot alone; only the diagnosis of a step reads attempts (obs-snapshot-use).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import click
import msgspec

from kernel.ids import check_name
from kernel.observe.views import Attempt, Snapshot
from kernel.states import TERMINAL
from supervisor.cli_numbers import WholeNumber
from supervisor.ops_lookout import Lookout
from supervisor.ops_now import Beside, reading
from supervisor.ops_page import attempt_line, page, unknown_line
from supervisor.ops_shell import (
    Given,
    begin_again,
    clock_text,
    is_ascii_only,
    pause,
    say,
    say_json,
    shell_command,
    store_command,
    visible,
)
from supervisor.ops_snapshots import Snapshots, snapshots
from supervisor.ops_surroundings import Surroundings
from supervisor.ops_timeline import as_of
from supervisor.ops_workers import Workers

WATCH_S = 1.0
FOLLOW_S = 0.5
ATTEMPTS_SHOWN = 100


@click.command()
@click.argument("name", metavar="WORKFLOW_ID|BIZ_KEY")
@click.option("--watch", is_flag=True, help="Again every second, until interrupted or until it ends.")
@shell_command
def show(name: str, watch: bool, app: str | None, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """What one workflow waits for, and its timeline, errors, signals and chain of identities."""
    given = Given(data_dir, config_file, app)
    with snapshots(data_dir, config_file, app) as desk, ExitStack() as until:
        seen = found(desk, name, given)
        lookout = Lookout(desk.config, given, until)
        while True:
            if watch and not as_json:
                begin_again()
            now_ms = desk.now_ms()
            around, beside = lookout.look(seen, now_ms)
            _say(seen, around, now_ms, beside, as_json=as_json)
            sys.stdout.flush()
            if not watch or seen.status in TERMINAL:
                return
            pause(WATCH_S)
            seen = found(desk, name, given)


@click.command()
@click.argument("name", metavar="WORKFLOW_ID|BIZ_KEY")
@store_command
def watch(name: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """Follow one: a line for each change until it ends; with --json one JSON object a line."""
    given = Given(data_dir, config_file)
    with snapshots(data_dir, config_file) as desk:
        revision = -1
        while True:
            seen = found(desk, name, given)
            if seen.revision != revision:
                revision = seen.revision
                _say_change(seen, Beside(given=given), as_json=as_json)
                sys.stdout.flush()
            if seen.status in TERMINAL:
                return
            pause(FOLLOW_S)


@click.command()
@click.argument("name", metavar="WORKFLOW_ID|BIZ_KEY")
@click.argument("step", required=False)
@click.option("--limit", type=WholeNumber(1, ATTEMPTS_SHOWN), default=ATTEMPTS_SHOWN, help="Rows of a page.")
@click.option("--after", metavar="TOKEN", help="The page after the one that named this token.")
@store_command
def attempts(
    name: str,
    step: str | None,
    limit: int,
    after: str | None,
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Every attempt of its steps, or of one STEP, the oldest first: worker, times, outcome, error."""
    if step is not None:
        check_name(step, "STEP")
    with snapshots(data_dir, config_file) as desk:
        seen = found(desk, name, Given(data_dir, config_file))
        if step is not None and step not in [one.name for one in seen.steps]:
            known = ", ".join(one.name for one in seen.steps)
            raise click.UsageError(visible(f"{seen.workflow_id} has no step {step}; it has {known}"))
        rows = desk.read.attempts(seen.biz_key, step=step, after=after, limit=limit)
        # With the last page: what is on no page is known only then.
        gaps = [] if rows.next is not None else unknown_attempts(seen, step, _every(desk, seen.biz_key, step))
        now_ms, workers = desk.now_ms(), Workers(desk.config)
    if as_json:
        told = [msgspec.to_builtins(row) for row in rows.rows]
        unknown = [{"workflow_run": run, "step": name, "attempt": number} for run, name, number in gaps]
        say_json({"v": 1, "workflow_id": seen.workflow_id, "attempts": told, "unknown": unknown, "next": rows.next})
        return
    names, holder = workers.names(seen), workers.holder(seen)
    for row in rows.rows:
        held = row.worker_id == seen.worker_id
        click.echo(attempt_line(row, now_ms, names=names, holder=holder if held else "unknown"))
    for gap in gaps:
        click.echo(unknown_line(*gap))
    if rows.next is not None:
        click.echo(f"more: --after {rows.next}", err=True)
    if not rows.rows and not gaps:
        click.echo("no attempt of it is known", err=True)


def _every(desk: Snapshots, biz_key: str, step: str | None) -> Iterator[Attempt]:
    """All attempts that are known, page by page."""
    after = None
    while True:
        page = desk.read.attempts(biz_key, step=step, after=after, limit=ATTEMPTS_SHOWN)
        yield from page.rows
        after = page.next
        if after is None:
            return


def unknown_attempts(seen: Snapshot, step: str | None, known: Iterable[Attempt]) -> list[tuple[int, str, int]]:
    """Run, step and number of each attempt that the snapshot counts and `known` has not. A step that was completed
    before the present run was worked at in an earlier one, whose rows stand for it."""
    rows = {(row.workflow_run, row.step, row.attempt) for row in known}
    earlier = {(name, number) for _, name, number in rows}
    gaps = []
    for one in seen.steps:
        if step is not None and one.name != step:
            continue
        kept = one.finish_time is not None and one.finish_time < seen.run_time
        for number in range(1, one.attempt + 1):
            there = (one.name, number) in earlier if kept else (seen.workflow_run, one.name, number) in rows
            if not there:
                gaps.append((seen.workflow_run, one.name, number))
    return gaps


def found(desk: Snapshots, name: str, given: Given) -> Snapshot:
    """The snapshot of an id or key; else one line that says what may be done."""
    seen = desk.find(name)
    if seen is None:
        raise click.ClickException(
            visible(
                f"nothing is known of {name}: it does not exist, has been forgotten, or was not observed; "
                f"`{given.line('workflow repair', name)}` looks it up in the durable store{desk.why_nothing()}"
            )
        )
    return seen


def _say(seen: Snapshot, around: Surroundings, now_ms: int, beside: Beside, *, as_json: bool) -> None:
    if as_json:
        say_json(as_builtins(seen, around, now_ms, beside))
        return
    for line in page(seen, around, now_ms, plain=is_ascii_only(), beside=beside):
        say(line)


def as_builtins(seen: Snapshot, around: Surroundings, now_ms: int, beside: Beside) -> dict[str, Any]:
    """The snapshot with what stands on its screen: `now` is the sentence, `as_of` where time went until now."""
    shown = as_of(seen, now_ms)
    split = {"total": msgspec.to_builtins(shown.split)}
    split |= {step.name: msgspec.to_builtins(step.split) for step in shown.steps}
    return {
        **msgspec.to_builtins(seen),
        "v": 1,
        "now_ms": now_ms,
        "now": msgspec.to_builtins(reading(seen, now_ms, beside)),
        "as_of": split,
        **msgspec.to_builtins(around),
    }


def _say_change(seen: Snapshot, beside: Beside, *, as_json: bool) -> None:
    """What is new, as of the moment of the change."""
    now = reading(seen, seen.updated_time, beside)
    if as_json:
        steps = {step.name: {"status": step.status, "attempt": step.attempt} for step in seen.steps}
        say_json(
            {
                "v": 1,
                "workflow_id": seen.workflow_id,
                "revision": seen.revision,
                "updated_time": seen.updated_time,
                "status": seen.status,
                "now": msgspec.to_builtins(now),
                "steps": steps,
            }
        )
        return
    done = "".join(f"  {step}" for step in _steps(seen))
    click.echo(visible(f"{clock_text(seen.updated_time)}  {seen.status}{done}  {now.sentence}"))


def _steps(seen: Snapshot) -> Iterator[str]:
    ended = [step for step in seen.steps if step.finish_time is not None]
    yield f"{len(ended)}/{len(seen.steps)} steps"
