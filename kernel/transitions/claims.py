"""The right to execute: taking it, keeping it, giving it back, and what happens when its holder dies (group 10)."""

from __future__ import annotations

from kernel.records import ErrorRecord, ParkedRecord, to_document
from kernel.states import CLAIMABLE, FAILING, LIVE, RUNNING, InstanceStatus
from kernel.store.conditional import (
    Add,
    AtLeast,
    AtMost,
    Change,
    Clear,
    Due,
    Equals,
    Exists,
    Guard,
    Missing,
    OneOf,
    Put,
    PutNow,
    PutNowPlus,
    Transition,
)
from kernel.transitions.parts import NOTHING_MORE, UNCLAIM, Held, Rest, held, resting, transition

SUSPECT_DEATHS = 2
"""From this many deaths on an instance runs alone in its worker (DECISIONS detail 4)."""


def _claimable(definition_keys: tuple[str, ...]) -> tuple[Guard, ...]:
    """Status, version and parking: on every path to a claim (clm-atomic, DECISIONS 13 and detail 19)."""
    return (OneOf("status", CLAIMABLE), OneOf("definition_key", definition_keys), Missing("parked"))


def _taken(claim: Held, worker_id: str, worker: str, lease_ms: int) -> tuple[Change, ...]:
    return (
        Put("claim_token", claim.claim_token),
        Put("worker_id", worker_id),
        Put("worker", worker),
        PutNow("claim_time"),
        PutNowPlus("claimable_time", lease_ms),
        Clear("deferred"),
    )


def claim(
    taken: Held, *, worker_id: str, worker: str, lease_ms: int, definition_keys: tuple[str, ...], commit_id: str
) -> Transition:
    """Take a due instance that nobody holds. A suspect (two deaths without progress) is left for `claim_alone`."""
    guards = (
        *_claimable(definition_keys),
        Due("claimable_time"),
        Missing("claim_token"),
        AtMost("deaths", SUSPECT_DEATHS - 1),
    )
    changes = _taken(taken, worker_id, worker, lease_ms)
    return transition("claim", taken.workflow_id, guards, changes, commit_id, revise=False)


def claim_alone(
    taken: Held, *, worker_id: str, worker: str, lease_ms: int, definition_keys: tuple[str, ...], commit_id: str
) -> Transition:
    """As `claim`, by a worker that holds nothing else and will take nothing until this one ends: suspects too."""
    guards = (*_claimable(definition_keys), Due("claimable_time"), Missing("claim_token"))
    changes = _taken(taken, worker_id, worker, lease_ms)
    return transition("claim_alone", taken.workflow_id, guards, changes, commit_id, revise=False)


def take_over(
    taken: Held,
    *,
    dead_token: str,
    worker_id: str,
    worker: str,
    lease_ms: int,
    definition_keys: tuple[str, ...],
    alone: bool,
    commit_id: str,
) -> Transition:
    """Take a due instance that still bears the token of a holder whose lease ran out: one more death.

    `dead_token` is the token as read: of two workers that saw the same expired claim one wins (clm-crash-lease).
    Without `alone` the death must not make it a suspect that runs beside others.
    """
    guards: tuple[Guard, ...] = (
        *_claimable(definition_keys),
        Due("claimable_time"),
        Equals("claim_token", dead_token),
    )
    if not alone:
        guards = (*guards, AtMost("deaths", SUSPECT_DEATHS - 2))
    changes = (*_taken(taken, worker_id, worker, lease_ms), Add("deaths", 1))
    return transition("take_over", taken.workflow_id, guards, changes, commit_id, revise=False)


def claim_handed_over(
    taken: Held,
    *,
    resource: str,
    worker_id: str,
    worker: str,
    lease_ms: int,
    definition_keys: tuple[str, ...],
    alone: bool = False,
    commit_id: str,
) -> Transition:
    """Take an instance to which a released permit was handed, before its net time is due (DECISIONS detail 7).

    `alone`: by a worker that holds nothing else, as `claim_alone`: suspects too.
    """
    guards: tuple[Guard, ...] = (
        Equals("status", RUNNING),
        OneOf("definition_key", definition_keys),
        Missing("parked"),
        Missing("claim_token"),
        Equals("permit_wait.resource", resource),
    )
    if not alone:
        guards = (*guards, AtMost("deaths", SUSPECT_DEATHS - 1))
    changes = _taken(taken, worker_id, worker, lease_ms)
    return transition("claim_handed_over", taken.workflow_id, guards, changes, commit_id, revise=False)


def renew(claim: Held, lease_ms: int) -> Transition:
    """Hold the claim for another lease. No commit_id: an unknown renewal counts as not renewed."""
    guards = (Equals("claim_token", claim.claim_token), OneOf("status", CLAIMABLE))
    return transition("renew", claim.workflow_id, guards, (PutNowPlus("claimable_time", lease_ms),), None, revise=False)


def release(claim: Held, *, status: InstanceStatus, rest: Rest, commit_id: str) -> Transition:
    """End a claim between steps: nothing ready but waits (`wait_again`), a later due time, or a draining worker.

    A `failing` instance stays failing and is claimable at once (shd-release).
    """
    if status == RUNNING:
        # A `prepare` that had failed has succeeded under this claim: it is not what is waited for any more.
        changes = (Clear("finalizer"), *resting(rest))
        return transition("release", claim.workflow_id, held(claim, status), changes, commit_id)
    return transition(
        "release", claim.workflow_id, held(claim, status), (PutNow("claimable_time"), *UNCLAIM), commit_id
    )


def release_dead(
    claim: Held, *, worker_id: str, counted: bool, deaths_max: int, after_ms: int = 0, commit_id: str
) -> Transition:
    """Give back the claim of a worker whose death is proved; `counted` unless the supervisor ordered it.

    Guarded by owner and token as read: a later claim of the same instance is never touched (DECISIONS detail 5).
    With `counted` it misses where this death has to park the instance: see `park_dead`. `after_ms`: claimable only
    then, for a holder that gives back while it ends and is gone by that time at the latest.
    """
    guards: tuple[Guard, ...] = (
        Equals("worker_id", worker_id),
        Equals("claim_token", claim.claim_token),
        OneOf("status", CLAIMABLE),
    )
    due = PutNowPlus("claimable_time", after_ms) if after_ms else PutNow("claimable_time")
    changes: tuple[Change, ...] = (due, *UNCLAIM)
    if counted:
        changes = (*changes, Add("deaths", 1))
        if deaths_max:
            guards = (*guards, AtMost("deaths", max(deaths_max, SUSPECT_DEATHS + 1) - 2))
    return transition("release_dead", claim.workflow_id, guards, changes, commit_id)


def park_dead(
    claim: Held,
    *,
    worker_id: str,
    deaths_max: int,
    reason: str,
    now_ms: int,
    fail: ErrorRecord | None = None,
    commit_id: str,
) -> Transition:
    """The proved death of a suspect that ran alone: put it aside, or with `fail` let it fail (DECISIONS 2)."""
    guards = (
        Equals("worker_id", worker_id),
        Equals("claim_token", claim.claim_token),
        OneOf("status", CLAIMABLE),
        AtLeast("deaths", max(deaths_max, SUSPECT_DEATHS + 1) - 1),
    )
    return transition("park_dead", claim.workflow_id, guards, _parked(reason, now_ms, fail), commit_id)


def park(
    workflow_id: str,
    *,
    dead_token: str,
    deaths_max: int,
    reason: str,
    now_ms: int,
    fail: ErrorRecord | None = None,
    commit_id: str,
) -> Transition:
    """The lease of a suspect that ran alone ran out: put it aside instead of taking it over again."""
    guards = (
        OneOf("status", CLAIMABLE),
        Missing("parked"),
        Due("claimable_time"),
        Equals("claim_token", dead_token),
        AtLeast("deaths", max(deaths_max, SUSPECT_DEATHS + 1) - 1),
    )
    return transition("park", workflow_id, guards, _parked(reason, now_ms, fail), commit_id)


def _parked(reason: str, now_ms: int, fail: ErrorRecord | None) -> tuple[Change, ...]:
    if fail is not None:
        # The Definition asked for an end instead: the failure is brought to its end by the next claim.
        failing = (Put("status", FAILING), Put("error", to_document(fail)), Put("deaths", 0))
        return (*failing, *NOTHING_MORE, PutNow("claimable_time"), *UNCLAIM)
    record = ParkedRecord(reason=reason, since_time=now_ms)
    return (Put("parked", to_document(record)), Add("deaths", 1), Clear("claimable_time"), *UNCLAIM)


def unpark(workflow_id: str, *, commit_id: str) -> Transition:
    """Put a parked instance back: claimable now, its deaths forgotten (DECISIONS detail 19)."""
    guards = (Exists("parked"), OneOf("status", LIVE))
    changes = (Clear("parked"), Put("deaths", 0), PutNow("claimable_time"))
    return transition("unpark", workflow_id, guards, changes, commit_id)
