"""News of streams: one subscription for all readers of a process (sse-follow).

A watched stream publishes its number when it changes; the one listener calls whoever registered that number. It runs
only while somebody reads. Messages may be lost at any time: a reader looks by itself at its poll interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kernel.coordination.breaker import BootClock
from kernel.coordination.endpoint import Connector
from kernel.coordination.wakeup import WakeupListener

Listener = Callable[[], None]


class _Event(Protocol):
    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class Starter(Protocol):
    """What starts the listening thread (`kernel.engine.ports.Runner` is one)."""

    def spawn(self, name: str, body: Callable[[], None]) -> None: ...

    def event(self) -> _Event: ...


class StreamNews:
    """Who wants to hear of which stream. Safe for many threads; `close` ends the listening."""

    def __init__(
        self, connector: Connector, channel: bytes, clock: BootClock, fraction: Callable[[], float], runner: Starter
    ) -> None:
        self._connector = connector
        self._channel = channel
        self._clock = clock
        self._fraction = fraction
        self._runner = runner
        self._lock = threading.Lock()
        self._wanted: dict[int, list[Listener]] = {}
        self._listening: tuple[WakeupListener, _Event] | None = None
        self._closed = False

    @property
    def heard(self) -> bool:
        """Whether the subscription stands: only then is it worth waiting for news."""
        listening = self._listening
        return listening is not None and listening[0].subscribed

    @property
    def readers(self) -> int:
        """How many are registered, for status."""
        return sum(map(len, self._wanted.values()))

    def register(self, tag: int, listener: Listener) -> Callable[[], None]:
        """Call `listener`, which must be short, on each change of the stream with this number; returns what ends it."""
        with self._lock:
            self._wanted.setdefault(tag, []).append(listener)
            if self._listening is None and not self._closed:
                self._start()
        return partial(self._remove, tag, listener)

    def close(self) -> None:
        """Listen no more; the thread ends within a second."""
        with self._lock:
            self._closed = True
            self._stop()

    def _remove(self, tag: int, listener: Listener) -> None:
        with self._lock:
            listeners = self._wanted.get(tag, [])
            if listener in listeners:
                listeners.remove(listener)
            if not listeners:
                self._wanted.pop(tag, None)
            if not self._wanted:
                self._stop()

    def _start(self) -> None:
        listener = WakeupListener(self._connector, self._channel, self._tell, self._clock, self._fraction)
        stop = self._runner.event()
        self._listening = (listener, stop)
        self._runner.spawn("stream-news", partial(listener.run, stop))

    def _stop(self) -> None:
        if self._listening is not None:
            self._listening[1].set()
            self._listening = None

    def _tell(self, tag: int | None) -> None:
        """On the listening thread. None: something may have been missed, so everybody looks."""
        with self._lock:
            told = [one for key, some in self._wanted.items() if tag is None or key == tag for one in some]
        for listener in told:
            listener()
