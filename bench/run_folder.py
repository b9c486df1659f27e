"""The data folder of one run: on the disk that is measured, and gone with the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from bench.plan import LOG_NAME
from supervisor.fresh_folder import fresh_folder


@contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent`, gone afterwards; after an error the end of the tree's log is shown first. Raises
    UsageError where none can be made."""
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(fresh_folder(parent.absolute(), "bench-"))
        except OSError as error:
            raise click.UsageError(f"--data-dir {parent.absolute()}: {error.strerror}") from None
        try:
            yield folder
        except Exception:
            _show_log(folder / LOG_NAME)
            raise


def _show_log(path: Path) -> None:
    """The last words of a tree that failed, before they are removed with its folder."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines[-10:]:
        click.echo(line, err=True)
