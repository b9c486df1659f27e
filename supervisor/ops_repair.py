"""`workflow repair`: snapshots and attempts again, from the durable store, because somebody asked for it (obs-repair).

The only command of an operator that reads workflow_instances to show something; it writes none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.errors import CorruptRecord, Refused, UnknownVersion, UnknownWorkflow
from kernel.ids import check_id
from kernel.observe.repair import Repair, Repaired, RepairedPage
from kernel.runtime.observing import open_repair
from supervisor.ops_client import is_never_made, settings
from supervisor.ops_shell import data_folder, say_json, store_command, visible


class Outcome(msgspec.Struct, frozen=True):
    """What became of one workflow that was named."""

    name: str
    repaired: Repaired | None = None
    refused: str | None = None


@click.command()
@click.argument("names", metavar="[WORKFLOW_ID|BIZ_KEY]...", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Whatever has ended and is not known as it ended, with its attempts."
)
@store_command
def repair(
    names: tuple[str, ...], everything: bool, data_dir: str | None, config_file: str | None, as_json: bool
) -> None:
    """Rebuild what list and show know, from the durable store; exit 1 when one could not be."""
    if everything == bool(names):
        raise click.UsageError("name workflows, or say --all")
    with _desk(settings(data_dir, config_file)) as desk:
        if everything:
            failed = _everything(desk, as_json=as_json)
        else:
            outcomes = [_one(desk, name) for name in dict.fromkeys(names)]
            failed = any(outcome.refused for outcome in outcomes)
            _say(outcomes, as_json=as_json)
    if failed:
        sys.exit(1)


class NothingToRepair:
    """The repair of a tree that never ran: there is nothing to look up, and no store is made for that."""

    def repair(self, *, workflow_id: str | None = None, biz_key: str | None = None) -> Repaired:
        name = check_id(biz_key if workflow_id is None else workflow_id, "workflow_id")
        raise UnknownWorkflow(f"no workflow is known as {name!r}")

    def repair_all(self, after: str | None = None) -> RepairedPage:
        return RepairedPage(0, (), (), None)


@contextmanager
def _desk(config: Config) -> Iterator[Repair | NothingToRepair]:
    if is_never_made(config):
        yield NothingToRepair()
        return
    opened = open_repair(config, data_folder(config), SystemClock())
    try:
        yield opened
    finally:
        opened.close()


def _one(desk: Repair | NothingToRepair, name: str) -> Outcome:
    """An id, or else a key; a refusal is this one's alone."""
    try:
        try:
            return Outcome(name, desk.repair(workflow_id=name))
        except UnknownWorkflow:
            return Outcome(name, desk.repair(biz_key=name))
    except (Refused, UnknownVersion, CorruptRecord) as error:
        return Outcome(name, refused=str(error))


def _everything(desk: Repair | NothingToRepair, *, as_json: bool) -> bool:
    """Page after page; whether some row could not be read. With --json one object at the end: ids of what was done."""
    looked, repaired, unreadable = 0, 0, list[str]()
    after: str | None = None
    while True:
        page = desk.repair_all(after)
        looked, repaired = looked + page.looked, repaired + len(page.repaired)
        unreadable += page.unreadable
        for one in () if as_json else page.repaired:
            click.echo(visible(_line(one)))
        after = page.next
        if after is None:
            break
    if as_json:
        say_json({"v": 1, "looked": looked, "repaired": repaired, "unreadable": unreadable})
    else:
        click.echo(f"{looked} workflows looked at, {repaired} repaired")
        for workflow_id in unreadable:
            click.echo(visible(f"{workflow_id}  can not be read, and is left alone"), err=True)
    return bool(unreadable)


def _say(outcomes: list[Outcome], *, as_json: bool) -> None:
    if as_json:
        say_json({"v": 1, "workflows": [msgspec.to_builtins(outcome) for outcome in outcomes]})
        return
    for outcome in outcomes:
        if outcome.repaired is not None:
            click.echo(visible(_line(outcome.repaired)))
        else:
            click.echo(visible(f"{outcome.name}  {outcome.refused}"), err=True)


def _line(one: Repaired) -> str:
    return f"repaired  {one.workflow_id}  {one.status}  revision {one.revision}  {one.attempts} attempts  {one.biz_key}"
