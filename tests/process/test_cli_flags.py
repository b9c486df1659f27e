"""Switches of the command line: read from the command line alone, so that no `NAME=false` switches one on (A88)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from supervisor.cli import cli

ROOT = Path(__file__).parents[2]


def _commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _commands(below, f"{path} {name}".strip())


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Every option of a command and of those below it, with the words that lead there."""
    for path, below in _commands(command):
        for parameter in below.params:
            if isinstance(parameter, click.Option):
                yield path, parameter


@pytest.mark.case("A88")
def test_no_switch_is_read_from_the_environment() -> None:
    options = list(_options(cli))
    switches = [(path, option) for path, option in options if option.is_flag or option.is_bool_flag]

    assert len({path for path, _ in options}) > 20, "the commands behind late imports were looked at, too"
    assert [(path, option.name) for path, option in switches if option.envvar] == []
    assert [path for path, command in _commands(cli) if command.context_settings.get("auto_envvar_prefix")] == []


@pytest.mark.case("A88")
def test_a_click_that_misreads_switches_is_not_accepted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = [text for text in project["dependencies"] if re.match(r"click\b", text)]
    lowest = re.search(r">=(\d+)\.(\d+)", wanted)

    assert lowest is not None
    assert (int(lowest[1]), int(lowest[2])) >= (8, 3)
