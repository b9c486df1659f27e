"""Listening sockets, made and held by the supervisor: a restart of the companion behind one refuses no connection."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from kernel.errors import InvalidConfig

AGAIN_MS, TRIES = 250, 24
"""A supervisor that was killed leaves children that hold its sockets until they have drained (ORPHAN_DRAIN_S)."""


def open_listener(name: str, port: int, pause: Callable[[int], bool], host: str = "127.0.0.1") -> socket.socket | None:
    """A socket at `port`, or at any free one for 0; of the loopback unless another `host` is asked for.

    `pause` waits so many ms and says whether to give up: then there is none. Raises InvalidConfig for a port that is
    still taken after six seconds, or not ours to take.
    """
    for attempt in range(1, TRIES + 1):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not port or attempt == TRIES:
                raise InvalidConfig(f"companion {name}: port {port} on {host}: {error.strerror or error}") from None
        if pause(AGAIN_MS):
            return None
    return None
