"""The cooperative stop sign of one invocation: fired once, with the reason, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

CancelReason = Literal["timeout", "claim_lost", "fenced", "stopping"]


class CancelToken:
    """An activity asks `fired` or waits on it; callbacks run on the thread that fires (act-pass-context)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Made for the first who waits: few activities do, and every invocation has a token.
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.reason: CancelReason | None = None

    @property
    def fired(self) -> bool:
        return self.reason is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait until fired, at most `timeout_s` seconds; whether it is fired."""
        with self._lock:
            if self.reason is not None:
                return True
            event = self._event = self._event or threading.Event()
        return event.wait(timeout_s)

    def fire(self, reason: CancelReason) -> bool:
        """Fire once; the first reason stands. Whether this call was the first."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
            event = self._event
        if event is not None:
            event.set()
        for callback in callbacks:
            callback()
        return True

    def on_fire(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the token fires; at once if it already has."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()
