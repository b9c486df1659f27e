"""Who holds a place of which resource, as the calls that reach Redis tell it: a second account of permits (S11).

It knows leases and calls, and nothing of what Redis remembers. So it sees a place that was granted twice because Redis
had lost its memory, and one whose lease ran out under its call; and it says by what that is excused, or that it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernel.config import Limit
from kernel.permit_words import Granted, Owner, Permit, Refused, Released, Renewal
from kernel.records import Document
from tests.simulation.fibers import Fiber, getcurrent
from tests.simulation.processes import Process
from tests.support.engine_permits import MemoryPermits

if TYPE_CHECKING:
    from tests.simulation.world import World

SLACK_MS = 2_000
"""What calls of others may take between the time at which something is due and the time at which it is done."""
KNOWN_MS = 1_000
"""So long may a worker go by limits that it has read."""
TROUBLED_MS = 125_000
"""So long may a process be late with what it knows: the longest that it is slow, held up, or stands still."""
WINDOW_MS = 1_000
_LONG_AGO_MS = -1


class Place:
    """One place. Times of leases are by Redis' clock, all others by the true one."""

    def __init__(self, process: Process | None, limit: Limit, *, counted: bool) -> None:
        self.process = process
        self.limit = limit
        self.counted = counted
        """Whether it is one of a limited number: False for a call that was made while no limit held."""
        self.over = False
        """Granted above the limit, which a wipe excuses."""
        self.started_ms: int | None = None
        """When its start was counted right before the call, None while it is not."""
        self.asked = False
        """Whether its start was asked for right before the call."""
        self.rate = 0
        self.lease_ends_ms = 0
        self.kept_ms = 0
        self.mark: tuple[int, ...] = ()
        """What had befallen its process, time and Redis when it was granted or renewed last."""
        self.wipes = 0


class Places(MemoryPermits):
    """The permits of all processes of a run, and the account of them."""

    def __init__(self, world: World, *given: Any) -> None:
        super().__init__(*given)
        self._world = world
        self._book: dict[str, dict[tuple[str, str, str], Place]] = {}
        self._wiped_ms: list[int] = []
        self._failed_ms: dict[Process, int] = {}
        self._limits: dict[str, list[tuple[int, Limit]]] = {}
        self.broken_ms = -WINDOW_MS
        """When Redis forgot the starts of a second, or counted them by another clock."""
        self.skews = 0

    # --- what befalls Redis ----------------------------------------------------------------------------------

    def wipe(self) -> None:
        super().wipe()
        self._wiped_ms.append(self._world.hub.now_ms)
        self.broken_ms = self._world.hub.now_ms

    def about_to_be_skewed(self) -> None:
        """The clock of Redis is to be set: leases will end earlier or later than they should.

        Those that have run out stay so: their places may have been thrown away, and no clock brings them back.
        """
        for place in (place for book in self._book.values() for place in book.values()):
            if not self.lasts(place):
                place.lease_ends_ms = _LONG_AGO_MS
        self.skews += 1
        self.broken_ms = self._world.hub.now_ms

    def failed(self, process: Process) -> None:
        """A call of that process did not come through, or not back."""
        self._failed_ms[process] = self._world.hub.now_ms

    def limited(self, resource: str, row: Document) -> None:
        """The limits of a resource are a fact from now on."""
        declared = self._world.limits[resource]
        limit = Limit(*(row.get(field, getattr(declared, field)) for field in declared.__struct_fields__))
        self._limits.setdefault(resource, [(0, declared)]).append((self._world.hub.now_ms, limit))

    # --- calls -----------------------------------------------------------------------------------------------

    def acquire(self, resource: str, owner: Owner, limit: Limit, **named: Any) -> Granted | Refused:
        answer = super().acquire(resource, owner, limit, **named)
        if isinstance(answer, Granted):
            self._grant(resource, _key(owner), limit, counted=bool(answer.permit.epoch))
        return answer

    def start(self, permit: Permit, limit: Limit) -> int:
        wait_ms = super().start(permit, limit)
        place = self._book[permit.resource].get(_key(permit.owner))
        if place is not None and not wait_ms:
            place.asked = True
            place.started_ms = self._world.hub.now_ms if limit.max_starts_per_second else None
            place.rate = limit.max_starts_per_second
        return wait_ms

    def renew(self, permits: Sequence[Permit]) -> list[Renewal]:
        renewals = super().renew(permits)
        for permit, renewal in zip(permits, renewals, strict=True):
            place = self._book[permit.resource].get(_key(permit.owner))
            if place is not None and renewal.outcome != "lost":
                self._keep(place)
            if renewal.outcome == "restored":
                self._world.sometimes.add("permit restored after a wipe")
        return renewals

    def release(self, resource: str, owners: Sequence[Owner], limit: Limit) -> Released:
        for owner in owners:
            self._book.get(resource, {}).pop(_key(owner), None)
        return super().release(resource, owners, limit)

    # --- the account -----------------------------------------------------------------------------------------

    def place_of(self, resource: str, process: Process, workflow_id: str, step: str) -> Place | None:
        """The place under which a call is made: under whichever of its claims, that process made it."""
        found = [
            place
            for (key, name, _), place in self._book.get(resource, {}).items()
            if place.process is process and (key, name) == (workflow_id, step)
        ]
        return max(found, key=lambda place: place.kept_ms, default=None)

    def holds_place(self, resource: str, place: Place) -> bool:
        """Whether nobody has given it back."""
        return any(place is other for other in self._book[resource].values())

    def lasts(self, place: Place) -> bool:
        """Whether its lease has not run out."""
        return not place.counted or place.lease_ends_ms > self._now_ms()

    def excused(self, place: Place) -> bool:
        """Whether something has befallen its process, time or Redis since it was kept last, by which it may be lost."""
        process = place.process
        if process is None or process.dead:
            return True
        return self._mark(process) != place.mark or self._failed_ms.get(process, -1) >= place.kept_ms

    def _grant(self, resource: str, key: tuple[str, str, str], limit: Limit, *, counted: bool) -> None:
        book = self._book.setdefault(resource, {})
        known = book.get(key)
        process = _calling()
        if process is not None:
            self._check_known(resource, limit, process)
        place = Place(process, limit, counted=counted)
        self._keep(place)
        if counted and known is None:
            if limit.paused:
                self._world.violation("S11", f"{key} got a place of {resource}, which is stopped")
            self._check_grant(resource, place, [other for other in book.values() if self._in_use(other)])
        if known is None or not known.counted or not self.lasts(known):
            book[key] = place
        else:
            self._keep(known)

    def _in_use(self, place: Place) -> bool:
        return place.counted and self.lasts(place)

    def _keep(self, place: Place) -> None:
        place.lease_ends_ms = self._now_ms() + self._lease_ms
        place.kept_ms = self._world.hub.now_ms
        place.wipes = len(self._wiped_ms)
        place.mark = () if place.process is None else self._mark(place.process)

    def _mark(self, process: Process) -> tuple[int, ...]:
        return process.troubles.kinds.get("pause", 0), self._world.jumps, self.skews

    def _check_grant(self, resource: str, place: Place, others: list[Place]) -> None:
        """Not above the limit, but for those whom Redis has forgotten: of all others there are never more. They put
        themselves back within a third of a lease, so that it ends then (DECISIONS 9, L10)."""
        most = place.limit.max_concurrency
        over = 1 + len(others) - most
        if not most or over <= 0:
            return
        forgotten = [other for other in others if other.wipes < len(self._wiped_ms)]
        if over > len(forgotten):
            what = f"{1 + len(others)} places of {resource} are given out, {most} are allowed"
            self._world.violation("S11", f"{what}, {len(forgotten)} were forgotten")
        place.over = True
        self._world.sometimes.add("permit granted again after a wipe")
        for other in forgotten:
            since_ms = self._world.hub.now_ms - self._wiped_ms[other.wipes]
            if since_ms > self._lease_ms // 3 + SLACK_MS and not self.excused(other):
                self._world.violation("S11", f"a place of {resource} is not put back {since_ms} ms after the wipe")

    def _check_known(self, resource: str, limit: Limit, process: Process) -> None:
        """A worker goes by what is in force, or was a second ago (prm-config-each)."""
        now_ms = self._world.hub.now_ms
        late_ms = KNOWN_MS + SLACK_MS
        if now_ms - max(process.troubles.last_ms, self._world.jumped_ms) < TROUBLED_MS:
            return
        facts = self._limits.get(resource) or [(0, self._world.limits[resource])]
        ends = [at_ms for at_ms, _ in facts[1:]] + [now_ms + 1]
        known = [one for (_, one), end_ms in zip(facts, ends, strict=True) if end_ms > now_ms - late_ms]
        if limit not in known:
            self._world.violation("S11", f"{process.name} goes by {limit} for {resource}, in force is {known}")


def _calling() -> Process | None:
    """Whose call it is; None for one that is done after its process has ended."""
    fiber = getcurrent()
    return fiber.owner if isinstance(fiber, Fiber) and isinstance(fiber.owner, Process) else None


def _key(owner: Owner) -> tuple[str, str, str]:
    return owner.workflow_id, owner.step, owner.claim_token
