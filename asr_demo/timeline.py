"""What can be seen of a job while it runs: lines for what has just changed, and a table of where the time went.

Pure: it looks at successive records of one instance, as any client reads them, and never at the processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from asr_demo.speech import AsrTask
from kernel import Instance, KernelError, StepRecord, decode

_TOKEN_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened. `at_s` counts from the job's start."""

    at_s: float
    step: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One step for the table. Times in milliseconds; `external_ms` is waiting for others."""

    step: str
    status: str
    attempts: int
    takeovers: int
    worker: str
    executed_ms: int
    external_ms: int
    waiting_for: str


@dataclass(frozen=True, slots=True)
class About:
    """What a job is about, for its first line: its object's id, the business round, and the resource it works on."""

    object_id: str
    round: str
    resource: str


class Timeline:
    """Remembers the last record and says what a newer one changed.

    Times count from `origin_ms` (milliseconds since the epoch), or from the instance's creation. The first line names
    object, workflow, round and resource; a claim has the number of its token among those that were seen, and a task of
    the speech service its id: who reads on can tell one round, claim or task from the next (id-sample-names).
    """

    def __init__(self, about: About, origin_ms: int | None = None) -> None:
        self._about = about
        self._origin_ms = origin_ms
        self._last: Instance | None = None
        self._names: dict[str, str] = {}
        self._claims: list[str] = []
        self._tasks: set[str] = set()

    def learn(self, names: Mapping[str, str]) -> None:
        """Names for people of the owners of claims: worker_id → `worker-1 (pid 4127)`."""
        self._names.update(names)

    def see(self, instance: Instance) -> list[Line]:
        """Lines for everything that changed since the last call; wall-clock times come from the record."""
        lines = [self._beginning(instance)] if self._last is None else []
        self._count_claim(instance)
        before = None if self._last is None else self._last.steps
        for index, step in enumerate(instance.steps):
            old = StepRecord(name=step.name) if before is None else before[index]
            lines.extend(self._changed(instance, old, step))
        if self._last is not None and self._last.status != instance.status and instance.finish_time is not None:
            lines.append(Line(self._since(instance, instance.finish_time), "", f"workflow {instance.status}"))
        self._last = instance
        return lines

    def rows(self, instance: Instance) -> list[Row]:
        return [self._row(step) for step in instance.steps]

    def _changed(self, instance: Instance, old: StepRecord, step: StepRecord) -> list[Line]:
        lines: list[Line] = []
        started_s = self._since(instance, step.started_time)
        if step.takeovers > old.takeovers:
            text = (
                f"taken over by {self._entrant(instance, step)}, attempt {step.attempt}: the last one never committed"
            )
            lines.append(Line(started_s, step.name, text))
        elif step.started_time != old.started_time and step.status != "waiting":
            again = f", attempt {step.attempt}" if step.attempt > 1 else ""
            woken = f", woken by {step.resume.kind}" if step.resume is not None else ""
            lines.append(Line(started_s, step.name, f"entered by {self._entrant(instance, step)}{again}{woken}"))
        lines.extend(self._new_task(started_s, step))
        if step.wait is not None and (old.wait is None or old.wait.wait_id != step.wait.wait_id):
            lines.append(Line(self._since(instance, step.wait.since_time), step.name, waiting_for(step)))
        if step.failures > old.failures and step.error is not None:
            lines.append(Line(started_s, step.name, f"failed: {step.error.type}: {step.error.message}"))
        if step.status != old.status and step.status in ("completed", "skipped", "failed"):
            took = f" after {step.executed_ms / 1000:.2f} s of work"
            lines.append(Line(self._since(instance, step.finish_time), step.name, step.status + took))
        return lines

    def _beginning(self, instance: Instance) -> Line:
        about = self._about
        text = f"object {about.object_id}, workflow {instance.workflow_id}, round {about.round}, {about.resource}"
        return Line(self._since(instance, instance.created_time), "", text)

    def _count_claim(self, instance: Instance) -> None:
        if instance.claim_token is not None and instance.claim_token not in self._claims:
            self._claims.append(instance.claim_token)

    def _entrant(self, instance: Instance, step: StepRecord) -> str:
        """Who entered the step, and under which claim where that is still held: a short claim may end unseen."""
        token = instance.claim_token
        if token is None or step.status != "running":
            return self._worker(step)
        return f"{self._worker(step)} under claim t{self._claims.index(token) + 1} ({token[:_TOKEN_SHOWN]})"

    def _new_task(self, at_s: float, step: StepRecord) -> list[Line]:
        """The task at the speech service, once it is in the step's checkpoint."""
        task = _asr_task(step)
        if task is None or not task.task_id or task.task_id in self._tasks:
            return []
        self._tasks.add(task.task_id)
        return [Line(at_s, step.name, f"is task {task.task_id} of provider {task.provider}")]

    def _row(self, step: StepRecord) -> Row:
        # While a step waits, the attempt in progress was rolled back and counts again when it is resumed (B-03).
        attempts = step.attempt + 1 if step.status == "waiting" else step.attempt
        return Row(
            step=step.name,
            status=step.status,
            attempts=attempts,
            takeovers=step.takeovers,
            worker=self._worker(step),
            executed_ms=step.executed_ms,
            external_ms=step.external_wait_ms,
            waiting_for=waiting_for(step) if step.wait is not None else "",
        )

    def _worker(self, step: StepRecord) -> str:
        if step.worker_id is None:
            return ""
        return self._names.get(step.worker_id, step.worker_id[:8])

    def _since(self, instance: Instance, time_ms: int | None) -> float:
        origin_ms = instance.created_time if self._origin_ms is None else self._origin_ms
        return 0.0 if time_ms is None else max(0, time_ms - origin_ms) / 1000


def waiting_for(step: StepRecord) -> str:
    """One phrase for what a waiting step waits for, and until when."""
    wait = step.wait
    if wait is None:
        return ""
    until = ""
    if wait.poll_time is not None:
        clock = time.strftime("%H:%M:%S", time.localtime(wait.poll_time / 1000))
        until = f", looks again at {clock}" if wait.kind == "timer" else f", or looks at {clock}"
    if wait.kind == "timer":
        return f"waits outside{until}"
    return f"waits for signal {wait.signal_type}/{wait.wait_key}{until}"


def _asr_task(step: StepRecord) -> AsrTask | None:
    """The task that a speech step keeps; None for every other checkpoint."""
    if step.checkpoint is None:
        return None
    try:
        return decode(step.checkpoint, AsrTask, f"checkpoint of {step.name}")
    except KernelError:
        return None
