"""Rebuilding snapshots and attempts from the authoritative instances: what an operator asks for, and nothing else does.

It reads instances and writes observations, never the other way (obs-repair-finished). Work that lives is written as
well when it is named: with no worker left there is no next event, and renewals never make one. The guard by revision
makes all of it harmless beside the writers of the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kernel.errors import CorruptRecord, Refused, UnknownVersion, UnknownWorkflow
from kernel.ids import check_id
from kernel.observe.batch import document_of
from kernel.observe.projection import attempts_in, snapshot_of
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.observe.views import SNAPSHOT_VERSION, Attempt
from kernel.records import Document, Instance, to_instance
from kernel.store.conditional import OneOf
from kernel.store.projection import Keep, ProjectionStore
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES

PAGE_ROWS_MAX = 1_000
_OPEN = frozenset({None, "running", "suspended", "yielded", "unbegun"})
"""Outcomes of an attempt that has not ended, and of one that nobody knows: the record may say how it did end."""


class Repaired(msgspec.Struct, frozen=True):
    """What was rebuilt of one workflow."""

    workflow_id: str
    biz_key: str
    status: str
    revision: int
    attempts: int
    """Attempts of the present run; those of earlier runs are known to events alone."""


class RepairedPage(msgspec.Struct, frozen=True):
    """One page of `repair_all`: instances that were looked at, what was rebuilt, the rows that can not be read, and
    where to go on; None: this was the last page."""

    looked: int
    repaired: tuple[Repaired, ...]
    unreadable: tuple[str, ...]
    next: str | None


class Repair:
    """`instances` is the durable store, read only; `observations` the store of snapshots, written by revision.

    `keep_ms` is how long observations are kept after the end: `repair_all` leaves alone what retention has taken.
    """

    def __init__(self, instances: Store, observations: ProjectionStore, keep_ms: int) -> None:
        self._instances = instances
        self._observations = observations
        self._keep_ms = keep_ms

    def repair(self, *, workflow_id: str | None = None, biz_key: str | None = None) -> Repaired:
        """Rebuild one workflow, named by one of the two, however long ago it ended: retention takes old ones away again
        with its next turn. Raises UnknownWorkflow, UnknownVersion or CorruptRecord for one that can not be read, and
        StoreUnavailable."""
        return self._rebuilt(to_instance(self._found(workflow_id, biz_key)))

    def repair_all(self, after: str | None = None, *, limit: int = 200) -> RepairedPage:
        """Rebuild what has ended and whose snapshot is missing or older, or of whose attempts some are, and what lives
        and has no snapshot; `limit` instances in the order of their ids, after the one named `after`."""
        if not 1 <= limit <= PAGE_ROWS_MAX:
            raise Refused(f"limit: must lie between 1 and {PAGE_ROWS_MAX}, is {limit!r}")
        columns = ("workflow_id", "biz_key", "revision", "finish_time", "parked")
        position = None if after is None else (check_id(after, "after"), after)
        found = self._instances.scan(Query(INSTANCES, (), "workflow_id", columns, limit, position))
        seen = self._seen(found)
        kept_from_ms = self._instances.now_ms() - self._keep_ms
        repaired: list[Repaired] = []
        unreadable: list[str] = []
        for workflow_id, biz_key, revision, finish_time, parked in found:
            if finish_time is not None and finish_time <= kept_from_ms:
                continue
            ended = finish_time is not None or parked is not None
            is_known = seen.revision(biz_key) >= (revision if ended else 0)
            if is_known and not (ended and seen.seems_to_lack_attempts(biz_key)):
                continue
            try:
                document = self._instances.get(INSTANCES, workflow_id)
                instance = None if document is None else to_instance(document)
                if instance is not None and not (is_known and seen.has_attempts_of(instance)):
                    repaired.append(self._rebuilt(instance))
            except (CorruptRecord, UnknownVersion):
                unreadable.append(workflow_id)
        return RepairedPage(
            len(found), tuple(repaired), tuple(unreadable), str(found[-1][0]) if len(found) == limit else None
        )

    def close(self) -> None:
        """Close both stores."""
        try:
            self._instances.close()
        finally:
            self._observations.close()

    def _found(self, workflow_id: str | None, biz_key: str | None) -> Document:
        if (workflow_id is None) == (biz_key is None):
            raise Refused("repair: name the workflow by workflow_id or by biz_key, one of the two")
        if workflow_id is not None:
            name, document = workflow_id, self._instances.get(INSTANCES, check_id(workflow_id, "workflow_id"))
        else:
            name = check_id(biz_key, "biz_key")
            document = self._instances.find(INSTANCES, "biz_key", name)
        if document is None:
            raise UnknownWorkflow(f"no workflow is known as {name!r}")
        return document

    def _seen(self, found: Sequence[tuple[Any, ...]]) -> _Seen:
        """What is known of a page of instances, as (workflow_id, biz_key, …)."""
        if not found:
            return _Seen({}, {})
        keys = tuple(str(biz_key) for _, biz_key, *_ in found)
        query = Query(SNAPSHOTS, (OneOf("biz_key", keys),), "biz_key", ("biz_key",), len(keys))
        snapshots = {str(row["biz_key"]): row for row in self._observations.rows(query)}
        return _Seen(snapshots, self._outcomes(str(found[0][0]), str(found[-1][0])))

    def _outcomes(self, first: str, last: str) -> dict[str, str]:
        """How each known attempt of the workflows between two ids has ended: their keys stand in one stretch."""
        outcomes: dict[str, str] = {}
        at, end = f"{first}/", f"{last}/\U0010ffff"
        while True:
            query = Query(ATTEMPTS, (), "attempt_key", ("attempt_key",), PAGE_ROWS_MAX, (at, at))
            rows = self._observations.rows(query)
            outcomes |= {row["attempt_key"]: str(row.get("outcome")) for row in rows if row["attempt_key"] < end}
            if len(rows) < PAGE_ROWS_MAX or rows[-1]["attempt_key"] >= end:
                return outcomes
            at = rows[-1]["attempt_key"]

    def _rebuilt(self, instance: Instance) -> Repaired:
        attempts = list(attempts_in(instance))
        kept = [Keep(ATTEMPTS, document_of(attempt)) for attempt in attempts if self._says_more(attempt)]
        # The store's clock says until when the wait of a live workflow counts; what has ended has its own times.
        snapshot = snapshot_of(instance, self._instances.now_ms())
        self._observations.keep_all([*kept, Keep(SNAPSHOTS, document_of(snapshot))])
        return Repaired(instance.workflow_id, instance.biz_key, instance.status, instance.revision, len(attempts))

    def _says_more(self, attempt: Attempt) -> bool:
        """Of earlier attempts the record has no times: what an event has told of their end says more, though it is of
        an older revision."""
        if attempt.started_time is not None:
            return True
        known = self._observations.get(ATTEMPTS, attempt.attempt_key)
        return known is None or known.get("outcome") in _OPEN


class _Seen:
    """What observations hold of some workflows. A snapshot alone says nothing of earlier events: the one that made it
    may have been the first to be written again after the store was away."""

    def __init__(self, snapshots: Mapping[str, Document], outcomes: Mapping[str, str]) -> None:
        self._snapshots = snapshots
        self._outcomes = outcomes

    def revision(self, biz_key: str) -> int:
        """Of the snapshot; -1 where there is none."""
        return int(self._snapshots[biz_key]["revision"]) if biz_key in self._snapshots else -1

    def seems_to_lack_attempts(self, biz_key: str) -> bool:
        """By its snapshot: an attempt that it counts is not known, or not as ended. What was complete before the
        present run has its attempts under an earlier one, and only the record tells which."""
        row = self._snapshots[biz_key]
        if row.get("v") != SNAPSHOT_VERSION:
            return False  # a newer kernel's: it knows what to look for in it
        place = f"{row.get('workflow_id')}/{row.get('workflow_run')}"
        return any(
            self._outcomes.get(f"{place}/{step['name']}/{number}") in _OPEN
            for step in row["steps"]
            for number in range(1, step["attempt"] + 1)
        )

    def has_attempts_of(self, instance: Instance) -> bool:
        """Whether all are known that the record can still tell of, and as it tells."""
        for attempt in attempts_in(instance):
            known = self._outcomes.get(attempt.attempt_key)
            if known in _OPEN and known != attempt.outcome:
                return False
        return True
