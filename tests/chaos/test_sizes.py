"""What a run counts of itself, and that a run of an hour that was too small is no good one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.checker import Evidence
from tests.chaos.hits import Hits, Pause, Span
from tests.chaos.producers import LARGE
from tests.chaos.sizes import ACKNOWLEDGED, HOUR_S, Size, sizes, table, too_small
from tests.chaos.words import Word


def reached(evidence: Evidence) -> dict[str, int]:
    return {size.what: size.reached for size in sizes(evidence)}


def listeners(story: str, count: int, status: str = "completed") -> list[dict[str, Any]]:
    return [{"biz_key": f"listens:{story}:{n}", "type": "listens", "status": status} for n in range(count)]


def test_what_happened_is_counted_and_not_what_was_asked_for() -> None:
    found = reached(
        Evidence(
            rows=[*listeners("one", LARGE), *listeners("two", LARGE - 1), *listeners("two", 1, "waiting")],
            inbox=[{"match_time": 7}, {"match_time": None}],
            hits=Hits(kills=3, deaths=2, flushes=4, pauses=[Pause(1, Span(0, 9))]),
        )
    )
    assert found == {
        "workflows": 2 * LARGE,
        "pairs of signal and wait": 1,
        f"fan-outs to {LARGE}": 1,
        "kills": 3,
        "pauses past the lease": 1,
        "wipes of Redis": 4,
        f"store restarts after {ACKNOWLEDGED} acknowledged writes": 0,
        "children killed": 2,
    }


def test_a_store_restart_counts_when_enough_was_acknowledged_since_the_one_before() -> None:
    words = [Word(what="start", key=f"k{n}", told=True, at_ms=1_000 + n) for n in range(ACKNOWLEDGED)]
    words += [Word(what="signal", key=f"s{n}", told=True, at_ms=3_000 + n) for n in range(ACKNOWLEDGED - 1)]
    words += [Word(what="signal", key="asked", at_ms=3_500), Word(what="replay", key="k", told=True, at_ms=3_500)]
    evidence = Evidence(rows=[], words=words, hits=Hits(store_restarts=[2_000, 4_000]))
    assert list(reached(evidence).values())[-2] == 1
    evidence.words.append(Word(what="object", key="o", told=True, at_ms=3_900))
    assert list(reached(evidence).values())[-2] == 2


@pytest.mark.req("dc-tests-fault")
def test_an_hour_that_was_too_small_is_a_finding_and_a_shorter_run_shows_its_pace() -> None:
    few = [Size("kills", 59, 1_200), Size("workflows", 5_000, 5_000)]
    assert list(too_small(few, HOUR_S)) == ["size: 59 kills, 1200 are wanted of an hour"]
    assert list(too_small(few, HOUR_S - 1)) == []
    assert [line.split() for line in table(few, 180)] == [
        ["size", "reached", "an", "hour", "wanted"],
        ["kills", "59", "1180", "1200"],
        ["workflows", "5000", "100000", "5000"],
    ]
