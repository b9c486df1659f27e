"""What `/readyz` and `/metrics` answer from: looks that are taken again and again on threads of their own.

A request never asks a store. A look that hangs or fails makes its own fact old, and holds up no other; who answers
says how old it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

log = logging.getLogger("supervisor.metrics")

T = TypeVar("T")


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """The last look that succeeded, and what was wrong with the last one, if it was another. Ages in s; None: never."""

    value: T | None
    age_s: float | None
    error: str | None


class Look(Generic[T]):
    """One thing that is looked at every `period_s`. With `share`, a look that takes long is taken more rarely: so that
    at most that part of the time is spent with it."""

    def __init__(
        self,
        name: str,
        call: Callable[[], T],
        *,
        period_s: float,
        share: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._call = call
        self._period_s = period_s
        self._share = share
        self._monotonic = monotonic
        self._last: tuple[T, float] | None = None
        self._error: str | None = None

    def seen(self) -> Seen[T]:
        """What is known now."""
        last = self._last
        if last is None:
            return Seen(None, None, self._error)
        return Seen(last[0], self._monotonic() - last[1], self._error)

    def take(self) -> float:
        """Look once; in how many seconds to look again. Never raises."""
        began_s = self._monotonic()
        try:
            # As old as its question: what has changed while the answer came is not in it.
            self._last, self._error = (self._call(), began_s), None
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if self._error != text:
                log.info("%s can not be looked at: %s", self.name, text)
            self._error = text
        took_s = self._monotonic() - began_s
        return max(self._period_s, took_s * (1 / self._share - 1))

    def run(self, stop: threading.Event) -> None:
        """Look until `stop`; the body of a thread."""
        while not stop.wait(self.take()):
            pass
