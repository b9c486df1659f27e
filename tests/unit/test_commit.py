"""Committing under a claim when answers get lost: the outcome is found out, never guessed (DECISIONS detail 3)."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from kernel import transitions
from kernel.clock import ManualClock
from kernel.engine.claims import ActiveClaim
from kernel.engine.commit import Committer
from kernel.errors import ClaimLost, OutcomeUnknown, StoreUnavailable
from kernel.ids import SeededIds
from kernel.records import Wait, to_instance
from kernel.store.conditional import Answer, Applied, Transition
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from kernel.transitions import Held


class Line(MemoryStore):
    """A store behind a line on which things happen: one script entry per `apply`, then all is well."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.script: list[Any] = []
        self.sent: list[Transition] = []
        self.blind = False

    def apply(self, transition: Transition) -> Answer:
        self.sent.append(transition)
        if self.script:
            return self.script.pop(0)(transition)  # type: ignore[no-any-return]
        return super().apply(transition)

    def get(self, table: str, key: str) -> Any:
        if self.blind:
            raise StoreUnavailable("blind")
        return super().get(table, key)

    def lost_before(self, transition: Transition) -> Answer:
        raise OutcomeUnknown("cut before it arrived")

    def lost_after(self, transition: Transition) -> Answer:
        super().apply(transition)
        raise OutcomeUnknown("cut after it was applied")

    def away(self, transition: Transition) -> Answer:
        raise StoreUnavailable("not sent")

    def late(self, transition: Transition) -> Answer:
        """The first copy of the write lands only now, just before this one."""
        super().apply(transition)
        return super().apply(transition)


class Case:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Line(self.clock)
        insert = transitions.create(
            workflow_id="wf-1",
            type_="job",
            biz_key="k",
            fingerprint="f",
            step_names=["a", "b"],
            input_=b"\x01\xc0",
            priority=1,
            now_ms=self.clock.wall_ms(),
            commit_id="c0",
        )
        self.store.insert(insert)
        held = Held("wf-1", "token-1")
        claim = transitions.claim(
            held, worker_id="w", worker="w", lease_ms=30_000, definition_keys=("job@f",), commit_id="c1"
        )
        answer = self.store.apply(claim)
        assert isinstance(answer, Applied)
        instance = to_instance(answer.document)
        self.claim = ActiveClaim(held, instance, self.clock, sent_at_ms=self.clock.boot_ms(), fence_ms=25_000)
        self.committer = Committer(self.store, SeededIds(1), _Pause())
        self.store.sent.clear()

    def begin(self) -> Any:
        build = partial(transitions.begin_step, self.claim.held, self.claim.instance, 0, worker_id="w")
        return self.committer.commit(self.claim, lambda commit_id: build(commit_id=commit_id))

    def row(self) -> Any:
        self.store.blind = False
        return self.store.get(INSTANCES, "wf-1")


class _Pause(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return False


@pytest.mark.req("clm-uncertain")
@pytest.mark.parametrize(
    ("script", "copies"),
    [
        (["lost_after"], 1),
        (["lost_before"], 2),
        (["lost_before", "lost_before", "lost_after"], 3),
        (["away", "away"], 3),
        (["lost_before", "away", "late"], 3),
        (["lost_before", "late"], 2),
    ],
)
def test_whatever_the_line_does_the_write_is_made_once_and_known(script: list[str], copies: int) -> None:
    case = Case()
    case.store.script = [getattr(case.store, name) for name in script]

    instance = case.begin()

    assert (instance.steps[0].status, instance.steps[0].attempt) == ("running", 1)
    assert case.row()["steps"][0]["attempt"] == 1
    assert len({transition.commit_id for transition in case.store.sent}) == 1, "the same transition, never another"
    assert len(case.store.sent) == copies


@pytest.mark.req("clm-uncertain", "core-miss-stops")
def test_an_outcome_that_can_not_be_found_out_ends_the_claim() -> None:
    case = Case()
    case.store.script = [case.store.lost_after]
    case.store.blind = True

    with pytest.raises(ClaimLost):
        case.begin()
    with pytest.raises(ClaimLost):
        case.begin()

    assert case.row()["steps"][0]["attempt"] == 1
    assert len(case.store.sent) == 1, "nothing is sent after that"


def test_an_attempt_that_is_not_due_yet_is_no_lost_claim() -> None:
    case = Case()
    case.begin()
    later = case.clock.wall_ms() + 500
    wait = Wait(wait_id="w1", kind="timer", step="a", step_index=0, poll_time=later, since_time=later - 500)
    suspend = partial(transitions.suspend_step, case.claim.held, 0, wait=wait, checkpoint=None, elapsed_ms=0, rest=None)
    case.committer.commit(case.claim, lambda commit_id: suspend(commit_id=commit_id))
    build = partial(transitions.activate_own, case.claim.held, case.claim.instance, 0, now_ms=later)

    assert case.committer.attempt(case.claim, lambda commit_id: build(commit_id=commit_id)) is None
    case.claim.check()
    case.clock.advance(500)
    woken = case.committer.attempt(case.claim, lambda commit_id: build(commit_id=commit_id))
    assert woken is not None
    assert woken.steps[0].status == "pending"

    case.store.apply(transitions.supersede("wf-1", commit_id="c9"))
    with pytest.raises(ClaimLost):
        case.committer.attempt(case.claim, lambda commit_id: build(commit_id=commit_id))
