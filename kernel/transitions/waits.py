"""Suspension and activation (group 19). A wait belongs to its step; the top-level copy is for display.

Whoever activates names one step and the `wait_id` that it read: a late activation of an older wait of the same
step misses, although status and time look alike (DECISIONS details 1 and 2).
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel.records import Instance, Resume, ResumeKind, StepRecord, Wait, to_document
from kernel.states import RUNNING, STEP_PENDING, STEP_RUNNING, STEP_WAITING, WAITING
from kernel.store.conditional import Add, Change, Clear, Differs, Due, Equals, Guard, Missing, Put, PutNow, Transition
from kernel.transitions.parts import (
    PROGRESS,
    UNCLAIM,
    Held,
    Rest,
    executed,
    held,
    put_or_clear,
    resting,
    step_field,
    transition,
)


def suspend_step(
    claim: Held,
    index: int,
    *,
    wait: Wait,
    checkpoint: bytes | None,
    elapsed_ms: int,
    rest: Rest | None,
    commit_id: str,
) -> Transition:
    """Step waiting, checkpoint, wait, and — at the end of the claim — status, due time and the claim's release, in
    one write (slp-atomic). The attempt is rolled back: waiting consumes no budget (stp-attempt-suspend)."""
    guards = (*held(claim), Equals(step_field(index, "status"), STEP_RUNNING))
    changes = (
        Put(step_field(index, "status"), STEP_WAITING),
        Add(step_field(index, "attempt"), -1),
        put_or_clear(step_field(index, "checkpoint"), checkpoint),
        Put(step_field(index, "wait"), to_document(wait)),
        *executed(index, elapsed_ms),
        Clear(step_field(index, "resume")),
        Clear("resume"),
        *PROGRESS,
        *resting(rest),
    )
    return transition("suspend_step", claim.workflow_id, guards, changes, commit_id)


def activate_timer(instance: Instance, index: int, *, now_ms: int, commit_id: str) -> Transition:
    """The poll time of one step's wait has come: that step → pending, the instance → running, claimable now.

    It activates and does not run (slp-activate). For a signal wait this is the poll fallback.
    """
    wait = _wait(instance, index)
    guards = (*_waiting(instance, index), Due(step_field(index, "wait.poll_time")))
    kind: ResumeKind = "timer" if wait.kind == "timer" else "poll"
    changes = (*_activated(index, wait, Resume(kind=kind), now_ms), *_running(instance, index))
    return transition("activate_timer", instance.workflow_id, guards, changes, commit_id)


def activate_signal(
    instance: Instance,
    index: int,
    *,
    signal_id: str,
    now_ms: int,
    arrival_time: int | None = None,
    commit_id: str,
) -> Transition:
    """A signal matched one step's wait: the whole identity is in the guard (sig-activate-atomic).

    `resume.signal_id` proves the match, and `last_signal_id` keeps an unmarked inbox row from waking the next wait of
    the same step (sig-mark-before-unset, DECISIONS detail 11). The revision ties the write to the row in which the
    caller saw that no step had consumed this signal yet: a slow caller's write misses, whatever happened since (S9).

    `arrival_time` is when the inbox has got the signal, None: just now. There the external wait ends; what passes until
    somebody looks into the inbox is none of the outside's (lat-external).

    A row that rests `running` because another step is due later is woken too: nobody holds it, and nothing else would
    look at this wait before that step's time.
    """
    wait = _wait(instance, index)
    if wait.kind != "signal":
        raise ValueError(f"step {wait.step!r} of {instance.workflow_id} does not wait for a signal")
    resting_row: tuple[Guard, ...] = (Equals("status", WAITING),)
    if instance.status == RUNNING:
        resting_row = (Equals("status", RUNNING), Missing("claim_token"), Missing("parked"))
    guards = (
        *resting_row,
        Equals("revision", instance.revision),
        Equals(step_field(index, "status"), STEP_WAITING),
        Equals(step_field(index, "wait.wait_id"), wait.wait_id),
        Equals(step_field(index, "wait.signal_type"), wait.signal_type),
        Equals(step_field(index, "wait.wait_key"), wait.wait_key),
        Equals(step_field(index, "wait.generation"), wait.generation),
        Differs(step_field(index, "last_signal_id"), signal_id),
    )
    changes = (
        *_activated(index, wait, Resume(kind="signal", signal_id=signal_id), now_ms, arrival_time),
        Put(step_field(index, "last_signal_id"), signal_id),
        *_running(instance, index),
    )
    return transition("activate_signal", instance.workflow_id, guards, changes, commit_id)


def activate_own(claim: Held, instance: Instance, index: int, *, now_ms: int, commit_id: str) -> Transition:
    """A claim's holder finds that another of its waiting steps has become due: it goes on with it (detail 1)."""
    wait = _wait(instance, index)
    guards = (
        *held(claim),
        Equals(step_field(index, "status"), STEP_WAITING),
        Equals(step_field(index, "wait.wait_id"), wait.wait_id),
        Due(step_field(index, "wait.poll_time")),
    )
    kind: ResumeKind = "timer" if wait.kind == "timer" else "poll"
    changes = _activated(index, wait, Resume(kind=kind), now_ms)
    return transition("activate_own", claim.workflow_id, guards, changes, commit_id)


def earliest_wait(steps: Iterable[StepRecord]) -> Wait | None:
    """The wait that is shown at the top: the earliest poll time, else any wait for a signal."""
    waits = [step.wait for step in steps if step.status == STEP_WAITING and step.wait is not None]
    timed = [wait for wait in waits if wait.poll_time is not None]
    if timed:
        return min(timed, key=lambda wait: (wait.poll_time or 0, wait.step_index))
    return waits[0] if waits else None


def _wait(instance: Instance, index: int) -> Wait:
    wait = instance.steps[index].wait
    if wait is None:
        raise ValueError(f"step {instance.steps[index].name!r} of {instance.workflow_id} does not wait")
    return wait


def _waiting(instance: Instance, index: int) -> tuple[Guard, ...]:
    return (
        Equals("status", WAITING),
        Equals(step_field(index, "status"), STEP_WAITING),
        Equals(step_field(index, "wait.wait_id"), _wait(instance, index).wait_id),
    )


def _activated(
    index: int, wait: Wait, resume: Resume, now_ms: int, arrival_time: int | None = None
) -> tuple[Change, ...]:
    document = to_document(resume)
    return (
        Put(step_field(index, "status"), STEP_PENDING),
        Clear(step_field(index, "wait")),
        Clear(step_field(index, "due_time")),
        Put(step_field(index, "resume"), document),
        Add(step_field(index, "external_wait_ms"), _waited_ms(wait, now_ms, arrival_time)),
        Put("resume", document),
    )


def _waited_ms(wait: Wait, now_ms: int, arrival_time: int | None) -> int:
    """How long the outside was waited for: until the poll time or the signal, whichever came first. What passes from
    then to the activation is a wait for somebody who activates (lat-external)."""
    if wait.since_time is None:
        return 0
    ends = [at_ms for at_ms in (now_ms, arrival_time, wait.poll_time) if at_ms is not None]
    return max(0, min(ends) - wait.since_time)


def _running(instance: Instance, index: int) -> tuple[Change, ...]:
    others = [step for k, step in enumerate(instance.steps) if k != index]
    left = earliest_wait(others)
    return (
        Put("status", RUNNING),
        PutNow("claimable_time"),
        Clear("wait") if left is None else Put("wait", to_document(left)),
        *UNCLAIM,
    )
