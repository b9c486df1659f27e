"""Whether a tree lives, and whether work should be sent to it: verdicts on facts, without a call to anybody (§6.5).

A missing Redis costs latency and nothing else, so a tree without it is ready, and says `degraded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kernel.config import Config
from supervisor.metrics_facts import Seen

FRESH_S = 2.0
"""What is older than that is not known."""
SILENCE_S = 5.0
"""A supervisor that has not answered for so long is taken for hung."""


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold: how old the fact behind it is in s, and what is wrong."""

    name: str
    ok: bool
    age_s: float | None
    error: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The answer of `/readyz`."""

    v: int
    ready: bool
    degraded: list[str]
    checks: list[Check]


def is_live(status: Seen[dict[str, Any]]) -> bool:
    """Whether the supervisor's loop moved lately; it answers nobody while it does not."""
    return status.age_s is not None and status.age_s < SILENCE_S


def verdict(config: Config, status: Seen[dict[str, Any]], store: Seen[Any], redis: Seen[Any]) -> Verdict:
    """All checks of one moment."""
    found = status.value if status.value is not None and _is_fresh(status) else None
    age_s = None if status.age_s is None else round(status.age_s, 3)
    checks = [_fresh("supervisor", status), _draining(found, age_s), _fresh("store", store)]
    for role, wanted in (("worker", config.workers), ("dispatcher", config.dispatchers)):
        if wanted:
            checks.append(_running(role, found, age_s))
    redis_check = _fresh("redis", redis)
    degraded = [] if redis_check.ok else ["redis"]
    return Verdict(1, all(check.ok for check in checks), degraded, [*checks, redis_check])


def _is_fresh(seen: Seen[Any]) -> bool:
    return seen.age_s is not None and seen.age_s <= FRESH_S and seen.error is None


def _fresh(name: str, seen: Seen[Any]) -> Check:
    age_s = None if seen.age_s is None else round(seen.age_s, 3)
    if _is_fresh(seen):
        return Check(name, True, age_s)
    return Check(name, False, age_s, seen.error or "no answer within 2 s")


def _draining(status: Mapping[str, Any] | None, age_s: float | None) -> Check:
    if status is None:
        return Check("not draining", False, age_s, "not known")
    draining = status["state"] == "DRAINING"
    return Check("not draining", not draining, age_s, "the tree drains and ends" if draining else None)


def _running(role: str, status: Mapping[str, Any] | None, age_s: float | None) -> Check:
    name = f"{role} running"
    if status is None:
        return Check(name, False, age_s, "not known")
    of_role = [child for child in status["children"] if child["role"] == role and child["kind"] == role]
    if any(child["state"] == "RUNNING" and not child["silent"] for child in of_role):
        return Check(name, True, age_s)
    states = ", ".join(f"{child['name']} {child['state']}{' silent' * child['silent']}" for child in of_role)
    return Check(name, False, age_s, f"none of {states or 'none'}")
