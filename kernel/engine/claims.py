"""A claim in the hands of this process: its token, its latest record, and the fence that ends its right to act.

The fence counts from before the claim or the last successful renewal was sent, on the boot clock (DECISIONS detail
16): when renewals fail, no new effect starts after lease − margin, although the store may be silent. A fenced
claim is never renewed again.
"""

from __future__ import annotations

import threading

from kernel.cancel import CancelReason, CancelToken
from kernel.clock import Clock
from kernel.errors import ClaimLost, Fenced
from kernel.permit_words import Permit
from kernel.records import Instance
from kernel.transitions import Held


class ActiveClaim:
    """Shared by the thread that runs the claim, the renewal thread and the fence's timer. All methods are short."""

    def __init__(
        self,
        held: Held,
        instance: Instance,
        clock: Clock,
        *,
        sent_at_ms: int,
        fence_ms: int,
        handed: Permit | None = None,
    ) -> None:
        self.held = held
        self._handed = handed
        self.instance = instance
        self._clock = clock
        self._fence_ms = fence_ms
        self._fenced_at_ms = sent_at_ms + fence_ms
        self._lock = threading.Lock()
        self._tokens: set[CancelToken] = set()
        self._lost: CancelReason | None = None
        self.renewed_at_ms = sent_at_ms
        self.ended = False

    def check(self) -> None:
        """Raise Fenced or ClaimLost when this process may not act for the workflow any more."""
        if self._lost == "claim_lost":
            raise ClaimLost(f"{self.held.workflow_id}: another worker holds the claim, or the workflow has ended")
        if self._lost is not None or self._clock.boot_ms() >= self._fenced_at_ms:
            self.lose("fenced")
            raise Fenced(f"{self.held.workflow_id}: the lease could not be renewed in time")

    @property
    def lost(self) -> CancelReason | None:
        return self._lost

    @property
    def fenced_at_ms(self) -> int:
        """Boot-clock time from which no effect may start, unless a renewal succeeds before."""
        return self._fenced_at_ms

    def renewed(self, sent_at_ms: int) -> None:
        """A renewal that was sent at `sent_at_ms` has hit. Too late for a claim that is already fenced."""
        with self._lock:
            if self._lost is None and sent_at_ms > self.renewed_at_ms:
                self.renewed_at_ms = sent_at_ms
                self._fenced_at_ms = sent_at_ms + self._fence_ms

    def lose(self, reason: CancelReason) -> None:
        """Stop for good: every invocation of this claim sees its token fire (act-detach-lease-loss)."""
        with self._lock:
            if self._lost is not None or self.ended:
                return
            self._lost = reason
            tokens = list(self._tokens)
        for token in tokens:
            token.fire(reason)

    def update(self, instance: Instance) -> None:
        """The record after a commit. Steps of one wave commit side by side: the newest revision stands."""
        with self._lock:
            if instance.revision >= self.instance.revision:
                self.instance = instance

    def attach(self, token: CancelToken) -> None:
        """An invocation starts under this claim."""
        with self._lock:
            self._tokens.add(token)
            lost = self._lost
        if lost is not None:
            token.fire(lost)

    def detach(self, token: CancelToken) -> None:
        with self._lock:
            self._tokens.discard(token)

    def take_handed(self) -> Permit | None:
        """The place that was handed over to this workflow before it was claimed; once."""
        with self._lock:
            handed, self._handed = self._handed, None
        return handed

    def end(self) -> None:
        """The claim was released, has ended, or this worker gave up on it: no renewal from here on."""
        self.ended = True
