"""Renewal of claims, on its own thread, touching the store only (clm-renew-third, DECISIONS detail 12).

A renewal is bound to the claim and not to an activity: a timeout or cancellation of the activity does not stop it
(clm-renew-detached). Redis is never touched here: a hung Redis must not cost a lease (M16).
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from kernel import transitions
from kernel.clock import Clock
from kernel.engine.claims import ActiveClaim
from kernel.engine.ports import Event, Runner, Timer
from kernel.engine.settings import Settings
from kernel.errors import KernelError, OutcomeUnknown, StoreUnavailable
from kernel.store.conditional import Applied
from kernel.store.protocol import Store
from kernel.transitions import Held

log = logging.getLogger("kernel.lease")

_NAMED_MAX = 8
"""Claims that are named when one renewal of many fails: a store that is away must not fill the log (L4)."""


class Renewals:
    """Keeps the claims of this process, and drops those that it can not keep."""

    def __init__(self, store: Store, clock: Clock, runner: Runner, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._settings = settings
        self._claims: dict[str, ActiveClaim] = {}
        self._timers: dict[str, Timer] = {}
        self._told: set[str] = set()
        """Claims of which it was said that they could not be renewed, and that have not been renewed since."""
        self._lock = threading.Lock()
        self._stop: Event = runner.event()
        self._early: Event = runner.event()
        """Ends the wait for the next pass: something is due before it, or the thread shall end."""
        self._next_pass_ms = 0
        self._slack_ms = min(settings.renew_ms, settings.fence_ms - settings.renew_ms) // 4
        """By how much the next pass may come after a claim is due."""
        self.passes = 0

    def keep(self, claim: ActiveClaim) -> None:
        """Renew `claim` from now on, and fence it on time if that fails."""
        token = claim.held.claim_token
        with self._lock:
            self._claims[token] = claim
            self._timers[token] = self._fence_timer(claim)
            late_ms = self._next_pass_ms - claim.renewed_at_ms - self._settings.renew_ms
        if late_ms > self._slack_ms:
            # Its write took long, and its time counts from before that: the next pass may come behind the fence. Not
            # for the few ms of a write that was on its way during a pass: each new claim would wake the thread.
            self._early.set()

    def drop(self, claim: ActiveClaim) -> None:
        """The claim has ended: its heartbeat stops (clm-renew-stop)."""
        claim.end()
        with self._lock:
            self._claims.pop(claim.held.claim_token, None)
            self._told.discard(claim.held.claim_token)
            timer = self._timers.pop(claim.held.claim_token, None)
        if timer is not None:
            timer.cancel()

    def held(self) -> list[str]:
        """The workflow_ids of the claims that this process holds."""
        with self._lock:
            return [claim.held.workflow_id for claim in self._claims.values()]

    def lose_all(self) -> list[Held]:
        """Fence every claim now, because this process is about to end: no commit, and no renewal, is sent from here on.
        What they were, for giving them back."""
        with self._lock:
            claims = list(self._claims.values())
        for claim in claims:
            claim.lose("fenced")
        return [claim.held for claim in claims]

    def run(self) -> None:
        """Renew until `stop`. The thread survives every error of the store (A54)."""
        while not self._stop.is_set():
            try:
                self.pass_once()
            except Exception:
                log.exception("a renewal pass failed")
            self._early.wait(self._until_next_s())
            self._early.clear()

    def stop(self) -> None:
        self._stop.set()
        self._early.set()

    def pass_once(self) -> int:
        """Renew every claim whose third of a lease has passed; how many were due."""
        self.passes += 1
        now_ms = self._clock.boot_ms()
        with self._lock:
            due = [c for c in self._claims.values() if now_ms - c.renewed_at_ms >= self._settings.renew_ms]
        due = [c for c in due if c.lost is None and not c.ended and now_ms < c.fenced_at_ms]
        if due:
            self._renew(due)
        return len(due)

    def _renew(self, due: list[ActiveClaim]) -> None:
        sent_at_ms = self._clock.boot_ms()
        try:
            answers = self._store.apply_all([transitions.renew(c.held, self._settings.lease_ms) for c in due])
        except (StoreUnavailable, OutcomeUnknown) as error:
            # Unknown counts as not renewed: the fence falls by itself unless a later renewal hits.
            self._tell_not_renewed(due, error)
            return
        except KernelError:
            if len(due) > 1:
                # One damaged row raises for the whole batch; it must not cost the others their leases.
                for claim in due:
                    self._renew([claim])
                return
            log.exception("a renewal was refused")
            return
        for claim, answer in zip(due, answers, strict=True):
            self._told.discard(claim.held.claim_token)
            if isinstance(answer, Applied):
                claim.renewed(sent_at_ms)
                log.debug("claim renewed", extra=_context(claim, "claim.renewed"))
            else:
                # Terminal, superseded or taken over: the running activity is told at once.
                claim.lose("claim_lost")

    def _tell_not_renewed(self, due: list[ActiveClaim], error: KernelError) -> None:
        """Once for each claim and outage, however often it is tried; of many at once the first are named."""
        with self._lock:
            fresh = [c for c in due if c.held.claim_token in self._claims and c.held.claim_token not in self._told]
            self._told.update(claim.held.claim_token for claim in fresh)
        for claim in fresh[:_NAMED_MAX]:
            log.warning("a claim could not be renewed: %s", error, extra=_context(claim, "claim.not_renewed"))
        if len(fresh) > _NAMED_MAX:
            extra = {"event": "claim.not_renewed"}
            log.warning("%d more claims could not be renewed: %s", len(fresh) - _NAMED_MAX, error, extra=extra)

    def _fence_timer(self, claim: ActiveClaim) -> Timer:
        return self._runner.call_at(claim.fenced_at_ms, partial(self._fence, claim))

    def _fence(self, claim: ActiveClaim) -> None:
        """On the timer thread: fire when the fence was not moved by a renewal, else look again when it will be due."""
        if claim.ended or claim.lost is not None:
            return
        if self._clock.boot_ms() >= claim.fenced_at_ms:
            log.warning("fenced: the lease could not be renewed in time", extra=_context(claim, "claim.fenced"))
            claim.lose("fenced")
            return
        timer = self._fence_timer(claim)
        with self._lock:
            if claim.held.claim_token in self._claims:
                self._timers[claim.held.claim_token] = timer
            else:
                timer.cancel()

    def _until_next_s(self) -> float:
        """Seconds until the earliest renewal is due; a later claim that is due long before ends the wait."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            nexts = [c.renewed_at_ms + self._settings.renew_ms for c in self._claims.values() if c.lost is None]
            wait_ms: float = min([self._settings.renew_ms, *(at - now_ms for at in nexts)])
            # A store that is away is asked again four times a period, not in a hot loop.
            wait_ms = max(wait_ms, self._settings.renew_ms / 4 if wait_ms <= 0 else 1)
            self._next_pass_ms = now_ms + round(wait_ms)
        return wait_ms / 1000


def _context(claim: ActiveClaim, event: str) -> dict[str, str]:
    """What ties a record of the heartbeat to the workflow. No more than this is taken from the business: the heartbeat
    knows no token and no deadline of an activity (clm-renew-context)."""
    return {"event": event, "workflow_id": claim.held.workflow_id, "trace_id": claim.instance.trace_id}
