"""A start rate under steady inflow, on the real scripts, with the clock in the test's hand: A43 at its full size."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest

from tests.lua_scripts.permit_raw import START, Limits, RawPermits
from tests.support.redis_servers import RedisTarget

RATE = 10
FIVE_MINUTES_MS = 300_000


class Inflow:
    """Callers that come at random times, ask, ask again when they were told to, make a short call, and go."""

    def __init__(self, permits: RawPermits, load: float, for_ms: int) -> None:
        chance = random.Random(43)
        self._permits = permits
        self._limits: Limits = (0, RATE, False)
        self._order = itertools.count()
        self._due: list[tuple[int, int, str, str]] = []
        self.came: dict[str, int] = {}
        self.started: dict[str, int] = {}
        at_ms = 0.0
        while at_ms < for_ms:
            at_ms += chance.uniform(0.5, 1.5) * 1_000 / (RATE * load)
            name = f"wf-{len(self.came)}"
            self.came[name] = START + round(at_ms)
            self._push(self.came[name], "ask", name)

    def run(self) -> None:
        while self._due:
            now, _, what, name = heapq.heappop(self._due)
            if name not in self.started:
                self._ask(name, now)
            elif what == "end":
                self._permits.release([(name, "print", "t")], self._limits, now)
                self._take_handed(now)

    def _ask(self, name: str, now: int) -> None:
        answer = self._permits.acquire(name, self._limits, now, wait=1_000)
        if answer[0]:
            self.started[name] = now
            self._push(now + 20, "end", name)
        else:
            self._push(now + max(1, answer[2]), "ask", name)

    def _take_handed(self, now: int) -> None:
        """Whose id was put into the ready lane is popped by a worker and asks at once."""
        for name in self._permits.ready(1):
            self._permits.target.client.zrem(self._permits.target.keys.lanes[1], name)
            if name not in self.started:
                self._push(now, "ask", name)

    def _push(self, at_ms: int, what: str, name: str) -> None:
        heapq.heappush(self._due, (at_ms, next(self._order), what, name))


@pytest.mark.case("A43")
@pytest.mark.req("prm-window")
@pytest.mark.parametrize("load", [0.8, 2.0])
def test_five_minutes_of_steady_inflow(valkey: RedisTarget, load: float) -> None:
    """0.8 × limit: 95 of 100 wait no longer than a second. 2 × limit, for as long as it comes: at least 90% of the rate
    is used. And in no second do more than the limit begin."""
    inflow = Inflow(RawPermits(valkey), load, FIVE_MINUTES_MS if load < 1 else FIVE_MINUTES_MS // 5)
    inflow.run()

    assert inflow.started.keys() == inflow.came.keys()
    starts = sorted(inflow.started.values())
    assert all(later - first >= 1_000 for first, later in zip(starts, starts[RATE:], strict=False))
    waited = sorted(inflow.started[name] - inflow.came[name] for name in inflow.came)
    if load < 1:
        assert waited[math.ceil(0.95 * len(waited)) - 1] <= 1_000
    else:
        assert len(starts) / ((starts[-1] - starts[0]) / 1_000) >= 0.9 * RATE
