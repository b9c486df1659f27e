"""From a candidate to a claim: one conditional write, and a reading of the row only when that write missed (group 10).

The answer is one of a closed set (DECISIONS detail 6). Only `Stale` drops the candidate; everything else either
holds a claim or says when the candidate is worth another try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kernel import transitions
from kernel.clock import Clock
from kernel.engine.activation import activate_all_due
from kernel.engine.claim_permits import HandedOver
from kernel.engine.claims import ActiveClaim
from kernel.engine.commit import fresh_commit_id, settled
from kernel.engine.damaged import DamagedRows
from kernel.engine.readiness import due_waits
from kernel.engine.settings import Settings
from kernel.engine.telling import Note, left_behind, put_aside, silent
from kernel.errors import CorruptRecord, OutcomeUnknown, StoreUnavailable, UnknownVersion
from kernel.ids import IdSource
from kernel.permit_words import Permit
from kernel.records import Document, ErrorRecord, Instance, bears_mark, to_instance
from kernel.states import CLAIMABLE, FAILING, RUNNING, WAITING
from kernel.store.conditional import Answer, Applied, Put, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from kernel.transitions.claims import SUSPECT_DEATHS

log = logging.getLogger("kernel.claim")

_MOMENT_MS = 20


class Claimed(msgspec.Struct, frozen=True):
    """The right to execute is ours. `taken_over` when it bore the token of a holder whose lease ran out."""

    claim: ActiveClaim
    taken_over: bool = False


class NotYet(msgspec.Struct, frozen=True):
    """Worth another try at `at_ms` (the store's clock), in the lane of its stored priority."""

    workflow_id: str
    lane: int
    at_ms: int


class Suspect(msgspec.Struct, frozen=True):
    """Killed its worker before; may be claimed only by a worker that holds nothing else (DECISIONS detail 4)."""

    workflow_id: str
    lane: int


class Mismatch(msgspec.Struct, frozen=True):
    """This worker does not have that version of the Definition; another may (DECISIONS 13)."""

    workflow_id: str
    lane: int


class Stale(msgspec.Struct, frozen=True):
    """Nothing to claim here: unknown, ended, parked, held by a live worker, or waiting for a signal only."""

    workflow_id: str
    reason: str


class _DueWait(msgspec.Struct, frozen=True):
    """Waiting, and its time has come: to be activated first."""

    instance: Instance


ClaimAnswer = Claimed | NotYet | Suspect | Mismatch | Stale


class Worker(msgspec.Struct, frozen=True):
    """Who claims: the owner's random id, and its name for people (`host/pid/slot`)."""

    worker_id: str
    name: str


class Claimer:
    """Takes claims for one worker process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        settings: Settings,
        worker: Worker,
        definition_keys: tuple[str, ...],
        poison_fails: frozenset[str] = frozenset(),
        on_unknown: Callable[[Held], None] = lambda held: None,
        damaged: DamagedRows | None = None,
        handed_over: HandedOver | None = None,
        note: Note = silent,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._keys = definition_keys
        self._terms: dict[str, Any] = {
            "worker_id": worker.worker_id,
            "worker": worker.name,
            "lease_ms": settings.lease_ms,
            "definition_keys": definition_keys,
        }
        """What every way of taking a claim says of the taker."""
        self._poison_fails = poison_fails
        self._on_unknown = on_unknown
        self._damaged = damaged or DamagedRows()
        self._handed_over = handed_over
        self._note = note

    def take_all(self, workflow_ids: Sequence[str], *, alone: bool) -> list[ClaimAnswer]:
        """Try each candidate once. `alone` when this worker holds nothing and offers exactly one candidate.

        Raises StoreUnavailable when the store does not answer at all; then nothing is known to be claimed.
        """
        sent_at_ms = self._clock.boot_ms()
        first = [self._claim(workflow_id) for workflow_id in workflow_ids]
        try:
            answers: list[Answer | None] = list(self._store.apply_all(first))
        except (OutcomeUnknown, CorruptRecord, StoreUnavailable):
            # Lost, or one damaged row raised for its whole batch, of which others may be claimed now: each row tells.
            answers = [None] * len(first)
        resolved: list[ClaimAnswer] = []
        due: list[_DueWait] = []
        failure: StoreUnavailable | OutcomeUnknown | None = None
        for transition, answer in zip(first, answers, strict=True):
            try:
                found = self._resolve(transition, answer, sent_at_ms, alone=alone)
                if isinstance(found, _DueWait):
                    due.append(found)
                else:
                    resolved.append(found)
            except (StoreUnavailable, OutcomeUnknown) as error:
                # One reading that fails must not lose the claims beside it: nobody would run or renew them.
                failure = error
                self._on_unknown(held_of(transition))
                resolved.append(Stale(transition.key, "unavailable"))
        if failure is not None and not any(isinstance(answer, Claimed) for answer in resolved):
            raise failure
        if due:
            resolved.extend(self._activated(due, alone=alone))
        return resolved

    def _activated(self, due: Sequence[_DueWait], *, alone: bool) -> list[ClaimAnswer]:
        """Activate what was found waiting and due, then claim it, in the same pass (DECISIONS detail 6): two commits
        for all of them. Beside claims that are ours already, nothing here may raise."""
        now_ms = self._store.now_ms()
        instances = [found.instance for found in due]
        try:
            rows = activate_all_due(self._store, instances, now_ms, self._commit_id, self._note)
            again = [self._again(i, now_ms) for i, row in zip(instances, rows, strict=True) if row is None]
            ready = [i.workflow_id for i, row in zip(instances, rows, strict=True) if row is not None]
            return [*again, *(self.take_all(ready, alone=alone) if ready else [])]
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("%d due waits could not be claimed yet: %s", len(due), error)
            return [self._again(instance, now_ms) for instance in instances]

    def is_due(self, workflow_id: str) -> bool:
        """Whether that instance still waits for somebody to claim it: its time has come. Who waits for a permit before
        that is claimed only with a place in hand, which no worker keeps for as long as it takes to become empty."""
        try:
            document = self._store.get(INSTANCES, workflow_id) or {}
        except CorruptRecord:
            return False
        at_ms = document.get("claimable_time")
        free = document.get("status") in CLAIMABLE and "parked" not in document
        return free and isinstance(at_ms, int) and at_ms <= self._store.now_ms()

    def _claim(self, workflow_id: str) -> Transition:
        return transitions.claim(
            Held(workflow_id, self._ids.token()),
            **self._terms,
            commit_id=self._commit_id(),
        )

    def _resolve(
        self, tried: Transition, answer: Answer | None, sent_at_ms: int, *, alone: bool
    ) -> ClaimAnswer | _DueWait:
        if isinstance(answer, Applied):
            return self._claimed(answer.document, sent_at_ms)
        try:
            document = self._store.get(INSTANCES, tried.key)
        except CorruptRecord as error:
            self._damaged.tell(tried.key, error)
            return Stale(tried.key, "corrupt")
        if document is None:
            return Stale(tried.key, "unknown")
        if answer is None and bears_mark(document, tried.commit_id):
            return self._claimed(document, sent_at_ms)
        return self._read(document, held_of(tried), alone=alone)

    def _claimed(
        self, document: Document, sent_at_ms: int, *, taken_over: bool = False, handed: Permit | None = None
    ) -> ClaimAnswer:
        try:
            instance = to_instance(document)
        except (CorruptRecord, UnknownVersion) as error:
            # Claimed and unreadable: the lease keeps everybody off it until an operator has looked.
            key = str(document.get("workflow_id"))
            self._damaged.tell(key, error)
            return Stale(key, "corrupt")
        held = Held(instance.workflow_id, str(instance.claim_token))
        fence_ms = self._settings.fence_ms
        claim = ActiveClaim(held, instance, self._clock, sent_at_ms=sent_at_ms, fence_ms=fence_ms, handed=handed)
        return Claimed(claim, taken_over)

    def _read(self, document: Document, wanted: Held, *, alone: bool) -> ClaimAnswer | _DueWait:
        """Why the claim missed, from the row; takes it over, or before its time, where that may be."""
        key = str(document.get("workflow_id"))
        try:
            instance = to_instance(document)
        except (CorruptRecord, UnknownVersion) as error:
            self._damaged.tell(key, error)
            return Stale(key, "corrupt")
        now_ms = self._store.now_ms()
        lane, at_ms = instance.business_priority, instance.claimable_time
        if instance.parked is None and instance.status == WAITING:
            return self._waiting(instance, now_ms)
        ended = instance.parked is not None or instance.status not in CLAIMABLE
        if (ended or instance.status == FAILING) and self._handed_over is not None:
            self._handed_over.leave(instance)
        if ended:
            return Stale(key, instance.status if instance.parked is None else "parked")
        if instance.definition_key not in self._keys:
            return Mismatch(key, lane)
        if at_ms is None:
            return Stale(key, "not scheduled")
        if at_ms > now_ms:
            # A live claim: its holder pushes the id when it ends, and the scan finds it when the lease runs out.
            if instance.claim_token is not None:
                return Stale(key, "held")
            if instance.permit_wait is None or instance.status != RUNNING:
                return NotYet(key, lane, at_ms)
            if instance.deaths >= SUSPECT_DEATHS and not alone:
                return Suspect(key, lane)
            return self._before_its_time(instance, wanted, now_ms, alone=alone)
        return self._due(instance, now_ms, alone=alone)

    def _before_its_time(self, instance: Instance, wanted: Held, now_ms: int, *, alone: bool) -> ClaimAnswer:
        """It waits for a permit: popped so early, a place was handed over to it, or somebody lost the line and wants
        everybody to ask again. Where there is no place the row stays as it is, with its time and its place in line, and
        its id goes back to the lanes for that time, at which another step of it may be due. A place that is handed over
        just before that push is called for too late and passes on after 2 s; a later one comes first in the lane."""
        waits = Stale(instance.workflow_id, "waits for a permit")
        if self._handed_over is None or instance.permit_wait is None:
            return waits
        permit = self._handed_over.permit(instance, wanted.claim_token, now_ms)
        if permit is None:
            return NotYet(instance.workflow_id, instance.business_priority, instance.claimable_time or now_ms)
        transition = transitions.claim_handed_over(
            wanted, resource=instance.permit_wait.resource, **self._terms, alone=alone, commit_id=self._commit_id()
        )
        sent_at_ms = self._clock.boot_ms()
        answer: ClaimAnswer = waits
        try:
            document = settled(self._store, transition)
            if document is not None:
                answer = self._claimed(document, sent_at_ms, handed=permit)
        finally:
            # Somebody else was faster, or nobody knows whether we were: then nothing runs under this claim.
            if not isinstance(answer, Claimed):
                self._handed_over.give_back(permit)
        return answer

    def _waiting(self, instance: Instance, now_ms: int) -> ClaimAnswer | _DueWait:
        if instance.claimable_time is None:
            return Stale(instance.workflow_id, "waits for a signal")
        if instance.claimable_time > now_ms:
            return NotYet(instance.workflow_id, instance.business_priority, instance.claimable_time)
        if instance.definition_key not in self._keys:
            return Mismatch(instance.workflow_id, instance.business_priority)
        if not due_waits(instance.steps, now_ms):
            return Stale(instance.workflow_id, "nothing to activate")
        return _DueWait(instance)

    def _due(self, instance: Instance, now_ms: int, *, alone: bool) -> ClaimAnswer:
        suspect = Suspect(instance.workflow_id, instance.business_priority)
        deaths, limit = instance.deaths, self._settings.deaths_max
        if instance.claim_token is None:
            if deaths < SUSPECT_DEATHS:
                return self._again(instance, now_ms)
            return self._send(self._alone(instance.workflow_id), instance) if alone else suspect
        if limit and deaths >= max(limit, SUSPECT_DEATHS + 1) - 1:
            return self._park(instance, now_ms)
        if deaths + 1 >= SUSPECT_DEATHS and not alone:
            return suspect
        return self._send(self._take_over(instance, alone=alone), instance, taken_over=True)

    @staticmethod
    def _again(instance: Instance, now_ms: int) -> NotYet:
        """Due by our estimate of the store's clock, and yet the write missed: the store is a moment behind, or another
        was faster. One more try tells which; a drop would cost a timer a whole scan period (DECISIONS detail 6)."""
        return NotYet(instance.workflow_id, instance.business_priority, now_ms + _MOMENT_MS)

    def _send(self, transition: Transition, instance: Instance, *, taken_over: bool = False) -> ClaimAnswer:
        sent_at_ms = self._clock.boot_ms()
        try:
            document = settled(self._store, transition)
        except (OutcomeUnknown, StoreUnavailable):
            # It may be ours without anybody to run it: given back under the token of this very write.
            self._on_unknown(held_of(transition))
            raise
        if document is None:
            return self._again(instance, self._store.now_ms())
        answer = self._claimed(document, sent_at_ms, taken_over=taken_over)
        if taken_over and isinstance(answer, Claimed):
            left_behind(self._note, answer.claim.instance, instance.worker_id)
        return answer

    def _alone(self, workflow_id: str) -> Transition:
        return transitions.claim_alone(
            Held(workflow_id, self._ids.token()),
            **self._terms,
            commit_id=self._commit_id(),
        )

    def _take_over(self, instance: Instance, *, alone: bool) -> Transition:
        return transitions.take_over(
            Held(instance.workflow_id, self._ids.token()),
            dead_token=str(instance.claim_token),
            **self._terms,
            alone=alone,
            commit_id=self._commit_id(),
        )

    def _park(self, instance: Instance, now_ms: int) -> ClaimAnswer:
        reason = poison_reason(instance, seen=False)
        error = poison_error(reason) if instance.type in self._poison_fails else None
        transition = transitions.park(
            instance.workflow_id,
            dead_token=str(instance.claim_token),
            deaths_max=self._settings.deaths_max,
            reason=reason,
            now_ms=now_ms,
            fail=error,
            commit_id=self._commit_id(),
        )
        document = settled(self._store, transition)
        if document is not None:
            log.error("%s %s: %s", "parked" if error is None else "failing", instance.workflow_id, reason)
            put_aside(self._note, to_instance(document), instance.worker_id)
        if error is not None:
            return NotYet(instance.workflow_id, instance.business_priority, now_ms)
        return Stale(instance.workflow_id, "parked")

    def _commit_id(self) -> str:
        return fresh_commit_id(self._ids)


def held_of(claim: Transition) -> Held:
    """The claim that this transition would take."""
    token = next(change.value for change in claim.changes if change.field == "claim_token" and isinstance(change, Put))
    return Held(claim.key, str(token))


def poison_reason(instance: Instance, *, seen: bool) -> str:
    """The reason that a parked instance shows: which step was being executed, how many workers died on it, and how the
    last death is known: `seen` by its supervisor, or only by a lease that ran out."""
    running = [step.name for step in instance.steps if step.status == "running"]
    at = f"in step {', '.join(running)}" if running else f"while {instance.status}"
    known = "" if seen else " and was not seen to die: its lease ran out"
    return f"{instance.deaths + 1} workers died {at} without progress; the last one ran nothing else{known}"


def poison_error(reason: str) -> ErrorRecord:
    return ErrorRecord(code="parked", type="Parked", message=reason, kind="panic")
