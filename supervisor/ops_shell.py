"""What operator commands share: the options of a shell command, its errors in one line, text made safe to show,
the terminal."""

from __future__ import annotations

import json
import select
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from kernel.config import Config, is_plain_terminal
from kernel.errors import (
    KernelError,
    Refused,
    SchemaMismatch,
    StoreUnavailable,
    Unavailable,
    UnknownVersion,
    UnknownWorkflow,
)

EXIT_UNAVAILABLE = 69
NAME = "kernel-supervisor"
APP_UNKNOWN = "MODULE:ATTRIBUTE"
LOOKING_BUDGET_S = 5.0

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
    except (UnknownVersion, UnknownWorkflow) as error:
        # Nothing is wrong with the question: the row is of a newer release, or there is none.
        click.echo(f"error: {visible(str(error))} [{error.code}]", err=True)
        sys.exit(1)
    except Refused as error:
        click.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(2)
    except (Unavailable, SchemaMismatch) as error:
        click.echo(f"error: {visible(str(error))} [{error.code}]", err=True)
        sys.exit(EXIT_UNAVAILABLE)
    except KernelError as error:
        click.echo(f"error: {visible(str(error))} [{error.code}]", err=True)
        sys.exit(1)


class Given(NamedTuple):
    """What a command was told on its own line, so that the commands that it names run as they are printed."""

    data_dir: str | None = None
    config_file: str | None = None
    app: str | None = APP_UNKNOWN
    """For a command that needs an application; None where it finds that in its settings."""

    def line(self, verb: str, *words: str, app: bool = False) -> str:
        """A command line to paste: words of others are quoted. `app`: that command needs an application."""
        options = (("--data-dir", self.data_dir), ("--config", self.config_file), ("--app", self.app if app else None))
        more = [word for option, value in options if value is not None for word in (option, value)]
        return " ".join([NAME, verb, *(shlex.quote(word) for word in (*words, *more))])


def data_folder(config: Config) -> Path:
    """The tree's folder, absolute. Raises StoreUnavailable where the stores lie in it and it does not exist: a command
    that only looks makes none."""
    folder = Path(config.data_dir).absolute()
    if config.mongodb_uri is None and not folder.is_dir():
        raise StoreUnavailable(f"there is no data folder {folder}")
    return folder


def patient(config: Config) -> Config:
    """The settings with more time for Redis: nobody's work waits for a command that looks, and on a busy machine an
    answer that is late is an answer still."""
    return msgspec.structs.replace(config, redis_budget_s=max(config.redis_budget_s, LOOKING_BUDGET_S))


def visible(text: str) -> str:
    """Control characters of foreign text are shown and not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def clock_text(time_ms: int) -> str:
    """A time of the store, as the reader's clock shows it; also for one that somebody has written by hand."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def span_text(ms: int) -> str:
    """A duration for people: two figures of it are enough to decide by."""
    if ms < 1_000:
        return f"{max(0, ms)} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes = ms // 60_000
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def many(count: int, noun: str) -> str:
    """`1 place`, `2 places`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def aligned(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as lines; every row has as many cells as there are heads."""
    cells = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def say_json(answer: dict[str, Any]) -> None:
    """One JSON object on one line. Whatever an id or an error holds, no character of it reaches a terminal as such."""
    try:
        text = json.dumps(answer, ensure_ascii=True, allow_nan=False)
    except ValueError:  # an output may hold what JSON has no word for: null stands for it
        text = json.dumps(json.loads(msgspec.json.encode(answer)), ensure_ascii=True)
    click.echo(text)


def say(line: str) -> None:
    """A line with colours in it: click leaves them out where no terminal reads, and here where none are wanted."""
    click.echo(click.unstyle(line) if is_plain_terminal() else line)


def is_ascii_only() -> bool:
    """Whether stdout can not be given the glyphs of a timeline."""
    try:
        "░▒─█▏…".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def begin_again() -> None:
    """Before the next picture of a `--watch`: a terminal is cleared, elsewhere pictures follow each other."""
    if sys.stdout.isatty():
        click.echo("\x1b[H\x1b[2J", nl=False)


def pause(seconds: float) -> None:
    """Wait between two looks; Ctrl-C ends the wait, and the command with exit status 130."""
    select.poll().poll(round(seconds * 1000))
