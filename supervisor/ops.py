"""`kernel-supervisor workflow …`: start, look at and steer workflows from a shell, through the publisher's client.

Exit status: 0 done, 1 the thing asked for failed, 2 usage, 69 the store can not be reached.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from kernel.client import Client
from kernel.codec import decode
from kernel.config import Config, load
from kernel.errors import (
    DefinitionMismatch,
    KernelError,
    ResultTimeout,
    StoreUnavailable,
)
from kernel.records import Instance
from kernel.runtime import embedded_redis_url, load_app, open_client
from kernel.signals import Signal
from supervisor.ops_shell import clock_text, store_command, visible

WAIT_DEFAULT_S = 3600.0
_SHOWN_MAX = 400


@click.group()
def workflow() -> None:
    """Start workflows and see what they are waiting for."""


@workflow.command()
@click.argument("type_", metavar="TYPE")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application that declares TYPE.")
@click.option("--biz-key", required=True, help="The permanent key of this work: one key is one workflow, for ever.")
@click.option("--input", "text", default="null", metavar="JSON", help="The input; @FILE reads it from a file.")
@click.option("--priority", default="async", help="realtime, async, background, compensation or 0-3 (default async).")
@click.option("--wait", is_flag=True, help="Wait for the end and print the last step's output.")
@click.option("--timeout", type=click.FloatRange(min=0), default=WAIT_DEFAULT_S, help="Seconds that --wait may take.")
@store_command
def start(
    type_: str,
    app: str | None,
    biz_key: str,
    text: str,
    priority: str,
    wait: bool,
    timeout: float,
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Start the workflow of a biz_key, or find it; a failed one runs again with this input."""
    config = _config(data_dir, config_file, app)
    plan = load_app(config.app).definition(type_).plan
    value = _input(text, plan.input)
    client = _client(config)
    lane = int(priority) if priority.isdigit() else priority
    handle = client.start_or_resume(plan, biz_key=biz_key, input=value, priority=lane)
    answer: dict[str, Any] = {
        "v": 1,
        "workflow_id": handle.workflow_id,
        "status": handle.status,
        "branch": handle.branch,
        "execution_activated": handle.execution_activated,
    }
    if wait and handle.branch == "definition_mismatch":
        raise DefinitionMismatch(f"{handle.workflow_id} failed under another version of {type_}; it is not run again")
    if wait:
        try:
            answer["result"] = _plain(handle.result(timedelta(seconds=timeout)))
        except ResultTimeout as error:
            raise click.ClickException(str(error)) from None
        answer["status"] = "completed"
    _print(answer, as_json=as_json)


@workflow.command()
@click.argument("workflow_id")
@store_command
def show(workflow_id: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """One workflow: where it stands, what it waits for, its steps and errors."""
    instance = _client(_config(data_dir, config_file), prepare=False).get(workflow_id)
    if instance is None:
        raise click.ClickException(f"workflow {visible(workflow_id)} does not exist")
    if as_json:
        click.echo(json.dumps(_detail(instance), ensure_ascii=False))
        return
    for line in _lines(instance):
        click.echo(visible(line))


@workflow.command()
@click.argument("workflow_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_command
def supersede(workflow_id: str, yes: bool, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """End a live workflow as canceled, for good."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("this can not be undone: say --yes where nobody can be asked")
    if not yes:
        click.confirm(f"cancel {visible(workflow_id)} for good?", abort=True)
    answer = _client(_config(data_dir, config_file)).supersede(workflow_id)
    _print({"v": 1, "changed": answer.changed, "status": answer.status}, as_json=as_json)


@workflow.command()
@click.argument("workflow_id")
@click.argument("signal_type", metavar="TYPE")
@click.option("--key", "wait_key", required=True, metavar="K", help="Which business object: equal to the wait's key.")
@click.option("--generation", type=int, default=0, metavar="N", help="The wait generation (default 0).")
@click.option("--id", "signal_id", required=True, metavar="ID", help="The same id again is the same signal, once.")
@store_command
def signal(
    workflow_id: str,
    signal_type: str,
    wait_key: str,
    generation: int,
    signal_id: str,
    data_dir: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Tell a workflow that what it waits for may have changed; it looks again."""
    made = Signal(
        signal_id=signal_id,
        workflow_id=workflow_id,
        signal_type=signal_type,
        wait_key=wait_key,
        generation=generation,
    )
    logging.getLogger("kernel.signals").setLevel(logging.ERROR)  # the receipt says the same, in one line
    receipt = _client(_config(data_dir, config_file)).deliver_signals([made])[0]
    _print({"v": 1, **msgspec.to_builtins(receipt)}, as_json=as_json)
    if receipt.conflict:
        raise click.ClickException(f"id {visible(signal_id)} was used for another signal: this one is not delivered")


@workflow.command()
@click.argument("workflow_id")
@store_command
def unpark(workflow_id: str, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """Bring back a workflow that was put aside because its workers died."""
    changed = _client(_config(data_dir, config_file)).unpark(workflow_id)
    _print({"v": 1, "changed": changed}, as_json=as_json)


def _config(data_dir: str | None, config_file: str | None, app: str | None = None) -> Config:
    return load({"data_dir": data_dir, "app": app}, file=config_file).config


def _client(config: Config, *, prepare: bool = True) -> Client:
    folder = Path(config.data_dir).absolute()
    if config.mongodb_uri is None and not folder.is_dir():
        raise StoreUnavailable(f"there is no data folder {folder}")
    return open_client(config, folder, config.redis_url or embedded_redis_url(folder), prepare=prepare)


def _input(text: str, wanted: Any) -> Any:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--input: {text}: {error}") from None
    try:
        return msgspec.json.decode(text, type=Any if wanted is None else wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"--input: {error}") from None


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _detail(instance: Instance) -> dict[str, Any]:
    detail: dict[str, Any] = {"v": 1, **msgspec.to_builtins(instance)}
    detail["input"] = _decoded(instance.input)
    detail["outputs"] = {name: _decoded(data) for name, data in instance.outputs.items()}
    for step, record in zip(detail["steps"], instance.steps, strict=True):
        step["checkpoint"] = None if record.checkpoint is None else _decoded(record.checkpoint)
    return detail


def _decoded(data: bytes) -> Any:
    try:
        return _plain(decode(data, Any, "value"))
    except KernelError as error:
        return {"undecodable": str(error)}


def _lines(instance: Instance) -> list[str]:
    lines = [
        f"{instance.workflow_id}  {instance.type}  {instance.status}  run {instance.workflow_run}",
        f"biz_key   {instance.biz_key}",
        f"version   {instance.definition_fingerprint[:12]}  revision {instance.revision}",
        f"lane      P{instance.business_priority}",
        f"now       {_now(instance)}",
    ]
    for step in instance.steps:
        error = "" if step.error is None else f"  {step.error.type}: {step.error.message}"
        times = f"executed {step.elapsed_ms} ms, external wait {step.external_wait_ms} ms"
        lines.append(
            f"  {step.name:<24} {step.status:<10} attempt {step.attempt} takeovers {step.takeovers}  {times}{error}"
        )
        if step.checkpoint is not None:
            lines.append(f"    checkpoint {_short(step.checkpoint)}")
    if instance.status == "completed":
        last = instance.outputs.get(instance.steps[-1].name)
        lines.append(f"result    {'null' if last is None else _short(last)}")
    return lines


def _short(data: bytes) -> str:
    """The beginning of a stored value; the whole of it is in the JSON."""
    text = json.dumps(_decoded(data), ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _now(instance: Instance) -> str:
    """The one thing that it waits for."""
    if instance.parked is not None:
        return f"parked: {instance.parked.reason}"
    if instance.deferred is not None:
        return f"no live worker has version {instance.deferred.stored[:12]}"
    if instance.claim_token is not None:
        return f"executed by {instance.worker}"
    if instance.finalizer is not None:
        return f"prepare or finalizer, try {instance.finalizer.attempt} failed: {instance.finalizer.error.message}"
    if instance.wait is not None:
        what = f"signal {instance.wait.signal_type}" if instance.wait.signal_type else "its time"
        until = "" if instance.wait.poll_time is None else f", looks again at {clock_text(instance.wait.poll_time)}"
        return f"{instance.wait.step} waits for {what}{until}"
    if instance.error is not None:
        return f"{instance.status}: {instance.error.type}: {instance.error.message}"
    return "ready for a worker" if instance.status in ("running", "failing") else instance.status


def _print(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return
    for name, value in answer.items():
        if name != "v":
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            click.echo(f"{name}  {visible(str(shown))}")
