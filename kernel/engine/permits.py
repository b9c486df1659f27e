"""The permits of one process: asked for, kept while calls run, given back, and handed on (requirement group 18).

Which limits hold is a fact of the durable store and is read with every call; places and lines are Redis'. Whatever can
not be found out counts as a refusal (prm-fail-closed): nobody calls downstream without a place. Places are renewed on a
thread of its own with a connection of its own, so that neither a slow store nor a slow answer to somebody who asks
costs a lease (DECISIONS detail 12).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from kernel.clock import Clock
from kernel.config import Limit
from kernel.engine.ports import Event, Permits, Runner
from kernel.engine.settings import Settings
from kernel.errors import CoordinationUnavailable, KernelError
from kernel.limits import Limits
from kernel.permit_words import WORKFLOW, Owner, Permit, Refused, Renewal

log = logging.getLogger("kernel.permits")

ASK_MAX_MS = 600_000
"""Nobody waits longer than that without asking."""
_AWAY_FIRST_MS = 1_000
_JITTER_MAX_MS = 5_000
"""Less than the 10 s for which an entry outlives the time at which its owner asks again."""
_LAPSED_MS = 2_500
"""After that time a place that was handed over and not taken is free again."""
_REFUSED_MAX, _OWED_MAX, _TOLD_MAX = 1_024, 4_096, 1_024
_HAND_NOTHING_ON = Limit(paused=True)

Place = tuple[str, Owner]


class Denied(msgspec.Struct, frozen=True):
    """Not now. `due_in_ms`: when it is worth asking again, jitter included. Reason `unavailable`: nobody knows of the
    wish, because Redis or the store was silent; otherwise a place that becomes free is handed over by itself."""

    resource: str
    reason: str
    due_in_ms: int


class PermitDesk:
    """Shared by all threads of the process. `asking` and `renewing` are two ways to the same places."""

    def __init__(
        self,
        limits: Limits,
        asking: Permits,
        renewing: Permits,
        *,
        clock: Clock,
        runner: Runner,
        settings: Settings,
        fraction: Callable[[], float],
        note: Callable[..., None],
        declared: Iterable[str] = (),
    ) -> None:
        self._limits = limits
        self._asking = asking
        self._renewing = renewing
        self._clock = clock
        self._runner = runner
        self._settings = settings
        self._fraction = fraction
        self._note = note
        self._declared = tuple(dict.fromkeys(declared))
        self._lock = threading.Lock()
        self._held: dict[Place, Permit] = {}
        self._owed: dict[Place, int] = {}
        """Places that may be ours and must not be, and until when a lease of theirs can last (boot clock)."""
        self._refused: dict[str, int] = {}
        self._told: dict[str, None] = {}
        self._looking: dict[str, int] = {}
        """Resources that are swept once more in a moment, and when."""
        self._stop: Event = runner.event()
        self._pause: Event = runner.event()
        self.away = False
        """The last one who needed a place could not be answered."""
        self.counters = {"permits": 0, "permit_waits": 0, "permit_lost": 0, "permit_restored": 0}

    # --- asking ------------------------------------------------------------------------------------------

    def ask(
        self,
        resource: str,
        owner: Owner,
        *,
        lane: int,
        request: int,
        waits: int = 0,
        at_least_ms: int = 0,
        waited_ms: int = 0,
    ) -> Permit | Denied:
        """A place, which is kept until `give_back`, or when to ask again. Never raises for Redis or the store.

        `waits`: how often this step was refused before. The net beneath the hand-over is wider each time, and lasts
        `at_least_ms`, so that a step that is asked for early keeps its place in line for as long as it rests.
        `waited_ms`: since when it was refused first; told with the grant.
        """
        place = (resource, owner)
        with self._lock:
            owed = place in self._owed
        if owed:
            # A release of this very place may still be on its way: it would free the new one.
            return self._away(resource, waits)
        try:
            limit = self._limits.of(resource)
            if limit == Limit() and not self._limits.declares(resource):
                self._tell_unlimited(resource)
            wait_ms = max(min(self._settings.permit_wait_ms << min(waits, 16), ASK_MAX_MS), at_least_ms)
            wait_ms = min(wait_ms, ASK_MAX_MS)
            answer = self._asking.acquire(resource, owner, limit, lane=lane, request=request, wait_ms=wait_ms)
        except KernelError as error:
            if isinstance(error, CoordinationUnavailable):
                self._owe(place)  # it may have been granted, with nobody to hear of it
            self._tell_away(resource, error)
            return self._away(resource, waits)
        if isinstance(answer, Refused):
            self.away = False
            self._count("permit_waits")
            self.watch(resource)
            self._look_again(resource)
            jitter_ms = round(self._fraction() * min(answer.ask_again_ms // 10, _JITTER_MAX_MS))
            self._note(
                "permit.refused", **_names(resource, owner), reason=answer.reason, ask_again_ms=answer.ask_again_ms,
                place=answer.place,
            )  # fmt: skip
            return Denied(resource, answer.reason, answer.ask_again_ms + jitter_ms)
        if answer.permit.epoch:
            self.away = False
            self._count("permits")
            with self._lock:
                self._held[place] = answer.permit
            self._note("permit.granted", **_names(resource, owner), how=answer.kind, waited_ms=waited_ms)
        return answer.permit

    def start(self, permit: Permit, check: Callable[[], None]) -> None:
        """Right before the call is made: count its start now, and not at the moment of the grant, because the commit of
        the attempt lies between them and the downstream counts what it sees (prm-window). Waits where that commit took
        so long that the window is full again; `check` ends the wait by raising. When Redis does not answer, the start
        stays counted at the grant."""
        if not permit.epoch:
            return
        while True:
            try:
                wait_ms = self._asking.start(permit, self._limits.of(permit.resource))
            except KernelError as error:
                log.debug("a start of %s is counted at its grant: %s", permit.resource, error)
                return
            if not wait_ms:
                return
            self._pause.wait(wait_ms / 1000)
            check()

    def _away(self, resource: str, waits: int) -> Denied:
        """Asked again at the latest after a scan period: nobody tells when Redis is back."""
        self._count("permit_waits")
        delay_ms = min(_AWAY_FIRST_MS << min(waits, 16), self._silence_ms())
        return Denied(resource, "unavailable", delay_ms + round(self._fraction() * delay_ms / 10))

    def _silence_ms(self) -> int:
        """The longest delay, but for jitter of a tenth, of somebody for whom Redis or the store was silent."""
        return max(self._settings.scan_ms, _AWAY_FIRST_MS)

    def deferred(self, resource: str, workflow_id: str, step: str, *, lane: int, rests_ms: int) -> None:
        """The deferral of a refused step is committed, which rests for so long if nothing happens. Best effort:
        without it a place that was handed over in between passes on after 2 s.

        Who rests for longer than anybody does for whom no place in the line could be had counts on the line. Emptied
        between refusal and commit, it has forgotten a claim that no rebuild could see: who is gone asks again at once.
        """
        in_line = rests_ms > self._silence_ms() * 11 // 10
        try:
            self._asking.deferred(resource, workflow_id, step, lane=lane, in_line=in_line)
        except KernelError as error:
            log.debug("a deferral could not be told: %s", error)

    def missing(self, resource: str, pairs: list[tuple[str, str]]) -> list[bool]:
        """Whether each pair stands in no line. Raises CoordinationUnavailable or CoordinationRejected."""
        return self._renewing.missing(resource, pairs)

    def leave(self, resource: str, pairs: list[tuple[str, str]]) -> None:
        """These wait no longer. Best effort: else what is handed to them passes on after 2 s, again and again."""
        try:
            self._asking.leave(resource, pairs, self._terms(resource))
        except KernelError as error:
            log.debug("who has ended stays in line for %s: %s", resource, error)

    # --- giving back -------------------------------------------------------------------------------------

    def give_back(self, permit: Permit) -> None:
        """The call has ended, in whatever way (prm-release). Never raises: what can not be released now is released by
        a later pass, or ends with its lease."""
        if not permit.epoch:
            return
        with self._lock:
            # Before the release: a renewal that misses the place then knows that it was not lost.
            self._held.pop((permit.resource, permit.owner), None)
        self.release(permit.resource, [permit.owner])
        self._note("permit.released", **_names(permit.resource, permit.owner))

    def release(self, resource: str, owners: list[Owner]) -> None:
        """Free what these owners hold: our own places, or those of a claim whose worker is proved dead."""
        self._look_again(resource)
        try:
            self._asking.release(resource, owners, self._terms(resource))
        except KernelError as error:
            log.warning("%d places of %s could not be released yet: %s", len(owners), resource, error)
            for owner in owners:
                self._owe((resource, owner))

    def _terms(self, resource: str) -> Limit:
        """By what a free place is handed on: to nobody where the limits are not known."""
        try:
            return self._limits.of(resource)
        except KernelError as error:
            log.warning("the limits of %s are not known: %s", resource, error)
            return _HAND_NOTHING_ON

    def _owe(self, place: Place) -> None:
        with self._lock:
            if len(self._owed) < _OWED_MAX:
                self._owed[place] = self._clock.boot_ms() + self._settings.permit_lease_ms

    # --- keeping -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Renew every third of a lease until `stop`. The thread survives every error (A54)."""
        while not self._stop.is_set():
            try:
                self.pass_once()
            except Exception:
                log.exception("a pass over the permits failed")
            self._stop.wait(self._settings.permit_lease_ms / 3_000)

    def stop(self) -> None:
        self._stop.set()

    def pass_once(self) -> int:
        """Renew all places and release what is owed; how many places are held. Calls nobody when there is nothing."""
        with self._lock:
            held = list(self._held.values())
        of_resource: dict[str, list[Permit]] = {}
        for permit in held:
            of_resource.setdefault(permit.resource, []).append(permit)
        for permits in of_resource.values():
            try:
                renewals = self._renewing.renew(permits)
            except KernelError as error:
                log.warning("%d permits of %s could not be renewed: %s", len(permits), permits[0].resource, error)
                if isinstance(error, CoordinationUnavailable):
                    break
                continue  # a key of this resource is spoilt, and other calls go on, too
            for before, renewal in zip(permits, renewals, strict=True):
                self._renewed(before, renewal)
        self._settle()
        return len(held)

    def _renewed(self, before: Permit, renewal: Renewal) -> None:
        """Count what was lost or put back (prm-lost-during-run). A call whose place is lost goes on: it can not be
        called back. It is not renewed any more, because its place may be another's by now."""
        if renewal.outcome == "renewed":
            return
        place = (before.resource, before.owner)
        with self._lock:
            ours = self._held.get(place) is before
            if ours and renewal.outcome == "lost":
                del self._held[place]
            elif ours:
                self._held[place] = renewal.permit
        if ours:
            self._count(f"permit_{renewal.outcome}")
            self._note(f"permit.{renewal.outcome}", **_names(*place))
        elif renewal.outcome == "restored":
            self._owe(place)  # given back while it was being renewed, and Redis was wiped: now it stands for nobody

    def _settle(self) -> None:
        """Release again what could not be released. A place stays owed until the answer is there."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            self._owed = {place: until for place, until in self._owed.items() if until > now_ms}
            owed = list(self._owed)
        for resource in dict.fromkeys(resource for resource, _ in owed):
            places = [place for place in owed if place[0] == resource]
            try:
                self._renewing.release(resource, [owner for _, owner in places], self._terms(resource))
            except KernelError as error:
                log.debug("%d places of %s are still owed: %s", len(places), resource, error)
                continue
            with self._lock:
                for place in places:
                    self._owed.pop(place, None)

    @property
    def holds(self) -> int:
        """Places that are kept or owed at present."""
        return len(self._held) + len(self._owed)

    # --- the net beneath the line ------------------------------------------------------------------------

    def sweep(self) -> int:
        """Hand free places of every resource that somebody may wait for to whoever does; how many were handed."""
        handed = 0
        for resource in self._watched():
            found = self._hand_over(resource)
            if found is None:
                break
            if found:
                self._look_again(resource)
            handed += found
        return handed

    def _hand_over(self, resource: str) -> int | None:
        """How many places were handed over; None when Redis does not answer."""
        try:
            limit = self._limits.of(resource)
            return 0 if limit.paused else self._renewing.sweep(resource, limit)
        except CoordinationUnavailable as error:
            log.debug("nothing was handed over: %s", error)
            return None
        except KernelError as error:
            log.warning("places of %s could not be handed over: %s", resource, error)
            return 0

    def _look_again(self, resource: str) -> None:
        """Sweep this one resource in a moment, once. A place that is handed over now may be taken by nobody: its worker
        dies, or the limit was lowered meanwhile. If nobody else calls then, all would wait for the next scan."""
        at_ms = self._clock.boot_ms() + _LAPSED_MS
        with self._lock:
            armed = resource in self._looking
            self._looking[resource] = at_ms
        if not armed:
            self._runner.call_at(at_ms, partial(self._look, resource))

    def _look(self, resource: str) -> None:
        """On the timer thread: sweep when nothing has happened since, else look at the later time."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            at_ms = self._looking[resource]
            if at_ms <= now_ms:
                del self._looking[resource]
        if at_ms > now_ms:
            self._runner.call_at(at_ms, partial(self._look, resource))
        elif not self._stop.is_set():
            self._runner.spawn("permit-sweep", partial(self._looked, resource))

    def _looked(self, resource: str) -> None:
        if self._hand_over(resource):
            self._look_again(resource)

    def _watched(self) -> Iterator[str]:
        oldest_ms = self._clock.boot_ms() - 2 * ASK_MAX_MS
        with self._lock:
            self._refused = {name: at_ms for name, at_ms in self._refused.items() if at_ms > oldest_ms}
            recent = [name for name in self._refused if name not in self._declared]
        yield from self._declared
        yield from recent

    def watch(self, resource: str) -> None:
        """Look after the line of this resource from now on: somebody waits in it, whom this process never refused.
        Tenants come and go: those that were refused last are watched, a bounded number of them."""
        with self._lock:
            self._refused.pop(resource, None)
            self._refused[resource] = self._clock.boot_ms()
            if len(self._refused) > _REFUSED_MAX:
                del self._refused[next(iter(self._refused))]

    def _count(self, name: str) -> None:
        with self._lock:
            self.counters[name] += 1

    # --- saying so ---------------------------------------------------------------------------------------

    def _tell_away(self, resource: str, error: KernelError) -> None:
        """Once for each outage: work that needs a permit stands still, and somebody should know why."""
        if not self.away:
            log.warning("no permit of %s can be had, what needs one waits: %s", resource, error)
            self._note("permit.unavailable", resource=resource, error=str(error))
        self.away = True

    def _tell_unlimited(self, resource: str) -> None:
        with self._lock:
            if resource in self._told or len(self._told) >= _TOLD_MAX:
                return
            self._told[resource] = None
        log.warning("resource %s has no limit: neither settings nor App declare one, and nobody has set one", resource)


def _names(resource: str, owner: Owner) -> dict[str, object]:
    """What an event says of a place."""
    step = {} if owner.step == WORKFLOW else {"step_name": owner.step}
    return {"resource": resource, "workflow_id": owner.workflow_id, **step}
