"""Pytest plugin: programs that tests need and PyPI does not give.

A test marked `needs("redis-server")` runs only where that program is. If it is missing the whole run stops
before the first test with one line that names the cure, because a test that is silently left out proves
nothing. `WITHOUT=redis-server,chromium` leaves such tests out on purpose, and the end of the run says how many.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, NamedTuple

import pytest

from tests.support.workers import hand_over, handed_over


class Program(NamedTuple):
    """A program outside PyPI: the commands that may provide it and the Debian package that brings it."""

    commands: tuple[str, ...]
    package: str

    def path(self) -> str | None:
        """Where the program lies, None if it is missing."""
        return next((found for command in self.commands if (found := shutil.which(command))), None)


PROGRAMS = {
    "redis-server": Program(commands=("redis-server",), package="redis-server"),
    "chromium": Program(commands=("chromium", "chromium-browser"), package="chromium"),
}

_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def without_programs() -> frozenset[str]:
    """The programs that the environment variable WITHOUT names; a name that is no program is a usage error."""
    names = frozenset(filter(None, (part.strip() for part in os.environ.get("WITHOUT", "").split(","))))
    for name in sorted(names - PROGRAMS.keys()):
        raise pytest.UsageError(f"WITHOUT names {name!r}; it may name: {', '.join(PROGRAMS)}")
    return names


def needed_by(item: pytest.Item) -> frozenset[str]:
    """The programs that the item's `needs` markers name."""
    names = frozenset(name for marker in item.iter_markers("needs") for name in marker.args)
    for name in sorted(names - PROGRAMS.keys()):
        raise pytest.UsageError(f"{item.nodeid} needs {name!r}; needs(…) may name: {', '.join(PROGRAMS)}")
    return names


# Last, so that a test that -k, -m or a path already left out can not stop the run.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without = without_programs()
    left_out = {item: needed_by(item) & without for item in items}
    kept = [item for item in items if not left_out[item]]
    missing = sorted(
        name for name in {name for item in kept for name in needed_by(item)} if PROGRAMS[name].path() is None
    )
    only_listing = config.option.collectonly or config.getoption("req_report", False)
    if missing and not only_listing:
        packages = " ".join(PROGRAMS[name].package for name in missing)
        raise pytest.UsageError(
            f"missing {', '.join(missing)}: apt-get install -y {packages}"
            f" (or leave out the tests that need it: WITHOUT={','.join(missing)})"
        )
    config.stash[_LEFT_OUT] = {
        name: sum(name in names for names in left_out.values()) for name in PROGRAMS if name in without
    }
    hand_over(config, "without", config.stash[_LEFT_OUT])
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if left_out[item]])
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = handed_over(node, "without", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, count in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(f"WITHOUT={name}: {count} tests that need it were left out", yellow=True)
