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

log = logging.getLogger("kernel.lease")


class Renewals:
    """Keeps the claims of this process, and drops those that it can not keep."""

    def __init__(self, store: Store, clock: Clock, runner: Runner, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._settings = settings
        self._claims: dict[str, ActiveClaim] = {}
        self._timers: dict[str, Timer] = {}
        self._lock = threading.Lock()
        self._stop: Event = runner.event()
        self.passes = 0

    def keep(self, claim: ActiveClaim) -> None:
        """Renew `claim` from now on, and fence it on time if that fails."""
        token = claim.held.claim_token
        with self._lock:
            self._claims[token] = claim
            self._timers[token] = self._fence_timer(claim)

    def drop(self, claim: ActiveClaim) -> None:
        """The claim has ended: its heartbeat stops (clm-renew-stop)."""
        claim.end()
        with self._lock:
            self._claims.pop(claim.held.claim_token, None)
            timer = self._timers.pop(claim.held.claim_token, None)
        if timer is not None:
            timer.cancel()

    def held(self) -> list[str]:
        """The workflow_ids of the claims that this process holds."""
        with self._lock:
            return [claim.held.workflow_id for claim in self._claims.values()]

    def run(self) -> None:
        """Renew until `stop`. The thread survives every error of the store (A54)."""
        while not self._stop.is_set():
            try:
                self.pass_once()
            except Exception:
                log.exception("a renewal pass failed")
            self._stop.wait(self._until_next_s())

    def stop(self) -> None:
        self._stop.set()

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
            for claim in due:
                log.warning("a claim could not be renewed: %s", error, extra=_context(claim, "claim.not_renewed"))
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
            if isinstance(answer, Applied):
                claim.renewed(sent_at_ms)
                log.debug("claim renewed", extra=_context(claim, "claim.renewed"))
            else:
                # Terminal, superseded or taken over: the running activity is told at once.
                claim.lose("claim_lost")

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
        """Seconds until the earliest renewal is due. A new claim is never due before one period has passed."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            nexts = [c.renewed_at_ms + self._settings.renew_ms for c in self._claims.values() if c.lost is None]
        wait_ms = min([self._settings.renew_ms, *(at - now_ms for at in nexts)])
        # A store that is away is asked again four times a period, not in a hot loop.
        return max(wait_ms, self._settings.renew_ms / 4 if wait_ms <= 0 else 1) / 1000


def _context(claim: ActiveClaim, event: str) -> dict[str, str]:
    """What ties a record of the heartbeat to the workflow. No more than this is taken from the business: the heartbeat
    knows no token and no deadline of an activity (clm-renew-context)."""
    return {"event": event, "workflow_id": claim.held.workflow_id, "trace_id": claim.instance.trace_id}
