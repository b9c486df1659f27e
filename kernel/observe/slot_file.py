"""One file of a slot's metrics, in the format of prometheus-client's `mmap_dict`, which the scrape reads.

The library maps its files into memory. A store into a mapped page for which the disk has no block left is SIGBUS: it
ends the process in mid-step, wherever it counts. Here each change is one `pwrite`, whose failure is an OSError, on file
systems that copy on write as well, where a block that was allocated before helps nothing. What is in memory is the
truth: while the disk is full the scrape sees old values, and what was counted meanwhile is written once there is room.

A file is: how many bytes count (4 bytes, padded to 8), then for each series the length of its key (4 bytes), the key,
padded with blanks so that what follows is aligned to 8, its value and a timestamp (8 bytes each). The head is written
last, so that a reader never comes to bytes that are not there.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
from collections.abc import Callable

log = logging.getLogger("kernel.observe")

AGAIN_S = 1.0
"""How long nothing is written after a write that failed: on a full disk that costs more than a count may."""
_HEAD = 8
_COUNT = struct.Struct("i")
_VALUE = struct.Struct("dd")


class SlotFile:
    """Series and their values. Nothing of it raises OSError. Not thread-safe: the library calls it under one lock."""

    def __init__(self, filename: str, ticks: Callable[[], float] = time.perf_counter) -> None:
        self._name = filename
        self._ticks = ticks
        self._data = bytearray(_HEAD)
        self._places: dict[str, int] = {}
        self._fd: int | None = None
        self._late_since: float | None = None
        try:
            self._take_over(self._opened())
        except OSError as error:
            self._failed(error)

    def read_value(self, key: str) -> tuple[float, float]:
        """Value and timestamp; a series that is new begins with 0."""
        value, timestamp = _VALUE.unpack_from(self._data, self._place(key))
        return value, timestamp

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        place = self._place(key)
        _VALUE.pack_into(self._data, place, value, timestamp)
        self._save(place, place + _VALUE.size)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _place(self, key: str) -> int:
        place = self._places.get(key)
        return self._added(key) if place is None else place

    def _added(self, key: str) -> int:
        encoded, start = key.encode(), len(self._data)
        self._data += _COUNT.pack(len(encoded)) + encoded + b" " * _padding(len(encoded)) + bytes(_VALUE.size)
        _COUNT.pack_into(self._data, 0, len(self._data))
        self._places[key] = place = len(self._data) - _VALUE.size
        self._save(start, len(self._data))
        self._save(0, _HEAD)
        return place

    # --- the disk -------------------------------------------------------------------------------------

    def _opened(self) -> int:
        if self._fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._name, flags, 0o600)
        return self._fd

    def _take_over(self, fd: int) -> None:
        """Count on where the predecessor in this slot has ended."""
        found = os.pread(fd, os.fstat(fd).st_size, 0)
        try:
            self._places = _places_in(found)
            self._data = bytearray(found[: _COUNT.unpack_from(found)[0]]) if self._places else self._data
        except (struct.error, ValueError):
            log.warning("%s: what was counted before can not be read, counting begins anew", self._name)
            os.ftruncate(fd, 0)

    def _save(self, start: int, end: int) -> None:
        """Write these bytes; after a failure nothing for a while, then all of them."""
        try:
            if self._late_since is None:
                self._write(start, end)
            elif self._ticks() - self._late_since >= AGAIN_S:
                self._write(_HEAD, len(self._data))
                self._write(0, _HEAD)
                self._late_since = None
        except OSError as error:
            self._failed(error)

    def _write(self, start: int, end: int) -> None:
        if os.pwrite(self._opened(), self._data[start:end], start) < end - start:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _failed(self, error: OSError) -> None:
        if self._late_since is None:
            log.warning("metrics are counted in memory until %s can be written: %s", self._name, error.strerror)
        self._late_since = self._ticks()


def _padding(length: int) -> int:
    return 8 - (length + _COUNT.size) % 8


def _places_in(found: bytes) -> dict[str, int]:
    """Where the value of each series lies. Raises ValueError or struct.error for a file that is none."""
    places: dict[str, int] = {}
    at, used = _HEAD, _COUNT.unpack_from(found)[0] if found else 0
    while at < used:
        length = _COUNT.unpack_from(found, at)[0]
        if not 0 < length <= used - at:
            raise ValueError(f"a key of {length} bytes")
        start = at + _COUNT.size
        place = start + length + _padding(length)
        _VALUE.unpack_from(found, place)
        places[found[start : start + length].decode()] = place
        at = place + _VALUE.size
    return places
