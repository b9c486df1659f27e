"""Permits in plain Python: what the scripts of lua/v1/permit_*.lua must do, written to be read, not to be fast.

Random tests compare every reply and every key of the scripts with this. Times are whole milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.lane_model import LaneModel

RESERVED_MS, LATE_MS, ASK_MAX_MS = 2_000, 10_000, 600_000
HANDED_MAX, DEAD_MAX = 16, 64
WEIGHTS = (8, 6, 4, 2)


@dataclass
class Entry:
    """One pair in line."""

    lane: int
    number: int
    expiry: int


@dataclass
class PermitModel:
    """One resource beside the ready lanes. `holders` maps an owner (workflow_id, step, token) to (expiry, request)."""

    holders: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    """Newest first."""
    reserved: dict[tuple[str, str], int] = field(default_factory=dict)
    line: dict[tuple[str, str], Entry] = field(default_factory=dict)
    lanes: LaneModel = field(default_factory=LaneModel)
    epoch: int | None = None
    lined: bool = False
    """Whether the scripts believe that somebody may be waiting: they look at the line only then."""
    cursor: int = 0
    wakeups: list[int] = field(default_factory=list)

    # --- the scripts ---------------------------------------------------------------------------------------

    def acquire(
        self, pair: tuple[str, str], token: str, request: int, lane: int, limits: tuple[int, int, bool],
        lease: int, wait: int, now: int,
    ) -> list[Any]:  # fmt: skip
        concurrency, rate, paused = limits
        if not concurrency and not rate and not paused:
            return [4, 0]
        owner = (*pair, token)
        self._expire(now)
        if owner in self.holders:
            if self.holders[owner][1] == request:
                self.holders[owner] = (now + lease, request)
                return [2, self.epoch or 0]
            del self.holders[owner]
        if self.epoch is None:
            self.epoch = now
        mine = entered = False
        others = ahead = 0
        if self.lined:
            self._lapse(now)
            mine = pair in self.reserved
            entered = pair in self.line and self.line[pair].expiry > now
            others = len(self.reserved) - mine
            ahead = self._live(now) - len(self.reserved) - (entered and not mine)
        late = self._late(pair, now) if entered and concurrency and len(self.holders) < concurrency else None
        reason = self._refusal(limits, others, late, now)
        if not reason and ahead > 0 and not entered:
            reason = "line"
        if not reason:
            if rate:
                self.starts.insert(0, now)
                if len(self.starts) > 2 * max(rate, 512):
                    del self.starts[max(rate, 512) :]
            if self.lined:
                self.line.pop(pair, None)
                self.reserved.pop(pair, None)
                if late is not None and len(self.holders) + others >= concurrency:
                    del self.reserved[late]
                self._hand_over(now, limits, held=len(self.holders) + 1)
            self.holders[owner] = (now + lease, request)
            return [3 if mine else 1, self.epoch]
        turn = self._enter(pair, lane, keep=entered)
        if mine:
            turn = 1
        if rate and reason in ("rate", "line"):
            rounds, rest = divmod(turn - 1, rate)
            ask = max(1, rounds * 1_000 + self._until_start(rate - 1 - rest, now))
        else:
            ask = wait * math.ceil(turn / (concurrency or 1))
        ask = min(ask, ASK_MAX_MS)
        self.line[pair].expiry = now + ask + LATE_MS
        if paused and mine:
            del self.reserved[pair]
        elif not paused:
            self._hand_over(now, limits, held=len(self.holders))
        self.lined = True
        return [0, reason.encode(), ask, turn]

    def start(self, owner: tuple[str, str, str], lease: int, rate: int, now: int) -> int:
        granted = self.holders[owner][0] - lease if owner in self.holders else -lease
        if now - 1_000 < granted <= now and granted in self.starts:
            self.starts.remove(granted)
        elif self._until_start(rate - 1, now) > 0:
            return self._until_start(rate - 1, now)
        self.starts.insert(0, now)
        if len(self.starts) > 2 * max(rate, 512):
            del self.starts[max(rate, 512) :]
        return 0

    def renew(self, owners: Iterable[tuple[tuple[str, str, str], int, int]], lease: int, now: int) -> tuple[int, str]:
        """`owners` are (owner, request, epoch of the grant). The epoch is told when somebody was restored."""
        if self.epoch is None:
            self.epoch = now
        outcomes = ""
        held = dict(self.holders)
        for owner, request, epoch in owners:
            place = held.get(owner)
            outcome = "0"
            if place is not None and place[1] == request and place[0] > now:
                outcome = "1"
            elif place is None and epoch != self.epoch:
                outcome = "2"
            if outcome != "0":
                self.holders[owner] = (now + lease, request)
            outcomes += outcome
        return self.epoch if "2" in outcomes else 0, outcomes

    def release(self, owners: Iterable[tuple[str, ...]], limits: tuple[int, int, bool], now: int) -> list[int]:
        """Owners, and pairs that wait no longer."""
        named = set(owners)
        freed = sum(self.holders.pop(owner, None) is not None for owner in named if len(owner) == 3)
        if not self.lined:
            return [freed, 0]
        self._expire(now)
        self._lapse(now)
        for pair in (owner for owner in named if len(owner) == 2):
            self.line.pop(pair, None)
            self.reserved.pop(pair, None)
        if limits[2]:
            return [freed, 0]
        return [freed, self._hand_over(now, limits, held=len(self.holders))]

    def deferred(self, pair: tuple[str, str], lane: int, in_line: bool, now: int) -> int:
        until = self.reserved.get(pair)
        if until is None and in_line and pair not in self.line:
            self._enqueue(pair[0], lane, now)
            self.wakeups.append(now)
            return 1
        if until is None or until <= now:
            return 0
        due = max(now, until - RESERVED_MS)
        self._enqueue(pair[0], lane, due)
        self.reserved[pair] = due + RESERVED_MS
        self.wakeups.append(due)
        return 1

    def missing(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        return [int(pair not in self.line) for pair in pairs]

    def stats(self, pair: tuple[str, str], now: int) -> list[int]:
        """The reply without its holders, as long as the marks are in the order of time (the clock never went back)."""
        entry = self.line.get(pair)
        place = 0 if entry is None else self._rank(entry)
        return [
            now, self.epoch or 0, sum(expiry > now for expiry, _ in self.holders.values()),
            sum(mark > now - 1_000 for mark in self.starts), sum(end > now for end in self.reserved.values()),
            self._live(now), *(sum(e.lane == lane for e in self.line.values()) for lane in range(4)),
            place, -1 if entry is None else entry.lane, int(pair in self.reserved),
        ]  # fmt: skip

    def wipe(self) -> None:
        """What FLUSHALL does."""
        for part in (self.holders, self.starts, self.reserved, self.line):
            part.clear()
        self.lanes.wipe()
        self.epoch, self.lined, self.cursor = None, False, 0

    # --- what they share -----------------------------------------------------------------------------------

    def _expire(self, now: int) -> None:
        for owner in [owner for owner, (expiry, _) in self.holders.items() if expiry <= now]:
            del self.holders[owner]

    def _lapse(self, now: int) -> None:
        for pair in [p for p, end in self.reserved.items() if end <= now or end >= now + 2_000 + 2 * RESERVED_MS]:
            del self.reserved[pair]

    def _live(self, now: int) -> int:
        return sum(entry.expiry > now for entry in self.line.values())

    def _late(self, pair: tuple[str, str], now: int) -> tuple[str, str] | None:
        """The pair whose reservation is the oldest of all others', if it has not come for its place within 500 ms."""
        others = [(end, "\x1f".join(other).encode(), other) for other, end in self.reserved.items() if other != pair]
        return min(others)[2] if others and min(others)[0] <= now + RESERVED_MS - 500 else None

    def _refusal(self, limits: tuple[int, int, bool], others: int, late: object, now: int) -> str:
        concurrency, rate, paused = limits
        if paused:
            return "paused"
        if concurrency and len(self.holders) + others >= concurrency and late is None:
            return "concurrency"
        return "rate" if rate and self._until_start(rate - 1, now) > 0 else ""

    def _until_start(self, index: int, now: int) -> int:
        """How long until the mark at `index` has left the window; 0 when it has, or comes from another clock."""
        mark = self.starts[index] if index < len(self.starts) else None
        return 0 if mark is None or not now - 1_000 < mark <= now + 1_000 else mark + 1_000 - now

    def _tail(self, lane: int) -> int:
        return max((entry.number for entry in self.line.values() if entry.lane == lane), default=0) + 1

    def _rank(self, entry: Entry) -> int:
        return sum(e.lane == entry.lane and e.number <= entry.number for e in self.line.values())

    def _enter(self, pair: tuple[str, str], lane: int, *, keep: bool) -> int:
        """Put the pair at the end of its lane's line, unless it stands there; returns its turn."""
        if not keep or self.line[pair].lane != lane:
            number = self._tail(lane)
            self.line[pair] = Entry(lane, number, 0)
        own = self._rank(self.line[pair])
        # A round begins: full rounds of its own lane pass before it, and in its round the blocks of higher lanes.
        rounds = (own - 1) // WEIGHTS[lane]
        others = [other for other in range(4) if other != lane]
        sizes = {other: sum(entry.lane == other for entry in self.line.values()) for other in others}
        return own + sum(min(sizes[other], WEIGHTS[other] * (rounds + (other < lane))) for other in others)

    def _next(self) -> tuple[int, tuple[str, str]] | None:
        """The lane whose turn it is and the head of its line; the cursor goes on to that lane's block."""
        ends = (8, 14, 18, 20)
        for _ in range(4):
            lane = next(lane for lane in range(4) if self.cursor < ends[lane])
            heads = [(entry.number, pair) for pair, entry in self.line.items() if entry.lane == lane]
            if heads:
                return lane, min(heads)[1]
            self.cursor = ends[lane] % 20
        return None

    def _hand_over(self, now: int, limits: tuple[int, int, bool], *, held: int) -> int:
        concurrency, rate, _ = limits
        dead = sorted((entry.expiry, pair) for pair, entry in self.line.items() if entry.expiry <= now)
        for _, pair in sorted(dead, key=lambda item: (item[0], "\x1f".join(item[1]).encode()))[:DEAD_MAX]:
            del self.line[pair]
        handed, earliest = 0, None
        for _ in range(2 * HANDED_MAX):
            if self._live(now) <= len(self.reserved) or handed == HANDED_MAX:
                break
            if concurrency and held + len(self.reserved) >= concurrency:
                break
            if rate and len(self.reserved) >= rate:
                break
            before = self.cursor
            found = self._next()
            after, self.cursor = (self.cursor + 1) % 20, before
            if found is None:
                break
            lane, pair = found
            entry = self.line[pair]
            due = now + (self._until_start(rate - 1 - len(self.reserved), now) if rate else 0)
            if pair in self.reserved:
                entry.number = self._tail(lane)
                continue
            if entry.expiry <= due:
                del self.line[pair]
                continue
            self._enqueue(pair[0], lane, due)
            if not concurrency and not rate:
                del self.line[pair]
            else:
                self.reserved[pair] = min(due + RESERVED_MS, entry.expiry)
                entry.number = self._tail(lane)
            self.cursor = after
            handed += 1
            earliest = due if earliest is None else min(earliest, due)
        if earliest is not None:
            self.wakeups.append(earliest)
        self.lined = self._live(now) > 0 or len(self.reserved) > 0
        return handed

    def _enqueue(self, workflow_id: str, lane: int, due: int) -> None:
        """Into the ready lane, due then at the latest; what a higher lane holds stays there."""
        for higher in range(lane + 1):
            if workflow_id in self.lanes.lanes[higher]:
                self.lanes.lanes[higher][workflow_id] = min(self.lanes.lanes[higher][workflow_id], due)
                return
        self.lanes.push(workflow_id, lane, due)
