"""A tree of the application that the README has its reader write, started in his folder from the shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.wait import wait_until

LIMIT_S = 60


@contextmanager
def readme_tree(
    folder: Path, app: str, *options: str, environ: Mapping[str, str], is_up: Callable[[], bool], end_s: float = LIMIT_S
) -> Iterator[subprocess.Popen[bytes]]:
    """It runs inside the block, and has drained behind it, within `end_s`: `returncode` is there to be looked at."""
    with subprocess.Popen(
        [sys.executable, "-m", "supervisor", "start", "--app", app, *options],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            wait_until(is_up, "the tree is up")
            yield process
        finally:
            process.terminate()
            process.wait(end_s)
