"""Permits: the right to call a downstream resource, counted for all processes together (requirement group 18).

A place belongs to an owner: workflow_id, step and claim_token, so that a new claim is a new owner. It has a lease and
is renewed while the call runs. The limits come in with every call, as the caller knows them (kernel.limits): Redis
keeps places and starts, the durable store keeps what is allowed.

Every method raises CoordinationUnavailable when Redis does not answer, and then nobody may assume a place: the step
is deferred (prm-fail-closed). CoordinationRejected says that a key holds what no kernel wrote. A resource without any
limit needs no Redis and is granted at once (prm-fail-closed-unlimited).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar, cast

import msgspec

from kernel.config import Limit
from kernel.coordination.keys import LANES, Keys
from kernel.coordination.scripts import BoundScript, ScriptRunner, Word
from kernel.errors import CoordinationRejected
from kernel.errors import Refused as BadArgument
from kernel.permit_words import (
    REQUESTS,
    Grant,
    Granted,
    Holder,
    Owner,
    Permit,
    PermitStats,
    Reason,
    Refused,
    Released,
    Renewal,
)
from lua import get

OWNERS_MAX = 100
"""Owners that one release frees; a renewal takes five times as many."""
RENEWALS_MAX = 500
PAIRS_MAX = 500
HANDED_MAX = 16
"""Hand-overs of one call: then the next call goes on."""
HOLDERS_SHOWN = 100
_BOUND_MAX = 4096

_RECORD = "\x1e"
_KINDS: dict[int, Grant] = {1: "new", 2: "renewed", 3: "handed", 4: "unlimited"}
_RENEWED = "1"
_MISSING = "1"
Outcome = Literal["lost", "restored"]
_OUTCOMES: dict[str, Outcome] = {"0": "lost", "2": "restored"}
_UNLIMITED = Limit()
_T = TypeVar("_T")


class Permits:
    """The places of every resource of one namespace. Shared by all threads of the process that made its runner.

    `lease_ms` is the lease of a place, `wait_ms` what somebody refused for concurrency waits at least; whoever waits
    again and again may give a longer one with each call.
    """

    def __init__(self, runner: ScriptRunner, keys: Keys, *, lease_ms: int, wait_ms: int) -> None:
        self._runner = runner
        self._keys = keys
        self._channel = keys.wakeup_channel
        self.lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._bound: dict[tuple[str, str, Limit | None], BoundScript] = {}

    def acquire(
        self, resource: str, owner: Owner, limit: Limit, *, lane: int, request: int = 0, wait_ms: int | None = None
    ) -> Granted | Refused:
        """Ask for one place (prm-atomic, prm-lua-steps). `lane` is the workflow's priority, 0 the most urgent.

        `request` numbers the invocations of one claim, modulo 1024: the same request of the same owner only renews, so
        that a call whose answer was lost may be repeated (prm-idempotent). Another request is another start.
        """
        if type(request) is not int or not 0 <= request < REQUESTS:
            raise BadArgument(f"request: a whole number from 0 to {REQUESTS - 1}, not {request!r}")
        bound = self._script("permit_acquire", resource, limit)
        if limit == _UNLIMITED:
            return Granted("unlimited", Permit(resource, owner, request, 0))
        reply = self._runner.call(bound, owner.text, _acquire_terms(request, lane, wait_ms or self._wait_ms))
        if type(reply) is int:
            return Granted(_KINDS[reply % 8], Permit(resource, owner, request, reply // 8))
        reason, ask_again_ms, place = reply
        return Refused(cast(Reason, reason.decode()), ask_again_ms, place)

    def start(self, permit: Permit, limit: Limit) -> int:
        """To be called right before the call is made: its start is counted from now on (prm-window). 0, or the
        milliseconds to wait before asking once more, because the grant is too long ago."""
        if not permit.epoch or not limit.max_starts_per_second:
            return 0
        bound = self._script("permit_start", permit.resource)
        terms = f"{self.lease_ms} {limit.max_starts_per_second}"
        return int(self._runner.call(bound, permit.owner.text, terms))

    def renew(self, permits: Sequence[Permit]) -> list[Renewal]:
        """Hold places for another lease, one call for each resource; the answers in the order given (prm-renew-script).

        `restored` comes only after a wipe of Redis, and counts the call that runs once more; `lost` means that the
        lease ran out meanwhile: the call goes on and is counted, but its place may be another's by now
        (prm-lost-during-run, DECISIONS 9 and detail 12). Permits without a limit are simply renewed.
        """
        renewals = [Renewal("renewed", permit) for permit in permits]
        recorded: dict[str, list[int]] = {}
        for at, permit in enumerate(permits):
            if permit.epoch:
                recorded.setdefault(permit.resource, []).append(at)
        for resource, places in recorded.items():
            bound = self._script("permit_renew", resource)
            for batch in _batches(places, RENEWALS_MAX):
                text = self._runner.call(bound, _renew_text([permits[at] for at in batch])).decode()
                if text != _RENEWED * len(batch):
                    for at, outcome, permit in _not_renewed(text, batch, permits):
                        renewals[at] = Renewal(outcome, permit)
        return renewals

    def release(self, resource: str, owners: Sequence[Owner], limit: Limit) -> Released:
        """Free the places of these owners, nobody else's, and hand them to those who wait (prm-release,
        prm-release-owner-only). Also the way to free what dead claims held: name their owners."""
        bound = self._script("permit_release", resource, limit)
        freed = handed = 0
        for batch in _batches(owners, OWNERS_MAX) if owners else iter([owners]):
            reply = self._runner.call(bound, _release_text(batch))
            freed, handed = freed + reply // 100, handed + reply % 100
        return Released(freed, handed)

    def leave(self, resource: str, pairs: Sequence[tuple[str, str]], limit: Limit) -> int:
        """Take pairs of workflow_id and step that wait no longer out of the line; how many places were handed to
        others, those among them that were reserved for these pairs."""
        bound = self._script("permit_release", resource, limit)
        texts = [Owner(workflow_id, step, "-").pair for workflow_id, step in pairs]
        return sum(self._runner.call(bound, _RECORD.join(batch)) % 100 for batch in _batches(texts, OWNERS_MAX))

    def sweep(self, resource: str, limit: Limit) -> int:
        """Free places whose lease ran out and hand over every free place; how many were handed.

        Nothing but the speed of the line depends on it: who waits asks again by itself (prm-wake-lost). It is called
        at the scan rate, and after a limit was raised or a resource resumed.
        """
        total = 0
        while True:
            handed = self.release(resource, (), limit).handed
            total += handed
            if handed < HANDED_MAX:
                return total

    def deferred(self, resource: str, workflow_id: str, step: str, *, lane: int, in_line: bool) -> bool:
        """To be called when the deferral of a refused step is committed: if a place was handed to it in between, its
        id is pushed once more, now that it can be claimed. So it is when the step must be `in_line` and Redis knows
        nothing of it, because it was emptied in between (prm-wake-lost). True when it was pushed."""
        bound = self._script("permit_deferred", resource)
        pair = Owner(workflow_id, step, "-").pair
        return bool(self._runner.call(bound, pair, _checked_lane(lane), self._channel, int(in_line)))

    def missing(self, resource: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """For each pair of workflow_id and step whether it stands in no line of this resource, so that no place that
        becomes free is ever handed to it. One call for 500 pairs."""
        bound = self._script("permit_missing", resource)
        missing: list[bool] = []
        for batch in _batches(pairs, PAIRS_MAX):
            text = _RECORD.join([Owner(workflow_id, step, "-").pair for workflow_id, step in batch])
            missing.extend(digit == _MISSING for digit in self._runner.call(bound, text).decode())
        return missing

    def stats(
        self, resource: str, *, pair: tuple[str, str] | None = None, holders_max: int = HOLDERS_SHOWN
    ) -> PermitStats:
        """One resource at one instant (prm-stats). `pair` is the workflow_id and step whose place in line is asked."""
        bound = self._script("permit_stats", resource)
        text = Owner(*pair, "-").pair if pair is not None else ""
        reply = self._runner.call(bound, holders_max, text)
        server_ms, epoch, held, starts, reserved, waiting, *lanes = reply[:10]
        place, lane, handed = reply[10:13]
        holders = [Holder(_owner(text), expiry) for text, expiry in zip(reply[13::2], reply[14::2], strict=True)]
        return PermitStats(
            resource=resource,
            server_ms=server_ms,
            epoch=epoch or None,
            held=held,
            starts_last_second=starts,
            reserved=reserved,
            waiting=waiting,
            waiting_by_lane=tuple(lanes),
            place=place or None,
            place_lane=lane if lane >= 0 else None,
            handed=bool(handed),
            holders=holders,
        )

    def _script(self, name: str, resource: str, limit: Limit | None = None) -> BoundScript:
        found = self._bound.get((name, resource, limit))
        if found is None:
            if len(self._bound) >= _BOUND_MAX:
                # Tenants come and go: what is bound again costs some microseconds.
                self._bound.clear()
            script = get(name)
            keys = self._keys.of(script, resource=resource)
            found = BoundScript(script, keys, _first_words(name, self._channel, self.lease_ms, limit))
            self._bound[name, resource, limit] = found
        return found


# The functions below build ARGV as the contracts in lua/v1 say.


def _first_words(name: str, channel: bytes, lease_ms: int, limit: Limit | None) -> tuple[Word, ...]:
    """What all calls of a script begin with, for one resource under one limit."""
    limits: tuple[Word, ...] = ()
    if limit is not None:
        limits = (limit.max_concurrency, limit.max_starts_per_second, int(limit.paused))
    if name == "permit_acquire":
        return (channel, lease_ms, *limits)
    if name == "permit_release":
        return (channel, *limits)
    return (lease_ms,) if name == "permit_renew" else ()


def _acquire_terms(request: int, lane: int, wait_ms: int) -> str:
    return f"{request} {_checked_lane(lane)} {wait_ms}"


def _renew_text(permits: Sequence[Permit]) -> str:
    return "".join([f"{p.owner.text}{_RECORD}{p.request}{_RECORD}{p.epoch}{_RECORD}" for p in permits])


def _not_renewed(text: str, batch: Sequence[int], permits: Sequence[Permit]) -> Iterator[tuple[int, Outcome, Permit]]:
    """Those whose digit is not that of a plain renewal: where they stand, what became of them, and their permits."""
    digits, epoch = text[: len(batch)], text[len(batch) :]
    for at, digit in zip(batch, digits, strict=True):
        if digit != _RENEWED:
            permit, outcome = permits[at], _OUTCOMES[digit]
            yield at, outcome, permit if outcome == "lost" else msgspec.structs.replace(permit, epoch=int(epoch))


def _release_text(owners: Sequence[Owner]) -> str:
    return _RECORD.join([owner.text for owner in owners])


def _checked_lane(lane: int) -> int:
    if type(lane) is not int or not 0 <= lane < LANES:
        raise BadArgument(f"lane: 0, 1, 2 or 3, not {lane!r}")
    return lane


def _batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _owner(text: bytes) -> Owner:
    """The owner of a member of the holders; CoordinationRejected for one that no kernel wrote."""
    parts = text.decode(errors="backslashreplace").split("\x1f")
    if len(parts) != 3:
        raise CoordinationRejected(f"permit_stats: a holder that is no owner: {parts!r}")
    return Owner(*parts)
