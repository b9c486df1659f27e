"""How a run begins: the insert, the replay of a failed run, and a later call's higher priority (group 6)."""

from __future__ import annotations

from collections.abc import Sequence

from kernel.dispatch import round_of
from kernel.records import (
    INSTANCE_VERSION,
    RUNS_KEPT,
    Instance,
    RunRecord,
    StepRecord,
    definition_key,
    to_document,
)
from kernel.states import FAILED, RUNNING, STEP_SATISFIES, TERMINAL
from kernel.store.conditional import (
    Add,
    Append,
    AtLeast,
    Change,
    Clear,
    Equals,
    Insert,
    LowerTo,
    OneOf,
    Put,
    PutNow,
    Transition,
)
from kernel.store.tables import INSTANCES
from kernel.transitions.parts import UNCLAIM, transition

_OF_ONE_RUN = ("finish_time", "resume", "wait", "error", "finalizer", "parked", "permit_wait", "deferred")


def create(
    *,
    workflow_id: str,
    type_: str,
    biz_key: str,
    fingerprint: str,
    step_names: Sequence[str],
    input_: bytes,
    priority: int,
    now_ms: int,
    start_delay_ms: int = 0,
    commit_id: str,
) -> Insert:
    """A new instance: all steps pending, claimable at once or after the start delay (rec-new-claimable)."""
    instance = Instance(
        v=INSTANCE_VERSION,
        workflow_id=workflow_id,
        type=type_,
        biz_key=biz_key,
        definition_fingerprint=fingerprint,
        definition_key=definition_key(type_, fingerprint),
        status=RUNNING,
        business_priority=priority,
        input=input_,
        steps=tuple(StepRecord(name=name) for name in step_names),
        outputs={},
        workflow_run=1,
        retry_count=0,
        revision=1,
        deaths=0,
        created_time=now_ms,
        run_time=now_ms + start_delay_ms if start_delay_ms else None,
        claimable_time=now_ms + start_delay_ms,
        commit_ids=(commit_id,),
    )
    return Insert("create", INSTANCES, workflow_id, to_document(instance))


def replay_failed(instance: Instance, *, input_: bytes, priority: int, commit_id: str) -> Transition:
    """failed → running with a new input; completed and skipped steps keep their results (sor-failed-replay).

    Steps that were neither are normalised to pending, whatever they were at, so that nothing waits without a
    wait (sor-replay-steps, sor-replay-unfinished). Two racing replays: the second meets status `running`.
    """
    steps: list[Change] = []
    for index, step in enumerate(instance.steps):
        if step.status not in STEP_SATISFIES:
            fresh = StepRecord(name=step.name, last_signal_id=step.last_signal_id)
            steps.append(Put(f"steps.{index}", to_document(fresh)))
    guards = (
        Equals("status", FAILED),
        Equals("workflow_run", instance.workflow_run),
        Equals("definition_key", instance.definition_key),
    )
    changes = (*_new_run(instance, input_, priority), *steps)
    return transition("replay_failed", instance.workflow_id, guards, changes, commit_id)


def fresh_run(
    instance: Instance,
    *,
    type_: str,
    fingerprint: str,
    step_names: Sequence[str],
    input_: bytes,
    priority: int,
    commit_id: str,
) -> Transition:
    """A terminal instance starts over from nothing, with the steps of the plan at hand (DECISIONS 15, detail 13)."""
    changes = (
        *_new_run(instance, input_, priority),
        Put("type", type_),
        Put("definition_fingerprint", fingerprint),
        Put("definition_key", definition_key(type_, fingerprint)),
        Put("steps", [to_document(StepRecord(name=name)) for name in step_names]),
        Put("outputs", {}),
    )
    guards = (OneOf("status", TERMINAL), Equals("workflow_run", instance.workflow_run))
    return transition("fresh_run", instance.workflow_id, guards, changes, commit_id)


def _new_run(instance: Instance, input_: bytes, priority: int) -> tuple[Change, ...]:
    summary = RunRecord(
        workflow_run=instance.workflow_run,
        status=instance.status,
        finish_time=instance.finish_time,
        error=instance.error,
        round=round_of(instance.input),
    )
    return (
        Put("status", RUNNING),
        Put("input", input_),
        Add("retry_count", 1),
        Add("workflow_run", 1),
        LowerTo("business_priority", priority),
        PutNow("claimable_time"),
        PutNow("run_time"),
        Put("finalizing_ms", 0),
        Put("deaths", 0),
        Append("runs", to_document(summary), RUNS_KEPT),
        *UNCLAIM,
        *(Clear(field) for field in _OF_ONE_RUN),
    )


def raise_priority(workflow_id: str, priority: int) -> Transition:
    """Only ever upwards: P3 → P1, never back (sor-priority-rise). A smaller number is a higher priority."""
    return transition(
        "raise_priority",
        workflow_id,
        (AtLeast("business_priority", priority + 1),),
        (Put("business_priority", priority),),
        None,
    )
