"""How a Redis is, seen without a write: for `doctor`."""

from __future__ import annotations

import msgspec

from kernel.coordination.scripts import ScriptRunner
from kernel.errors import CoordinationDenied, CoordinationRejected
from lua import scripts


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one server says of itself."""

    server: str
    """Program and version."""
    eviction: str
    """`maxmemory-policy`; `unknown` where the user may not ask."""
    maxmemory_bytes: int
    """0: no limit, so that nothing is ever evicted."""
    time_ms: int
    """Milliseconds since the epoch, by its clock."""
    loaded: dict[str, bool]
    """Script → whether its present version is loaded. One that is not is sent with its first call."""


def examine(runner: ScriptRunner) -> RedisFacts:
    """Ask the server. Raises CoordinationUnavailable or CoordinationDenied."""
    seconds, micros = (int(part) for part in runner.command("TIME"))  # first: who may not even this is not let in
    info, known = _info(runner), scripts()
    try:
        found = runner.command("SCRIPT", "EXISTS", *(script.sha1 for script in known))
    except (CoordinationDenied, CoordinationRejected):
        found = [False] * len(known)
    valkey = info.get("valkey_version")
    return RedisFacts(
        server=f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', 'of no known version')}",
        eviction=info.get("maxmemory_policy", "unknown"),
        maxmemory_bytes=int(info.get("maxmemory", "0")),
        time_ms=seconds * 1000 + micros // 1000,
        loaded={script.name: bool(here) for script, here in zip(known, found, strict=True)},
    )


def _info(runner: ScriptRunner) -> dict[str, str]:
    """INFO as a table; both sections, one call each, because servers before 7.0 take only one name. Empty for a user
    whose rights are enough for work and not for this."""
    try:
        lines = [line for part in ("server", "memory") for line in _text(runner.command("INFO", part)).splitlines()]
    except (CoordinationDenied, CoordinationRejected):
        return {}
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def _text(reply: object) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
