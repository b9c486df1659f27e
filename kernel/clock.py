"""Time, handed in: the only module of the kernel that asks the operating system what time it is.

`wall_ms` is for records and for the stores that have no clock of their own. `boot_ms` (CLOCK_BOOTTIME where
it exists) is for everything that measures a duration on this machine: it never jumps and counts suspended
time, so that a laptop lid can not hide an expired lease (DECISIONS detail 16).
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Milliseconds, twice: since the epoch, and since some fixed point of this machine's life."""

    def wall_ms(self) -> int: ...

    def boot_ms(self) -> int: ...


class SystemClock:
    """The clock of this machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class ManualClock:
    """A clock that moves only when told: for tests and for the simulator."""

    def __init__(self, wall_ms: int = 1_800_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        self._wall_ms += ms
        self._boot_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock off by `ms`, as an operator or NTP may do; durations are not affected."""
        self._wall_ms += ms
