"""Where the demo shows itself: a live table on a terminal, plain lines elsewhere, all on stderr.

Text from outside — transcripts, errors, file names — is text: control characters are shown and not obeyed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asr_demo.timeline import Line


class Grid(NamedTuple):
    """A table: the names of its columns, and rows of as many cells."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def visible(text: str) -> str:
    """`text` in one line, control characters written out."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def show_result(report: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print a run's report as one JSON object, or the texts that came of it; whether all is well (INTERFACES)."""
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        print(f"\ntranscript\n  {visible(report['transcript'] or 'none')}")
        print(f"\nsummary\n  {visible(report['summary'] or 'none')}")
    return bool(report["completed"] == report["workflows"] and report["lost"] == 0)


def aligned(grid: Grid) -> list[str]:
    """The table as plain lines."""
    cells = [grid.columns, *grid.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(grid.columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


class PlainScreen:
    """One line per event on stderr."""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    def happened(self, lines: Iterable[Line]) -> None:
        """What has just happened, each with its time."""
        for line in lines:
            self.say(f"{line.at_s:7.2f} s  {line.step:<17} {line.text}")

    def stands(self, grid: Grid) -> None:
        """How it stands: for terminals only."""


class LiveScreen(PlainScreen):
    """The same lines, and under them a table that follows the run (rich)."""

    def __init__(self) -> None:
        # rich belongs to the extra `demo`; the plain screen must work without it.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(self, *exit_info: Any) -> None:
        self._live.__exit__(*exit_info)

    def say(self, text: str) -> None:
        self._console.print(visible(text), markup=False, highlight=False)

    def stands(self, grid: Grid) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=grid.title, title_justify="left")
        for column in grid.columns:
            table.add_column(column)
        for row in grid.rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        self._live.update(table)


def open_screen(*, quiet_terminal: bool) -> PlainScreen:
    """The live screen on a terminal that has rich, else the plain one."""
    if quiet_terminal or not sys.stderr.isatty():
        return PlainScreen()
    try:
        return LiveScreen()
    except ModuleNotFoundError:
        return PlainScreen()
