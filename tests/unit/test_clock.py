"""Time, handed in: the clock of this machine, and one that moves only when told."""

from __future__ import annotations

import time

from kernel.clock import ManualClock, SystemClock


def test_the_system_clock_tells_milliseconds_of_both_kinds() -> None:
    clock = SystemClock()
    wall_ms, boot_ms = clock.wall_ms(), clock.boot_ms()

    assert abs(wall_ms - time.time_ns() // 1_000_000) < 1_000
    assert abs(boot_ms - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000) < 1_000
    assert all(later >= boot_ms for later in [clock.boot_ms() for _ in range(1_000)])


def test_a_manual_clock_moves_only_when_told_and_a_jump_is_no_duration() -> None:
    clock = ManualClock(wall_ms=1_000, boot_ms=50)
    assert (clock.wall_ms(), clock.boot_ms()) == (1_000, 50)

    clock.advance(7)
    clock.jump_wall(-500)

    assert (clock.wall_ms(), clock.boot_ms()) == (507, 57)
