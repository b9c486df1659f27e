"""The rows that wait for a permit, beside what Redis knows of them (prm-wake-lost).

Who was refused rests until its own time, up to 600 s ahead, because a place that becomes free is handed to whoever
stands in line. The line is Redis', so it may be gone, and with it everything that would wake the row: a wipe, a
candidate that was popped and could not be asked about, an answer that came too late. The rows are facts, and each scan
looks which of them stand in no line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any

from kernel.definition import Definition
from kernel.engine.claim_permits import waiting
from kernel.engine.readiness import dependencies
from kernel.engine.row_candidates import candidate_of
from kernel.engine.services import Services
from kernel.errors import (
    CoordinationRejected,
    CoordinationUnavailable,
    CorruptRecord,
    InvalidId,
    InvalidName,
    UnknownVersion,
)
from kernel.ids import check_resource
from kernel.permit_words import Owner
from kernel.records import to_instance
from kernel.states import RUNNING
from kernel.store.conditional import Equals, Exists, Missing
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES

log = logging.getLogger("kernel.sweeps")

_RESOURCE = "permit_wait.resource"
_COLUMNS = (_RESOURCE, "permit_wait.step", "workflow_id", "business_priority", "type")
_Row = tuple[Any, ...]
"""resource, step, workflow_id, lane"""


class PermitRows:
    """The pass of one process. It goes on where it stopped, so that no number of rows in front hides those behind."""

    def __init__(self, services: Services) -> None:
        self._s = services
        self._after: tuple[Any, str] | None = None
        definitions = services.app.definitions
        self._several = {type_: d for type_, d in definitions.items() if _may_wait_twice(d)}
        """Those of which two steps may wait at once: the row shows one of them."""

    def queue_forgotten(self) -> int:
        """Queue, due at once, what waits for a permit and stands in no line; at most `scan_pages` pages, then next
        time; how many were queued. Whoever then finds no place rests as before, now in the line. Raises
        StoreUnavailable; ends at once when Redis does not answer, which would cost a timeout for each resource."""
        queued = 0
        for _ in range(self._s.settings.scan_pages):
            rows = self._page()
            try:
                queued += self._queue(rows)
            except CoordinationUnavailable as error:
                log.debug("who stands in line is not known: %s", error)
                break
            if len(rows) < self._s.settings.scan_page:
                self._after = None
                break
            self._after = (rows[-1][0], rows[-1][2])
        return queued

    def _page(self) -> list[_Row]:
        guards = (Exists(_RESOURCE), Equals("status", RUNNING), Missing("claim_token"), Missing("parked"))
        page = self._s.settings.scan_page
        return self._s.store.scan(Query(INSTANCES, guards, _RESOURCE, _COLUMNS, limit=page, after=self._after))

    def _queue(self, rows: Sequence[_Row]) -> int:
        now_ms = self._s.store.now_ms()
        waits = sorted((wait for row in rows for wait in self._waits(row)), key=lambda wait: str(wait[0]))
        lane_of = {workflow_id: lane for _, _, workflow_id, lane in self._forgotten(waits)}
        found = [candidate_of(workflow_id, lane, now_ms) for workflow_id, lane in lane_of.items()]
        candidates = [candidate for candidate in found if candidate is not None]
        self._s.enqueue_candidates(candidates)
        return len(candidates)

    def _waits(self, row: _Row) -> list[_Row]:
        """Everything for which that workflow stands in line, as far as it is known here."""
        shown, workflow_id, lane = row[:4], row[2], row[3]
        definition = self._several.get(row[4]) if isinstance(row[4], str) else None
        if definition is None:
            return [shown]
        try:
            document = self._s.store.get(INSTANCES, workflow_id)
            pairs = [] if document is None else waiting(to_instance(document), definition)
        except (CorruptRecord, UnknownVersion):
            return [shown]  # whoever claims it says so
        return [(resource, step, workflow_id, lane) for resource, step in pairs]

    def _forgotten(self, rows: Sequence[_Row]) -> Iterator[_Row]:
        """Those of a page that Redis does not know, and those that are damaged, so that whoever tries to claim them
        says so. Raises CoordinationUnavailable."""
        for resource, together in groupby(rows, key=itemgetter(0)):
            asked: list[_Row] = []
            for row in together:
                if _can_be_asked(*row[:3]):
                    asked.append(row)
                else:
                    yield row
            try:
                missing = self._s.permits.missing(resource, [(row[2], row[1]) for row in asked]) if asked else []
                if not all(missing):
                    self._s.permits.watch(resource)
            except CoordinationRejected as error:
                log.warning("who stands in line for %s is not known: %s", resource, error)
                continue
            yield from (row for row, gone in zip(asked, missing, strict=True) if gone)


def _may_wait_twice(definition: Definition) -> bool:
    """Whether two steps with a resource may be ready at the same time: neither comes before the other."""
    before = [set(direct) for direct in dependencies(definition.plan)]
    for _ in before:  # in any order: a step may depend on one that is declared behind it
        before = [known.union(*(before[index] for index in known)) for known in before]
    limited = [index for index, step in enumerate(definition.steps) if step.resource is not None]
    return any(one not in before[other] and other not in before[one] for one, other in combinations(limited, 2))


def _can_be_asked(resource: Any, step: Any, workflow_id: Any) -> bool:
    try:
        check_resource(resource, "resource")
        Owner(workflow_id, step, "-")
    except (InvalidId, InvalidName):
        return False
    return True
