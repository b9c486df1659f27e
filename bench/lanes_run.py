"""`bench lanes`: popping and pushing at several depths, and whether the lanes get their shares (dc-bench-lanes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice

from bench.script_run import ScriptRun
from bench.script_slices import Case
from kernel.coordination.lanes import BATCH_MAX, DEFAULT_BURST, DEFAULT_WEIGHTS, LaneEntry, Lanes

_ROUND = sum(DEFAULT_WEIGHTS)
_LANE_OF = tuple(lane for lane, weight in enumerate(DEFAULT_WEIGHTS) for _ in range(weight))
_SINCE_MS, _SPAN_MS = 1_700_000_000_000, 3_600_000
_SCATTER = 2_654_435_761
"""Odd, so multiplying by it modulo 2^32 gives every number another one: ids and due times come in no order."""
_PUSHED_AT_ONCE = 100
_POPPED_AT_ONCE = 8
SHARE_ROUNDS = 40
"""Rounds of 20 pops whose lanes are counted, one by one and eight at a time."""
_SPARE = 200
"""Entries of each lane beyond what is taken: no lane may be empty while shares are counted."""


def measure_lanes(run: ScriptRun) -> None:
    """A row for each operation and depth; each depth grows out of the one before."""
    keys = run.server.keys("lanes")
    lanes = Lanes(run.server.runner, keys)
    entries = _entries()
    filled = 0
    for depth in run.plan.depths:
        filled += _fill(run, lanes, entries, depth - filled)
        if filled < depth:
            return
        run.time(_cases(lanes, entries, depth))
    idle = Lanes(run.server.runner, run.server.keys("idle"))
    idle.pop()  # the first one arms the burst window
    run.time([Case(op="lane_pop_idle", n=1, depth=0, call=idle.pop, calls_max=1_000_000)])
    if not run.late:
        run.progress.phase("shares")
        _count_shares(run, Lanes(run.server.runner, run.server.keys("shares")))


def _entries() -> Iterator[LaneEntry]:
    """Entries without end, over the lanes as pops take them from there, all due for long."""
    for number in count():
        scattered = number * _SCATTER % 2**32
        due_ms = _SINCE_MS + scattered % _SPAN_MS
        yield LaneEntry(f"bench_{scattered:08x}", _LANE_OF[number % _ROUND], due_ms)


def _fill(run: ScriptRun, lanes: Lanes, entries: Iterator[LaneEntry], missing: int) -> int:
    run.progress.phase("filling the lanes", total=missing)
    pushed = 0
    while pushed < missing and not run.late:
        batch = list(islice(entries, min(BATCH_MAX, missing - pushed)))
        lanes.push(batch, wake=False)
        pushed += len(batch)
        run.progress.show(partial(int, pushed))
    return pushed


def _cases(lanes: Lanes, entries: Iterator[LaneEntry], depth: int) -> list[Case]:
    return [
        _pop(lanes, 1, depth),
        _pop(lanes, _POPPED_AT_ONCE, depth),
        _push(lanes, entries, 1, depth),
        _push(lanes, entries, _PUSHED_AT_ONCE, depth),
    ]


def _pop(lanes: Lanes, n: int, depth: int) -> Case:
    """Half of the entries may be taken, then they are put back where they were."""
    taken: list[LaneEntry] = []

    def call() -> None:
        taken.extend(lanes.pop(n).entries)

    def restore() -> None:
        lanes.push(taken, wake=False)
        taken.clear()

    return Case(op="lane_pop", n=n, depth=depth, call=call, restore=restore, calls_max=_calls_max(depth, n))


def _push(lanes: Lanes, entries: Iterator[LaneEntry], n: int, depth: int) -> Case:
    """New ids, with the wakeup that every push sends; they are taken out again."""
    calls_max = _calls_max(depth, n)
    ready: list[list[LaneEntry]] = []
    pushed: list[str] = []

    def prepare(calls: int) -> None:
        # As many as a slice may need, made once: making them is no part of a push.
        if not ready:
            ready.extend(list(islice(entries, n)) for _ in range(calls))
        ready.extend(list(islice(entries, n)) for _ in range(calls - len(ready)))

    def call() -> None:
        batch = ready.pop()
        lanes.push(batch)
        pushed.extend([entry.workflow_id for entry in batch])

    def restore() -> None:
        lanes.remove(pushed)
        pushed.clear()

    op = "lane_push" if n == 1 else "lane_push_many"
    return Case(
        op=op, n=n, depth=depth, call=call, prepare=prepare, restore=restore, calls_max=calls_max, counts=n
    )  # fmt: skip


def _calls_max(depth: int, n: int) -> int:
    return min(4_000, max(8, depth // (2 * n)))


def _count_shares(run: ScriptRun, lanes: Lanes) -> None:
    """Take whole rounds out of four full lanes, and see what comes."""
    each = 2 * SHARE_ROUNDS * max(DEFAULT_WEIGHTS) + DEFAULT_BURST + _SPARE
    for lane in range(len(DEFAULT_WEIGHTS)):
        lanes.push([LaneEntry(f"share_{lane}_{n}", lane, _SINCE_MS + n) for n in range(each)], wake=False)
    for _ in range(lanes.report().burst_left):
        lanes.pop()
    singles = [entry for _ in range(SHARE_ROUNDS * _ROUND) for entry in lanes.pop().entries]
    eights = [
        entry for _ in range(SHARE_ROUNDS * _ROUND // _POPPED_AT_ONCE) for entry in lanes.pop(_POPPED_AT_ONCE).entries
    ]
    taken = Counter(entry.lane for entry in singles + eights)
    run.shares = {f"lane {lane}": round(taken[lane] / max(1, taken.total()), 4) for lane in range(len(DEFAULT_WEIGHTS))}
    run.findings += share_findings(singles, "one by one") + share_findings(eights, "eight at a time")
    if len({entry.workflow_id for entry in singles + eights}) != len(singles) + len(eights):
        run.findings.append("an id was handed out twice while the shares were counted")
    told = ":".join(str(taken[lane]) for lane in range(len(DEFAULT_WEIGHTS)))
    run.lines.append(f"  {'taken from the lanes':<26}{told} of {taken.total()} pops (weights 8:6:4:2)")


def share_findings(taken: Sequence[LaneEntry], way: str) -> list[str]:
    """What is wrong with the lanes of `taken`, which must be SHARE_ROUNDS whole rounds from lanes that were never
    empty: any 20 that follow each other hold 8, 6, 4 and 2, wherever the rotation stood (lane-weights)."""
    if len(taken) != SHARE_ROUNDS * _ROUND:
        return [f"shares {way}: {len(taken)} of {SHARE_ROUNDS * _ROUND} ids came out of lanes that held more"]
    for start in range(len(taken) - _ROUND + 1):
        lanes = Counter(entry.lane for entry in taken[start : start + _ROUND])
        found = tuple(lanes[lane] for lane in range(len(DEFAULT_WEIGHTS)))
        if found != DEFAULT_WEIGHTS:
            return [f"shares {way}: pops {start} to {start + _ROUND - 1} took {found} instead of {DEFAULT_WEIGHTS}"]
    return []
