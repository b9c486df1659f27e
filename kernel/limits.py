"""Which limits hold for a resource now: facts of the durable store over what the application declares.

Field by field, the first that says something decides (B-25, DECISIONS 11):

1. what an operator set for this very resource (`tenant_work:acme`);
2. what an operator set for all of its kind (`tenant_work`);
3. what is declared for it, then for its kind: in the settings, which belong to the deployment, over the App;
4. nothing: no limit. A resource that nobody declares is unlimited, as `Limit()` is; `declares` tells, so that a worker
   can say so once. It must not be a silent stop of a step whose limit somebody removed.

An operator's word is a row and wins until an operator changes it: a deployment with other defaults does not undo it.
A row is read again after at most one second, so that a change binds everywhere within that time (prm-config-each).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.config import Limit
from kernel.errors import CorruptRecord, InvalidConfig, OutcomeUnknown, Refused, UnknownVersion
from kernel.ids import check_resource
from kernel.records import Document
from kernel.store.conditional import Applied, Transition
from kernel.store.protocol import Query, Store
from kernel.store.tables import LIMITS
from kernel.transitions.limits import LIMIT_VERSION, LimitRecord, declare_limit, first_limit, set_limit, unset_limit

CACHE_MS = 1_000
LIMIT_MAX = 1_000_000
_CACHED_MAX = 4_096
_TRIES = 3
_PAGE = 500


class Limits:
    """The limits in force, for one process. Shared by its threads; `clock` measures the age of what was read."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        declared: Mapping[str, Limit],
        settings: Mapping[str, Limit] | None = None,
        *,
        cache_ms: int = CACHE_MS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._declared = {**declared, **(settings or {})}
        for resource, limit in self._declared.items():
            try:
                check_limit(limit, check_resource(resource, "limits"))
            except Refused as error:
                raise InvalidConfig(f"limits: {error}") from None
        self._cache_ms = min(cache_ms, CACHE_MS)
        self._read: dict[str, tuple[int, LimitRecord | None]] = {}

    def of(self, resource: str) -> Limit:
        """What holds for `resource`.

        Raises StoreUnavailable when the store can not say, CorruptRecord or UnknownVersion for a row that can not be
        read: a limit that is not known is never taken for none (prm-fail-closed).
        """
        kind = kind_of(resource)
        rows = [self._row(resource)] if kind == resource else [self._row(resource), self._row(kind)]
        return in_force(rows, self.declared(resource))

    def declared(self, resource: str) -> Limit:
        """What settings and App say, whatever operators did; without limits where they say nothing."""
        return self._declared.get(resource) or self._declared.get(kind_of(resource)) or Limit()

    def declares(self, resource: str) -> bool:
        """Whether settings or App say anything about `resource`."""
        return resource in self._declared or kind_of(resource) in self._declared

    def announce(self) -> None:
        """Write what is declared into the store, for operators to see. Only where it differs from what is there."""
        for resource, limit in self._declared.items():
            record = read_limit(self._store, resource)
            if record is None or record.declared != limit:
                _written(self._store, resource, declare_limit(resource, limit))

    def _row(self, resource: str) -> LimitRecord | None:
        now_ms = self._clock.boot_ms()
        found = self._read.get(resource)
        if found is not None and 0 <= now_ms - found[0] < self._cache_ms:
            return found[1]
        record = read_limit(self._store, resource)
        if len(self._read) >= _CACHED_MAX:
            # Tenants come and go: what is forgotten is read again.
            self._read.clear()
        # Its age counts from before the read. Of two threads the one that began later has the newer row.
        known = self._read.get(resource)
        if known is None or known[0] <= now_ms:
            self._read[resource] = (now_ms, record)
        return record


def kind_of(resource: str) -> str:
    """`tenant_work` of `tenant_work:acme`; a resource that is one of its kind is its own kind."""
    return resource.partition(":")[0]


def in_force(rows: list[LimitRecord | None], declared: Limit) -> Limit:
    """What holds: each field from the first row that has it, else as declared."""

    def first(field: str) -> Any:
        values = (getattr(row, field) for row in rows if row is not None)
        return next((value for value in values if value is not None), getattr(declared, field))

    return Limit(first("max_concurrency"), first("max_starts_per_second"), first("paused"))


def check_limit(limit: Limit, resource: str) -> Limit:
    """`limit` if each of its parts may be one; raises Refused, naming resource, field and rule."""
    for field in ("max_concurrency", "max_starts_per_second"):
        check_count(getattr(limit, field), f"{resource}: {field}")
    if type(limit.paused) is not bool:
        raise Refused(f"{resource}: paused: true or false, not {limit.paused!r}")
    return limit


def check_count(value: object, field: str) -> int:
    """`value` if it may be a limit; a negative, fractional, huge or non-number is Refused."""
    if type(value) is not int or not 0 <= value <= LIMIT_MAX:
        raise Refused(f"{field}: a whole number from 0 (off) to {LIMIT_MAX:,}, not {value!r}")
    return value


# --- rows ------------------------------------------------------------------------------------------------


def read_limit(store: Store, resource: str) -> LimitRecord | None:
    """The row of `resource`; None when there is none. Raises CorruptRecord or UnknownVersion as `to_limit` does."""
    document = store.get(LIMITS, check_resource(resource, "resource"))
    return None if document is None else to_limit(document)


def to_limit(document: Document) -> LimitRecord:
    """Decode a row. Raises UnknownVersion or CorruptRecord naming resource and field."""
    key = document.get("resource")
    if document.get("v") != LIMIT_VERSION:
        raise UnknownVersion(f"limits of {key!r}: layout version {document.get('v')!r}, this kernel knows 1")
    try:
        record = msgspec.convert(document, LimitRecord)
        for field in ("max_concurrency", "max_starts_per_second"):
            if getattr(record, field) is not None:
                check_count(getattr(record, field), field)
    except (msgspec.ValidationError, Refused) as error:
        raise CorruptRecord(f"limits of {key!r}: {error}") from None
    return record


def list_limits(store: Store) -> list[LimitRecord]:
    """All rows that say something, in the order of their names."""
    found: list[LimitRecord] = []
    after = None
    while True:
        page = store.scan(Query(LIMITS, (), "resource", ("resource",), _PAGE, after))
        for (resource,) in page:
            record = read_limit(store, resource)
            if record is not None and (record.is_set or record.declared is not None):
                found.append(record)
        if len(page) < _PAGE:
            return found
        after = (page[-1][0], page[-1][0])


def change_limit(
    store: Store,
    resource: str,
    *,
    max_concurrency: int | None = None,
    max_starts_per_second: int | None = None,
    paused: bool | None = None,
) -> LimitRecord:
    """What an operator sets; None leaves a field as it is. Returns the row after it.

    Raises Refused, InvalidName or InvalidId before any write, StoreUnavailable, or OutcomeUnknown when the store does
    not answer twice: to say it again does no harm.
    """
    check_resource(resource, "resource")
    for field, value in (("max_concurrency", max_concurrency), ("max_starts_per_second", max_starts_per_second)):
        if value is not None:
            check_count(value, field)
    if paused is not None and type(paused) is not bool:
        raise Refused(f"paused: true or false, not {paused!r}")
    transition = set_limit(
        resource, max_concurrency=max_concurrency, max_starts_per_second=max_starts_per_second, paused=paused
    )
    return _written(store, resource, transition)


def remove_limit(store: Store, resource: str) -> LimitRecord | None:
    """Take back all that operators have set for `resource`; None when there was nothing. Raises as `change_limit`."""
    record = read_limit(store, resource)
    return _written(store, resource, unset_limit(resource)) if record is not None and record.is_set else None


def _written(store: Store, resource: str, transition: Transition) -> LimitRecord:
    """Apply `transition`, on a new row where there is none yet."""
    for attempt in range(_TRIES):
        try:
            answer = store.apply(transition)
            if isinstance(answer, Applied):
                return to_limit(answer.document)
            if read_limit(store, resource) is None:  # raises for a row of another version, which the guard refuses
                store.insert(first_limit(resource))
        except OutcomeUnknown:
            if attempt == _TRIES - 1:
                raise
    raise OutcomeUnknown(f"the limits of {resource} could not be written: another one writes them again and again")
