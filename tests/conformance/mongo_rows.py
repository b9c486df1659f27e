"""A row and a claim in small, for what only the Mongo store has to prove."""

from __future__ import annotations

from typing import Any

from kernel.store.conditional import Due, Equals, Insert, Missing, Put, PutNow, PutNowPlus, Transition
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document


def created(key: str, now_ms: int, **fields: Any) -> Insert:
    """A new row that is due."""
    return Insert("create", INSTANCES, key, instance_document(key, now_ms, **fields))


def claim(key: str, token: str = "t1", lease_ms: int = 30_000) -> Transition:
    """Due and unheld → held, with the lease counted by the store."""
    guards = (Equals("status", "running"), Due("claimable_time"), Missing("claim_token"))
    changes = (PutNowPlus("claimable_time", lease_ms), Put("claim_token", token), PutNow("claim_time"))
    return Transition("claim", INSTANCES, key, guards, changes, commit_id=f"commit of {token}")
