"""Rows whose version no live worker runs: pushed away for an hour, and brought back when one appears (DECISIONS 13)."""

from __future__ import annotations

from kernel.records import DeferredRecord, Instance, to_document
from kernel.states import CLAIMABLE
from kernel.store.conditional import Clear, Due, Equals, Exists, Missing, OneOf, Put, PutNow, PutNowPlus, Transition
from kernel.transitions.parts import transition


def defer_for_fingerprint(
    instance: Instance, *, offered: tuple[str, ...], delay_ms: int, now_ms: int, commit_id: str
) -> Transition:
    """By a dispatcher only, on a due row that nobody holds: no failure, no attempt (fpr-mismatch-not-failure)."""
    record = DeferredRecord(stored=instance.definition_fingerprint, offered=offered, since_time=now_ms)
    guards = (
        OneOf("status", CLAIMABLE),
        Equals("definition_key", instance.definition_key),
        Due("claimable_time"),
        Missing("claim_token"),
        Missing("parked"),
    )
    changes = (Put("deferred", to_document(record)), PutNowPlus("claimable_time", delay_ms))
    return transition("defer_for_fingerprint", instance.workflow_id, guards, changes, commit_id)


def release_deferred(workflow_id: str, *, definition_key: str, commit_id: str) -> Transition:
    """A worker with that version is alive again: claimable now (fpr-compatible-returns, B-30)."""
    guards = (
        Exists("deferred"),
        Equals("definition_key", definition_key),
        OneOf("status", CLAIMABLE),
        Missing("claim_token"),
        Missing("parked"),
    )
    changes = (Clear("deferred"), PutNow("claimable_time"))
    return transition("release_deferred", workflow_id, guards, changes, commit_id)
