"""The yardstick beside the workflows: single-row commits of the same SQLite, on the same disk, with nothing around.

The connection is the store's own kind (`kernel.store.sqlite_files`): same log, same durability, same checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kernel.store.sqlite_files import Durability, open_writer

_ROW_BYTES = 100
_LOOK_EVERY = 16


def bare_commits_per_s(data_dir: Path, durability: Durability, slices: int, slice_s: float) -> list[float]:
    """Insert rows of 100 bytes, one per commit, in `slices` slices of about `slice_s`; commits per second of each."""
    path = data_dir / "bare.sqlite"
    with closing(open_writer(str(path), durability)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        rates = [_rate(connection.execute, slice_s) for _ in range(slices)]
    for name in ("bare.sqlite", "bare.sqlite-wal", "bare.sqlite-shm"):
        (data_dir / name).unlink(missing_ok=True)
    return rates


def _rate(execute: Callable[[str, tuple[bytes]], object], seconds: float) -> float:
    body = bytes(_ROW_BYTES)
    commits, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(_LOOK_EVERY):
            execute("INSERT INTO bare (body) VALUES (?)", (body,))
        commits += _LOOK_EVERY
    return commits / elapsed
