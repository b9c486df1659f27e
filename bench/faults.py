"""Faults on a schedule: a random worker killed every so often, Redis emptied every so often, both noted with their
times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from bench.recovery import Kill
from bench.redis_calls import RedisCalls
from kernel.errors import CoordinationUnavailable, Refused
from supervisor.session import Session


class _Beat:
    """A moment that comes every `period_s`; never when that is None."""

    def __init__(self, period_s: float | None, now_s: float) -> None:
        self._period_s = period_s
        self._next_s = None if period_s is None else now_s + period_s

    def has_come(self, now_s: float) -> bool:
        if self._period_s is None or self._next_s is None or now_s < self._next_s:
            return False
        # From now and not from the plan: a stall of this program must not end in a volley.
        self._next_s = now_s + self._period_s
        return True


class Faults:
    """The faults of one run. `step` is called often, from the loop that also publishes."""

    def __init__(
        self,
        session: Session,
        calls: RedisCalls,
        *,
        workers: int,
        kill_every_s: float | None,
        flush_every_s: float | None,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._calls = calls
        self._workers = workers
        self._random = random.Random(seed)
        self._clock = clock
        self._kill_beat = _Beat(kill_every_s, clock())
        self._flush_beat = _Beat(flush_every_s, clock())
        self.kills: list[Kill] = []
        self.flushes_ns: list[int] = []

    def step(self) -> None:
        """Do what is due."""
        now_s = self._clock()
        if self._kill_beat.has_come(now_s):
            self._kill()
        if self._flush_beat.has_come(now_s):
            self._flush()

    def _kill(self) -> None:
        at_ns = time.monotonic_ns()
        try:
            pid = self._session.kill_child(self._random.randrange(self._workers))
        except Refused:
            return  # that one is dead already and not yet replaced: it can not be killed twice
        self.kills.append(Kill(at_ns, pid))

    def _flush(self) -> None:
        at_ns = time.monotonic_ns()
        try:
            self._calls.flush()
        except CoordinationUnavailable:
            return
        self.flushes_ns.append(at_ns)
