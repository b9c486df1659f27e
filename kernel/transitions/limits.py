"""The limits of one resource as a fact: what an operator set, and what the application declares (prm-config-each)."""

from __future__ import annotations

import msgspec

from kernel.config import Limit
from kernel.records import to_document
from kernel.store.conditional import Add, Change, Clear, Equals, Insert, Put, PutNow, Transition
from kernel.store.tables import LIMITS

LIMIT_VERSION = 1


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row. A field that no operator has set is absent, and then what is declared applies to it. One that says
    nothing at all is left of a resource whose limits an operator has removed.

    `declared` is what the application that started last says, for operators to see; each process goes by its own.
    """

    v: int
    resource: str
    revision: int
    max_concurrency: int | None = None
    max_starts_per_second: int | None = None
    paused: bool | None = None
    set_time: int | None = None
    declared: Limit | None = None

    @property
    def is_set(self) -> bool:
        """Whether an operator has set anything."""
        return not (self.max_concurrency is None and self.max_starts_per_second is None and self.paused is None)


def first_limit(resource: str) -> Insert:
    """The row of a resource that has none, empty; a Duplicate says that somebody else made it."""
    record = LimitRecord(v=LIMIT_VERSION, resource=resource, revision=0)
    return Insert("first_limit", LIMITS, resource, to_document(record))


def set_limit(
    resource: str,
    *,
    max_concurrency: int | None = None,
    max_starts_per_second: int | None = None,
    paused: bool | None = None,
) -> Transition:
    """By an operator: the given fields, the others stay as they are (prm-lower, prm-raise, prm-pause).

    No commit_id: setting the same values again changes nothing but the revision, so an unknown write is made again.
    """
    given = {"max_concurrency": max_concurrency, "max_starts_per_second": max_starts_per_second, "paused": paused}
    puts: list[Change] = [Put(field, value) for field, value in given.items() if value is not None]
    changes = (*puts, PutNow("set_time"), Add("revision", 1))
    return Transition("set_limit", LIMITS, resource, (Equals("v", LIMIT_VERSION),), changes)


def unset_limit(resource: str) -> Transition:
    """By an operator: nothing is set any more, and what is declared applies. The row stays: a worker that declares the
    resource in this moment writes into it.

    No commit_id: a repeat changes nothing but the revision, so an unknown write is made again.
    """
    fields = ("max_concurrency", "max_starts_per_second", "paused", "set_time")
    clears: list[Change] = [Clear(field) for field in fields]
    changes = (*clears, Add("revision", 1))
    return Transition("unset_limit", LIMITS, resource, (Equals("v", LIMIT_VERSION),), changes)


def declare_limit(resource: str, declared: Limit) -> Transition:
    """By a worker that starts: for display only; what an operator has set is not touched."""
    changes = (Put("declared", to_document(declared)), Add("revision", 1))
    return Transition("declare_limit", LIMITS, resource, (Equals("v", LIMIT_VERSION),), changes)
