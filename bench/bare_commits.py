"""The yardstick beside the workflows: single-row commits of the same store, with nothing around.

Embedded, the connection is the store's own kind (`kernel.store.sqlite_files`): same log, same durability, same
checkpoints, same disk. On a MongoDB it is `bench.run_database` that commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from kernel.store.sqlite_files import Durability, open_writer

ROW = bytes(100)
"""What one commit writes."""
_LOOK_EVERY = 16


def bare_commits_per_s(data_dir: Path, durability: Durability, slices: int, slice_s: float) -> list[float]:
    """Insert rows of 100 bytes, one per commit, in `slices` slices of about `slice_s`; commits per second of each."""
    path = data_dir / "bare.sqlite"
    with closing(open_writer(str(path), durability)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        commit = partial(connection.execute, "INSERT INTO bare (body) VALUES (?)", (ROW,))
        rates = [rate_of(commit, slice_s) for _ in range(slices)]
    for name in ("bare.sqlite", "bare.sqlite-wal", "bare.sqlite-shm"):
        (data_dir / name).unlink(missing_ok=True)
    return rates


def rate_of(commit: Callable[[], object], seconds: float) -> float:
    """Commits per second, over about so many seconds."""
    commits, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(_LOOK_EVERY):
            commit()
        commits += _LOOK_EVERY
    return commits / elapsed
