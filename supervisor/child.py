"""The child's side: the link to the supervisor, and what a role may say and hear through it.

A role is a function `role(link) -> exit status` on the child's main thread. Orders reach it by `next_order` alone: no
handler runs code of the role. `ready`, `report`, `acknowledge` and `ask_recycle` may be called from any thread.

How many times the child was told to stop is the larger of two counts, orders of the supervisor and SIGTERMs of anybody:
so one `docker stop` or `systemctl stop`, which signals every process of the group while the supervisor passes the order
on, is one order to drain and not an order to hasten.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Literal

import msgspec

from kernel.config import Config
from kernel.errors import Refused
from supervisor.messages import (
    MESSAGE_BYTES_MAX,
    Acknowledge,
    AskRecycle,
    Cause,
    Drain,
    Failed,
    FromChild,
    Hasten,
    OwnerDead,
    Ready,
    Report,
    encoded,
    to_child,
)

ORPHAN_DRAIN_S = 3.3
"""How long a child may drain after the supervisor was killed. Then it hastens: it gives back what it holds, for which
it has 1 s until the guardian ends it."""
HASTEN_S = 1.1
_SEND_LIMIT_S = 0.5


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the role shall do now.

    `drain`: take nothing new, end what runs, return within `deadline_s` seconds from now.
    `hasten`: give up what still runs and return within `deadline_s`. `orphaned`: the supervisor is dead, so that nobody
    will prove this end: a worker gives its claims back itself, or their leases count a death that it did not die.
    `owner_dead`: release the claims of `worker_id` (`cause`: `death` or `ordered`), then `link.acknowledge(notice_id)`.
    """

    kind: Literal["drain", "hasten", "owner_dead"]
    deadline_s: float = 0.0
    orphaned: bool = False
    worker_id: str = ""
    cause: Cause = "death"
    notice_id: int = 0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the tree a child stands, and what it needs to know of the others."""

    role: str
    slot: int
    worker_id: str
    redis_url: str | None
    data_dir: Path
    addresses: dict[str, str]


class ChildLink:
    """One child's connection to its supervisor.

    role        `worker`, `dispatcher`, `probe` or the name of a companion
    slot        number of the place in its role; a successor keeps it
    worker_id   32 hex digits, fresh for every fork: the owner name of claims
    config      all settings
    redis_url   where Redis is: the configured one or the embedded server's socket; None for a probe
    data_dir    absolute path of the data folder
    addresses   companion name → `http://127.0.0.1:PORT`
    listener    the listening socket of a companion, None for others
    """

    def __init__(
        self, sock: socket.socket, place: Place, config: Config, listener: socket.socket | None = None
    ) -> None:
        self.role = place.role
        self.slot = place.slot
        self.worker_id = place.worker_id
        self.redis_url = place.redis_url
        self.data_dir = place.data_dir
        self.addresses = MappingProxyType(dict(place.addresses))
        self.config = config
        self.listener = listener
        self._socket = sock
        self._orders: deque[Order] = deque()
        self._told = 0  # stop orders already handed to the role
        self._ordered = 0  # stop orders of the supervisor
        self._terms = 0  # SIGTERMs
        self._orphaned = False
        self._hasten_at_s: float | None = None  # an orphan gives the order itself
        self._deadline_s = config.drain_s
        self._term_reader, self._term_writer = os.pipe()
        os.set_blocking(self._term_reader, False)
        os.set_blocking(self._term_writer, False)
        self._poll = select.poll()
        self._poll.register(self._term_reader, select.POLLIN)
        self._poll.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def catch_signals(self) -> None:
        """Let SIGTERM be an order. Called once, on the main thread, before signals are unblocked."""
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._term_writer, b"T")
        except BlockingIOError:
            pass  # thousands are waiting already

    def next_order(self, timeout_s: float | None) -> Order | None:
        """Wait for the next order, at most `timeout_s` seconds (None: for ever). None when none came."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._orders:
            ends = [at_s for at_s in (deadline, self._hasten_at_s) if at_s is not None]
            remaining = max(0.0, min(ends) - time.monotonic()) if ends else None
            ready = self._poll.poll(None if remaining is None else remaining * 1000)
            for fd, _ in ready:
                if fd == self._term_reader:
                    self._terms += len(os.read(fd, 4096))
                else:
                    self._receive()
            now_s = time.monotonic()
            if self._hasten_at_s is not None and now_s >= self._hasten_at_s:
                self._ordered, self._hasten_at_s = 2, None
            self._note_stop()
            if not ready and deadline is not None and now_s >= deadline and not self._orders:
                return None
        return self._orders.popleft()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(MESSAGE_BYTES_MAX + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The death signal follows this end, so that it is not taken for an order of its own.
            self._orphaned = True
            self._hasten_at_s = time.monotonic() + ORPHAN_DRAIN_S
            self._ordered = min(self._told + 1, 2)
            self._poll.unregister(self._socket)
            return
        try:
            message = to_child(data)
        except Refused:
            return  # a message of another version: this child obeys what it knows
        match message:
            case Drain(deadline_s=deadline_s):
                self._ordered, self._deadline_s = max(self._ordered, 1), deadline_s
            case Hasten():
                self._ordered = 2
            case OwnerDead(notice_id=notice_id, worker_id=worker_id, cause=cause):
                self._orders.append(Order(kind="owner_dead", worker_id=worker_id, cause=cause, notice_id=notice_id))

    def _note_stop(self) -> None:
        """Turn the counts into at most one new order; stopping goes before everything that waits."""
        wanted = min(max(self._ordered, self._terms), 2)
        if self._orphaned:
            self._deadline_s = min(self._deadline_s, ORPHAN_DRAIN_S)
        if wanted <= self._told:
            return
        self._told = wanted
        if wanted == 1:
            self._orders.appendleft(Order(kind="drain", deadline_s=self._deadline_s))
        else:
            deadline_s = min(HASTEN_S, self._deadline_s)
            self._orders.appendleft(Order(kind="hasten", deadline_s=deadline_s, orphaned=self._orphaned))

    def ready(self) -> None:
        """Say that the role has started. Before this a death counts as a failed start."""
        self._send(Ready())

    def report(self, status: dict[str, Any]) -> None:
        """Tell how the role is: a JSON object below 60 kB. The supervisor keeps the last one.

        Known keys: `loops` (name → seconds since that loop last moved), `claims` (number held), `slots_busy`,
        `counters` (name → number; `commits` decides about crash loops). Report every 1–2 s: a child that has once
        reported and then says nothing for 10 s is shown as silent. Raises TooLarge and TypeError.
        """
        self._send(Report(status=status))

    def acknowledge(self, notice_id: int) -> None:
        """Say that the claims of the owner in that notice are released; the notice is not repeated any more."""
        self._send(Acknowledge(notice_id=notice_id))

    def ask_recycle(self, reason: str) -> None:
        """Ask to be drained and replaced; the death counts as ordered (B-40). Once is enough."""
        self._send(AskRecycle(reason=reason[:500]))

    def failed(self, text: str) -> None:
        """Last words: one line that the supervisor shows as the cause of this child's end."""
        self._send(Failed(text=text[:2_000]))

    def _send(self, message: FromChild) -> bool:
        """Send, waiting at most 0.5 s for room; False when the supervisor does not read or is gone."""
        data = encoded(message)
        deadline = time.monotonic() + _SEND_LIMIT_S
        while True:
            try:
                self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                self._writable.poll(50)
            except OSError:
                return False
