"""The dispatch intent: "this accepted work must be registered", embedded in the business object itself (group 7).

It is no queue and no second table: the write that accepts the work also writes the intent, so one can not exist
without the other. Registering is `start_or_resume`, which is idempotent by biz_key; whoever comes later only
continues from the durable facts (dsp-recover-from-facts).

    pending ──► dispatched                  the request side registered it and confirms its own round
    pending ──► processing ──► dispatched   a dispatcher held the short lease of one object
                processing ──► pending      it could not: later again, same round, same input
    pending | processing ──► refused        this round can never be registered; terminal, with its reason
    dispatched | refused ──► pending        only by a new round of a failed business object

`fencing_token` is the business round and its only authority; `claim_token` is a dispatcher's lease. They never mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from kernel.codec import decode
from kernel.errors import CheckpointError, CorruptRecord, InvalidId, UnknownVersion
from kernel.ids import check_id
from kernel.records import Instance

INTENT_VERSION = 1
INTENT_FIELD = "workflow_dispatch"
"""The field of a business object that holds its intent."""

IntentStatus = Literal["pending", "processing", "dispatched", "refused"]
PENDING: IntentStatus = "pending"
PROCESSING: IntentStatus = "processing"
DISPATCHED: IntentStatus = "dispatched"
REFUSED: IntentStatus = "refused"
OPEN: tuple[IntentStatus, ...] = (PENDING, PROCESSING)
ROUND_FIELD = "fencing_token"
"""The field of an input that says which round it serves. A snapshot: the object's own is the authority."""


class Snapshot(msgspec.Struct, frozen=True):
    """The stored input of one round, encoded (kernel.codec): every path submits these very bytes (req-one-snapshot)."""

    data: bytes


def round_of(data: bytes) -> str | None:
    """The round that an encoded input serves; None when it does not decode, or names nothing that could be a round."""
    try:
        value: Any = decode(data, Any, "input")
        return check_id(value.get(ROUND_FIELD), ROUND_FIELD) if isinstance(value, Mapping) else None
    except (CheckpointError, UnknownVersion, InvalidId):
        return None


def rounds_of(instance: Instance) -> frozenset[str]:
    """The rounds that an instance runs, or has run, for; of the runs before this one it knows the last RUNS_KEPT."""
    found = (round_of(instance.input), *(run.round for run in instance.runs))
    return frozenset(one for one in found if one is not None)


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The stored intent of one round. `input` is the encoded snapshot that every path submits (req-one-snapshot).

    `due_time` is when a dispatcher may act: the next try while pending, the end of the lease while processing;
    absent once the intent has ended. `claim_token` exists only while processing (dsp-shape).
    """

    v: int
    type: str
    biz_key: str
    priority: int
    status: IntentStatus
    fencing_token: str
    input: bytes
    accepted_time: int
    due_time: int | None = None
    claim_token: str | None = None
    tries: int = 0
    """Registrations that failed in this round; they lengthen the delay and use up nothing."""
    error: str | None = None
    """Why the last try failed, or why the intent was refused; at most 2,000 characters."""


def to_intent(document: Mapping[str, Any], object_id: str) -> Intent:
    """Decode a stored intent. Raises UnknownVersion or CorruptRecord naming the object."""
    if document.get("v") != INTENT_VERSION:
        raise UnknownVersion(f"intent of {object_id!r}: layout version {document.get('v')!r}, this kernel knows 1")
    try:
        return msgspec.convert(document, Intent)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CorruptRecord(f"intent of {object_id!r}: {error}") from None


class DueIntent(msgspec.Struct, frozen=True):
    """A row of a scan: an object whose intent is open, and when a dispatcher may act on it (ms, the source's clock)."""

    object_id: str
    due_time: int


class DispatchSource(Protocol):
    """Where business objects with intents live. Every write is one conditional update; False or None is a miss.

    Any call may raise StoreUnavailable (nothing written) or OutcomeUnknown. Safe for many threads of one process.
    """

    @property
    def name(self) -> str:
        """Names the source in Redis, in status and in commands: a name (DECISIONS 25)."""
        ...

    @property
    def key_field(self) -> str:
        """The field in which an object has its id, and an input that names its object may have it."""
        ...

    def now_ms(self) -> int:
        """An estimate of the source's clock; decides nothing."""
        ...

    def read(self, object_id: str) -> Intent | None:
        """The intent as the last acknowledged write left it; None when the object, or its intent, does not exist.

        Raises UnknownVersion or CorruptRecord for one that does not decode. An object without a stored input gets
        one from its stable fields, where its declaration says how (req-legacy-input).
        """
        ...

    def due(self, *, after: tuple[int, str] | None, limit: int) -> Sequence[DueIntent]:
        """Open intents by (due_time, object_id), from `after` on; also those that are not due yet."""
        ...

    def claim(self, object_id: str, seen: Intent, claim_token: str, lease_ms: int) -> Intent | None:
        """pending and due, or processing and expired, as `seen` → processing under `claim_token` (dsp-lease-take)."""
        ...

    def renew(self, object_id: str, fencing_token: str, claim_token: str, lease_ms: int) -> bool:
        """Keep the lease; False when it is another's (dsp-lease-renew)."""
        ...

    def confirm(self, object_id: str, fencing_token: str, claim_token: str | None) -> bool:
        """→ dispatched: by the holder of `claim_token` from processing, or with None by the request from pending."""
        ...

    def release(self, object_id: str, fencing_token: str, claim_token: str, delay_ms: int, error: str) -> int | None:
        """processing → pending, due again after `delay_ms`, one try more; the new due time, or None (dsp-release)."""
        ...

    def refuse(self, object_id: str, fencing_token: str, claim_token: str | None, reason: str) -> bool:
        """→ refused, and the business object to its closed state, in one write (DECISIONS detail 8). With None from
        pending, else by the holder."""
        ...
