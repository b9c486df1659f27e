"""The only place in the tests that sleeps: waiting for something that can be seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout: float = 60.0, every: float = 0.02) -> T:
    """Return the first truthy value of `condition`; fail with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for: {what} (last value: {value!r})")
        time.sleep(every)


def stays(condition: Callable[[], bool], what: str, seconds: float, every: float = 0.02) -> None:
    """Fail as soon as `condition` stops holding within `seconds`: the counterpart of `wait_until`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            raise AssertionError(f"did not stay so for {seconds:g} s: {what}")
        time.sleep(every)
