"""The fake services that limited steps call: who is with them, and when each came, by the true clock (S11)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.entries import Entry
from tests.simulation.places import WINDOW_MS, Place

if TYPE_CHECKING:
    from tests.simulation.world import World


class Call:
    """One call that is under way: for whom, as which step, or as a whole workflow."""

    __slots__ = ("entry", "name", "place")

    def __init__(self, entry: Entry, name: str, place: Place) -> None:
        self.entry = entry
        self.name = name
        self.place = place

    def __repr__(self) -> str:
        return f"{self.entry} under {self.place.limit}"


class Downstream:
    """Checks each instant at which a call begins or ends: in between there is no more of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._with: dict[str, list[Call]] = {}
        self._came: dict[str, deque[tuple[int, int]]] = {}
        """When each start came, and the widest rate by which it was let in."""

    def begin(self, resource: str, entry: Entry, name: str) -> None:
        """A call of a step (`name` its name), or of a workflow that has a resource as a whole."""
        places = self._world.redis.permits
        place = places.place_of(resource, entry.process, entry.key[0], name)
        if place is None:
            self._world.violation("S11", f"{entry} calls {resource} without a place")
            return
        present = [call for call in self._with.get(resource, ()) if not call.entry.process.dead]
        present.append(Call(entry, name, place))
        self._with[resource] = present
        for call in present:
            self._check_kept(resource, call)
        self._check_number(resource, present)
        if name == entry.key[2]:
            self._check_rate(resource, place, entry)

    def end(self, resource: str, entry: Entry) -> None:
        found = next((call for call in self._with.get(resource, ()) if call.entry is entry), None)
        if found is None:
            return
        self._with[resource].remove(found)
        if not entry.process.dead:
            self._check_kept(resource, found)

    def _check_kept(self, resource: str, call: Call) -> None:
        """Its place is its own for as long as the call lasts."""
        places, entry = self._world.redis.permits, call.entry
        held = places.holds_place(resource, call.place)
        if not (held and places.lasts(call.place)) and not places.excused(call.place):
            how = "its lease ran out" if held else "it was given back"
            self._world.violation("S11", f"{entry} has lost its place of {resource} under its call: {how}")

    def _check_number(self, resource: str, present: list[Call]) -> None:
        """Never more than the widest limit under which one of them was let in; a whole workflow counts once."""
        places = self._world.redis.permits
        held = {id(call.place): call for call in present if places.lasts(call.place) and not call.place.over}
        most = [call.place.limit.max_concurrency for call in held.values()]
        if most and all(most) and len(held) > max(most):
            self._world.violation("S11", f"{len(held)} calls of {resource} at once: {list(held.values())}")

    def _check_rate(self, resource: str, place: Place, entry: Entry) -> None:
        """The downstream counts what it sees: in no second more calls than the rate (DECISIONS 10)."""
        places, now_ms = self._world.redis.permits, self._world.hub.now_ms
        limited = place.rate or (place.limit.max_starts_per_second and not place.asked)
        if not limited or place.started_ms != now_ms:
            if limited and not places.excused(place):
                self._world.violation("S11", f"{entry} comes at {now_ms}, its start was counted at {place.started_ms}")
            return
        came = self._came.setdefault(resource, deque(maxlen=64))
        # A start that was granted under a wider rate a moment ago is not refused when the rate is lowered.
        came.append((now_ms, max(place.rate, place.limit.max_starts_per_second)))
        if now_ms - places.broken_ms < WINDOW_MS:
            return
        # And one that was granted before the rate was raised does not keep out those that come by the wider one.
        recent = [(at_ms, rate) for at_ms, rate in came if now_ms - WINDOW_MS < at_ms <= now_ms]
        most = max(rate for _, rate in recent)
        if len(recent) > most:
            ages = [now_ms - at_ms for at_ms, _ in came]
            self._world.violation("S11", f"starts of {resource} within a second, {most} are allowed: {ages}")
