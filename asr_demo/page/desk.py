"""What the pages read of the business: notes of single jobs, or an audience's subscriptions. Theirs is the result."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from asr_demo.notes import Note, Notes
from asr_demo.subscriptions import SUBSCRIPTIONS, biz_key
from kernel import BusinessObject, BusinessObjects, Refused, Unavailable, check_id, workflow_id_for

TENANT = "demo"
PAGE_MAX = 100
_ENDED = frozenset({"completed", "failed", "closed"})
T = TypeVar("T")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One business object as its reader may see it; `GET /result/ID` is this as JSON."""

    object_id: str
    round: str
    status: str
    summary: str | None = None
    transcript: str | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this round will bring nothing more."""
        return self.status in _ENDED


class Desk(Protocol):
    """Safe for many threads. Any call may raise Unavailable."""

    def page(self, after: str | None) -> list[Shown]:
        """At most PAGE_MAX objects in the order of their ids, behind `after`; without texts."""
        ...

    def find(self, object_id: str) -> Shown | None:
        """None for what does not exist, and for what can be no id."""
        ...

    def workflow_id(self, object_id: str) -> str: ...


class NoteDesk:
    """The notes of `kernel-supervisor demo`."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def page(self, after: str | None) -> list[Shown]:
        return [_of_note(note) for note in _answered(lambda: self._notes.page(after or "", PAGE_MAX))]

    def find(self, object_id: str) -> Shown | None:
        if not _may_be_id(object_id):
            return None
        note = _answered(lambda: self._notes.read(object_id))
        return None if note is None else _of_note(note)

    def workflow_id(self, object_id: str) -> str:
        return workflow_id_for(f"async_content_job:{TENANT}:{object_id}")


class SubscriptionDesk:
    """The subscriptions of `kernel-supervisor demo --subscribers`."""

    def __init__(self, objects: BusinessObjects) -> None:
        self._objects = objects

    def page(self, after: str | None) -> list[Shown]:
        rows = self._objects.page(after=after, limit=PAGE_MAX)
        found = (self.find(row[SUBSCRIPTIONS.key]) for row in rows)
        return [shown for shown in found if shown is not None]

    def find(self, object_id: str) -> Shown | None:
        if not _may_be_id(object_id):
            return None
        there = self._objects.get(object_id)
        return None if there is None else _of_subscription(there)

    def workflow_id(self, object_id: str) -> str:
        return workflow_id_for(biz_key(TENANT, object_id))


def _of_note(note: Note) -> Shown:
    return Shown(
        object_id=note.object_id,
        round=note.fencing_token,
        status=note.status,
        summary=note.summary,
        transcript=note.transcript,
        error=note.error,
    )


def _of_subscription(there: BusinessObject) -> Shown:
    segments = there.fields.get("segments")
    return Shown(
        object_id=there.object_id,
        round=there.fencing_token or "",
        status=str(there.status),
        summary=there.fields.get("summary"),
        transcript=" ".join(segments) if segments else None,
        error=there.fields.get("error"),
    )


def _may_be_id(text: str) -> bool:
    with suppress(Refused):
        return bool(check_id(text, "object_id"))
    return False


def _answered(read: Callable[[], T]) -> T:
    try:
        return read()
    except sqlite3.Error as error:
        raise Unavailable(f"notes: {error}") from None
