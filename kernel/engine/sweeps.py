"""The net beneath the queue: bounded scans of the durable store that find what hints have lost (sch-scan-30).

Run by dispatchers often and by workers at the scan rate; any number may run at once, because every write carries
the state that was read. A page that must be left alone never hides the rows behind it: each scan goes on where the
last one stopped, and wraps (A45).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from kernel import transitions
from kernel.candidates import Candidate
from kernel.definition import Plan
from kernel.engine.activation import activate_all_due
from kernel.engine.claim_permits import owners_of
from kernel.engine.commit import settled, settled_each
from kernel.engine.inbox_sweep import InboxSweep
from kernel.engine.permit_rows import PermitRows
from kernel.engine.row_candidates import candidate_of
from kernel.engine.services import Services
from kernel.engine.takeover import poison_error, poison_reason
from kernel.engine.telling import left_behind, put_aside
from kernel.errors import CorruptRecord, KernelError, Unavailable, UnknownVersion
from kernel.permit_words import Owner
from kernel.records import Document, Instance, to_instance
from kernel.states import CLAIMABLE, WAITING
from kernel.store.conditional import Applied, AtMost, Equals, Exists, Insert, Missing, OneOf, PutNow, Transition
from kernel.store.protocol import Query
from kernel.store.tables import DEFINITIONS, INSTANCES
from kernel.transitions import Held
from kernel.transitions.claims import SUSPECT_DEATHS

log = logging.getLogger("kernel.sweeps")

_TOGETHER = 32
"""Due waits that are activated in one commit."""
_COLUMNS = ("workflow_id", "status", "business_priority", "claimable_time", "claim_token", "permit_wait.resource")


class Swept(msgspec.Struct):
    """What one sweep did."""

    queued: int = 0
    activated: int = 0
    complete: bool = True


def cast_each(*nets: Callable[[], object]) -> None:
    """Let every net run, whatever a damaged row does to the one before it (A45). An outage passes through at once: it
    would meet them all."""
    for net in nets:
        try:
            net()
        except Unavailable:
            raise
        except KernelError as error:
            log.warning("a sweep failed, the others go on: %s", error)


class Sweeps:
    """The recovery passes of one process."""

    def __init__(self, services: Services) -> None:
        self._s = services
        self._after: tuple[Any, str] | None = None
        self.inbox = InboxSweep(services)
        self.permit_rows = PermitRows(services)

    def recover(self, every_ms: int) -> Swept:
        """Queue what is runnable or soon due, and activate due waits; at most `scan_pages` pages, then next time.

        Rows that will become due within two of the caller's periods are queued with their time, so that timers stay
        precise after the queue was emptied. Live claims are left alone; claims whose lease ran out are queued.
        """
        swept = Swept()
        due: list[str] = []
        horizon_ms = self._s.store.now_ms() + 2 * every_ms
        try:
            for _ in range(self._s.settings.scan_pages):
                rows = self._s.store.scan(
                    Query(
                        table=INSTANCES,
                        guards=(AtMost("claimable_time", horizon_ms), Missing("parked")),
                        order="claimable_time",
                        columns=_COLUMNS,
                        limit=self._s.settings.scan_page,
                        after=self._after,
                    )
                )
                due.extend(self._queue(rows, swept))
                if len(rows) < self._s.settings.scan_page:
                    self._after = None
                    return swept
                self._after = (rows[-1][3], rows[-1][0])
            swept.complete = False
            return swept
        finally:
            self._activate_all(due, swept)

    def _queue(self, rows: list[tuple[Any, ...]], swept: Swept) -> list[str]:
        """Queue the rows of a page but for its due waits: whoever activates one queues it then (slp-activate)."""
        now_ms = self._s.store.now_ms()
        candidates = []
        due = []
        for workflow_id, status, lane, at_ms, token, awaited in rows:
            if status == WAITING and at_ms <= now_ms:
                due.append(workflow_id)
            elif at_ms <= now_ms or (token is None and awaited is None):
                # Who waits for a permit is queued when its time has come and not before: it may be in the lanes now,
                # due at once, because a place was handed over to it, and would be moved to the later time.
                candidates.append(candidate_of(workflow_id, lane, at_ms))
        self._push([candidate for candidate in candidates if candidate is not None], now_ms, swept)
        return due

    def _push(self, candidates: list[Candidate], now_ms: int, swept: Swept) -> None:
        wake = any(candidate.at_ms <= now_ms for candidate in candidates)
        if not self._s.enqueue_candidates(candidates, wake=wake):
            swept.complete = False
        swept.queued += len(candidates)

    def _activate_all(self, due: list[str], swept: Swept) -> None:
        """Activate due waits, a few at a time and in an order of this process's own: of the processes that have read
        the same pages each meets the others' work and leaves it alone, instead of writing every row with them."""
        order = sorted(due, key=lambda _: self._s.ids.fraction())
        for start in range(0, len(order), _TOGETHER):
            instances = [i for i in map(self._read, self._still_waiting(order[start : start + _TOGETHER])) if i]
            now_ms = self._s.store.now_ms()
            found = activate_all_due(self._s.store, instances, now_ms, self._s.committer.commit_id, self._s.note)
            woken = [instance for instance in found if instance is not None]
            swept.activated += len(woken)
            if woken and not self._s.enqueue(woken):
                swept.complete = False
            swept.queued += len(woken)

    def _still_waiting(self, workflow_ids: list[str]) -> list[str]:
        query = Query(
            table=INSTANCES,
            guards=(OneOf("workflow_id", tuple(workflow_ids)), Equals("status", WAITING)),
            order="workflow_id",
            columns=("workflow_id",),
            limit=len(workflow_ids),
        )
        return [row[0] for row in self._s.store.scan(query)]

    # --- proof of death --------------------------------------------------------------------------------------

    def release_owner(self, worker_id: str, *, counted: bool) -> list[str]:
        """Release every claim of a worker whose death is proved (DECISIONS 27); the workflow_ids that are free now.

        `counted` is False when the supervisor ordered the death: it says nothing about the work then.
        """
        freed: list[Instance] = []
        after: tuple[Any, str] | None = None
        while True:
            rows = self._s.store.scan(
                Query(
                    table=INSTANCES,
                    guards=(Equals("worker_id", worker_id),),
                    order="worker_id",
                    columns=("workflow_id", "claim_token"),
                    limit=self._s.settings.scan_page,
                    after=after,
                )
            )
            held = [Held(workflow_id, token) for workflow_id, token in rows if token is not None]
            for start in range(0, len(held), _TOGETHER):
                freed += self._release_all(held[start : start + _TOGETHER], worker_id, counted=counted)
            if len(rows) < self._s.settings.scan_page:
                break
            after = (worker_id, rows[-1][0])
        return [instance.workflow_id for instance in freed if instance.parked is None]

    def _release_all(self, held: list[Held], worker_id: str, *, counted: bool) -> list[Instance]:
        """In few commits, and queued while others are still being released: of a worker that held many the first go on
        at once (L1)."""
        read = {claim: self._read(claim.workflow_id) for claim in held}
        releases = {
            claim: self._release_of(claim, instance, worker_id, counted=counted)
            for claim, instance in read.items()
            if instance is not None and instance.claim_token == claim.claim_token
        }
        freed: list[Instance] = []
        places: dict[str, list[Owner]] = {}
        try:
            settling = settled_each(self._s.store, list(releases.values()))
            for (claim, release), document in zip(releases.items(), settling, strict=True):
                if document is not None:
                    freed.append(to_instance(document))
                    self._add_places(freed[-1], claim.claim_token, places)
                    self._s.note("claim.released_dead", instance=freed[-1], worker_id=worker_id, counted=counted)
                    told = put_aside if release.name == "park_dead" else left_behind
                    told(self._s.note, freed[-1], worker_id)
        finally:
            # Before everything that was queued since they were: they had been taken once already.
            self._s.enqueue_candidates(
                [Candidate(i.workflow_id, i.business_priority, i.created_time) for i in freed if i.parked is None]
            )
            for resource, owners in places.items():
                self._s.permits.release(resource, owners)  # at once, and not when their leases end
        return freed

    def _add_places(self, freed: Instance, token: str, places: dict[str, list[Owner]]) -> None:
        """Whatever place the dead claim may have held: Redis knows which it did."""
        definition = self._s.app.definitions.get(freed.type)
        if definition is not None:
            for resource, owner in owners_of(freed, token, definition):
                places.setdefault(resource, []).append(owner)

    def _release_of(self, held: Held, instance: Instance, worker_id: str, *, counted: bool) -> Transition:
        limit = self._s.settings.deaths_max
        if counted and limit and instance.deaths >= max(limit, SUSPECT_DEATHS + 1) - 1:
            return self._park(instance, held, worker_id)
        return transitions.release_dead(
            held, worker_id=worker_id, counted=counted, deaths_max=limit, commit_id=self._s.committer.commit_id()
        )

    def _park(self, instance: Instance, held: Held, worker_id: str) -> Transition:
        reason = poison_reason(instance, seen=True)
        definition = self._s.app.definitions.get(instance.type)
        fails = definition is not None and definition.on_poison == "fail"
        log.error("%s %s: %s", "failing" if fails else "parking", instance.workflow_id, reason)
        return transitions.park_dead(
            held,
            worker_id=worker_id,
            deaths_max=self._s.settings.deaths_max,
            reason=reason,
            now_ms=self._s.store.now_ms(),
            fail=poison_error(reason) if fails else None,
            commit_id=self._s.committer.commit_id(),
        )

    # --- versions --------------------------------------------------------------------------------------------

    def touch_definitions(self) -> None:
        """Say that this worker's versions are alive: one row per version, whoever touches it."""
        for definition in self._s.app.definitions.values():
            try:
                self._touch(definition.plan)
            except CorruptRecord as error:
                self._s.damaged.tell(definition.plan.key, error)

    def _touch(self, plan: Plan) -> None:
        seen = Transition(
            "touch_definition", DEFINITIONS, plan.key, (Exists("definition_key"),), (PutNow("seen_time"),)
        )
        if isinstance(self._s.store.apply(seen), Applied):
            return
        document = {
            "v": 1,
            "definition_key": plan.key,
            "type": plan.type,
            "fingerprint": plan.fingerprint,
            "seen_time": self._s.store.now_ms(),
        }
        self._s.store.insert(Insert("first_definition", DEFINITIONS, plan.key, document))

    def live_definitions(self) -> frozenset[str]:
        """The versions that some worker has touched within three scan periods."""
        since_ms = self._s.store.now_ms() - 3 * self._s.settings.scan_ms
        rows = self._s.store.scan(
            Query(DEFINITIONS, (), "seen_time", ("definition_key",), limit=10_000, after=(since_ms, ""))
        )
        return frozenset(row[0] for row in rows)

    def defer_and_release(self, *, defer: bool) -> tuple[int, int]:
        """Push rows that no live worker can run away for an hour, and bring back those that one can (DECISIONS 13)."""
        live = self.live_definitions()
        return (self._defer(live) if defer else 0), self._undefer(live)

    def release_own(self) -> int:
        """A worker brings back what was pushed away for want of its own versions: where no dispatcher runs, nobody
        else does (DECISIONS 13)."""
        return self._undefer(frozenset(definition.plan.key for definition in self._s.app.definitions.values()))

    def _defer(self, live: frozenset[str]) -> int:
        now_ms = self._s.store.now_ms()
        deferred = 0
        after: tuple[Any, str] | None = None
        for _ in range(self._s.settings.scan_pages):
            rows = self._s.store.scan(
                Query(
                    table=INSTANCES,
                    guards=(
                        OneOf("status", CLAIMABLE),
                        AtMost("claimable_time", now_ms),
                        Missing("claim_token"),
                        Missing("parked"),
                    ),
                    order="claimable_time",
                    columns=("workflow_id", "claimable_time", "definition_key"),
                    limit=self._s.settings.scan_page,
                    after=after,
                )
            )
            for workflow_id, _, key in rows:
                if key not in live:
                    deferred += self._defer_one(workflow_id, live, now_ms)
            if len(rows) < self._s.settings.scan_page:
                break
            after = (rows[-1][1], rows[-1][0])
        return deferred

    def _defer_one(self, workflow_id: str, live: frozenset[str], now_ms: int) -> int:
        instance = self._read(workflow_id)
        if instance is None or instance.definition_key in live:
            return 0
        offered = tuple(sorted(key.partition("@")[2] for key in live if key.startswith(f"{instance.type}@")))
        transition = transitions.defer_for_fingerprint(
            instance,
            offered=offered,
            delay_ms=self._s.settings.mismatch_deferral_ms,
            now_ms=now_ms,
            commit_id=self._s.committer.commit_id(),
        )
        document = settled(self._s.store, transition)
        if document is None:
            return 0
        log.warning(
            "no live worker runs %s with fingerprint %s (offered: %s): %s deferred",
            instance.type,
            instance.definition_fingerprint,
            ", ".join(offered) or "none",
            workflow_id,
        )
        told = to_instance(document)
        self._s.note("claim.deferred", instance=told, stored=instance.definition_fingerprint, offered=offered)
        return 1

    def _undefer(self, live: frozenset[str]) -> int:
        return sum(self._undefer_version(key) for key in sorted(live))

    def _undefer_version(self, key: str) -> int:
        released = 0
        after: tuple[Any, str] | None = None
        for _ in range(self._s.settings.scan_pages):
            rows = self._s.store.scan(
                Query(
                    table=INSTANCES,
                    guards=(Equals("definition_key", key), Exists("deferred")),
                    order="definition_key",
                    columns=("workflow_id",),
                    limit=self._s.settings.scan_page,
                    after=after,
                )
            )
            released_rows = settled_each(self._s.store, [self._undefer_one(row[0], key) for row in rows])
            freed = [one for one in map(self._decoded, released_rows) if one is not None]
            for instance in freed:
                self._s.note("claim.undeferred", instance=instance)
            self._s.enqueue(freed)
            released += len(freed)
            if len(rows) < self._s.settings.scan_page:
                break
            after = (key, rows[-1][0])
        return released

    def _undefer_one(self, workflow_id: str, key: str) -> Transition:
        commit_id = self._s.committer.commit_id()
        return transitions.release_deferred(workflow_id, definition_key=key, commit_id=commit_id)

    def _read(self, workflow_id: str) -> Instance | None:
        try:
            return self._decoded(self._s.store.get(INSTANCES, workflow_id))
        except CorruptRecord as error:
            self._s.damaged.tell(workflow_id, error)
            return None

    def _decoded(self, document: Document | None) -> Instance | None:
        try:
            return None if document is None else to_instance(document)
        except (CorruptRecord, UnknownVersion) as error:
            self._s.damaged.tell(str((document or {}).get("workflow_id")), error)
            return None
