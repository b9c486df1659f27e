"""Many callers who want more than a resource allows, and a count of who is inside that asks nobody but them.

Time is this program's own clock around each call. The server takes a start between the begin and the end of its call,
so a second that begins with one and ends with another is shorter than the limit allows only when it is so from the
earliest moment to the latest: what the network or a busy machine adds can hide an excess of its own length, and never
makes one up. The server counts in whole milliseconds of its wall clock, so that two starts which it sees 1000 apart may
be 999 apart, and a clock that is being corrected may cost some more: 995 ms count as a second here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kernel.config import Limit
from kernel.coordination.permits import Permits
from kernel.permit_words import Granted, Owner, Permit

CALLERS = 24
RESOURCE = "watched"
_HOLD_NS = (100_000_000, 150_000_000, 200_000_000, 250_000_000)
"""How long the calls take in turn: short enough that both limits bind within each second."""
_SECOND_NS = 1_000_000_000
_WINDOW_NS = 995_000_000


@dataclass
class Watched:
    """What was seen."""

    seconds: float = 0.0
    in_flight_max: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of the call that allowed each, in ns."""
    refused: int = 0
    handed: int = 0
    """Grants of a place that had been kept for a caller who waited."""

    @property
    def starts_max(self) -> int:
        """The most starts that surely lay within one second."""
        most = first = 0
        for number, (_, end_ns) in enumerate(self.starts):
            while end_ns - self.starts[first][0] >= _WINDOW_NS:
                first += 1
            most = max(most, number - first + 1)
        return most

    def findings(self, promised: Limit) -> list[str]:
        """What broke `promised`, one line each."""
        found = []
        if self.in_flight_max > promised.max_concurrency:
            found.append(f"{self.in_flight_max} calls in flight, the limit is {promised.max_concurrency}")
        if self.starts_max > promised.max_starts_per_second:
            found.append(f"{self.starts_max} starts within 1 s, the limit is {promised.max_starts_per_second}")
        if not self.starts:
            found.append("no call was ever allowed while the limits were watched")
        return found


@dataclass
class _Caller:
    """One workflow whose step calls the resource again and again; each time under a claim of its own."""

    number: int
    turn: int = 0
    permit: Permit | None = None
    ends_ns: int | None = None

    @property
    def owner(self) -> Owner:
        return Owner(f"caller_{self.number}", "call", f"claim{self.turn}")


def watch(permits: Permits, *, given: Limit, seconds: float) -> Watched:
    """Let the callers press for so long under the limit `given`, asking again at once after every refusal."""
    seen = Watched()
    callers = [_Caller(number) for number in range(CALLERS)]
    clock = time.perf_counter_ns
    begin_ns = clock()
    inside = 0
    while clock() - begin_ns < seconds * _SECOND_NS:
        for caller in callers:
            if caller.ends_ns is not None:
                if clock() >= caller.ends_ns:
                    inside -= 1  # before the place is given back, as a caller's own end comes before it
                    _leave(permits, caller, given)
            elif _enter(permits, caller, given, seen):
                inside += 1
                seen.in_flight_max = max(seen.in_flight_max, inside)
    seen.seconds = (clock() - begin_ns) / 1e9
    return seen


def _enter(permits: Permits, caller: _Caller, limit: Limit, seen: Watched) -> bool:
    """Ask for a place, then for the start; whether the call has begun."""
    if caller.permit is None:
        answer = permits.acquire(RESOURCE, caller.owner, limit, lane=caller.number % 4)
        if not isinstance(answer, Granted):
            seen.refused += 1
            return False
        seen.handed += answer.kind == "handed"
        caller.permit = answer.permit
    before_ns = time.perf_counter_ns()
    if permits.start(caller.permit, limit):
        return False
    after_ns = time.perf_counter_ns()
    seen.starts.append((before_ns, after_ns))
    caller.ends_ns = after_ns + _HOLD_NS[(caller.number + caller.turn) % len(_HOLD_NS)]
    return True


def _leave(permits: Permits, caller: _Caller, limit: Limit) -> None:
    permits.release(RESOURCE, [caller.owner], limit)
    caller.permit = caller.ends_ns = None
    caller.turn += 1
