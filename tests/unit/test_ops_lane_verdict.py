"""A lane that starves, one that is slow, and one that has no worker have three different verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.coordination.lanes import LaneStats
from supervisor.ops_lane_verdict import NOT_QUEUED_MS, Crew, Taken, Unqueued, Verdict, crew_of, loudest, verdict

DUE = LaneStats(3, 500, 480, 20, 90_000)
FREE = Crew(workers=2, slots=16, busy=4)
BUSY = Crew(workers=2, slots=16, busy=16)
NOTHING = Taken(2_000, (0, 0, 0, 0), (False,) * 4)
OTHERS = Taken(2_000, (38, 0, 0, 0), (False,) * 4)
SOME = Taken(2_000, (8, 6, 4, 2), (False,) * 4)


@pytest.mark.req("lane-stats-use", "ops-lanes")
@pytest.mark.parametrize(
    ("stats", "taken", "crew", "expected"),
    [
        (LaneStats(3, 0, 0, 0, 0), NOTHING, FREE, Verdict("empty")),
        (LaneStats(3, 20, 0, 20, 0), NOTHING, FREE, Verdict("later")),
        # Slow: it is being taken from, at its share of two in twenty.
        (DUE, SOME, FREE, Verdict("draining", "2 taken in 2.0 s, at this pace what is due takes 8 min")),
        (DUE, SOME, BUSY, Verdict("draining", "2 taken in 2.0 s, at this pace what is due takes 8 min")),
        # Starved: somebody could, others are served, and nobody takes from it.
        (
            DUE, OTHERS, FREE,
            Verdict(
                "not moving",
                "12 of 16 slots are free and nobody takes from it; other lanes gave out 38 meanwhile",
            ),
        ),
        (DUE, NOTHING, FREE, Verdict("not moving", "12 of 16 slots are free and nobody takes from it")),
        (DUE, NOTHING, BUSY, Verdict("no worker free", "all 16 slots are busy")),
        (DUE, NOTHING, Crew(workers=1, slots=1, busy=1), Verdict("no worker free", "the one slot is busy")),
        (DUE, NOTHING, Crew(workers=0, slots=0, busy=0), Verdict("no worker free", "this tree has no worker")),
        (
            DUE, NOTHING, Crew(workers=1, slots=0, busy=0, unable=("worker-0 is BACKOFF",)),
            Verdict("no worker free", "worker-0 is BACKOFF"),
        ),
        (
            DUE, NOTHING, Crew(workers=2, slots=8, busy=8, unable=("worker-1 is silent: stopped, or it hangs",)),
            Verdict("no worker free", "all 8 slots are busy; worker-1 is silent: stopped, or it hangs"),
        ),
        (
            DUE, NOTHING, Crew(workers=1, slots=8, busy=0, draining=True),
            Verdict("no worker free", "the tree is draining and takes nothing new"),
        ),
        (
            DUE, NOTHING, Crew(workers=1, slots=None, busy=3),
            Verdict("not moving", "some slots may be free and nobody takes from it"),
        ),
        (
            DUE, NOTHING, None,
            Verdict("not moving", "no supervisor answers here: whether workers are free is not known"),
        ),
        # A single look can not tell what moves, but it can tell that nobody could take anything.
        (DUE, None, FREE, Verdict("due", "12 of 16 slots are free")),
        (DUE, None, BUSY, Verdict("no worker free", "all 16 slots are busy")),
        (DUE, None, None, Verdict("due", "no supervisor answers here: whether workers are free is not known")),
    ],
)  # fmt: skip
def test_the_verdict(stats: LaneStats, taken: Taken | None, crew: Crew | None, expected: Verdict) -> None:
    assert verdict(stats, taken, crew) == expected


def test_more_than_a_look_remembers_is_told_as_at_least() -> None:
    taken = Taken(2_000, (0, 0, 0, 1_000), (False, False, False, True))

    found = verdict(LaneStats(3, 9_000, 9_000, 0, 5_000), taken, FREE)

    assert found.reason == "at least 1000 taken in 2.0 s, at this pace what is due takes less than 18.0 s"


def test_what_is_taken_and_not_claimed_is_told() -> None:
    """Of a version that no worker has, for one: it is popped and given back, again and again."""
    found = verdict(DUE, Taken(2_000, (0, 0, 0, 2), (False,) * 4, claimed=0), FREE)

    assert found == Verdict("draining", "2 taken in 2.0 s, and no worker of this tree was granted a claim")


def test_the_last_ones_of_a_lane_may_have_just_been_taken() -> None:
    assert verdict(LaneStats(3, 0, 0, 0, 0), SOME, FREE) == Verdict("empty", "the last 2 were just taken")
    assert verdict(LaneStats(3, 5, 0, 5, 0), SOME, FREE) == Verdict("draining", "2 taken in 2.0 s")


@pytest.mark.req("lane-stats-use", "ops-lanes")
def test_a_lane_that_lost_its_memory_is_not_told_as_empty() -> None:
    nothing, waits = LaneStats(3, 0, 0, 0, 0), Unqueued(24, 40_000)
    due = "24 or more are due by their snapshots, the oldest for 40.0 s"

    assert verdict(nothing, NOTHING, FREE, waits) == Verdict(
        "not queued", f"{due}: nobody runs their version, or Redis lost them and the next scan fills the lane"
    )
    assert verdict(nothing, None, None, waits) == Verdict(
        "not queued", f"{due}, and the scan of a worker brings them into the lane: none is known here"
    )
    away = Crew(workers=1, slots=0, busy=0, unable=("worker-0 does not reach the durable store",))
    assert verdict(nothing, None, away, waits) == Verdict("not queued", f"{due}: {away.unable[0]}")
    assert verdict(nothing, NOTHING, FREE, Unqueued(24, NOT_QUEUED_MS - 1)).word == "empty", "it is about to be pushed"
    assert verdict(nothing, SOME, FREE, waits).word == "empty", "it was taken, and the snapshot is late"


def test_shares_are_of_all_that_was_taken() -> None:
    assert [SOME.share(lane) for lane in range(4)] == [0.4, 0.3, 0.2, 0.1]
    assert NOTHING.share(0) is None


def test_the_headline_is_of_the_worst_lane_and_of_equals_of_the_more_urgent() -> None:
    words: list[Any] = ["draining", "no worker free", "not moving", "not moving"]

    assert loudest([Verdict(word) for word in words]) == 2


def worker(number: int, **fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": f"worker-{number}",
        "role": "worker",
        "state": "RUNNING",
        "silent": False,
        "slots_busy": 3,
    }
    return {**plain, "counters": {"claims_taken": 10}, "x_slots": 8, "x_store": "up", "x_redis": "up", **fields}


def test_only_workers_that_can_take_something_count_their_slots() -> None:
    children = [
        worker(0),
        worker(1, silent=True),
        worker(2, state="BACKOFF", slots_busy=None, x_slots=None),
        worker(3, x_redis="down"),
        worker(4, x_store="down"),
        {"name": "dispatcher-0", "role": "dispatcher", "state": "RUNNING"},
    ]

    found = crew_of({"state": "DEGRADED", "children": children})

    assert found == Crew(
        workers=5,
        slots=8,
        busy=3,
        unable=(
            "worker-1 is silent: stopped, or it hangs",
            "worker-2 is BACKOFF",
            "worker-3 does not reach Redis and takes work from the store alone",
            "worker-4 does not reach the durable store, or can not write to it",
        ),
        claims=50,
    )
    assert found.able == 1


def test_a_worker_that_does_not_tell_its_slots_leaves_them_unknown() -> None:
    """One of an older release, in the middle of an update."""
    assert crew_of({"state": "DRAINING", "children": [worker(0, x_slots=None)]}) == Crew(
        workers=1, slots=None, busy=3, draining=True, claims=10
    )
