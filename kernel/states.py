"""The states of an instance and of a step, and what they mean for scheduling (rec-status-set, stp-states).

    instance   running ──► completed                 step   pending ──► running ──► completed | skipped | failed
               running ◄─► waiting                          running ──► waiting ──► pending
               running ──► failing ──► failed               running ──► pending          (retry, yield, unbegin)
               failed  ──► running   (replay)               failed  ──► pending          (replay)
               running | waiting | failing ──► canceled

Only the constructors of `kernel.transitions` move a record from one state to another.
"""

from __future__ import annotations

from typing import Literal

from kernel.errors import InvalidPriority

InstanceStatus = Literal["running", "waiting", "failing", "completed", "failed", "canceled"]
StepStatus = Literal["pending", "running", "waiting", "completed", "skipped", "failed"]

RUNNING: InstanceStatus = "running"
WAITING: InstanceStatus = "waiting"
FAILING: InstanceStatus = "failing"
COMPLETED: InstanceStatus = "completed"
FAILED: InstanceStatus = "failed"
CANCELED: InstanceStatus = "canceled"

INSTANCE_STATUSES: tuple[InstanceStatus, ...] = (RUNNING, WAITING, FAILING, COMPLETED, FAILED, CANCELED)
CLAIMABLE: tuple[InstanceStatus, ...] = (RUNNING, FAILING)
LIVE: tuple[InstanceStatus, ...] = (RUNNING, WAITING, FAILING)
TERMINAL: tuple[InstanceStatus, ...] = (COMPLETED, FAILED, CANCELED)

STEP_PENDING: StepStatus = "pending"
STEP_RUNNING: StepStatus = "running"
STEP_WAITING: StepStatus = "waiting"
STEP_COMPLETED: StepStatus = "completed"
STEP_SKIPPED: StepStatus = "skipped"
STEP_FAILED: StepStatus = "failed"

STEP_STATUSES: tuple[StepStatus, ...] = (
    STEP_PENDING,
    STEP_RUNNING,
    STEP_WAITING,
    STEP_COMPLETED,
    STEP_SKIPPED,
    STEP_FAILED,
)
STEP_SATISFIES: tuple[StepStatus, ...] = (STEP_COMPLETED, STEP_SKIPPED)
"""Statuses that satisfy a dependant (stp-skip-satisfies)."""
STEP_ENTERABLE: tuple[StepStatus, ...] = (STEP_PENDING, STEP_RUNNING)
"""Statuses from which an attempt may be entered: `running` only says that an attempt was not committed."""

LANES = 4
PRIORITIES = {"realtime": 0, "async": 1, "background": 2, "compensation": 3}
"""Business priorities by name; the number is the lane, and the smaller one is the higher priority (lane-meaning)."""


def lane_of(priority: int | str) -> int:
    """The lane of a business priority: realtime, async, background, compensation, or 0–3 (B-43)."""
    if isinstance(priority, str) and priority in PRIORITIES:
        return PRIORITIES[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority < len(PRIORITIES):
        return priority
    raise InvalidPriority(f"priority: {priority!r} is neither 0–3 nor one of {', '.join(PRIORITIES)}")
