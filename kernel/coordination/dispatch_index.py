"""Which business objects a dispatcher should look at next, and whose turn it is to scan: disposable, both.

An entry is the identity of a business object and the time when its intent is due, by the clock of its source; no
token of a round, lease or claim ever enters Redis (dsp-redis-identity-only). Losing the index costs the time until the
next scan of the source, which notes everything again. It can not grow for ever: it expires a day after the last
note, and never holds more than CANDIDATES_MAX ids of one source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kernel.candidates import DueObjects, ScanTurn
from kernel.coordination.keys import Keys
from kernel.coordination.lanes import SCORE_MS_MAX
from kernel.coordination.scripts import BoundScript, ScriptRunner, Word
from kernel.dispatch import DueIntent
from kernel.errors import CoordinationRejected, CoordinationUnavailable, Refused
from kernel.ids import IdSource, check_id
from lua import get

log = logging.getLogger("kernel.dispatch")

BATCH_MAX = 500
"""Ids per script call: more would hold the server for long, and Lua's unpack ends near 8,000 values."""
CANDIDATES_MAX = 100_000
"""Ids of one source: about 10 MB. With more than that pending, those due last wait for the scan."""
TTL_MS = 24 * 3_600_000

_FIELD = "\x1f"
_ADD, _TAKE, _HOLD, _FREE = "dispatch_add", "dispatch_take", "dispatch_scan_hold", "dispatch_scan_free"


class _Bound(msgspec.Struct, frozen=True):
    """The scripts with the keys of one source."""

    add: BoundScript
    take: BoundScript
    hold: BoundScript
    free: BoundScript


class DispatchIndex:
    """The index of one namespace, for any number of sources. Safe for many threads.

    All methods but `announce` raise CoordinationUnavailable when Redis does not answer or can not serve now, and
    CoordinationRejected when a key holds what no kernel wrote; InvalidName for a source outside the name pattern.
    """

    def __init__(self, runner: ScriptRunner, keys: Keys, ids: IdSource) -> None:
        self._runner = runner
        self._keys = keys
        self._ids = ids
        self._channel = keys.dispatch_channel
        self._bound: dict[str, _Bound] = {}

    def add(self, source: str, intents: Sequence[DueIntent], *, wake: bool = True) -> int:
        """Note when objects become due, and tell dispatchers when that is earlier than they know; how many ids were
        new. Of an id that is noted already the earlier time stays (dsp-candidate-add). Raises InvalidId or Refused
        before anything is sent."""
        for intent in intents:
            _check(intent)
        bound = self._of(source)
        batches = [intents[at : at + BATCH_MAX] for at in range(0, len(intents), BATCH_MAX)]
        return sum(self._runner.call(bound.add, *_add_args(batch, self._channel if wake else b"")) for batch in batches)

    def announce(self, source: str, object_id: str, due_ms: int) -> bool:
        """As `add` of one, best effort, for whoever has accepted a request; whether Redis took it. A failure delays
        the recovery of a request whose process dies to the next scan, and costs nothing else."""
        try:
            self.add(source, [DueIntent(object_id, due_ms)])
        except (CoordinationUnavailable, CoordinationRejected) as error:
            log.debug("%s of %s could not be noted; the scan will find it: %s", object_id, source, error)
            return False
        return True

    def take(self, source: str, count: int, until_ms: int) -> DueObjects:
        """Take up to `count` (1 to BATCH_MAX) ids that are due at `until_ms` (dsp-redis-first, dsp-limits)."""
        if not 1 <= count <= BATCH_MAX:
            raise Refused(f"count: 1 to {BATCH_MAX} ids at once, not {count!r}")
        reply = self._runner.call(self._of(source).take, count, until_ms)
        next_due_ms, *members = reply
        ids = [found for found in map(_object_id, members) if found is not None]
        return DueObjects(tuple(ids), None if next_due_ms < 0 else next_due_ms)

    def hold_scan(self, source: str, hold_ms: int) -> ScanTurn:
        """Ask for the turn to scan `source`, for `hold_ms` (dsp-scan-mutex)."""
        token = self._ids.token()
        left_ms = self._runner.call(self._of(source).hold, token, hold_ms)
        return ScanTurn(token=token) if left_ms == 0 else ScanTurn(free_in_ms=left_ms)

    def free_scan(self, source: str, token: str) -> bool:
        """Give the turn back before its time is over; whether it was still held under `token`."""
        return bool(self._runner.call(self._of(source).free, token))

    def _of(self, source: str) -> _Bound:
        bound = self._bound.get(source)
        if bound is None:
            made = [BoundScript(get(name), self._keys.of(get(name), source)) for name in (_ADD, _TAKE, _HOLD, _FREE)]
            bound = self._bound[source] = _Bound(*made)
        return bound


class Announcer:
    """Tells dispatchers of intents that were just accepted, for a process that accepts requests. Safe for many threads;
    without an index nobody is told."""

    def __init__(self, index: DispatchIndex | None, close: Callable[[], None] = lambda: None) -> None:
        self._index = index
        self.close = close

    def __call__(self, source: str, object_id: str, due_ms: int) -> bool:
        """Whether Redis took it; see `DispatchIndex.announce`."""
        return self._index is not None and self._index.announce(source, object_id, due_ms)


def _add_args(intents: Sequence[DueIntent], channel: bytes) -> tuple[Word, ...]:
    """ARGV as the contract in lua/v1/dispatch_add.lua says."""
    entries = _FIELD.join(f"{intent.object_id}{_FIELD}{max(0, intent.due_time)}" for intent in intents)
    return (CANDIDATES_MAX, TTL_MS, channel, entries)


def _check(intent: DueIntent) -> None:
    check_id(intent.object_id, "object_id")
    if type(intent.due_time) is not int or intent.due_time > SCORE_MS_MAX:
        raise Refused(f"due_time: whole milliseconds, at most 2^53 - 1, not {intent.due_time!r}")


def _object_id(member: Any) -> str | None:
    """A member as an identity; None for one that no kernel can have written: it is gone now, and lost to nobody."""
    try:
        return check_id(member.decode(), "object_id")
    except (AttributeError, UnicodeDecodeError, Refused):
        return None
