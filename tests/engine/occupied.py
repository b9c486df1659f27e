"""A resource whose places somebody else has taken, for as long as the test wants."""

from __future__ import annotations

from kernel.config import Limit
from kernel.permit_words import Owner
from tests.support.engine_rig import Rig

FOR_EVER_MS = 10**15


class Occupied:
    """`places` places of a resource in the hands of strangers; `free` gives one back as its owner would."""

    def __init__(self, rig: Rig, resource: str, places: int = 1, limit: Limit | None = None) -> None:
        self._rig = rig
        self._resource = resource
        self.limit = limit or Limit(max_concurrency=places)
        rig.limits[resource] = self.limit
        self._owners = [Owner(f"stranger-{number}", "call", "token") for number in range(places)]
        for owner in self._owners:
            model = rig.permits.of(resource)
            model.epoch = rig.store.now_ms()
            model.holders[owner.workflow_id, owner.step, owner.claim_token] = (FOR_EVER_MS, 0)

    @property
    def taken(self) -> int:
        """Places that are still taken."""
        return len(self._owners)

    def free(self) -> int:
        """One place becomes free; how many were handed on."""
        return self._rig.permits.release(self._resource, [self._owners.pop()], self.limit).handed
