"""`workflow record`: the stored record of one workflow, with input, outputs and checkpoints.

No view of an operator is made of it: those read snapshots, which hold nothing of a user's (obs-never-instances). This
is for the author of an activity who wants to see what a step was given and has remembered: one row of the durable
store, read by its key, because somebody asked for that row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import click
import msgspec

from kernel.clock import SystemClock
from kernel.codec import decode
from kernel.errors import KernelError
from kernel.records import Instance, to_instance
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from supervisor.ops_client import known, open_stored, settings
from supervisor.ops_shell import say_json, store_command, visible

_SHOWN_MAX = 400


@click.command()
@click.argument("workflow_id", metavar="WORKFLOW_ID|BIZ_KEY")
@store_command
def record(workflow_id: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """The stored input, outputs and checkpoints of one workflow."""
    with closing(open_stored(settings(data_dir, config_file), SystemClock())) as store:
        instance = known(partial(_read, store), workflow_id)
    if as_json:
        say_json(_detail(instance))
        return
    for line in _lines(instance):
        click.echo(visible(line))


def _read(store: Store, workflow_id: str) -> Instance | None:
    document = store.get(INSTANCES, workflow_id)
    return None if document is None else to_instance(document)


def _detail(instance: Instance) -> dict[str, Any]:
    detail: dict[str, Any] = {**msgspec.to_builtins(instance), "v": 1}
    detail["input"] = _decoded(instance.input)
    detail["outputs"] = {name: _decoded(data) for name, data in instance.outputs.items()}
    for step, stored in zip(detail["steps"], instance.steps, strict=True):
        step["checkpoint"] = None if stored.checkpoint is None else _decoded(stored.checkpoint)
    return detail


def _lines(instance: Instance) -> Iterator[str]:
    yield (
        f"{instance.workflow_id}  {instance.type}  {instance.status}  run {instance.workflow_run}  "
        f"revision {instance.revision}"
    )
    yield f"input       {_short(instance.input)}"
    for step in instance.steps:
        yield f"{step.name}  {step.status}"
        if step.checkpoint is not None:
            yield f"    checkpoint  {_short(step.checkpoint)}"
        if step.name in instance.outputs:
            yield f"    output      {_short(instance.outputs[step.name])}"


def _short(data: bytes) -> str:
    """The beginning of a stored value; the whole of it is in the JSON."""
    text = json.dumps(_decoded(data), ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.to_builtins(decode(data, Any, "value"), str_keys=True)
    except KernelError as error:
        return {"undecodable": str(error)}
