"""The clock of a SQLite store: one time for all processes of this machine, and never an earlier one.

Store-now is the boot clock (which no operator and no NTP can set) plus a base that all processes read from the
store, so it needs no write of its own and can not run backwards between two processes. The wall clock is only
compared against it (DECISIONS detail 9):

- a small step forwards is followed; after a small step backwards store-now stands still until the wall has
  caught up, which is max(last now, wall);
- a step of more than a third of the lease would end all leases at once, or stop time for longer than a lease:
  it is absorbed, until the machine starts anew, and logged;
- after a start of the machine store-now goes on from the wall, or from the last time that the store saw if the
  wall lies behind it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernel.clock import Clock

NOISE_MS = 20
"""Two clocks are not read in the same instant: a smaller difference is no step."""
MARK_MS = 1000
"""The store's mark of the last time is at most this old."""
_TRIES = 3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Reading(msgspec.Struct, frozen=True):
    """What this process sees: both clocks, and how far apart in time they were read."""

    boot_id: str
    boot_ms: int
    wall_ms: int
    spread_ms: int = 0


class ClockState(msgspec.Struct, frozen=True):
    """What all processes share: `base_ms` + boot clock = store-now, never below `mark_ms`; `offset_ms` is the
    wall clock minus the boot clock as last seen."""

    boot_id: str
    base_ms: int
    offset_ms: int
    mark_ms: int

    def at(self, boot_ms: int) -> int:
        return max(boot_ms + self.base_ms, self.mark_ms)


class Tick(msgspec.Struct, frozen=True):
    """Store-now, the state to share from now on, and the step of the wall clock that was absorbed, if any."""

    now_ms: int
    state: ClockState
    absorbed_ms: int = 0


def tick(state: ClockState | None, reading: Reading, step_max_ms: int) -> Tick:
    """Store-now at `reading`. Steps of more than `step_max_ms` are absorbed."""
    if state is None or state.boot_id != reading.boot_id:
        return _started(state, reading, step_max_ms)
    offset_ms = reading.wall_ms - reading.boot_ms
    step_ms = offset_ms - state.offset_ms
    before_ms = state.at(reading.boot_ms)
    absorbed_ms = 0
    if abs(step_ms) > NOISE_MS + reading.spread_ms:
        absorbed_ms = step_ms if abs(step_ms) > step_max_ms else 0
        state = ClockState(
            boot_id=state.boot_id,
            base_ms=state.base_ms + step_ms - absorbed_ms,
            offset_ms=offset_ms,
            # No process has seen a later time than this: none will see an earlier one.
            mark_ms=before_ms,
        )
    now_ms = state.at(reading.boot_ms)
    if now_ms >= state.mark_ms + MARK_MS:
        state = msgspec.structs.replace(state, mark_ms=now_ms)
    return Tick(now_ms, state, absorbed_ms)


def _started(state: ClockState | None, reading: Reading, step_max_ms: int) -> Tick:
    now_ms = reading.wall_ms if state is None else max(reading.wall_ms, state.mark_ms + MARK_MS)
    behind_ms = reading.wall_ms - now_ms
    started = ClockState(
        boot_id=reading.boot_id,
        base_ms=now_ms - reading.boot_ms,
        offset_ms=reading.wall_ms - reading.boot_ms,
        mark_ms=now_ms,
    )
    return Tick(now_ms, started, behind_ms if -behind_ms > step_max_ms else 0)


def read(clock: Clock, boot_id: str) -> Reading:
    """Both clocks, as close together as the scheduler allows."""
    best: Reading | None = None
    for _ in range(_TRIES):
        before_ms = clock.boot_ms()
        wall_ms = clock.wall_ms()
        boot_ms = clock.boot_ms()
        spread_ms = boot_ms - before_ms
        if best is None or spread_ms < best.spread_ms:
            best = Reading(boot_id, boot_ms, wall_ms, spread_ms)
        if spread_ms <= 1:
            break
    assert best is not None
    return best


def boot_id() -> str:
    """What tells one start of this machine from another; empty where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
