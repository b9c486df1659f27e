"""A busy machine stands still now and then, for seconds, at any line: what a test allows for that, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kernel.config import Config
from tests.support.figures import SLACK

STALL_S = 3.0
"""For so long it may stand still, once within a test."""
STEADY: dict[str, Any] = {"lease_s": 4.2, "renew_s": 0.4}
"""A lease that such a moment does not take away: from the last renewal to the fence it has 3.5 s. What is lost under it
was taken by a test."""
_PATIENT_S = 60.0


def patient(config: Config) -> Config:
    """The settings by which a test looks at a tree, and writes beside it. What the tree has for an answer of its stores
    is a sixth of its lease, of Redis 0.4 s: a test that only looks must not fail for it."""
    return msgspec.structs.replace(config, lease_s=_PATIENT_S, redis_budget_s=_PATIENT_S / 2)


def but_worst(samples: Sequence[float]) -> list[float]:
    """All but the worst: what is slow by itself is so more than once."""
    return sorted(samples)[:-1]


def slack_of(limit_s: float) -> float:
    """Of a bound that is measured once, or whose samples one moment hits together."""
    return SLACK + STALL_S / limit_s
