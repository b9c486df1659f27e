"""A step that is to be entered again: later, at once, or when something happens. Decided once, then committed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kernel import transitions
from kernel.engine.outcomes import Continue, Retry, Suspend, wait_of
from kernel.engine.readiness import projected
from kernel.records import StepRecord, Wait
from kernel.states import STEP_PENDING, STEP_WAITING
from kernel.store.conditional import Transition
from kernel.transitions import Held, Rest

EVENTS = {Suspend: "step.suspended", Continue: "step.yielded", Retry: "step.retried"}


class Pause(msgspec.Struct, frozen=True):
    """What one invocation asked for, with its times fixed on the store's clock."""

    decision: Suspend | Continue | Retry
    wait: Wait | None = None
    due_time: int | None = None

    @property
    def event(self) -> str:
        return EVENTS[type(self.decision)]


def pause_of(decision: Suspend | Continue | Retry, name: str, index: int, *, now_ms: int, wait_id: str) -> Pause:
    """Fix the times of `decision` for step `name` at `index`; `wait_id` is fresh (DECISIONS detail 2)."""
    if isinstance(decision, Suspend):
        return Pause(decision, wait=wait_of(decision, name, index, wait_id, now_ms))
    if isinstance(decision, Retry) and decision.delay_ms is not None:
        return Pause(decision, due_time=now_ms + decision.delay_ms)
    return Pause(decision)


def after(steps: Sequence[StepRecord], index: int, pause: Pause) -> list[StepRecord]:
    """The steps as the pause will leave them."""
    if pause.wait is not None:
        return projected(steps, index, STEP_WAITING, wait=pause.wait)
    return projected(steps, index, STEP_PENDING, due_time=pause.due_time)


def transition(
    held: Held, index: int, pause: Pause, *, elapsed_ms: int, rest: Rest | None, commit_id: str
) -> Transition:
    """The write: with `rest` it also ends the claim."""
    decision = pause.decision
    if isinstance(decision, Suspend):
        assert pause.wait is not None
        return transitions.suspend_step(
            held,
            index,
            wait=pause.wait,
            checkpoint=decision.checkpoint,
            elapsed_ms=elapsed_ms,
            rest=rest,
            commit_id=commit_id,
        )
    if isinstance(decision, Continue):
        return transitions.yield_step(
            held, index, checkpoint=decision.checkpoint, elapsed_ms=elapsed_ms, rest=rest, commit_id=commit_id
        )
    return transitions.retry_step(
        held,
        index,
        error=decision.error,
        elapsed_ms=elapsed_ms,
        due_time=pause.due_time,
        rest=rest,
        commit_id=commit_id,
    )
