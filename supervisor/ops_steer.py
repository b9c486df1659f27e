"""`workflow signal | supersede | unpark`: what people do to a workflow, through the publisher's client.

Whom nobody knows is an error here, although the client takes it without one: what a person types is mostly not early
but mistyped, and done for nobody it would look like done.
"""

from __future__ import annotations

import logging
import re
import sys

import click
import msgspec

from kernel.ids import workflow_id_for
from kernel.signals import Signal
from supervisor.ops_client import client_of, find, known, say_answer, settings
from supervisor.ops_shell import store_command, visible

_OF_A_KEY = re.compile(r"wf-[0-9a-f]{32}")
"""What `workflow_id_for` makes: every workflow that will ever exist is named like this."""


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_command
def supersede(workflow_id: str, yes: bool, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """End a live workflow as canceled, for good."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("this can not be undone: say --yes where nobody can be asked")
    if not yes:
        click.confirm(f"cancel {visible(workflow_id)} for good?", abort=True)
    with client_of(settings(data_dir, config_file)) as client:
        answer = client.supersede(known(client.get, workflow_id).workflow_id)
    say_answer({"v": 1, "changed": answer.changed, "status": answer.status}, as_json=as_json)


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@click.argument("signal_type", metavar="TYPE")
@click.option("--key", "wait_key", required=True, metavar="K", help="Which business object: equal to the wait's key.")
@click.option("--generation", type=int, default=0, metavar="N", help="The wait generation (default 0).")
@click.option("--id", "signal_id", required=True, metavar="ID", help="The same id again is the same signal, once.")
@click.option("--early", is_flag=True, help="For one that does not exist yet: the signal is kept for it.")
@store_command
def signal(
    workflow_id: str,
    signal_type: str,
    wait_key: str,
    generation: int,
    signal_id: str,
    early: bool,
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Tell one that what it waits for may have changed: it looks again."""
    made = Signal(
        signal_id=signal_id,
        workflow_id=workflow_id,
        signal_type=signal_type,
        wait_key=wait_key,
        generation=generation,
    )
    logging.getLogger("kernel.signals").setLevel(logging.ERROR)  # the receipt says the same, in one line
    with client_of(settings(data_dir, config_file)) as client:
        target = find(client.get, workflow_id)
        if target is not None:
            workflow_id = target.workflow_id
        elif not early:
            shown = visible(workflow_id)
            raise click.ClickException(f"workflow {shown} does not exist: say --early to keep the signal until it does")
        elif _OF_A_KEY.fullmatch(workflow_id) is None:
            workflow_id = workflow_id_for(workflow_id)
        receipt = client.deliver_signals([msgspec.structs.replace(made, workflow_id=workflow_id)])[0]
    say_answer({"v": 1, **msgspec.to_builtins(receipt)}, as_json=as_json)
    if receipt.conflict:
        raise click.ClickException(f"id {visible(signal_id)} was used for another signal: this one is not delivered")


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@store_command
def unpark(workflow_id: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """Bring back one that was put aside because its workers died."""
    with client_of(settings(data_dir, config_file)) as client:
        changed = client.unpark(known(client.get, workflow_id).workflow_id)
    say_answer({"v": 1, "changed": changed}, as_json=as_json)
