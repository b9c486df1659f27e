"""What operator commands share: the options of a shell command, its errors in one line, text made safe to show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import click

from kernel.errors import KernelError, OutcomeUnknown, Refused, SchemaMismatch, StoreUnavailable

EXIT_UNAVAILABLE = 69


_Command = Callable[..., None]

_DATA_DIR = click.option("--data-dir", metavar="DIR", help="Data folder of the tree (default .kernel).")
_CONFIG = click.option("--config", "config_file", metavar="FILE", envvar="KERNEL_CONFIG", help="Settings, TOML.")
_APP = click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application whose declarations are meant.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def store_command(command: _Command) -> _Command:
    """The options of a command that needs the stores only, and its errors as one line and an exit status: 2 for a bad
    request, 69 when the store can not be reached, 1 otherwise."""
    return _guarded(command, (_DATA_DIR, _CONFIG, _JSON))


def shell_command(command: _Command) -> _Command:
    """As `store_command`, for a command that also reads the application's declarations."""
    return _guarded(command, (_DATA_DIR, _CONFIG, _APP, _JSON))


def _guarded(command: _Command, options: Iterable[Callable[[_Command], _Command]]) -> _Command:
    for option in options:
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
