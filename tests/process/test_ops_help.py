"""Every command of an operator exists, is listed with a line, and explains its options (through click's runner)."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from supervisor.cli import cli

COMMANDS = {
    ("workflow", "start"): ("--biz-key", "--input", "--json"),
    ("workflow", "list"): (
        *("--type", "--status", "--waiting", "--on", "--step", "--lane", "--older-than", "--since", "--error"),
        *("--limit", "--after", "--count", "--by", "--json"),
    ),
    ("workflow", "show"): ("--watch", "--app", "--json"),
    ("workflow", "watch"): ("--json",),
    ("workflow", "attempts"): ("--limit", "--after", "--json"),
    ("workflow", "signal"): ("--key", "--generation", "--id", "--early", "--json"),
    ("workflow", "supersede"): ("--yes", "--json"),
    ("workflow", "replay"): ("--yes", "--dry-run", "--fresh", "--json"),
    ("workflow", "unpark"): ("--json",),
    ("workflow", "repair"): ("--all", "--json"),
    ("workflow", "record"): ("--json",),
    ("lanes",): ("--seconds", "--watch", "--json"),
    ("limits", "list"): ("--json",),
    ("limits", "set"): ("--max-concurrency", "--starts-per-second"),
    ("limits", "remove"): ("--json",),
    ("dispatch", "pending"): ("--limit", "--json"),
}  # fmt: skip


@pytest.mark.req("dc-cli-ops")
@pytest.mark.parametrize("words", list(COMMANDS), ids=" ".join)
def test_the_command_is_listed_and_explains_itself(words: tuple[str, ...]) -> None:
    group = CliRunner().invoke(cli, [*words[:-1], "--help"])
    own = CliRunner().invoke(cli, [*words, "--help"])

    assert group.exit_code == own.exit_code == 0
    assert any(line.startswith(f"  {words[-1]} ") for line in group.output.splitlines())
    for option in COMMANDS[words]:
        assert f"  {option}" in own.output


def test_no_option_lacks_its_help() -> None:
    context = click.Context(cli)
    for words in COMMANDS:
        command: click.Command = cli
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(context, word)
            assert found is not None
            command = found
        bare = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
        assert not bare, f"{' '.join(words)}: {bare}"
