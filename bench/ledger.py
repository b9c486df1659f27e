"""What the activities themselves say: one small record for every entry into a step, kept outside the kernel.

Each worker process appends to a file of its own, one `write` of 16 bytes per record, so that a record is there as soon
as the step was entered, whatever happens to the process next; and so that counting needs neither the store nor Redis.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = "entries"
CLAIM = 255
"""In the place of a step: the workflow was claimed, no step entered yet."""

_RECORD = struct.Struct("<QIB3x")


class Entry(NamedTuple):
    """One record. `at_ns` is CLOCK_MONOTONIC, which all processes of a machine share; `step` a position or CLAIM."""

    at_ns: int
    number: int
    step: int
    pid: int


class Ledger:
    """The file of one process. Safe for its threads: an append of this size is one write."""

    def __init__(self, data_dir: Path) -> None:
        folder = data_dir / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        # The time keeps two processes apart that were given the same number one after the other.
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(folder / name, flags, 0o600)

    def note(self, number: int, step: int) -> None:
        """Say that workflow `number` of the run enters `step`."""
        os.write(self._fd, _RECORD.pack(time.monotonic_ns(), number, step))


def read_entries(data_dir: Path) -> list[Entry]:
    """All records of all processes, oldest first."""
    return sorted(entry for file in _files(data_dir) for entry in _records(file))


def count_records(data_dir: Path) -> int:
    """How many records there are by now, without reading them."""
    return sum(file.stat().st_size for file in _files(data_dir)) // _RECORD.size


def _files(data_dir: Path) -> Iterator[Path]:
    folder = data_dir / FOLDER
    return folder.iterdir() if folder.is_dir() else iter(())


def _records(file: Path) -> Iterator[Entry]:
    pid = int(file.name.partition("-")[0])
    data = file.read_bytes()
    # A write of 16 bytes is whole or not there; a rest could only be damage, and must not shift what follows.
    for at_ns, number, step in _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size]):
        yield Entry(at_ns, number, step, pid)
