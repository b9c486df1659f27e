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

from kernel.engine.matching import signal_waits
from kernel.ids import workflow_id_for
from kernel.records import Instance
from kernel.signals import Signal, SignalReceipt
from kernel.states import TERMINAL
from supervisor.cli_numbers import WholeNumber
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
        target = known(client.get, workflow_id).workflow_id
        answer = client.supersede(target)
    say_answer({"v": 1, "changed": answer.changed, "status": answer.status}, as_json=as_json)
    if not (answer.changed or as_json):
        _remark(f"{target} is {answer.status} already: nothing was changed")


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@click.argument("signal_type", metavar="TYPE")
@click.option("--key", "wait_key", required=True, metavar="K", help="Which business object: equal to the wait's key.")
@click.option("--generation", type=WholeNumber(), default=0, metavar="N", help="The wait generation (default 0).")
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
        remark = _without_effect(receipt, made, target)
    say_answer({"v": 1, **msgspec.to_builtins(receipt)}, as_json=as_json)
    if receipt.conflict:
        raise click.ClickException(f"id {visible(signal_id)} was used for another signal: this one is not delivered")
    if remark is not None and not as_json:
        _remark(remark)


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@store_command
def unpark(workflow_id: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """Bring back one that was put aside because its workers died."""
    with client_of(settings(data_dir, config_file)) as client:
        target = known(client.get, workflow_id)
        changed = client.unpark(target.workflow_id)
    say_answer({"v": 1, "changed": changed}, as_json=as_json)
    if not (changed or as_json):
        _remark(f"{target.workflow_id} was not put aside, it is {target.status}: nothing was changed")


def _remark(line: str) -> None:
    """On stderr, for people: an answer without an effect is easily taken for one with it."""
    click.echo(visible(line), err=True)


def _without_effect(receipt: SignalReceipt, made: Signal, seen: Instance | None) -> str | None:
    """Why this signal has woken nobody; None when it has. `seen` is the workflow just before."""
    if receipt.activated:
        return None
    if receipt.duplicate:
        return "a signal of this id was delivered before: nothing is done twice"
    if receipt.matched:
        return None
    if receipt.target in TERMINAL:
        return f"that workflow is {receipt.target}: it waits for nothing now"
    if seen is None:
        return "nobody is there to wait for it: it is kept until he comes"
    waits = [wait for index in signal_waits(seen) if (wait := seen.steps[index].wait) is not None]
    told = [f"{one.signal_type} --key {one.wait_key} --generation {one.generation}" for one in waits]
    wanted = f"{made.signal_type} --key {made.wait_key} --generation {made.generation}"
    if wanted in told:
        return f"{seen.workflow_id} is held by a worker just now: the signal is kept, and taken afterwards"
    what = " or ".join(told) or "no signal"
    return f"{seen.workflow_id} waits for {what}, not for {wanted}: the signal is kept until it does"
