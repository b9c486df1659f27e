"""Which steps may run now, and where an instance rests when none may (group 14). Pure: records in, answer out.

There is one algorithm; a linear workflow is the case in which every ready set has one step (dag-linear-special).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kernel.definition import Plan
from kernel.records import Instance, StepRecord
from kernel.states import (
    STEP_ENTERABLE,
    STEP_FAILED,
    STEP_PENDING,
    STEP_SATISFIES,
    STEP_WAITING,
    StepStatus,
)
from kernel.transitions import Rest
from kernel.transitions.waits import earliest_wait

Dependencies = tuple[tuple[int, ...], ...]


def dependencies(plan: Plan) -> Dependencies:
    """For each step the positions of those it depends on."""
    position = {step.name: index for index, step in enumerate(plan.steps)}
    return tuple(tuple(position[name] for name in step.depends_on) for step in plan.steps)


def enterable(depends_on: Dependencies, steps: Sequence[StepRecord]) -> list[int]:
    """Steps that may be entered as far as the graph goes: all dependencies completed or skipped (dag-algorithm)."""
    satisfied = [step.status in STEP_SATISFIES for step in steps]
    return [
        index
        for index, step in enumerate(steps)
        if step.status in STEP_ENTERABLE and all(satisfied[k] for k in depends_on[index])
    ]


def ready(open_steps: Sequence[int], steps: Sequence[StepRecord], now_ms: int, handed: str | None = None) -> list[int]:
    """Those of the enterable steps that are to run now: not held back by a retry back-off or a permit wait. The step to
    which a place was `handed` waits no longer."""
    return [k for k in open_steps if (steps[k].due_time or 0) <= now_ms or steps[k].name == handed]


def ready_time(depends_on: Dependencies, instance: Instance, index: int) -> int:
    """Since when an enterable step could have run: from the beginning of the run, or from the end of its last
    dependency in it. A dependency that an earlier run completed held nothing up in this one."""
    began = instance.created_time if instance.run_time is None else instance.run_time
    return max([began, *(instance.steps[k].finish_time or 0 for k in depends_on[index])])


def all_satisfied(steps: Sequence[StepRecord]) -> bool:
    return all(step.status in STEP_SATISFIES for step in steps)


def first_failed(steps: Sequence[StepRecord]) -> StepRecord | None:
    return next((step for step in steps if step.status == STEP_FAILED), None)


def due_waits(steps: Sequence[StepRecord], now_ms: int) -> list[int]:
    """Waiting steps whose poll time has come."""
    return [
        index
        for index, step in enumerate(steps)
        if step.status == STEP_WAITING
        and step.wait is not None
        and step.wait.poll_time is not None
        and step.wait.poll_time <= now_ms
    ]


def rest(depends_on: Dependencies, steps: Sequence[StepRecord]) -> Rest:
    """Where a claim that ends now leaves the instance (DECISIONS detail 1).

    running while a step is enterable, now or later: claimable at the earliest of all due and poll times; waiting
    only when every step that could go on waits. A wait without a poll time has no claimable time at all.
    """
    open_steps = enterable(depends_on, steps)
    wait = earliest_wait(steps)
    polls = [step.wait.poll_time for step in steps if step.status == STEP_WAITING and step.wait is not None]
    timed = [poll for poll in polls if poll is not None]
    if not open_steps:
        return Rest(status="waiting", claimable_time=min(timed, default=None), wait=wait)
    dues = [steps[k].due_time for k in open_steps]
    if any(due is None for due in dues):
        return Rest(status="running", now=True, wait=wait)
    times = [due for due in dues if due is not None]
    return Rest(status="running", claimable_time=min([*times, *timed]), wait=wait)


def projected(steps: Sequence[StepRecord], index: int, status: StepStatus, **fields: object) -> list[StepRecord]:
    """The steps as they will be when step `index` has `status`: what a merged commit is decided on."""
    result = list(steps)
    result[index] = msgspec.structs.replace(steps[index], status=status, **fields)
    return result


def only_successor(depends_on: Dependencies, steps: Sequence[StepRecord], completed: int) -> int | None:
    """The step to enter in the same write that completes `completed`: the only one that becomes enterable.

    None while another step waits: between two steps is when a holder looks whether what that one waits for has come,
    and a chain of long steps would put it off to the end of the chain.
    """
    if any(step.status == STEP_WAITING for step in steps):
        return None
    after = enterable(depends_on, projected(steps, completed, "completed"))
    if len(after) == 1 and steps[after[0]].status == STEP_PENDING and steps[after[0]].due_time is None:
        return after[0]
    return None
