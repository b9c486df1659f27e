"""The permits of a rig: the model of the scripts on the rig's lanes and clock, with the faults that a Redis has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernel.config import Limit
from kernel.errors import CoordinationUnavailable
from kernel.permit_words import Granted, Owner, Permit, Refused, Released, Renewal
from tests.support.engine_queue import MemoryQueue
from tests.support.engine_runner import Killed
from tests.support.permit_model import PermitModel

_KINDS = {1: "new", 2: "renewed", 3: "handed"}
_OUTCOMES = {"0": "lost", "1": "renewed", "2": "restored"}


class MemoryPermits:
    """All resources that the workers of a rig share. Used by every one of them, for asking and for renewing."""

    def __init__(self, queue: MemoryQueue, now_ms: Callable[[], int], lease_ms: int, wait_ms: int) -> None:
        self._queue = queue
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._models: dict[str, PermitModel] = {}
        self._lock = threading.Lock()
        self.down = False
        """Every call raises CoordinationUnavailable."""
        self.loses_replies = False
        """What is asked for is done, and the answer is lost."""
        self.calls: list[tuple[str, str]] = []
        """(what, resource) of every call that reached the places."""
        self.refusals: list[Refused] = []
        self.most: dict[str, int] = {}
        """The most places of a resource that were ever in use at once."""

    def of(self, resource: str) -> PermitModel:
        """The places of one resource."""
        if resource not in self._models:
            self._models[resource] = PermitModel(lanes=self._queue.model)
        return self._models[resource]

    def owners(self, resource: str) -> list[tuple[str, str, str]]:
        """(workflow_id, step, claim_token) of every place in use."""
        now_ms = self._now_ms()
        return [owner for owner, (expiry_ms, _) in self.of(resource).holders.items() if expiry_ms > now_ms]

    def wipe(self) -> None:
        """What FLUSHALL does, together with the queue's."""
        for model in self._models.values():
            model.wipe()
        self._queue.wipe()

    def acquire(
        self, resource: str, owner: Owner, limit: Limit, *, lane: int, request: int = 0, wait_ms: int | None = None
    ) -> Granted | Refused:
        if limit == Limit():
            return Granted("unlimited", Permit(resource, owner, request, 0))
        reply = self._call(
            "acquire",
            resource,
            lambda model, now_ms: model.acquire(
                (owner.workflow_id, owner.step), owner.claim_token, request, lane, _terms(limit),
                self._lease_ms, wait_ms or self._wait_ms, now_ms,
            ),
        )  # fmt: skip
        if reply[0]:
            self.most[resource] = max(self.most.get(resource, 0), len(self.owners(resource)))
            return Granted(_KINDS[reply[0]], Permit(resource, owner, request, reply[1]))  # type: ignore[arg-type]
        self.refusals.append(Refused(reply[1].decode(), reply[2], reply[3]))
        return self.refusals[-1]

    def start(self, permit: Permit, limit: Limit) -> int:
        if not permit.epoch or not limit.max_starts_per_second:
            return 0
        owner, rate = _key(permit.owner), limit.max_starts_per_second
        start = self._call("start", permit.resource, lambda m, now_ms: [m.start(owner, self._lease_ms, rate, now_ms)])
        return int(start[0])

    def renew(self, permits: Sequence[Permit]) -> list[Renewal]:
        return [self._renewed(permit) for permit in permits]

    def _renewed(self, permit: Permit) -> Renewal:
        owner = (_key(permit.owner), permit.request, permit.epoch)
        epoch, digits = self._call(
            "renew", permit.resource, lambda model, now_ms: model.renew([owner], self._lease_ms, now_ms)
        )
        held = Permit(permit.resource, permit.owner, permit.request, epoch or permit.epoch)
        return Renewal(_OUTCOMES[digits], held)  # type: ignore[arg-type]

    def release(self, resource: str, owners: Sequence[Owner], limit: Limit) -> Released:
        keys = [_key(owner) for owner in owners]
        reply = self._call("release", resource, lambda model, now_ms: model.release(keys, _terms(limit), now_ms))
        return Released(*reply)

    def sweep(self, resource: str, limit: Limit) -> int:
        return int(self._call("sweep", resource, lambda model, now_ms: model.release([], _terms(limit), now_ms))[1])

    def deferred(self, resource: str, workflow_id: str, step: str, *, lane: int, in_line: bool) -> bool:
        pair = (workflow_id, step)
        return bool(self._call("deferred", resource, lambda model, now_ms: model.deferred(pair, lane, in_line, now_ms)))

    def leave(self, resource: str, pairs: Sequence[tuple[str, str]], limit: Limit) -> int:
        reply = self._call("leave", resource, lambda model, now_ms: model.release(pairs, _terms(limit), now_ms))
        return int(reply[1])

    def missing(self, resource: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        return [bool(gone) for gone in self._call("missing", resource, lambda model, now_ms: model.missing(pairs))]

    def _call(self, what: str, resource: str, do: Callable[[PermitModel, int], list]) -> list:  # type: ignore[type-arg]
        if self.down:
            raise CoordinationUnavailable("the permits are away")
        with self._lock, self._queue.lock:
            self.calls.append((what, resource))
            model = self.of(resource)
            told = len(model.wakeups)
            reply = do(model, self._now_ms())
        if self.loses_replies:
            raise CoordinationUnavailable("the answer got lost")
        if len(model.wakeups) > told:
            self._queue.wake()
        return reply


class PermitsView:
    """The permits as one worker sees them: a dead one reaches nobody."""

    def __init__(self, inner: MemoryPermits, is_dead: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_dead = is_dead

    def __getattr__(self, name: str) -> Any:
        if self._is_dead():
            raise Killed
        return getattr(self._inner, name)


def _key(owner: Owner) -> tuple[str, str, str]:
    return owner.workflow_id, owner.step, owner.claim_token


def _terms(limit: Limit) -> tuple[int, int, bool]:
    return limit.max_concurrency, limit.max_starts_per_second, limit.paused
