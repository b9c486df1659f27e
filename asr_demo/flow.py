"""The words that the demo's parts share: the job's input, the speech task in the checkpoint, the ports."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asr_demo.asr_client import AsrClient
from asr_demo.asr_protocol import AsrOptions
from asr_demo.notes import Note, Notes
from kernel import Clock, Context, PortsRequest, SystemClock, WorkflowCanceled

STEPS = ("preprocess", "transcribe_audio", "compose_content", "finalize")


class JobInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stable identities and the decisions made at entry; the audio itself is a file (req-input-two-kinds)."""

    tenant_id: str
    object_id: str
    fencing_token: str
    audio_path: str


class AsrTask(msgspec.Struct, frozen=True, tag="asr_task/1"):
    """What must be known to go on with a task at the provider, in any process (asr-checkpoint).

    `task_id` is empty until a submit was answered; from then on it is used for ever and never submitted again.
    """

    provider: str
    task_id: str
    submitted_at_ms: int
    deadline_ms: int
    poll_interval_ms: int
    options: AsrOptions
    poll_failures: int = 0


class AsrPolicy(msgspec.Struct, frozen=True):
    """How patient the flow is with a provider; no part of the workflow's version (asr-config)."""

    poll_interval_ms: int = 1_000
    deadline_ms: int = 15 * 60_000
    task_ttl_ms: int = 60 * 60_000
    poll_failures_max: int = 5
    call_timeout_s: float = 10.0


class Ports:
    """What the activities need from outside, made once per process after the fork."""

    def __init__(self, data_dir: str, notes: Notes, asr: dict[str, AsrClient], policy: AsrPolicy, clock: Clock) -> None:
        self.data_dir = data_dir
        self.notes = notes
        self.asr = asr
        self.policy = policy
        self.clock = clock

    def provider(self) -> str:
        """Where a new task goes today; a running one stays where it was submitted (asr-provider-pinned)."""
        return next(iter(self.asr))


def make_ports(request: PortsRequest, policy: AsrPolicy | None = None) -> Ports:
    """The ports of one process: notes in the data folder, and the companion `asr` at its address."""
    address = request.addresses.get("asr")
    clients = {} if address is None else {"pocketsphinx": AsrClient(address, provider="pocketsphinx")}
    return Ports(request.data_dir, Notes(Path(request.data_dir)), clients, policy or AsrPolicy(), SystemClock())


Activity = Callable[[Context], Any]


def in_ledger(activity: Activity) -> Activity:
    """Write every entry into the ledger before anything else happens."""

    def entered(ctx: Context) -> Any:
        ports: Ports = ctx.ports
        ports.notes.entered(
            ctx.workflow_id,
            ctx.workflow_run,
            ctx.step or "",
            ctx.attempt,
            ctx.worker_id,
            os.getpid(),
            ports.clock.wall_ms(),
        )
        return activity(ctx)

    entered.__name__ = activity.__name__
    return entered


def current_note(ctx: Context) -> Note:
    """The note, if this execution still works for its current round; WorkflowCanceled otherwise (fen-stop-on-old)."""
    job: JobInput = ctx.input
    note = ctx.ports.notes.read(job.object_id)
    if note is None:
        raise WorkflowCanceled(f"note {job.object_id} does not exist any more")
    if note.fencing_token != job.fencing_token:
        raise WorkflowCanceled(f"note {job.object_id} is in round {note.fencing_token}, not {job.fencing_token}")
    return note
