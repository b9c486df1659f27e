"""Listening for wakeups: what lets an idle worker sleep long and still start at once.

A push publishes the due time of what it entered. Messages may be lost at any time (a restart, a full buffer, a link
that is open on one side only), so a wakeup never carries work, it only shortens a sleep: the poll interval
is the net beneath. After every new subscription the callback is told as well, since messages may have been missed
before it: subscribe, then pop, then sleep (DECISIONS detail 20).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from redis.exceptions import RedisError

from kernel.coordination.breaker import BootClock
from kernel.coordination.endpoint import Connector, Link
from kernel.coordination.scripts import packed_command
from kernel.errors import WrongProcess

BLOCK_S = 0.5
"""How long one read waits, hence how long a stop may take."""
READ_TIMEOUT_S = 2.0
"""How long the rest of a message may take once its first byte is there; longer than a block."""
PING_MS = 5_000
PONG_MS = 5_000
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0


class Stop(Protocol):
    """What `threading.Event` offers to a loop that somebody else may end."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class WakeupListener:
    """Subscribes to a channel on a connection of its own and calls `on_wakeup` for each message.

    `on_wakeup(due_ms)` gets the earliest due time of a push, in ms of the Redis clock; None means: look now,
    something may have been missed. It is called from the thread that runs `run` and should only set a flag.
    No thread is started here.
    """

    def __init__(
        self,
        connector: Connector,
        channel: bytes,
        on_wakeup: Callable[[int | None], None],
        clock: BootClock,
        fraction: Callable[[], float],
        *,
        block_s: float = BLOCK_S,
        ping_ms: int = PING_MS,
        pong_ms: int = PONG_MS,
        backoff_first_s: float = BACKOFF_FIRST_S,
        backoff_max_s: float = BACKOFF_MAX_S,
    ) -> None:
        self._connector = connector
        self._channel = channel
        self._on_wakeup = on_wakeup
        self._clock = clock
        self._fraction = fraction
        self._block_s = block_s
        self._ping_ms = ping_ms
        self._pong_ms = pong_ms
        self._backoff_first_s = backoff_first_s
        self._backoff_max_s = backoff_max_s
        self._pid = os.getpid()
        self._setbacks = 0
        self.subscribed = False
        self.subscriptions = 0
        """How often the channel was subscribed to, for status: it grows with every reconnection."""
        self.last_error = ""

    def run(self, stop: Stop) -> None:
        """Listen until `stop` is set; ends at most one block or one connection attempt later. Never raises for a
        fault of the link or of the callback; WrongProcess in another process than the maker's."""
        if os.getpid() != self._pid:
            raise WrongProcess(f"this listener was made by process {self._pid}; make one after the fork")
        self._setbacks = 0
        while not stop.is_set():
            link = self._connector(max(READ_TIMEOUT_S, 2 * self._block_s))
            try:
                self._listen(link, stop)
            except (RedisError, OSError, ValueError) as error:
                self.last_error = f"{type(error).__name__}: {error}"
                self._setbacks += 1
            finally:
                self.subscribed = False
                link.disconnect()
            if not stop.is_set():
                stop.wait(self._backoff_s())

    def _backoff_s(self) -> float:
        longest = min(self._backoff_max_s, self._backoff_first_s * 2.0 ** min(self._setbacks - 1, 30))
        # Jitter: a restarted server is not met by all workers in the same instant.
        return longest * (0.5 + 0.5 * self._fraction())

    def _listen(self, link: Link, stop: Stop) -> None:
        link.connect()
        link.send_packed_command((packed_command("SUBSCRIBE", self._channel),), check_health=False)
        heard_ms, pinged = self._clock.boot_ms(), False
        while not stop.is_set():
            if link.can_read(self._block_s):
                self._handle(link.read_response())
                heard_ms, pinged = self._clock.boot_ms(), False
                continue
            silent_ms = self._clock.boot_ms() - heard_ms
            # Without this a link that lost the request would answer pings and be deaf for ever.
            if not self.subscribed and silent_ms >= self._pong_ms:
                raise OSError(f"no answer to SUBSCRIBE for {self._pong_ms} ms")
            # A link that is dead on the far side looks like one without news until somebody asks (A27).
            if silent_ms >= self._ping_ms + self._pong_ms:
                raise OSError(f"no answer to a ping for {self._pong_ms} ms")
            if self.subscribed and silent_ms >= self._ping_ms and not pinged:
                link.send_packed_command((packed_command("PING"),), check_health=False)
                pinged = True

    def _handle(self, message: Any) -> None:
        if not isinstance(message, list) or not message:
            return
        if message[0] == b"subscribe":
            self.subscribed = True
            self.subscriptions += 1
            self._tell(None)
        elif message[0] == b"message" and len(message) == 3:
            self._setbacks = 0
            self._tell(_due_ms(message[2]))
        elif message[0] == b"pong":
            self._setbacks = 0

    def _tell(self, due_ms: int | None) -> None:
        try:
            self._on_wakeup(due_ms)
        except Exception as error:
            # A worker that no longer hears wakeups is worse than one wakeup lost.
            self.last_error = f"callback: {type(error).__name__}: {error}"


def _due_ms(payload: Any) -> int | None:
    if isinstance(payload, bytes) and payload.isdigit() and len(payload) <= 16:
        return int(payload)
    return None
