"""Telling the observer of commits, and what several writers of the same kind of commit have to tell.

Always after the commit and with the record that it left (obs-after-commit): an event that was told is a fact, and a
crash in between costs an event and never a fact.
"""

from __future__ import annotations

import logging
from typing import Protocol

from kernel.engine.ports import Observer
from kernel.errors import KernelError
from kernel.records import Instance
from kernel.states import FAILING, STEP_RUNNING

log = logging.getLogger("kernel.engine")


class Note(Protocol):
    """`tell` with its observer: what the parts of the engine take."""

    def __call__(
        self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object
    ) -> None: ...


def silent(event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
    """Where nobody listens."""


def tell(
    observer: Observer, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object
) -> None:
    """After the fact; nothing that the observer does reaches the path (S13)."""
    try:
        observer.note(event, instance=instance, step=step, **fields)
    except Exception:
        log.debug("the observer failed on %s", event, exc_info=True)


def woken(note: Note, instance: Instance, index: int, *, was_waiting: bool) -> None:
    """A wait of step `index` is over. The status of the instance is another only if it had been `waiting`: a row that
    rested `running` for another step's sake still is."""
    resume = instance.steps[index].resume
    note("step.resumed", instance=instance, step=index, kind=None if resume is None else resume.kind)
    if was_waiting:
        note("workflow.running", instance=instance)


def left_behind(note: Note, instance: Instance, worker_id: str | None) -> None:
    """The claim of `worker_id` was ended by somebody else: the attempts that it had entered will never be committed.

    Told where the claim ends and not where the step is entered again, which may never be. A step that an even earlier
    worker left was told of then. An attempt that ignored its timeout has failed by that, whoever finds it.
    """
    for index, step in enumerate(instance.steps):
        if step.status == STEP_RUNNING and step.worker_id == worker_id and step.stuck_attempt != step.attempt:
            note("step.lost", instance=instance, step=index)


def told_lost(note: Note, instance: Instance, error: KernelError) -> None:
    """A worker has given its claim up. Not with the record: what it knows may be older than what others have committed
    since, and of the same revision, because a takeover does not raise it."""
    note(
        "claim.lost",
        workflow_id=instance.workflow_id,
        type=instance.type,
        trace_id=instance.trace_id,
        worker_id=instance.worker_id,
        error=str(error),
        code=error.code,
    )


def put_aside(note: Note, instance: Instance, worker_id: str | None) -> None:
    """A suspect has killed its last worker: parked, or failing where its Definition asks for an end."""
    left_behind(note, instance, worker_id)
    note("workflow.failing" if instance.status == FAILING else "workflow.parked", instance=instance)


def superseded(note: Note, instance: Instance) -> None:
    """Ended from outside. Its steps stay as they were (B-13), and nobody will commit what is being executed."""
    for index, step in enumerate(instance.steps):
        if step.status == STEP_RUNNING:
            note("step.canceled", instance=instance, step=index)
    note("workflow.canceled", instance=instance)
