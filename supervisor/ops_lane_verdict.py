"""Does a lane move, and if not, why: the verdict on each lane from two looks at it and at the workers (lane-stats-use).

empty            nothing waits
not queued       all lanes are empty, and work of this one is due by its snapshots
later            what waits is not due yet
draining         it is being taken from; how long that takes is another question
no worker free   something is due, nobody took any of it, and no worker could: all slots are busy, or there is none
not moving       something is due and nobody took any of it, although somebody could, or nobody knows
due              something is due, and a single look can not tell more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kernel.coordination.lanes import LaneStats
from supervisor.ops_shell import span_text

Word = Literal["empty", "not queued", "later", "draining", "no worker free", "not moving", "due"]
LOUDEST: tuple[Word, ...] = ("not moving", "no worker free", "not queued", "due", "draining", "later", "empty")
NOT_QUEUED_MS = 2_000
"""Whoever became due just now is about to be pushed, or was taken before its snapshot told of it."""


class Verdict(msgspec.Struct, frozen=True):
    """The word of the list above, and why."""

    word: Word
    reason: str = ""


class Taken(msgspec.Struct, frozen=True):
    """What was taken from the four lanes within `window_ms`. `full`: the lanes that gave out all that was looked at.
    `claimed`: how many claims the workers of this tree have told of meanwhile; None when that is not known."""

    window_ms: int
    lanes: tuple[int, ...]
    full: tuple[bool, ...]
    claimed: int | None = None

    def share(self, lane: int) -> float | None:
        """This lane's part of all that was taken; None when nothing was."""
        whole = sum(self.lanes)
        return self.lanes[lane] / whole if whole else None


class Unqueued(msgspec.Struct, frozen=True):
    """Work of one lane that waits for a worker by its snapshots: how many at least, and for how long the oldest."""

    count: int
    oldest_ms: int


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of the tree, as its supervisor tells. `unable`: why each that can take nothing can not."""

    workers: int
    slots: int | None
    busy: int
    unable: tuple[str, ...] = ()
    draining: bool = False
    claims: int = 0
    """Claims that were granted to them since they started."""

    @property
    def able(self) -> int:
        return self.workers - len(self.unable)


def crew_of(status: Mapping[str, Any]) -> Crew:
    """What a supervisor's `status` says about its workers; slots of those that can take work, None when not known."""
    children = [child for child in status["children"] if child.get("role") == "worker"]
    unable = [(child, _unable(child)) for child in children]
    able = [child for child, why in unable if why is None]
    slots = [child.get("x_slots") for child in able]
    return Crew(
        workers=len(children),
        slots=sum(slots) if all(isinstance(n, int) for n in slots) else None,
        busy=sum(child.get("slots_busy") or 0 for child in able),
        unable=tuple(why for _, why in unable if why is not None),
        draining=status.get("state") == "DRAINING",
        claims=sum(child.get("counters", {}).get("claims_taken") or 0 for child in children),
    )


def _unable(child: Mapping[str, Any]) -> str | None:
    """Why this worker can not take anything from the lanes now."""
    name = child.get("name", "a worker")
    if child.get("state") != "RUNNING":
        return f"{name} is {child.get('state', 'unknown')}"
    if child.get("silent"):
        return f"{name} is silent: stopped, or it hangs"
    if child.get("x_store") == "down":
        return f"{name} does not reach the durable store, or can not write to it"
    if child.get("x_redis") == "down":
        return f"{name} does not reach Redis and takes work from the store alone"
    return None


def verdict(stats: LaneStats, taken: Taken | None, crew: Crew | None, unqueued: Unqueued | None = None) -> Verdict:
    """The verdict on one lane. `crew` None: no supervisor answers here; `taken` None: there was a single look;
    `unqueued` is asked for when all lanes are empty."""
    if stats.depth == 0:
        if unqueued is not None and unqueued.oldest_ms >= NOT_QUEUED_MS and not (taken and taken.lanes[stats.lane]):
            return Verdict("not queued", _unqueued(unqueued, crew))
        return Verdict("empty", _passed(stats.lane, taken))
    if taken is not None and taken.lanes[stats.lane]:
        return Verdict("draining", _pace(stats, taken))
    if stats.ready == 0:
        return Verdict("later")
    if crew is None:
        word: Word = "due" if taken is None else "not moving"
        return Verdict(word, "no supervisor answers here: whether workers are free is not known")
    if crew.draining:
        return Verdict("no worker free", "the tree is draining and takes nothing new")
    if crew.able == 0:
        return Verdict("no worker free", "; ".join(crew.unable) or "this tree has no worker")
    if crew.slots is not None and crew.busy >= crew.slots:
        many = f"all {crew.slots} slots are busy" if crew.slots > 1 else "the one slot is busy"
        return Verdict("no worker free", "; ".join([many, *crew.unable]))
    free = (
        "some slots may be free" if crew.slots is None else f"{crew.slots - crew.busy} of {crew.slots} slots are free"
    )
    if taken is None:
        return Verdict("due", free)
    others = sum(taken.lanes)
    served = f"; other lanes gave out {others} meanwhile" if others else ""
    return Verdict("not moving", "; ".join([f"{free} and nobody takes from it{served}", *crew.unable]))


def _unqueued(unqueued: Unqueued, crew: Crew | None) -> str:
    """What is seen, and what may be the cause: the lanes do not tell who emptied them."""
    due = f"{unqueued.count} or more are due by their snapshots, the oldest for {span_text(unqueued.oldest_ms)}"
    if crew is None or crew.workers == 0:
        return f"{due}, and the scan of a worker brings them into the lane: none is known here"
    if crew.able == 0:
        return f"{due}: {'; '.join(crew.unable)}"
    return f"{due}: nobody runs their version, or Redis lost them and the next scan fills the lane"


def _passed(lane: int, taken: Taken | None) -> str:
    count = 0 if taken is None else taken.lanes[lane]
    return f"the last {count} were just taken" if count else ""


def _pace(stats: LaneStats, taken: Taken) -> str:
    count = taken.lanes[stats.lane]
    at_least = "at least " if taken.full[stats.lane] else ""
    told = f"{at_least}{count} taken in {span_text(taken.window_ms)}"
    if taken.claimed == 0:
        # Taken and given back: of a version that nobody here has, say, or claimed by somebody who is not done with it.
        return f"{told}, and no worker of this tree was granted a claim"
    if not stats.ready:
        return told
    left_ms = round(stats.ready * taken.window_ms / count)
    return f"{told}, at this pace what is due takes {'less than ' if at_least else ''}{span_text(left_ms)}"


def loudest(verdicts: Sequence[Verdict]) -> int:
    """The lane that an operator should look at first: the worst word, and of equals the more urgent lane."""
    return min(range(len(verdicts)), key=lambda lane: (LOUDEST.index(verdicts[lane].word), lane))
