"""Commands that are named by strings and loaded when they are run, so that `--help` is fast and loads no driver."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command lies, and the line that `--help` shows for it."""

    target: str
    help: str


class LazyGroup(click.Group):
    """A group some of whose commands are strings. A module that is missing is one line and exit 2."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module_name, _, attribute = self._lazy[cmd_name].target.partition(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            raise click.UsageError(
                f"{cmd_name}: there is no module {error.name!r} (an extra that is not installed?)"
            ) from error
        except AttributeError as error:
            raise click.UsageError(f"{cmd_name}: {error}") from error
        assert isinstance(command, click.Command), f"{self._lazy[cmd_name].target} is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands without loading them."""
        rows = []
        for name in self.list_commands(ctx):
            known = self.commands.get(name)
            rows.append((name, known.get_short_help_str(limit=80) if known is not None else self._lazy[name].help))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
