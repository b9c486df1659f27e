"""What an activity may return instead of an output: a directive that ends the invocation and frees everything.

Suspending is done by returning, never by blocking (act-suspend-return). A directive is not an error, uses up no
attempt and no retry (stp-attempt-suspend), and its checkpoint comes back unchanged in the next invocation.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from kernel.errors import Refused
from kernel.ids import check_id, check_name
from kernel.signals import check_generation

WAIT_DAYS_MAX = 3660


class Sleep(msgspec.Struct, frozen=True):
    """Wake this step after `interval`; zero or less is due at once, but through waiting (slp-sleep-bounds)."""

    interval: timedelta
    checkpoint: Any = None

    def __post_init__(self) -> None:
        _check_interval(self.interval, "Sleep.interval")


class WaitForSignal(msgspec.Struct, frozen=True):
    """Wake this step when a signal of this type, key and wait generation arrives, or at the poll fallback.

    Without `poll_fallback` nothing but the signal wakes it, ever (slp-no-wait-timeout).
    """

    signal_type: str
    wait_key: str
    generation: int = 0
    poll_fallback: timedelta | None = None
    checkpoint: Any = None

    def __post_init__(self) -> None:
        check_name(self.signal_type, "WaitForSignal.signal_type")
        check_id(self.wait_key, "WaitForSignal.wait_key")
        check_generation(self.generation, "WaitForSignal.generation")
        if self.poll_fallback is not None:
            _check_interval(self.poll_fallback, "WaitForSignal.poll_fallback")


class Yield(msgspec.Struct, frozen=True):
    """Give the slot back between two pages of work and go on from `checkpoint`, at once, in any worker."""

    checkpoint: Any = None


Directive = Sleep | WaitForSignal | Yield


def interval_ms(interval: timedelta) -> int:
    """Milliseconds of a directive's interval; a negative one counts as zero."""
    return max(0, round(interval.total_seconds() * 1000))


def _check_interval(interval: object, field: str) -> None:
    if not isinstance(interval, timedelta):
        raise Refused(f"{field}: expected a timedelta, got {type(interval).__name__}")
    if interval > timedelta(days=WAIT_DAYS_MAX):
        raise Refused(f"{field}: at most {WAIT_DAYS_MAX} days, got {interval.days}")
