"""`bench permits`: the life of a place among few and many holders, and limits watched by a count of our own
(dc-bench-permits)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any

from bench.limit_watch import Watched, watch
from bench.script_run import ScriptRun
from bench.script_slices import Case
from kernel.config import Limit
from kernel.coordination.permits import OWNERS_MAX, Permits
from kernel.permit_words import Granted, Owner, Permit

_LEASE_MS, _WAIT_MS = 3_600_000, 1_000
"""A lease that no run outlasts: nobody loses a place while others are timed."""
_CONCURRENCY, _RATE = 1_000_000, 500_000
"""Limits that are checked and never reached."""
_RENEWED = 1_000
"""So many of the holders are renewed in turn."""
_STEP = "bench"
WATCHED = Limit(max_concurrency=8, max_starts_per_second=20)


def measure_permits(run: ScriptRun) -> None:
    """A row for each operation and number of holders; each number grows out of the one before."""
    permits = Permits(run.server.runner, run.server.keys("permits"), lease_ms=_LEASE_MS, wait_ms=_WAIT_MS)
    holders = _Holders(permits, "bench", _owners("holder"))
    for depth in run.plan.depths:
        if not holders.grow(run, depth):
            return
        run.time(_cases(permits, holders.renewed, depth))
    if not run.late:
        run.progress.phase("watching the limits")
        watched = Permits(run.server.runner, run.server.keys("limits"), lease_ms=30_000, wait_ms=_WAIT_MS)
        _watch(run, watched)


@dataclass
class _Holders:
    """Those who hold a place all the time."""

    permits: Permits
    resource: str
    owners: Iterator[Owner]
    held: int = 0

    def __post_init__(self) -> None:
        self.renewed: list[Permit] = []

    def grow(self, run: ScriptRun, depth: int) -> bool:
        run.progress.phase("filling the resource", total=depth - self.held)
        begin, limit = self.held, Limit(max_concurrency=_CONCURRENCY)
        while self.held < depth and not run.late:
            permit = _granted(self.permits.acquire(self.resource, next(self.owners), limit, lane=0))
            if len(self.renewed) < _RENEWED:
                self.renewed.append(permit)
            self.held += 1
            run.progress.show(lambda: self.held - begin)
        return self.held == depth


def _cases(permits: Permits, renewed: list[Permit], depth: int) -> list[Case]:
    alone, both = Limit(max_concurrency=_CONCURRENCY), Limit(_CONCURRENCY, _RATE)
    turns = cycle(renewed)
    calls_max = min(4_000, max(64, depth // 2))
    return [
        _Guests(permits, alone, depth).case("permit_acquire", depth, calls_max),
        _Guests(permits, both, depth).case("permit_acquire_rate", depth, calls_max),
        _Guests(permits, both, depth).start_case(depth, calls_max),
        Case(op="permit_renew", n=1, depth=depth, call=lambda: permits.renew([next(turns)]), calls_max=calls_max),
        _Guests(permits, alone, depth).release_case(depth, calls_max),
    ]


class _Guests:
    """Those who come and go within a slice, on top of the holders."""

    def __init__(self, permits: Permits, limit: Limit, depth: int) -> None:
        self._permits = permits
        self._limit = limit
        self._new = _owners(f"guest_{depth}_{limit.max_starts_per_second}")
        self._ready: list[Owner] = []
        self._inside: list[Permit] = []

    def case(self, op: str, depth: int, calls_max: int) -> Case:
        return self._case(op, self._enter, self._get_ready, depth, calls_max)

    def start_case(self, depth: int, calls_max: int) -> Case:
        """The start that follows a grant; each is of a fresh grant, as in life."""
        waiting: list[Permit] = []

        def prepare(calls: int) -> None:
            self._fill(calls)
            waiting[:] = self._inside

        return self._case(
            "permit_start", lambda: self._permits.start(waiting.pop(), self._limit), prepare, depth, calls_max
        )

    def release_case(self, depth: int, calls_max: int) -> Case:
        return self._case("permit_release", self._leave, self._fill, depth, calls_max)

    def _case(
        self, op: str, call: Callable[[], object], prepare: Callable[[int], None], depth: int, calls_max: int
    ) -> Case:
        return Case(op=op, n=1, depth=depth, call=call, prepare=prepare, restore=self._go, calls_max=calls_max)

    def _get_ready(self, calls: int) -> None:
        self._ready.extend(islice(self._new, max(0, calls - len(self._ready))))

    def _fill(self, calls: int) -> None:
        self._get_ready(calls)
        for _ in range(calls):
            self._enter()

    def _enter(self) -> None:
        self._inside.append(_granted(self._permits.acquire("bench", self._ready.pop(), self._limit, lane=1)))

    def _leave(self) -> None:
        self._permits.release("bench", [self._inside.pop().owner], self._limit)

    def _go(self) -> None:
        for begin in range(0, len(self._inside), OWNERS_MAX):
            owners = [permit.owner for permit in self._inside[begin : begin + OWNERS_MAX]]
            self._permits.release("bench", owners, self._limit)
        self._inside.clear()


def _watch(run: ScriptRun, permits: Permits) -> None:
    seen = watch(permits, given=WATCHED, seconds=run.plan.observe_s)
    run.rows.append(_row(seen))
    run.findings += seen.findings(WATCHED)
    run.lines.append(
        f"  {'limits watched':<26}{seen.in_flight_max} in flight (limit {WATCHED.max_concurrency}), "
        f"{seen.starts_max} starts in 1 s (limit {WATCHED.max_starts_per_second}), {len(seen.starts)} starts and "
        f"{seen.refused:,} refusals in {seen.seconds:.1f} s"
    )


def _row(seen: Watched) -> dict[str, Any]:
    return {
        "op": "limits",
        "max_concurrency": WATCHED.max_concurrency,
        "in_flight_seen": seen.in_flight_max,
        "max_starts_per_second": WATCHED.max_starts_per_second,
        "starts_in_1s_seen": seen.starts_max,
        "starts": len(seen.starts),
        "handed": seen.handed,
        "refused": seen.refused,
        "seconds": round(seen.seconds, 2),
    }


def _owners(prefix: str) -> Iterator[Owner]:
    return (Owner(f"{prefix}_{number}", _STEP, "t") for number in count())


def _granted(answer: Any) -> Permit:
    """The permit; these limits are never reached, so a refusal is a fault of the kernel or of this program."""
    if not isinstance(answer, Granted):
        raise RuntimeError(f"a place was refused where there is room: {answer!r}")
    return answer.permit
