"""The checkers of these tests find what they look for: a rule that is broken by hand is named."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.ids import workflow_id_for
from tests.faults.effects import ENTER, LEAVE, Effect
from tests.faults.invariants import broken_in, findings, orphans

KEY = "job"
ROW: dict[str, Any] = {
    "workflow_id": workflow_id_for(KEY),
    "biz_key": KEY,
    "status": "completed",
    "revision": 5,
    "workflow_run": 1,
    "outputs": {"a": b"1"},
    "steps": [{"name": "a", "status": "completed", "attempt": 1}],
}
CLAIM = {"claim_token": "t", "claim_time": 1, "worker_id": "w", "worker": "here", "claimable_time": 9}


def effect(what: str, at_ms: int, worker_id: str = "w1", attempt: int = 1) -> Effect:
    return Effect(
        what=what, at_ms=at_ms, wall_ms=at_ms, pid=int(worker_id[1:]), worker_id=worker_id,
        workflow_id=ROW["workflow_id"], run=1, step="a", attempt=attempt,
    )  # fmt: skip


ONCE = [effect(ENTER, 900), effect(LEAVE, 990)]


def test_what_is_whole_is_let_pass() -> None:
    sleeping = ROW | {"status": "waiting", "claimable_time": 9, "outputs": {}}
    sleeping["steps"] = [{"name": "a", "status": "waiting", "wait": {"kind": "timer"}}]
    killed_and_again = [effect(ENTER, 800), effect(ENTER, 900, "w2"), effect(LEAVE, 990, "w2")]

    assert findings([ROW], ONCE, [KEY]) == []
    assert findings([ROW], killed_and_again, [KEY]) == []
    assert list(broken_in(sleeping)) == []
    assert list(broken_in(ROW | {"status": "running"} | CLAIM)) == []
    assert orphans([ROW]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": {}}, "step a is completed, outputs []"),
        ({"steps": [{"name": "a", "status": "pending"}]}, "step a is pending, outputs ['a']"),
        ({"steps": [{"name": "a", "status": "waiting"}], "outputs": {}}, "is waiting with wait None"),
        ({"status": "running", "claim_token": "t", "claimable_time": 9}, "half a claim"),
        (CLAIM, "completed and yet ['claim_token', 'claimable_time']"),
        ({"status": "running"}, "nobody will ever look at it again"),
        ({"status": "waiting"} | CLAIM, "waits and is claimed"),
    ],
)
def test_a_row_that_shows_one_half_is_found(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(broken_in(ROW | change))


@pytest.mark.parametrize(
    ("rows", "effects", "words"),
    [
        ([], [], "job: 0 rows"),
        ([ROW, ROW], ONCE, "job: 2 rows"),
        ([ROW | {"workflow_id": "wf-1"}], [], "has the id wf-1"),
        ([ROW], [*ONCE, effect(ENTER, 1_010, "w2", 2)], "attempt 2 of a entered, it has ended in 1"),
        ([ROW], [effect(ENTER, 900), effect(ENTER, 950, "w2"), effect(LEAVE, 960, "w2"), effect(LEAVE, 970)],
         "by 1 and 2 side by side"),
        ([ROW], [effect(ENTER, 900), effect(ENTER, 910)], "twice at once in 1"),
    ],
)  # fmt: skip
def test_what_rows_and_effects_tell_together_is_found(rows: list[Any], effects: list[Effect], words: str) -> None:
    assert words in "\n".join(findings(rows, effects, [KEY]))


def test_a_claim_without_a_holder_is_found() -> None:
    assert orphans([ROW | {"status": "running"} | CLAIM]) == [KEY]
