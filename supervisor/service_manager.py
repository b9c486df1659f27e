"""What systemd, or another service manager that speaks its protocol, is told about the tree (sd_notify).

One datagram a word to the socket that NOTIFY_SOCKET names: READY=1 when everything runs for the first time, STATUS=
when it has changed, STOPPING=1 when the drain begins, WATCHDOG=1 twice in each WATCHDOG_USEC. All of it is said from
the supervisor's own loop: a loop that has stopped says nothing, and that is what a watchdog is for. Nothing of it may
hold up the tree: a word that does not fit into the socket now is said later.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from kernel.config import ServiceManagerAddress
from supervisor.loop import Loop

LOOK_EVERY_MS = 500


class ServiceManager:
    """Tells the manager at `address` how the tree is, for as long as `loop` turns."""

    def __init__(self, address: ServiceManagerAddress, loop: Loop, status: Callable[[], Mapping[str, Any]]) -> None:
        name = os.fsencode(address.socket)
        self._name = b"\0" + name[1:] if name.startswith(b"@") else name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._loop = loop
        self._status = status
        half_ms = None if address.watchdog_us is None else address.watchdog_us // 2_000
        self._has_watchdog = half_ms is not None
        self._every_ms = max(1, min(LOOK_EVERY_MS, half_ms or LOOK_EVERY_MS))
        self._said: set[str] = set()
        self._line = ""

    def watch(self) -> None:
        """Say what is to be said now, and again and again from here on."""
        found = self._status()
        running = sum(child["state"] == "RUNNING" for child in found["children"])
        line = f"{found['state'].lower()}: {running} of {len(found['children'])} children run"
        words = []
        if found["state"] == "RUNNING":
            words += self._once("READY=1")
        if found["state"] == "DRAINING":
            words += self._once("STOPPING=1")
        if line != self._line:
            self._line = line
            words.append(f"STATUS={line}")
        if self._has_watchdog:
            words.append("WATCHDOG=1")
        for word in words:
            self._say(word)
        self._loop.call_in(self._every_ms, self.watch)

    def _once(self, word: str) -> list[str]:
        if word in self._said:
            return []
        self._said.add(word)
        return [word]

    def _say(self, word: str) -> None:
        try:
            self._socket.sendto(word.encode(), self._name)
        except OSError:
            # Full or gone for the moment: what was not heard is said again the next time.
            self._said.discard(word)
            self._line = ""
