"""The four ready lanes: which workflow a worker should try next. Redis recommends; the store's claim grants.

An entry is a workflow_id with its due time by the clock of Redis. Losing the lanes loses nothing but order: they
are rebuilt from the store, and an id that should not be there costs one vain claim (lane-stale-tolerated).

The epoch tells a wipe. It is born with the first pop after the lanes' state was missing and stays the same until
Redis loses its data again; a worker that sees another epoch in an empty pop than in the one before knows that the
lanes were emptied behind its back and starts a rebuild (DECISIONS detail 20).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from kernel.coordination.keys import LANES, Keys
from kernel.coordination.scripts import BoundScript, ScriptRunner, Word
from kernel.errors import CoordinationRejected, InvalidConfig, InvalidPriority, Refused
from kernel.ids import check_id
from lua import get

BATCH_MAX = 500
"""Ids per script call: more would hold the server for long, and Lua's unpack ends near 8,000 values."""
SCORE_MS_MAX = 2**53 - 1
"""The largest whole number that a score, a double, holds exactly."""
DEFAULT_WEIGHTS = (8, 6, 4, 2)
DEFAULT_BURST = 8

_FIELD, _RUN = "\x1f", "\x1e"
_RUN_START = re.compile(f"{_RUN}(?=[0-3]{_FIELD})")
# What nearly every reply and every push looks like: ids of visible ASCII characters, all of which check_id accepts. One
# look at the whole text costs less than looks at its parts; whatever does not match takes the long way.
_PLAIN_ONE = re.compile(rb"([0-3])\x1f([!-~]{1,200})\x1f([0-9]{1,15})")
_PLAIN_TAKEN = re.compile(rb"(?:(?:^|\x1e)[0-3](?:\x1f[!-~]{1,200}\x1f[0-9]{1,15})++)++")
_PLAIN_PUSHED = re.compile(r"(?:[!-~]{1,200}\x1f[0-9]{1,15}(?:\x1f(?!\Z)|\Z))++")
_SCORE = re.compile(r"-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_LANE_NUMBERS = frozenset(range(LANES))
T = TypeVar("T")


class LaneEntry(msgspec.Struct, frozen=True):
    """One candidate: its id, its lane (0 the most urgent) and when it is due, in ms of the Redis clock."""

    workflow_id: str
    lane: int
    score_ms: int


class PushCount(msgspec.Struct, frozen=True):
    """What became of the entries of a push: `raised` were new or moved up, `rescored` got another due time in
    their own lane, `ignored` are held by a higher lane."""

    raised: int = 0
    rescored: int = 0
    ignored: int = 0


_OUTCOMES = (PushCount(ignored=1), PushCount(raised=1), PushCount(rescored=1))
"""Of a push of one, by what the script answers."""


class Popped(msgspec.Struct, frozen=True):
    """The answer of a pop. `entries` are gone from their lanes.

    The last four fields are set only when fewer ids were due than asked for: `idle` is true, `server_ms` is the
    time Redis used, `next_due_ms` when the next entry becomes due (None: nothing is waiting), `epoch` the mark
    of Redis' present life. `dropped` counts members that no push can have written; they are gone, too.
    """

    entries: tuple[LaneEntry, ...]
    dropped: int = 0
    idle: bool = False
    next_due_ms: int | None = None
    server_ms: int | None = None
    epoch: int | None = None


class LaneStats(msgspec.Struct, frozen=True):
    """One lane: all members, those due, those in the future, and how long the one due longest has waited."""

    lane: int
    depth: int
    ready: int
    delayed: int
    oldest_wait_ms: int


class LaneReport(msgspec.Struct, frozen=True):
    """The four lanes at one instant, and where the next pop starts. `epoch` is None before the first pop."""

    lanes: list[LaneStats]
    cursor: int
    burst_left: int
    epoch: int | None
    server_ms: int


class LanePolicy(msgspec.Struct, frozen=True):
    """How many pops of a round each lane gets, and how many pops a burst window gives to lane 0.

    Raises InvalidConfig for a weight below 1 (that lane would starve: lane-p3-progress), weights above 100 together
    or a burst above 99: the lanes' state has two digits for each.
    """

    weights: tuple[int, int, int, int] = DEFAULT_WEIGHTS
    burst: int = DEFAULT_BURST

    def __post_init__(self) -> None:
        if len(self.weights) != LANES or any(type(w) is not int or w < 1 for w in self.weights):
            raise InvalidConfig(f"lane_weights: four whole numbers, each at least 1; not {self.weights!r}")
        if sum(self.weights) > 100:
            raise InvalidConfig(f"lane_weights: at most 100 together; not {self.weights!r}")
        if type(self.burst) is not int or not 0 <= self.burst <= 99:
            raise InvalidConfig(f"lane_burst: a whole number from 0 to 99; not {self.burst!r}")


class Lanes:
    """The lanes of one namespace. Each method is one script call (lane-atomic-lua), in batches of BATCH_MAX ids.

    All raise CoordinationUnavailable when Redis does not answer or can not serve now, and CoordinationRejected when a
    key holds what no kernel wrote; neither leaves a half-done batch behind, except that earlier batches of a push
    or removal of more than BATCH_MAX ids stay. A push may be repeated; a pop whose answer was lost may have
    taken ids, which the rebuild finds.
    """

    def __init__(self, runner: ScriptRunner, keys: Keys, policy: LanePolicy | None = None) -> None:
        self._runner = runner
        self._channel = keys.wakeup_channel
        self._policy = policy if policy is not None else LanePolicy()
        self._keys = keys
        # By how many are popped, and by lane: the whole request of a pop and most of that of a push never change.
        self._pops: dict[int, BoundScript] = {}
        self._pushes = {
            wake: [_bound("lane_push", keys, channel, lane) for lane in range(LANES)]
            for wake, channel in ((True, self._channel), (False, b""))
        }
        self._push_many = _bound("lane_push_many", keys)
        self._remove = _bound("lane_remove", keys)
        self._stats = _bound("lane_stats", keys)

    def push(self, entries: Sequence[LaneEntry], *, wake: bool = True) -> PushCount:
        """Enter ids, or raise them to a higher lane, and tell sleeping workers in the same call (lane-one-lane,
        lane-lower-ignored, lane-raise-moves, lane-same-lane-score). Raises InvalidId, InvalidPriority or Refused
        before anything is sent."""
        if len(entries) == 1:
            entry = entries[0]
            _check(entry)
            return _OUTCOMES[self._runner.call(self._pushes[wake][entry.lane], entry.score_ms, entry.workflow_id)]
        channel = self._channel if wake else b""
        # All are checked before the first is sent.
        requests = [_push_many_args(batch, channel) for batch in _batches(entries)]
        raised = rescored = ignored = 0
        for words in requests:
            reply = self._runner.call(self._push_many, *words)
            raised, rescored, ignored = raised + reply[0], rescored + reply[1], ignored + reply[2]
        return PushCount(raised, rescored, ignored)

    def pop(self, count: int = 1) -> Popped:
        """Take up to `count` (1 to BATCH_MAX) due ids by weights and burst window; each is handed out once
        (lane-pop-one, lane-weights, lane-burst-arm). Fewer than `count` means that nothing more is due now."""
        if not 1 <= count <= BATCH_MAX:
            raise Refused(f"count: 1 to {BATCH_MAX} ids at once, not {count!r}")
        bound = self._pops.get(count)
        if bound is None:
            bound = self._pops[count] = _bound("lane_pop", self._keys, *_pop_args(count, self._policy))
        reply = self._runner.call(bound)
        if type(reply) is not list:
            plain = _PLAIN_ONE.fullmatch(reply) if type(reply) is bytes else None
            if plain is not None:
                lane, workflow_id, score_ms = plain.groups()
                return Popped((LaneEntry(workflow_id.decode(), int(lane), int(score_ms)),))
            entries, dropped = _taken(reply)
            return Popped(tuple(entries), dropped)
        entries, dropped = _taken(reply[3]) if len(reply) > 3 else ([], 0)
        server_ms, epoch, next_due_ms = reply[:3]
        return Popped(tuple(entries), dropped, True, None if next_due_ms < 0 else next_due_ms, server_ms, epoch)

    def remove(self, workflow_ids: Sequence[str]) -> int:
        """Take ids out of whatever lane holds them; returns how many were in one."""
        ids = [check_id(workflow_id, "workflow_id") for workflow_id in workflow_ids]
        return sum(self._runner.call(self._remove, *batch) for batch in _batches(ids))

    def stats(self) -> list[LaneStats]:
        """Depth, due, delayed and oldest wait of each lane, lane 0 first (lane-stats)."""
        return self.report().lanes

    def report(self) -> LaneReport:
        """The lanes with cursor, burst window, epoch and the time of Redis, all of one instant."""
        server_ms, epoch, cursor, burst_left, *numbers = self._runner.call(self._stats)
        lanes = [LaneStats(lane, *numbers[4 * lane : 4 * lane + 4]) for lane in range(LANES)]
        return LaneReport(lanes, cursor, burst_left, epoch or None, server_ms)

    def wake(self) -> None:
        """Tell sleeping workers to look at the lanes now, without a push."""
        self._runner.command("PUBLISH", self._channel, 0)


def _bound(name: str, keys: Keys, *first: Word) -> BoundScript:
    script = get(name)
    return BoundScript(script, keys.of(script), first)


# The functions below build ARGV as the contracts in lua/v1 say; for `lane_push` channel and lane are bound.


def _pop_args(count: int, policy: LanePolicy) -> tuple[Word, ...]:
    # The script knows the defaults: five arguments less to read and to check in each pop.
    if policy.weights == DEFAULT_WEIGHTS and policy.burst == DEFAULT_BURST:
        return (count,)
    return (count, policy.burst, *policy.weights)


def _push_many_args(entries: Sequence[LaneEntry], channel: bytes) -> tuple[Word, ...]:
    """Raises as `_check` does for the first entry that may not be pushed."""
    texts = _plain_texts(entries)
    if texts is None:
        for entry in entries:
            _check(entry)
        texts = _joined(entries)
    return (channel, min([entry.score_ms for entry in entries]), *texts)


def _plain_texts(entries: Sequence[LaneEntry]) -> list[str] | None:
    """What is to be sent, when a glance tells that each entry passes `_check`; None when it takes a closer look."""
    lanes = [entry.lane for entry in entries]
    kinds = {*map(type, lanes), *[type(entry.score_ms) for entry in entries]}
    if kinds != {int} or {type(entry.workflow_id) for entry in entries} != {str}:
        return None
    if not _LANE_NUMBERS.issuperset(lanes):
        return None
    texts = _joined(entries)
    # A separator inside an id would look like one between two.
    if sum([text.count(_FIELD) + 1 for text in texts if text]) != 2 * len(entries):
        return None
    return texts if all(map(_PLAIN_PUSHED.fullmatch, filter(None, texts))) else None


def _joined(entries: Sequence[LaneEntry]) -> list[str]:
    texts: list[list[str]] = [[] for _ in range(LANES)]
    for entry in entries:
        texts[entry.lane].append(f"{entry.workflow_id}{_FIELD}{entry.score_ms}")
    return [_FIELD.join(text) for text in texts]


def _check(entry: LaneEntry) -> None:
    check_id(entry.workflow_id, "workflow_id")
    if type(entry.lane) is not int or not 0 <= entry.lane < LANES:
        raise InvalidPriority(f"lane: 0, 1, 2 or 3, not {entry.lane!r}")
    if type(entry.score_ms) is not int or not 0 <= entry.score_ms <= SCORE_MS_MAX:
        raise Refused(f"score_ms: whole milliseconds from 0 to 2^53 - 1, not {entry.score_ms!r}")


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH_MAX):
        yield items[start : start + BATCH_MAX]


def _taken(reply: Any) -> tuple[list[LaneEntry], int]:
    """The entries of the text that a pop gives back, and how many members were none of ours."""
    if not isinstance(reply, bytes):
        raise CoordinationRejected(f"lane_pop: expected a text, got {type(reply).__name__}")
    if _PLAIN_TAKEN.fullmatch(reply) is not None:
        return _plain_entries(reply.decode()), 0
    text = reply.decode(errors="surrogateescape")
    entries: list[LaneEntry] = []
    try:
        for run in text.split(_RUN):
            lane_text, *fields = run.split(_FIELD)
            lane = int(lane_text)
            entries += [LaneEntry(i, lane, int(s)) for i, s in zip(fields[::2], fields[1::2], strict=True)]
        for entry in entries:
            _check(entry)
    except (Refused, ValueError):
        return _salvaged(text)
    return entries, 0


def _plain_entries(text: str) -> list[LaneEntry]:
    entries: list[LaneEntry] = []
    for run in text.split(_RUN):
        fields = run.split(_FIELD)
        lane, ids = int(fields[0]), fields[1::2]
        entries += map(LaneEntry, ids, (lane,) * len(ids), map(int, fields[2::2]))
    return entries


def _salvaged(text: str) -> tuple[list[LaneEntry], int]:
    """What can be kept of a text with members or scores that no push wrote. Such a member may hold a separator: a
    field that is no number belongs to the id before it, and that id is dropped while its neighbours are kept."""
    entries: list[LaneEntry] = []
    dropped = 0
    for run in _RUN_START.split(text):
        lane_text, *fields = run.split(_FIELD)
        parts: list[str] = []
        for field in fields:
            score_ms = _score_ms(field) if parts else None
            if score_ms is None:
                parts.append(field)
                continue
            entry = LaneEntry(_FIELD.join(parts), int(lane_text), score_ms)
            parts = []
            try:
                _check(entry)
            except Refused:
                dropped += 1
            else:
                entries.append(entry)
        dropped += bool(parts)
    return entries, dropped


def _score_ms(text: str) -> int | None:
    """A score as Redis prints it, brought into the range of due times; None when it is no number."""
    if _SCORE.fullmatch(text) is None:
        return None
    return int(min(max(float(text), 0.0), float(SCORE_MS_MAX)))
