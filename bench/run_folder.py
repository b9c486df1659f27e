"""The data folder of one run: on the disk that is measured, and gone with the run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bench.plan import LOG_NAME


@contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent`, gone afterwards; after an error the end of the tree's log is shown first. Raises
    UsageError where none can be made."""
    parent = parent.absolute()
    try:
        made_parent = not parent.exists()
        parent.mkdir(mode=0o700, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    except OSError as error:
        raise click.UsageError(f"--data-dir {parent}: {error.strerror}") from None
    try:
        yield folder
    except Exception:
        _show_log(folder / LOG_NAME)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made_parent:
            try:
                parent.rmdir()  # only when nobody else uses it by now
            except OSError:
                pass


def _show_log(path: Path) -> None:
    """The last words of a tree that failed, before they are removed with its folder."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines[-10:]:
        click.echo(line, err=True)
