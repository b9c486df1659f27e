"""What the side path has seen, for operators: snapshots, attempts, and counts of them (obs-snapshot-use).

Only the operator's views import this module (obs-not-audit). It reads the store of observations and has no other, so
that no list or page can fall back to the instances (obs-never-instances). What it tells may be late or have gaps.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from kernel.errors import CorruptRecord, Refused, UnknownVersion
from kernel.ids import check_id
from kernel.observe.tables import ATTEMPTS, OBSERVE_TABLES, SNAPSHOTS
from kernel.observe.views import ATTEMPT_VERSION, SNAPSHOT_VERSION, Attempt, Snapshot, Waiting
from kernel.records import Document
from kernel.states import INSTANCE_STATUSES, PRIORITIES, InstanceStatus
from kernel.store.conditional import AtMost, Equals, OneOf
from kernel.store.projection import ProjectionStore, Total, Totals
from kernel.store.protocol import Query, ScanGuard

PAGE_ROWS_MAX = 1_000
GROUPS_MAX = 10_000

T = TypeVar("T")
Column = Literal[
    "type", "status", "business_priority", "current_step", "waiting", "waiting_on", "error_code"
]  # fmt: skip
"""What snapshots can be counted by."""
BY: tuple[Column, ...] = ("type", "status", "waiting", "waiting_on")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which snapshots. Everything is optional, and all that is given must hold."""

    type: str | None = None
    statuses: tuple[InstanceStatus, ...] = ()
    waiting: Waiting | None = None
    waiting_on: str | None = None
    step: str | None = None
    """The current step."""
    lane: int | None = None
    created_before_ms: int | None = None
    """At this time (ms since the epoch) or before."""
    created_after_ms: int | None = None
    """At this time or after."""
    error_code: str | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot in a list: its columns, read without the rest."""

    biz_key: str
    workflow_id: str
    type: str
    status: InstanceStatus
    revision: int
    business_priority: int
    created_time: int
    updated_time: int
    finish_time: int | None
    newest: int
    current_step: str | None
    waiting: Waiting | None
    waiting_on: str | None
    waiting_since: int | None
    waiting_until: int | None
    error_code: str | None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page, and the token of the next; None: this was the last."""

    rows: tuple[T, ...]
    next: str | None


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """So many snapshots have the same values; a column that was not counted by is None, as one that they lack."""

    n: int
    oldest_waiting_since: int | None
    """Since when the one that has waited longest does so."""
    type: str | None = None
    status: InstanceStatus | None = None
    business_priority: int | None = None
    current_step: str | None = None
    waiting: Waiting | None = None
    waiting_on: str | None = None
    error_code: str | None = None


class Observations:
    """The reader. `store` was opened with OBSERVE_TABLES and holds nothing else; `close` it here.

    Every method raises StoreUnavailable when the store does not answer, UnknownVersion for a row of a layout that this
    kernel does not know, CorruptRecord for one that does not decode, and Refused for a question that can not be one.
    """

    def __init__(self, store: ProjectionStore) -> None:
        self._store = store

    def get(self, biz_key: str) -> Snapshot | None:
        """The snapshot of a business key; None when the side path has seen nothing of it."""
        return _snapshot(self._store.get(SNAPSHOTS, check_id(biz_key, "biz_key")))

    def of_workflow(self, workflow_id: str) -> Snapshot | None:
        """As `get`, by the workflow's id."""
        return _snapshot(self._store.find(SNAPSHOTS, "workflow_id", check_id(workflow_id, "workflow_id")))

    def page(self, wanted: Wanted, *, after: str | None = None, limit: int = 50) -> Page[Line]:
        """The wanted ones, the newest first. `after` is the `next` of the page before, of the same question."""
        question = _digest("page", wanted)
        at = _position(after, question)
        if at is None and wanted.created_before_ms is not None:
            at = (-wanted.created_before_ms, "")  # before every row of that moment: no key is empty
        rows = self._lines(wanted, at, _limit(limit) + 1)
        more = len(rows) > limit
        rows = rows[:limit]
        return Page(tuple(rows), _token(rows[-1].newest, rows[-1].biz_key, question) if more else None)

    def _lines(self, wanted: Wanted, at: tuple[int, str] | None, limit: int) -> list[Line]:
        """The first `limit` after a position. Each status is asked for by itself: in an index they lie one after the
        other, and to have all of them in order of time would mean to sort all of them."""
        # The position stands for the time before which they were created.
        asked = msgspec.structs.replace(wanted, created_before_ms=None)
        parts = [msgspec.structs.replace(asked, statuses=(status,)) for status in dict.fromkeys(wanted.statuses)]
        lines: dict[str, Line] = {}
        for part in parts or [asked]:
            for row in self._store.scan(Query(SNAPSHOTS, guards_of(part), "newest", _COLUMNS, limit, at)):
                line = _line(row)
                # One that has changed its status between two questions is the newer of both.
                if line.biz_key not in lines or lines[line.biz_key].revision < line.revision:
                    lines[line.biz_key] = line
        return sorted(lines.values(), key=lambda line: (line.newest, line.biz_key))[:limit]

    def attempts(
        self, biz_key: str, *, step: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Attempt]:
        """The attempts of one business key, or of one of its steps, the oldest first: for the diagnosis of a step."""
        guards: tuple[ScanGuard, ...] = (Equals("biz_key", check_id(biz_key, "biz_key")),)
        if step is not None:
            guards += (Equals("step", step),)
        question = _digest("attempts", (biz_key, step))
        query = Query(
            table=ATTEMPTS,
            guards=guards,
            order="updated_time",
            columns=("attempt_key",),
            limit=_limit(limit) + 1,
            after=_position(after, question),
        )
        rows = [_attempt(row) for row in self._store.rows(query)]
        more = len(rows) > limit
        rows = rows[:limit]
        return Page(tuple(rows), _token(rows[-1].updated_time, rows[-1].attempt_key, question) if more else None)

    def counts(self, wanted: Wanted, *, by: Sequence[Column] = BY) -> list[Count]:
        """How many of the wanted ones there are, by the columns `by`, the largest group first. Reads snapshots only."""
        known = get_args(Column)
        if not by or any(column not in known for column in by):
            raise Refused(f"by: {', '.join(by) or 'nothing'}: snapshots are counted by {', '.join(known)}")
        totals = Totals(SNAPSHOTS, guards_of(wanted), tuple(by), "waiting_since", GROUPS_MAX)
        return [_count(by, total) for total in self._store.totals(totals)]

    def close(self) -> None:
        """Close the store."""
        self._store.close()


_COLUMNS: tuple[str, ...] = OBSERVE_TABLES[SNAPSHOTS].columns


def guards_of(wanted: Wanted) -> tuple[ScanGuard, ...]:
    """The question in columns. Raises Refused when it is none."""
    unknown = [status for status in wanted.statuses if status not in INSTANCE_STATUSES]
    if unknown:
        raise Refused(f"statuses: {unknown[0]!r} is none of {', '.join(INSTANCE_STATUSES)}")
    if wanted.waiting is not None and wanted.waiting not in get_args(Waiting):
        raise Refused(f"waiting: {wanted.waiting!r} is none of {', '.join(get_args(Waiting))}")
    if wanted.lane is not None and wanted.lane not in PRIORITIES.values():
        raise Refused(f"lane: {wanted.lane!r} is none of {', '.join(map(str, PRIORITIES.values()))}")
    guards: list[ScanGuard] = [
        Equals(column, value)
        for column, value in (
            ("type", wanted.type),
            ("waiting", wanted.waiting),
            ("waiting_on", wanted.waiting_on),
            ("current_step", wanted.step),
            ("business_priority", wanted.lane),
            ("error_code", wanted.error_code),
        )
        if value is not None
    ]
    if len(wanted.statuses) == 1:
        guards.append(Equals("status", wanted.statuses[0]))
    elif wanted.statuses:
        guards.append(OneOf("status", wanted.statuses))
    if wanted.created_before_ms is not None:
        guards.append(AtMost("created_time", wanted.created_before_ms))
    if wanted.created_after_ms is not None:
        guards.append(AtMost("newest", -wanted.created_after_ms))  # `newest` is the negative of created_time
    return tuple(guards)


def _limit(limit: int) -> int:
    if not isinstance(limit, int) or not 1 <= limit <= PAGE_ROWS_MAX:
        raise Refused(f"limit: must lie between 1 and {PAGE_ROWS_MAX}, is {limit!r}")
    return limit


# --- page tokens ----------------------------------------------------------------------------------------


def _digest(kind: str, question: object) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode((kind, question)), digest_size=8, person=b"kernel-page").digest()


def _token(at: int, key: str, question: bytes) -> str:
    """Where the next page begins, bound to its question: text that a URL can hold."""
    place = msgspec.msgpack.encode((at, key))
    return base64.urlsafe_b64encode(_seal(place, question) + place).decode().rstrip("=")


def _position(token: str | None, question: bytes) -> tuple[int, str] | None:
    """The place that a token names. Raises Refused for one that was changed, or belongs to another question."""
    if token is None:
        return None
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        seal, place = data[:8], data[8:]
        if seal == _seal(place, question):
            return msgspec.msgpack.decode(place, type=tuple[int, str])
    except (TypeError, ValueError, binascii.Error, msgspec.MsgspecError):
        pass
    raise Refused("after: no page token of this list; begin again without it")


def _seal(place: bytes, question: bytes) -> bytes:
    return hashlib.blake2b(place, digest_size=8, key=question, person=b"kernel-page").digest()


# --- rows -----------------------------------------------------------------------------------------------


def _snapshot(document: Document | None) -> Snapshot | None:
    if document is None:
        return None
    return _decoded(document, Snapshot, SNAPSHOT_VERSION, f"snapshot of {document.get('biz_key')!r}")


def _attempt(document: Document) -> Attempt:
    return _decoded(document, Attempt, ATTEMPT_VERSION, f"attempt {document.get('attempt_key')!r}")


def _decoded(document: Mapping[str, Any], type_: type[T], version: int, what: str) -> T:
    if document.get("v") != version:
        raise UnknownVersion(f"{what}: layout version {document.get('v')!r}, this kernel knows {version}")
    try:
        return msgspec.convert(document, type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CorruptRecord(f"{what}: {error}") from None


def _line(row: tuple[Any, ...]) -> Line:
    found = dict(zip(_COLUMNS, row, strict=True))
    try:
        return msgspec.convert(found, Line)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"snapshot of {found.get('biz_key')!r}: {error}") from None


def _count(by: Sequence[Column], total: Total) -> Count:
    values = cast(dict[str, Any], dict(zip(by, total.values, strict=True)))
    return Count(n=total.count, oldest_waiting_since=total.least, **values)
