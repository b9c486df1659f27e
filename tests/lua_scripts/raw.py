"""Calling the lane scripts by hand: every argument visible, `now_ms` included, and the raw reply taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel.coordination import BoundScript, ScriptRunner
from lua import get
from tests.support.lane_model import Entry
from tests.support.redis_servers import RedisTarget


@dataclass
class RawPop:
    """The reply of lane_pop as it came."""

    entries: list[Entry]
    idle: tuple[int, int, int] | None
    """(now_ms, epoch, next_due_ms or -1)."""


class RawLanes:
    """The lane scripts of one server with a clock and a policy that the test sets."""

    def __init__(self, target: RedisTarget, weights: tuple[int, ...] = (8, 6, 4, 2), burst: int = 8) -> None:
        self.target = target
        self.weights = weights
        self.burst = burst
        self.runner: ScriptRunner = target.runner()

    def call(self, name: str, *args: bytes | str | int) -> Any:
        script = get(name)
        return self.runner.call(BoundScript(script, self.target.keys.of(script)), *args)

    def pop(self, count: int, now_ms: int) -> RawPop:
        reply = self.call("lane_pop", count, self.burst, *self.weights, now_ms)
        if isinstance(reply, bytes):
            return RawPop(entries(reply), None)
        now_ms, epoch, next_due_ms, *taken = reply
        return RawPop(entries(taken[0]) if taken else [], (now_ms, epoch, next_due_ms))

    def pop_ids(self, count: int, now_ms: int) -> list[str]:
        """Ids of `count` single pops in a row, the empty ones left out."""
        return [entry[0] for _ in range(count) for entry in self.pop(1, now_ms).entries]

    def push(self, workflow_id: str, lane: int, score_ms: int) -> str:
        return ("ignored", "raised", "rescored")[self.call("lane_push", "", lane, score_ms, workflow_id)]

    def push_many(self, pushed: list[Entry]) -> tuple[int, int, int]:
        texts = ["\x1f".join(f"{i}\x1f{score}" for i, at, score in pushed if at == lane) for lane in range(4)]
        raised, rescored, ignored = self.call("lane_push_many", "", 0, *texts)
        return raised, rescored, ignored

    def fill(self, lane: int, size: int, score_ms: int = 1_000) -> None:
        """`size` due ids named p<lane>-000…, in the order in which they will be popped."""
        self.push_many([(f"p{lane}-{n:03}", lane, score_ms + n) for n in range(size)])

    def lane(self, lane: int) -> dict[str, int]:
        found = self.target.client.zrange(self.target.keys.lanes[lane], 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in found}

    def state(self) -> int | None:
        value = self.target.client.get(self.target.keys.lane_state)
        return None if value is None else int(value)


def entries(taken: bytes) -> list[Entry]:
    """The text of a pop, by the contract in lua/v1/lane_pop.lua."""
    found = []
    for run in taken.decode().split("\x1e"):
        lane, *fields = run.split("\x1f")
        found += [(i, int(lane), int(score)) for i, score in zip(fields[::2], fields[1::2], strict=True)]
    return found


def lanes_of(ids: list[str]) -> str:
    """The lanes of ids made by `fill`, as text: p0-000, p1-000 → "01"."""
    return "".join(workflow_id[1] for workflow_id in ids)
