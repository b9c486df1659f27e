"""Where the demo shows itself: a live table on a terminal, plain lines elsewhere, all on stderr.

Text from outside — transcripts, errors, file names — is text: control characters are shown and not obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from asr_demo.timeline import Line, Row


def visible(text: str) -> str:
    """`text` in one line, control characters written out."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def table_text(rows: Iterable[Row]) -> list[str]:
    """The closing table as aligned plain lines."""
    cells = [("step", "status", "attempts", "takeovers", "worker", "executed", "external wait")]
    cells.extend(
        (
            row.step,
            row.status,
            str(row.attempts),
            str(row.takeovers),
            row.worker,
            f"{row.executed_ms / 1000:.2f} s",
            f"{row.external_ms / 1000:.2f} s",
        )
        for row in rows
    )
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


class PlainScreen:
    """One line per event on stderr."""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    def show(self, lines: Iterable[Line], rows: Iterable[Row], elapsed_s: float) -> None:
        """What has just happened; the table is for terminals."""
        for line in lines:
            self.say(f"{line.at_s:7.2f} s  {line.step:<17} {line.text}")


class LiveScreen(PlainScreen):
    """The same lines, and under them a table that follows the job (rich)."""

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

    def show(self, lines: Iterable[Line], rows: Iterable[Row], elapsed_s: float) -> None:
        super().show(lines, rows, elapsed_s)
        self._live.update(self._table(rows, elapsed_s))

    def _table(self, rows: Iterable[Row], elapsed_s: float) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"async_content_job · {elapsed_s:.1f} s", title_justify="left")
        for column in ("step", "state", "worker", "attempt", "executed", "external wait", "waiting for"):
            table.add_column(column)
        for row in rows:
            values = (
                row.step,
                row.status,
                row.worker,
                str(row.attempts or ""),
                f"{row.executed_ms / 1000:.2f} s" if row.executed_ms else "",
                f"{row.external_ms / 1000:.1f} s" if row.external_ms else "",
                row.waiting_for,
            )
            table.add_row(*(Text(visible(value)) for value in values))
        return table


def open_screen(*, quiet_terminal: bool) -> PlainScreen:
    """The live screen on a terminal that has rich, else the plain one."""
    if quiet_terminal or not sys.stderr.isatty():
        return PlainScreen()
    try:
        return LiveScreen()
    except ModuleNotFoundError:
        return PlainScreen()
