"""`workflow start`: a workflow of a biz_key, from a shell, through the publisher's client."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from kernel.client import Handle
from kernel.errors import DefinitionMismatch, ResultTimeout
from supervisor.cli_numbers import Seconds
from supervisor.ops_client import client_of, named_app, say_answer, settings
from supervisor.ops_shell import Given, store_command

WAIT_DEFAULT_S = 3600.0


@click.command()
@click.argument("type_", metavar="TYPE")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application that declares TYPE.")
@click.option("--biz-key", required=True, help="The permanent key of this work: one key is one workflow, for ever.")
@click.option("--input", "text", default="null", metavar="JSON", help="The input; @FILE reads it from a file.")
@click.option("--priority", default="async", help="realtime, async, background, compensation or 0-3 (default async).")
@click.option("--wait", is_flag=True, help="Wait for the end and print the last step's output.")
@click.option("--timeout", type=Seconds(), default=WAIT_DEFAULT_S, help="Seconds that --wait may take.")
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
    """Start the one of a biz_key, or find it; a failed one runs again with this input."""
    config = settings(data_dir, config_file, app)
    plan = named_app(config).definition(type_).plan
    value = _input(text, plan.input)
    lane = int(priority) if priority.isdigit() else priority
    with client_of(config) as client:
        handle = client.start_or_resume(plan, biz_key=biz_key, input=value, priority=lane)
        answer: dict[str, Any] = {
            "v": 1,
            "workflow_id": handle.workflow_id,
            "status": handle.status,
            "branch": handle.branch,
            "execution_activated": handle.execution_activated,
        }
        if wait and handle.branch == "definition_mismatch":
            raise DefinitionMismatch(
                f"{handle.workflow_id} failed under another version of {type_}; it is not run again"
            )
        if wait:
            show = Given(data_dir, config_file).line("workflow show", handle.workflow_id)
            answer["result"] = _result(handle, timedelta(seconds=timeout), show)
            answer["status"] = "completed"
    say_answer(answer, as_json=as_json)


def _result(handle: Handle, timeout: timedelta, show: str) -> Any:
    try:
        return msgspec.to_builtins(handle.result(timeout), str_keys=True)
    except ResultTimeout as error:
        raise click.ClickException(f"{error}; `{show}` tells what it waits for") from None


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
