"""Business objects: the life of an embedded intent, the next round, and guarded business writes (groups 7, 11).

Every guard names the round, `workflow_dispatch.fencing_token`, its only authority. The writes of a dispatcher name
its own lease token besides; leases run out by the store's clock. No row keeps commit marks: each of these writes
leaves in the row what tells whether it landed (its token, its status, its round).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernel.dispatch import DISPATCHED, INTENT_FIELD, OPEN, PENDING, PROCESSING, REFUSED, Intent, IntentStatus
from kernel.records import ERROR_CHARACTERS_MAX, Document, to_document
from kernel.store.conditional import (
    Add,
    Change,
    Clear,
    Due,
    Equals,
    Guard,
    Insert,
    Missing,
    OneOf,
    Put,
    PutNowPlus,
    Transition,
)

STATUS = f"{INTENT_FIELD}.status"
ROUND = f"{INTENT_FIELD}.fencing_token"
LEASE = f"{INTENT_FIELD}.claim_token"
DUE = f"{INTENT_FIELD}.due_time"
INPUT = f"{INTENT_FIELD}.input"
ERROR = f"{INTENT_FIELD}.error"
TRIES = f"{INTENT_FIELD}.tries"

_ENDED: tuple[Change, ...] = (Clear(LEASE), Clear(DUE))
"""An intent that has ended is due for nobody and held by nobody."""


def accept_object(table: str, object_id: str, document: Document, intent: Intent) -> Insert:
    """The object and its pending intent, in one write: one can not exist without the other (req-atomic-intent)."""
    return Insert("accept_object", table, object_id, {**document, INTENT_FIELD: to_document(intent)})


def embed_intent(
    table: str, object_id: str, intent: Intent, *, status_field: str, status: str | int, seen_status: str | int | None
) -> Transition:
    """The first intent of an object that exists and has none: one that the user's own program made."""
    standing: Guard = Missing(status_field) if seen_status is None else Equals(status_field, seen_status)
    return Transition(
        "embed_intent",
        table,
        object_id,
        (Missing(INTENT_FIELD), standing),
        (Put(status_field, status), Put(INTENT_FIELD, to_document(intent))),
    )


def claim_dispatch(
    table: str, object_id: str, seen: Intent, claim_token: str, lease_ms: int, *, keep_input: bool = False
) -> Transition:
    """pending and due, or processing and expired, exactly as `seen` → processing under a new token (dsp-lease-take).

    With `keep_input` the input that was built for an object without one is stored, so that every later try of this
    round submits the same bytes (req-one-snapshot).
    """
    holder = Missing(LEASE) if seen.claim_token is None else Equals(LEASE, seen.claim_token)
    guards = (Equals(ROUND, seen.fencing_token), Equals(STATUS, seen.status), holder, Due(DUE))
    kept = (Put(INPUT, seen.input),) if keep_input else ()
    changes = (Put(STATUS, PROCESSING), Put(LEASE, claim_token), PutNowPlus(DUE, lease_ms), *kept)
    return Transition("claim_dispatch", table, object_id, guards, changes)


def renew_dispatch(table: str, object_id: str, fencing_token: str, claim_token: str, lease_ms: int) -> Transition:
    """The holder keeps its lease (dsp-lease-renew)."""
    return _held("renew_dispatch", table, object_id, fencing_token, claim_token, (PutNowPlus(DUE, lease_ms),))


def confirm_dispatch(table: str, object_id: str, fencing_token: str, claim_token: str | None = None) -> Transition:
    """→ dispatched: the request side from pending (dsp-confirm-request), the holder from processing
    (dsp-confirm-holder). The lease goes in the same write."""
    changes = (Put(STATUS, DISPATCHED), Clear(ERROR), *_ENDED)
    return _held("confirm_dispatch", table, object_id, fencing_token, claim_token, changes)


def release_dispatch(
    table: str, object_id: str, fencing_token: str, claim_token: str, delay_ms: int, error: str
) -> Transition:
    """processing → pending, not before `delay_ms` from now; same round, same input (dsp-release)."""
    changes = (
        Put(STATUS, PENDING),
        Clear(LEASE),
        PutNowPlus(DUE, delay_ms),
        Add(TRIES, 1),
        Put(ERROR, error[:ERROR_CHARACTERS_MAX]),
    )
    return _held("release_dispatch", table, object_id, fencing_token, claim_token, changes)


def refuse_dispatch(
    table: str,
    object_id: str,
    fencing_token: str,
    claim_token: str | None,
    reason: str,
    *,
    status_field: str,
    seen_status: str | int | None,
    closed: str | int | None,
) -> Transition:
    """→ refused with its reason and, with `closed`, the business object to that status, in one write (detail 8).

    The business status is guarded as it was seen, so that a result that came meanwhile is not written over.
    """
    standing, changes = _refusal(reason, status_field, seen_status, closed)
    return _held("refuse_dispatch", table, object_id, fencing_token, claim_token, changes, standing)


def withdraw_dispatch(
    table: str,
    object_id: str,
    fencing_token: str,
    reason: str,
    *,
    status_field: str,
    seen_status: str | int | None,
    closed: str | int | None,
) -> Transition:
    """As `refuse_dispatch`, by the object's owner and whoever holds the lease: the holder's own writes then miss."""
    standing, changes = _refusal(reason, status_field, seen_status, closed)
    guards = (Equals(ROUND, fencing_token), OneOf(STATUS, OPEN), standing)
    return Transition("withdraw_dispatch", table, object_id, guards, changes)


def new_round(
    table: str,
    object_id: str,
    previous: str,
    intent: Intent,
    *,
    status_field: str,
    failed: str | int,
    initial: str | int,
    clear: Iterable[str],
) -> Transition:
    """A failed object starts over: status, the whole intent and the fields of the last round in one write, guarded
    by "failed" and the previous round, so that of two retries one wins (req-round-change-cas, req-round-race)."""
    return Transition(
        "new_round",
        table,
        object_id,
        (Equals(status_field, failed), Equals(ROUND, previous)),
        (Put(status_field, initial), Put(INTENT_FIELD, to_document(intent)), *map(Clear, clear)),
    )


def update_object(
    table: str,
    object_id: str,
    fencing_token: str,
    put: Mapping[str, Any],
    clear: Iterable[str] = (),
    *,
    status_field: str,
    when_status: Sequence[str | int] | None = None,
    when_absent: Iterable[str] = (),
) -> Transition:
    """A business write of round `fencing_token`: of any other round it changes nothing (fen-cas, fen-zero-rows)."""
    status = () if when_status is None else (OneOf(status_field, tuple(when_status)),)
    standing: tuple[Guard, ...] = (*status, *map(Missing, when_absent))
    return Transition(
        "update_object",
        table,
        object_id,
        (Equals(ROUND, fencing_token), *standing),
        (*(Put(field, value) for field, value in put.items()), *map(Clear, clear)),
    )


def _refusal(
    reason: str, status_field: str, seen_status: str | int | None, closed: str | int | None
) -> tuple[Guard, tuple[Change, ...]]:
    standing: Guard = Missing(status_field) if seen_status is None else Equals(status_field, seen_status)
    business = () if closed is None else (Put(status_field, closed),)
    return standing, (Put(STATUS, REFUSED), Put(ERROR, reason[:ERROR_CHARACTERS_MAX]), *_ENDED, *business)


def _held(
    name: str,
    table: str,
    object_id: str,
    fencing_token: str,
    claim_token: str | None,
    changes: tuple[Change, ...],
    *more: Guard,
) -> Transition:
    """A write on the intent of one round by its holder, or with None by whoever found it pending."""
    status: IntentStatus = PENDING if claim_token is None else PROCESSING
    holder = () if claim_token is None else (Equals(LEASE, claim_token),)
    guards = (Equals(ROUND, fencing_token), Equals(STATUS, status), *holder, *more)
    return Transition(name, table, object_id, guards, changes)
