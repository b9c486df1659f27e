"""What operator commands share: the options of a shell command, its errors in one line, text made safe to show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import click

from kernel.errors import KernelError, OutcomeUnknown, Refused, SchemaMismatch, StoreUnavailable

EXIT_UNAVAILABLE = 69


def shell_command(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every command takes, and its errors as one line and an exit status: 2 for a bad request, 69
    when the store can not be reached, 1 otherwise."""
    for option in (
        click.option("--data-dir", metavar="DIR", help="Data folder of the tree (default .kernel)."),
        click.option("--config", "config_file", metavar="FILE", envvar="KERNEL_CONFIG", help="Settings, TOML."),
        click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application whose declarations are meant."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
    ):
        command = option(command)

    @wraps(command)
    def run(**arguments: Any) -> None:
        with one_line_errors():
            command(**arguments)

    return run


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Kernel errors end the command: their line on stderr, and the exit status that ARCHITECTURE §10 gives them."""
    try:
        yield
    except Refused as error:
        click.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(2)
    except (StoreUnavailable, OutcomeUnknown, SchemaMismatch) as error:
        click.echo(f"error: {visible(str(error))} [{error.code}]", err=True)
        sys.exit(EXIT_UNAVAILABLE)
    except KernelError as error:
        click.echo(f"error: {visible(str(error))} [{error.code}]", err=True)
        sys.exit(1)


def visible(text: str) -> str:
    """Control characters of foreign text are shown and not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def clock_text(time_ms: int) -> str:
    """A time of the store, as the reader's clock shows it."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
