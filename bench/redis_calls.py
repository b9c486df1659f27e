"""Redis beside the run: counting what was asked of it, from its own accounting, and emptying it."""

from __future__ import annotations

import re

from kernel.clock import SystemClock
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.scripts import ScriptRunner

_CALLS = re.compile(r"^cmdstat_(\S+?):calls=(\d+)", re.MULTILINE)
_VERSION = re.compile(r"^(valkey|redis)_version:(\S+)", re.MULTILINE)
_TIMEOUT_S = 2.0


class RedisCalls:
    """A connection of the measuring program to the tree's Redis."""

    def __init__(self, redis_url: str) -> None:
        self._runner = ScriptRunner(parse_redis_url(redis_url).connection, SystemClock(), call_timeout_s=_TIMEOUT_S)

    def round_trips(self) -> int:
        """How many script calls the server has been asked for since it started.

        All that the kernel does with its queue is a script call, and one call is one round trip. The commands that
        scripts run inside are counted by the server under their own names and are no round trips; the listeners'
        SUBSCRIBE and PING and the supervisor's PING belong to no workflow.
        """
        calls = dict(_CALLS.findall(self._info("commandstats")))
        return sum(int(calls.get(name, 0)) for name in ("evalsha", "eval"))

    def server(self) -> str:
        """Name and version of the server."""
        versions = dict(_VERSION.findall(self._info("server")))
        name = "valkey" if "valkey" in versions else "redis"
        return f"{name} {versions.get(name, 'unknown')}"

    def flush(self) -> None:
        """Take everything away, as an operator's FLUSHALL does. Raises CoordinationUnavailable."""
        self._runner.command("FLUSHALL")

    def close(self) -> None:
        self._runner.close()

    def _info(self, section: str) -> str:
        reply: bytes = self._runner.command("INFO", section)
        return reply.decode("utf-8", "replace").replace("\r\n", "\n")
