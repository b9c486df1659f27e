"""Calling the permit scripts by hand: every argument visible, `now_ms` included, and the raw replies and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel.coordination import BoundScript, ScriptRunner
from lua import get
from tests.support.redis_servers import RedisTarget

RESOURCE = "printer"
START = 1_800_000_000_000
PERMIT_STATE, LANE = 4_300_000_000_000_000, 10**13

Pair = tuple[str, str]
Limits = tuple[int, int, bool]


class RawPermits:
    """The permit scripts of one resource with a clock that the test sets."""

    def __init__(self, target: RedisTarget, *, resource: str = RESOURCE, runner: ScriptRunner | None = None) -> None:
        self.target = target
        self.runner = runner if runner is not None else target.runner()
        self.keys = target.keys.permit(resource)
        self._resource = resource
        self._bound: dict[str, BoundScript] = {}

    def call(self, name: str, *args: bytes | str | int) -> Any:
        if name not in self._bound:
            script = get(name)
            self._bound[name] = BoundScript(script, self.target.keys.of(script, resource=self._resource))
        return self.runner.call(self._bound[name], *args)

    def acquire(
        self, workflow_id: str, limits: Limits, now: int, *, step: str = "print", token: str = "t", request: int = 0,
        lane: int = 1, lease: int = 30_000, wait: int = 30_000, channel: bytes = b"",
    ) -> Any:  # fmt: skip
        """The reply taken apart: [kind, epoch], or [0, reason, ask_again_ms, place]."""
        first = (channel, lease, limits[0], limits[1], int(limits[2]))
        terms = f"{request} {lane} {wait}"
        reply = self.call("permit_acquire", *first, f"{workflow_id}\x1f{step}\x1f{token}", terms, now)
        return [reply % 8, reply // 8] if isinstance(reply, int) else [0, *reply]

    def start(self, owner: tuple[str, str, str], lease: int, rate: int, now: int) -> int:
        return int(self.call("permit_start", "\x1f".join(owner), f"{lease} {rate}", now))

    def renew(self, owners: Iterable[tuple[tuple[str, str, str], int, int]], lease: int, now: int) -> tuple[int, str]:
        """(epoch, or 0 when none was restored; a digit for each owner)."""
        asked = list(owners)
        text = "".join(f"{chr(31).join(owner)}\x1e{request}\x1e{epoch}\x1e" for owner, request, epoch in asked)
        reply = self.call("permit_renew", lease, text, now).decode()
        return int(reply[len(asked) :] or 0), reply[: len(asked)]

    def release(
        self, owners: Iterable[tuple[str, ...]], limits: Limits, now: int, *, channel: bytes = b""
    ) -> list[int]:
        """[owners that held a place, hand-overs]."""
        text = "\x1e".join("\x1f".join(owner) for owner in owners)
        reply = self.call("permit_release", channel, limits[0], limits[1], int(limits[2]), text, now)
        return list(divmod(reply, 100))

    def deferred(self, pair: Pair, lane: int, now: int, in_line: bool = False) -> int:
        return int(self.call("permit_deferred", "\x1f".join(pair), lane, b"", int(in_line), now))

    def stats(self, pair: Pair | None, now: int, *, holders_max: int = 0) -> list[Any]:
        return list(self.call("permit_stats", holders_max, "\x1f".join(pair) if pair else "", now))

    # --- what the keys hold --------------------------------------------------------------------------------

    def holders(self) -> dict[tuple[str, ...], tuple[int, int]]:
        """owner → (expiry, request)."""
        found = self.target.client.zrange(self.keys["permit_holders"], 0, -1, withscores=True)
        return {_parts(member): divmod(int(score), 1024) for member, score in found if member != b"\x1f"}

    def state(self) -> tuple[int | None, bool, int]:
        """(epoch, whether somebody may be waiting, cursor)."""
        score = self.target.client.zscore(self.keys["permit_holders"], b"\x1f")
        if score is None:
            return None, False, 0
        epoch, rest = divmod(int(score) - PERMIT_STATE, 40)
        return epoch, rest >= 20, rest % 20

    def starts(self) -> list[int]:
        return [int(mark) for mark in self.target.client.lrange(self.keys["permit_starts"], 0, -1)]

    def scores(self, part: str) -> dict[tuple[str, ...], int]:
        found = self.target.client.zrange(self.keys[f"permit_{part}"], 0, -1, withscores=True)
        return {_parts(member): int(score) for member, score in found}

    def line(self) -> dict[tuple[str, ...], tuple[int, int]]:
        """pair → (lane, number)."""
        return {pair: divmod(score, LANE) for pair, score in self.scores("line").items()}

    def ready(self, lane: int) -> dict[str, int]:
        found = self.target.client.zrange(self.target.keys.lanes[lane], 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in found}


def _parts(member: bytes) -> tuple[str, ...]:
    return tuple(member.decode().split("\x1f"))
