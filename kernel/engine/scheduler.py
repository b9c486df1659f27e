"""Filling free slots with claims: the one function behind every trigger (group 9).

A slot is taken before a candidate, so that a process without room never holds a lease (sch-slot-before-claim). The
ready queue recommends; when it does not answer, the durable store is asked directly and everything still runs,
only without priorities (lane-redis-down).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from kernel.candidates import Candidate, Popped
from kernel.engine import readiness
from kernel.engine.claims import ActiveClaim
from kernel.engine.damaged import check_steps
from kernel.engine.execution import Execution
from kernel.engine.guest_room import GuestRoom
from kernel.engine.services import Services
from kernel.engine.takeover import ClaimAnswer, Claimed, Claimer, Mismatch, NotYet, Stale, Suspect
from kernel.errors import CoordinationDenied, CoordinationRejected, CoordinationUnavailable, CorruptRecord, KernelError
from kernel.records import Instance
from kernel.store.conditional import AtMost, Missing, OneOf
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES
from kernel.transitions.claims import SUSPECT_DEATHS

log = logging.getLogger("kernel.scheduler")

_SUSPECT_PUSH_MS = 1_000
_PASS_MS = 500
_STORE_AGAIN_MS = 1_000
_SEEN_MAX = 4_096
_VAIN_ROUNDS = 3
"""Rounds without a single claim, one after the other, before the store is asked as well."""


class Scheduler:
    """The slots of one worker process and the passes that fill them."""

    def __init__(self, services: Services, claimer: Claimer, definition_keys: tuple[str, ...]) -> None:
        self._s = services
        self._claimer = claimer
        self._keys = definition_keys
        definitions = services.app.definitions
        # Once per process: the graph of a Definition does not change while it runs.
        self._depends_on = {type_: readiness.dependencies(d.plan) for type_, d in definitions.items()}
        self._lock = threading.Lock()
        self._busy = 0
        self._alone = False
        self._stopping = False
        self._guest_room = GuestRoom(services.settings.scan_ms, services.ids.fraction)
        self._pushed: dict[str, int] = {}
        self._store_after: tuple[int, str] | None = None
        self._next_store_ms = 0
        self._vain_rounds = 0
        self.wake = services.runner.event()
        self.queue_failed = self._queue_denied = False
        self.scan_failed = False
        self.claims_taken = 0
        self.claims_stale = 0
        self.rebuild: Callable[[], None] = lambda: None
        self.repair: Callable[[], None] = lambda: None
        """Matches what the inbox holds with what waits; does nothing while its time has not come."""
        self.tried: Callable[[Sequence[Candidate], Sequence[ClaimAnswer]], None] = lambda candidates, answers: None
        """Told what came of each candidate, in any order, after the claims among them were started."""

    # --- slots -----------------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """Slots in use."""
        return self._busy

    def stop(self) -> None:
        """Take nothing more; running claims end after their current step (shd-order, shd-claim-stops)."""
        self._stopping = True
        self.wake.set()

    def stopping(self) -> bool:
        return self._stopping

    def _room(self) -> int:
        """Free slots: none while stopping, and none beside a suspect or while making room for one."""
        with self._lock:
            if self._stopping or self._alone:
                return 0
            if self._busy and self._guest_room.is_kept(self._s.clock.boot_ms()):
                return 0
            return self._s.settings.slots - self._busy

    # --- the pass ----------------------------------------------------------------------------------------

    def schedule_runnable_workflows(self) -> int | None:
        """Repair unmatched signals when that is due (sig-repair-in-schedule), then fill free slots until there is no
        room, no candidate, or eight candidates in a row were in vain.

        Returns the milliseconds until the queue's next entry is due, None when it knows of none. Raises
        StoreUnavailable when the durable store does not answer: nothing can be granted then.
        """
        self.repair()
        self._s.enqueue(self._s.given_up.give_back())
        self._receive_guest()
        tries_left = self._s.settings.stale_tries
        ends_ms = self._s.clock.boot_ms() + _PASS_MS
        while (room := self._room()) > 0:
            if self._s.clock.boot_ms() >= ends_ms:
                return 0  # the sweeps have their time, too: a worker that never says it lives has its work deferred
            popped = self._pop(min(room, tries_left))
            if popped is None:
                self._claim_from_store(room)
                return None
            if popped.wiped:
                self.rebuild()
                if not popped.candidates:
                    continue
            if not popped.candidates:
                if self.scan_failed:
                    self._claim_beside_queue(room)
                return popped.next_in_ms
            if self._try_all(popped.candidates):
                tries_left = self._s.settings.stale_tries
                self._vain_rounds = 0
                continue
            tries_left -= len(popped.candidates)
            if tries_left <= 0:
                self._end_vain_round(room)
                return None
        return None

    def _end_vain_round(self, room: int) -> None:
        """What the queue recommends again and again is nothing for this worker: another version's backlog, which each
        scan queues before what is younger, or ids that an old Redis has brought back. The store is asked what is; the
        queue goes on being asked first, so that it gets rid of what is stale."""
        self._vain_rounds += 1
        if self._vain_rounds >= _VAIN_ROUNDS:
            self._claim_beside_queue(room)

    def _pop(self, n: int) -> Popped | None:
        try:
            popped = self._s.queue.pop(n)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            self._note_failure(error)
            return None
        self.queue_failed = self._queue_denied = False
        return popped

    def _note_failure(self, error: KernelError) -> None:
        """Said once for each outage; and once more when it is one that no waiting mends (A69)."""
        denied = isinstance(error, CoordinationDenied)
        if not self.queue_failed or (denied and not self._queue_denied):
            event = "redis.denied" if denied else "redis.down"
            log.warning("the ready queue does not answer, claiming from the store: %s", error, extra={"event": event})
        self.queue_failed = True
        self._queue_denied = self._queue_denied or denied

    def _try_all(self, candidates: Sequence[Candidate]) -> int:
        """Claim what can be claimed and start it; how many."""
        alone = self._busy == 0 and len(candidates) == 1
        answers = self._claimer.take_all([c.workflow_id for c in candidates], alone=alone)
        back: list[Candidate] = []
        started = 0
        suspects: list[Suspect] = []
        for answer in answers:
            match answer:
                case Claimed():
                    self._start(answer)
                    started += 1
                case NotYet():
                    back.append(Candidate(answer.workflow_id, answer.lane, answer.at_ms))
                case Suspect():
                    suspects.append(answer)
                case Mismatch():
                    back.extend(self._mismatched(answer))
                case Stale():
                    self.claims_stale += 1
        started += self._try_suspects(suspects, back)
        self._s.enqueue_candidates(back)
        self.tried(candidates, answers)
        return started

    def _try_suspects(self, suspects: Sequence[Suspect], back: list[Candidate]) -> int:
        """A suspect runs only in an otherwise empty worker (DECISIONS detail 4). A busy one leaves it to others for one
        scan period; then it takes nothing new until it is empty, and that suspect before anything else."""
        started = 0
        for suspect in suspects:
            if self._busy == 0 and not self._stopping:
                started += self._try_alone(suspect, back)
                continue
            self._guest_room.expect(suspect, self._s.clock.boot_ms())
            at_ms = self._s.store.now_ms() + _SUSPECT_PUSH_MS
            back.append(Candidate(suspect.workflow_id, suspect.lane, at_ms))
        return started

    def _try_alone(self, suspect: Suspect, back: list[Candidate]) -> int:
        answer = self._claimer.take_all([suspect.workflow_id], alone=True)[0]
        if isinstance(answer, Claimed):
            self._start(answer)
            return 1
        if isinstance(answer, NotYet):
            back.append(Candidate(answer.workflow_id, answer.lane, answer.at_ms))
        return 0

    def _receive_guest(self) -> None:
        """Run the suspect that this worker waits for as soon as it is empty; forget it when another has taken it, or
        when its time is not now, so that nobody keeps slots free for a suspect that can not come."""
        room, now_ms = self._guest_room, self._s.clock.boot_ms()
        if room.guest is None or self._stopping:
            return
        if self._busy == 0:
            suspect = room.guest
            room.forget()
            back: list[Candidate] = []
            self._try_alone(suspect, back)
            self._s.enqueue_candidates(back)
        elif room.is_kept(now_ms) and not self._claimer.is_due(room.guest.workflow_id):
            room.forget()
        elif room.is_in_vain(now_ms):
            room.give_up(now_ms)

    def _mismatched(self, answer: Mismatch) -> list[Candidate]:
        """Pushed back once, for a worker that has the version; then left to the dispatchers (DECISIONS 13)."""
        now_ms = self._s.clock.boot_ms()
        seen_ms = self._pushed.get(answer.workflow_id)
        if seen_ms is not None and now_ms - seen_ms < self._s.settings.mismatch_deferral_ms:
            return []
        if len(self._pushed) >= _SEEN_MAX:
            self._pushed.clear()
        self._pushed[answer.workflow_id] = now_ms
        at_ms = self._s.store.now_ms() + self._s.settings.mismatch_push_ms
        self._s.note("claim.mismatch", workflow_id=answer.workflow_id, offered=self._keys)
        return [Candidate(answer.workflow_id, answer.lane, at_ms)]

    def _claim_beside_queue(self, room: int) -> None:
        """The queue answers, and may lack what the last sweep could not tell it. A look in vain is not made again at
        once: what was found and can not run here now (a suspect, beside other work) is pushed back, which wakes this
        very worker, and it would ask the store as fast as that answers."""
        now_ms = self._s.clock.boot_ms()
        if now_ms >= self._next_store_ms and not self._claim_from_store(room):
            self._next_store_ms = now_ms + _STORE_AGAIN_MS

    def _claim_from_store(self, room: int) -> int:
        """Without the queue: due rows of our types straight from the store, in no order of priority.

        Page after page until the slots are full, because a page of rows that nobody can claim (damaged ones, suspects)
        must not hide the others; when all pages were in vain the next pass goes on where this one stopped (A45).
        """
        limit = max(32, 4 * room)
        started = 0
        for _ in range(self._s.settings.scan_pages):
            rows = self._due_rows(limit)
            full = len(rows) == limit
            self._store_after = (rows[-1].at_ms, rows[-1].workflow_id) if full else None
            # Shuffled, so that several workers do not fight for the same head of the page (STORE §3).
            rows.sort(key=lambda _: self._s.ids.fraction())
            while rows and (room := self._room()) > 0:
                batch, rows = rows[:room], rows[room:]
                started += self._try_all(batch)
            if not full or self._room() <= 0:
                break
        if started:
            self._store_after = None
        return started

    def _due_rows(self, limit: int) -> list[Candidate]:
        query = Query(
            table=INSTANCES,
            guards=(
                OneOf("definition_key", self._keys),
                AtMost("claimable_time", self._s.store.now_ms()),
                Missing("parked"),
            ),
            order="claimable_time",
            columns=("workflow_id", "business_priority", "claimable_time"),
            limit=limit,
            after=self._store_after,
        )
        return [Candidate(*row) for row in self._s.store.scan(query)]

    # --- running -----------------------------------------------------------------------------------------

    def _start(self, claimed: Claimed) -> None:
        claim = claimed.claim
        instance: Instance = claim.instance
        with self._lock:
            self._busy += 1
            if instance.deaths >= SUSPECT_DEATHS:
                self._alone = True
        self.claims_taken += 1
        self._s.committer.count_commit()
        self._s.renewals.keep(claim)
        self._s.note(
            "claim.taken", instance=instance, claim_token=claim.held.claim_token, taken_over=claimed.taken_over
        )
        try:
            self._s.runner.spawn("slot", partial(self._run, claim))
        except RuntimeError:
            # No thread to be had: the lease gives the work to a process that has one.
            log.exception("no slot thread could be started for %s", instance.workflow_id)
            self._free(claim)

    def _run(self, claim: ActiveClaim) -> None:
        try:
            definition = self._s.app.definition(claim.instance.type)
            check_steps(claim.instance, definition.plan)
            Execution(self._s, definition, self._depends_on[definition.type], claim, self.stopping).run()
        except CorruptRecord as error:
            # Claimed and not to be run: the lease keeps everybody off it until an operator has looked.
            self._s.damaged.tell(claim.instance.workflow_id, error)
        finally:
            self._free(claim)

    def _free(self, claim: ActiveClaim) -> None:
        """The claim has ended for whatever reason: so has the use of its slot (sch-slot-release)."""
        self._s.renewals.drop(claim)
        handed = claim.take_handed()
        if handed is not None:  # nothing ran under this claim
            self._s.permits.give_back(handed)
        with self._lock:
            self._busy -= 1
            if self._busy == 0:
                self._alone = False
        self.wake.set()
