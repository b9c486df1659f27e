"""`workflow replay`: failed workflows again, each with the input that it has.

What an operator may run again is narrower than what a publisher may. A workflow whose input serves a business round is
not his to run: its round has failed, its business object says so, and only the object's user starts the next one
(req-two-failures); run again for the old round, its writes would be refused by their guards. Anything else is the same
`start_or_resume` as ever, with the stored bytes; completed steps stay completed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
import msgspec

from kernel.app import App
from kernel.client import Client
from kernel.definition import Plan
from kernel.dispatch import Snapshot, round_of
from kernel.errors import KernelError, Refused, Unavailable
from kernel.ids import check_id
from kernel.records import Instance
from kernel.states import FAILED
from supervisor.ops_client import client_of, find, named_app, settings
from supervisor.ops_shell import say_json, shell_command, visible


class Candidate(msgspec.Struct, frozen=True):
    """One workflow that was asked for: what it would be run again by, or why not."""

    workflow_id: str
    instance: Instance | None = None
    plan: Plan | None = None
    refused: str | None = None


class _Changed(Refused):
    """Somebody did something with the workflow between the look and the write."""

    code = "changed"


@click.command()
@click.argument("workflow_ids", metavar="WORKFLOW_ID|BIZ_KEY...", nargs=-1, required=True)
@click.option("--fresh", is_flag=True, help="One whose steps have changed since: all of them again, as a new run.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be run again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shell_command
def replay(
    workflow_ids: tuple[str, ...],
    fresh: bool,
    dry_run: bool,
    yes: bool,
    app: str | None,
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Run failed ones again with their stored input; exit 1 when one of them was not."""
    for name in workflow_ids:
        check_id(name, "workflow_id")
    config = settings(data_dir, config_file, app)
    declared = named_app(config)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("activities run again: say --yes where nobody can be asked, or --dry-run")
    with client_of(config, prepare=not dry_run) as client:
        # By id, so that one that is named by its id and by its key is run again once.
        asked = {name if one is None else one.workflow_id: one for name, one in _looked_up(client, workflow_ids)}
        found = [candidate(workflow_id, one, declared, fresh=fresh) for workflow_id, one in asked.items()]
        if not as_json or not (yes or dry_run):
            _preview(found)
        wanted = [one for one in found if one.refused is None]
        if wanted and not (yes or dry_run):
            click.confirm(f"run {len(wanted)} again?", abort=True)
        done = found if dry_run else [one if one.refused else _run(client, one) for one in found]
    _say(done, found, as_json=as_json, dry_run=dry_run)
    if any(one.refused for one in done):
        sys.exit(1)


def _looked_up(client: Client, names: Sequence[str]) -> Iterator[tuple[str, Instance | None]]:
    for name in names:
        yield name, find(client.get, name)


def candidate(workflow_id: str, instance: Instance | None, app: App, *, fresh: bool) -> Candidate:
    """Whether an operator may run this workflow again, and by which plan."""
    if instance is None:
        return Candidate(workflow_id, refused="does not exist")
    if instance.parked is not None:
        return Candidate(workflow_id, instance, refused=f"is parked: `workflow unpark {workflow_id}` brings it back")
    if instance.status != FAILED:
        return Candidate(workflow_id, instance, refused=f"is {instance.status}: only a failed workflow is run again")
    served = round_of(instance.input)
    if served is not None:
        why = f"has failed for the round {served} of its business object: only a request of its user starts it over"
        return Candidate(workflow_id, instance, refused=why)
    definition = app.definitions.get(instance.type)
    if definition is None:
        known = ", ".join(sorted(app.definitions)) or "none"
        return Candidate(workflow_id, instance, refused=f"is of type {instance.type}; the application has {known}")
    plan = definition.plan
    if fresh:
        plan = msgspec.structs.replace(plan, on_changed_plan="fresh_run")
    if plan.key != instance.definition_key and plan.on_changed_plan != "fresh_run":
        why = f"failed under another version of {instance.type}: --fresh runs all steps of the new one"
        return Candidate(workflow_id, instance, refused=why)
    return Candidate(workflow_id, instance, plan)


def _run(client: Client, one: Candidate) -> Candidate:
    """Run it again if it is still as it was seen; only a store that does not answer ends the whole command."""
    seen, plan = one.instance, one.plan
    assert seen is not None and plan is not None, "refused above"

    def unchanged() -> None:
        now = client.get(seen.workflow_id)
        if now is None or now.revision != seen.revision:
            raise _Changed("was changed by somebody else in this moment: look again")

    try:
        handle = client.start_or_resume(
            plan,
            biz_key=seen.biz_key,
            input=Snapshot(seen.input),
            priority=seen.business_priority,
            before_write=unchanged,
        )
    except Unavailable:
        raise
    except KernelError as error:
        return msgspec.structs.replace(one, refused=str(error))
    if handle.branch == "replayed":
        return one
    return msgspec.structs.replace(one, refused=f"is {handle.branch}: nothing was run again")


def _preview(found: Sequence[Candidate]) -> None:
    """To stderr: what a program reads comes after."""
    for one in found:
        click.echo(visible(f"{one.workflow_id}  {one.refused or _standing(one)}"), err=True)


def _standing(one: Candidate) -> str:
    assert one.instance is not None and one.plan is not None, "only of one that is not refused"
    error = one.instance.error
    why = "" if error is None else f", failed by {error.code}: {error.message[:120]}"
    whole = one.plan.key != one.instance.definition_key
    left = "all steps" if whole else ", ".join(s.name for s in one.instance.steps if s.status == "failed")
    return (
        f"{one.instance.type} {one.instance.biz_key}, run {one.instance.workflow_run}{why}; again: {left or 'its end'}"
    )


def _say(done: Sequence[Candidate], told: Sequence[Candidate], *, as_json: bool, dry_run: bool) -> None:
    replayed = [one.workflow_id for one in done if one.refused is None]
    refused = [{"workflow_id": one.workflow_id, "reason": one.refused} for one in done if one.refused is not None]
    if as_json:
        say_json({"v": 1, "would_replay" if dry_run else "replayed": replayed, "refused": refused})
        return
    for one in done:
        if one.refused is not None and one not in told:
            click.echo(visible(f"{one.workflow_id}  {one.refused}"), err=True)
    for workflow_id in () if dry_run else replayed:
        click.echo(f"replayed  {visible(workflow_id)}")
