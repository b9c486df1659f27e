"""The short lease of one business object while its holder registers it (dsp-lease-renew, dsp-cancel-ctx).

It is renewed on time and not on progress: a registration that waits for a slow store keeps its object. As with claims,
the holder's right counts from before the claim or the last renewal was sent, on the boot clock, and ends before the
lease does; after that nothing more is registered or confirmed, whoever holds the object by then.
"""

from __future__ import annotations

import logging

from kernel.clock import Clock
from kernel.dispatch import DispatchSource
from kernel.engine.ports import Runner, Timer
from kernel.errors import ClaimLost, KernelError

log = logging.getLogger("kernel.dispatch")


class IntentLease:
    """Made for one object that was just claimed; `start` keeps it until `end`."""

    def __init__(
        self,
        source: DispatchSource,
        object_id: str,
        *,
        fencing_token: str,
        claim_token: str,
        lease_ms: int,
        sent_at_ms: int,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._source = source
        self._object_id = object_id
        self._fencing_token = fencing_token
        self._claim_token = claim_token
        self._lease_ms = lease_ms
        self._clock = clock
        self._runner = runner
        self._timer: Timer | None = None
        self._ended = False
        self._fenced_at_ms = sent_at_ms + lease_ms - lease_ms // 6
        self.lost = False
        """The cancellation flag of this dispatch: the object is another's, or its round has changed."""
        self._sent_at_ms = sent_at_ms

    def start(self) -> None:
        """Renew from a third of the lease on."""
        self._renew_at(self._sent_at_ms + self._lease_ms // 3)

    def end(self) -> None:
        """The object's fate is decided: no further renewal."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Raise ClaimLost when this dispatcher may not act for the object any more."""
        if self.lost or self._clock.boot_ms() >= self._fenced_at_ms:
            self.lost = True
            raise ClaimLost(f"{self._object_id}: the lease of this dispatch is gone")

    def _renew_at(self, boot_ms: int) -> None:
        # The timer thread must not wait for a store: it only starts the body that does.
        self._timer = self._runner.call_at(boot_ms, lambda: self._runner.spawn("dispatch-renew", self._renew))

    def _renew(self) -> None:
        sent_at_ms = self._clock.boot_ms()
        if sent_at_ms >= self._fenced_at_ms:
            self.lost = True  # too late, as for claims: what was fenced is never renewed again (DECISIONS detail 16)
        if self._ended or self.lost:
            return
        again_ms = self._lease_ms // 3
        try:
            if self._source.renew(self._object_id, self._fencing_token, self._claim_token, self._lease_ms):
                self._fenced_at_ms = sent_at_ms + self._lease_ms - self._lease_ms // 6
            else:
                self.lost = True
        except KernelError as error:
            # Unknown counts as not renewed; a source that is away is asked again four times as often.
            log.debug("the lease of %s could not be renewed: %s", self._object_id, error)
            again_ms = max(1, self._lease_ms // 12)
        except Exception:
            log.exception("renewing the lease of %s failed", self._object_id)
        if not self._ended and not self.lost:
            self._renew_at(sent_at_ms + again_ms)
