"""Redis beside the run: counting what was asked of it, from its own accounting, and emptying it."""

from __future__ import annotations

import re

from kernel.clock import SystemClock
from kernel.coordination.endpoint import parse_redis_url
from kernel.coordination.keys import LAYOUT
from kernel.coordination.scripts import ScriptRunner

_CALLS = re.compile(r"^cmdstat_(\S+?):calls=(\d+)", re.MULTILINE)
_VERSION = re.compile(r"^(valkey|redis)_version:(\S+)", re.MULTILINE)
_TIMEOUT_S = 2.0
_REMOVED_AT_ONCE = 500


class RedisCalls:
    """A connection of the measuring program to the tree's Redis. Raises InvalidConfig for a URL that is none."""

    def __init__(self, redis_url: str) -> None:
        endpoint = parse_redis_url(redis_url)
        self._runner = ScriptRunner(endpoint.connection, SystemClock(), call_timeout_s=_TIMEOUT_S)
        self.address = str(endpoint)
        """Without user and password."""

    def ping(self) -> None:
        """Raise CoordinationUnavailable when nobody answers."""
        self._runner.command("PING")

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

    def remove_namespace(self, namespace: str) -> None:
        """Take away every key of one namespace. Raises CoordinationUnavailable."""
        remove_keys(self._runner, f"{LAYOUT}:{{{namespace}}}:*")

    def close(self) -> None:
        self._runner.close()

    def _info(self, section: str) -> str:
        reply: bytes = self._runner.command("INFO", section)
        return reply.decode("utf-8", "replace").replace("\r\n", "\n")


def remove_keys(runner: ScriptRunner, pattern: str) -> None:
    """Take away every key that `pattern` matches, a few at a time. Raises CoordinationUnavailable."""
    cursor: bytes | int = 0
    while True:
        cursor, names = runner.command("SCAN", cursor, "MATCH", pattern, "COUNT", _REMOVED_AT_ONCE)
        if names:
            runner.command("UNLINK", *names)
        if int(cursor) == 0:
            return
