"""How far a run is, for somebody who watches a terminal; nothing for a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_SHOW_EVERY_S = 0.2


class Progress:
    """Says nothing; also the base of those that do."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._next_s = 0.0

    def phase(self, what: str, total: int | None = None) -> None:
        """What is being done from now on, and how many of it where that can be counted."""
        self._total = total
        self._next_s = 0.0
        self._draw(what, 0)
        self._what = what

    def show(self, done: Callable[[], int]) -> None:
        """Show how many are done; `done` is only asked a few times a second."""
        now_s = time.monotonic()
        if now_s >= self._next_s and self._watched():
            self._next_s = now_s + _SHOW_EVERY_S
            self._draw(self._what, done())

    def _watched(self) -> bool:
        return False

    def _draw(self, what: str, done: int) -> None:
        pass


class LineProgress(Progress):
    """One line that is written over."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def _watched(self) -> bool:
        return True

    def _draw(self, what: str, done: int) -> None:
        counted = "" if self._total is None else f" {min(done, self._total)}/{self._total}"
        self._stream.write(f"\r\x1b[K{what}{counted}")
        self._stream.flush()


class BarProgress(Progress):
    """A bar of `rich`."""

    def __init__(self, bars: RichProgress) -> None:
        super().__init__()
        self._bars = bars
        self._task = bars.add_task("", total=None)

    def _watched(self) -> bool:
        return True

    def _draw(self, what: str, done: int) -> None:
        self._bars.update(self._task, description=what, total=self._total, completed=done)


@contextmanager
def open_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress on `stream` (stderr) if that is a terminal: a bar where `rich` is installed, else a plain line."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield Progress()
    elif find_spec("rich") is None:
        try:
            yield LineProgress(stream)
        finally:
            stream.write("\r\x1b[K")
    else:
        from rich.console import Console  # an optional package
        from rich.progress import Progress as RichProgress  # an optional package

        with RichProgress(console=Console(file=stream), transient=True) as bars:
            yield BarProgress(bars)
