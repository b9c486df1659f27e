"""The words that the demo's parts share: the job's input, the ports, and the ledger around every activity."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from asr_demo.asr_client import AsrClient
from asr_demo.composer import summarize
from asr_demo.ledger import Ledger
from asr_demo.notes import Note, Notes
from asr_demo.showing import PACE_S
from kernel import Clock, Context, NonRetryable, PortsRequest, SystemClock, WorkflowCanceled

STEPS = ("preprocess", "transcribe_audio", "compose_content", "finalize")
ASR_PROVIDER = "pocketsphinx"
PAGE = "web"
"""The companion that shows the texts as they are written, where there is one."""


class JobInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stable identities and the decisions made at entry; the audio itself is a file (req-input-two-kinds)."""

    tenant_id: str
    object_id: str
    fencing_token: str
    audio_path: str


class AsrPolicy(msgspec.Struct, frozen=True):
    """How patient the flow is with a provider; no part of the workflow's version (asr-config)."""

    poll_interval_ms: int = 1_000
    deadline_ms: int = 15 * 60_000
    task_ttl_ms: int = 60 * 60_000
    poll_failures_max: int = 5
    call_timeout_s: float = 10.0


class Ports:
    """What any activity of the demo may need from outside, made once per process after the fork."""

    def __init__(
        self,
        data_dir: str,
        asr: Mapping[str, AsrClient],
        policy: AsrPolicy,
        clock: Clock,
        ledger: Ledger,
        *,
        pace_s: float = 0.0,
    ) -> None:
        self.data_dir = data_dir
        self.asr = asr
        self.policy = policy
        self.clock = clock
        self.ledger = ledger
        self.pace_s = pace_s
        """Between two pieces of a text that is shown; 0 where nobody reads along (see `showing`)."""

    def provider(self) -> str:
        """Where a new task goes today; a running one stays where it was submitted (asr-provider-pinned)."""
        return next(iter(self.asr))


class NotePorts(Ports):
    """The ports of single jobs: besides the general ones their notes, and who writes summaries."""

    def __init__(self, general: Ports, notes: Notes, compose: Callable[[tuple[str, ...]], str] = summarize) -> None:
        super().__init__(
            *(general.data_dir, general.asr, general.policy, general.clock, general.ledger), pace_s=general.pace_s
        )
        self.notes = notes
        self.compose = compose


def general_ports(request: PortsRequest) -> Ports:
    """What every application of the demo has: the companion `asr` at its address, if there is one, and the ledger."""
    address = request.addresses.get("asr")
    asr = {} if address is None else {ASR_PROVIDER: AsrClient(address, provider=ASR_PROVIDER)}
    pace_s = PACE_S if PAGE in request.addresses else 0.0
    ledger = Ledger(Path(request.data_dir))
    return Ports(request.data_dir, asr, AsrPolicy(), SystemClock(), ledger, pace_s=pace_s)


def make_ports(request: PortsRequest) -> NotePorts:
    """The ports of one process that runs single jobs: their notes lie in the data folder."""
    return NotePorts(general_ports(request), Notes(Path(request.data_dir)))


Activity = Callable[[Context], Any]
Wrap = Callable[[str, Activity], Activity]
"""What an application does to the activity of a step, by the step's name."""


def in_ledger(activity: Activity) -> Activity:
    """Write every entry into the ledger before anything else happens, and how long it took when it came back."""

    def begin(ctx: Context) -> Callable[[], None]:
        ports: Ports = ctx.ports
        ledger, clock = ports.ledger, ports.clock  # taken now: at the end the fence may have closed
        came_ms = clock.boot_ms()
        number = ledger.entered(ctx, os.getpid(), clock.wall_ms())
        return lambda: ledger.left(number, clock.boot_ms() - came_ms)

    def entered(ctx: Context) -> Any:
        left = begin(ctx)
        try:
            return activity(ctx)
        finally:
            left()

    async def entered_async(ctx: Context) -> Any:
        left = await asyncio.to_thread(begin, ctx)  # a file that others lock: never on the loop that all share
        try:
            return await activity(ctx)
        finally:
            await asyncio.to_thread(left)

    chosen = entered_async if inspect.iscoroutinefunction(activity) else entered
    chosen.__name__ = activity.__name__
    return chosen


def current_note(ctx: Context) -> Note:
    """The note, if this execution still works for its current round (fen-stop-on-old).

    NonRetryable when it is in another: canceled would be for good, and the next round is the same workflow's.
    WorkflowCanceled when the note is gone.
    """
    note: Note | None = ctx.ports.notes.read(ctx.input.object_id)
    if note is None:
        raise WorkflowCanceled(f"note {ctx.input.object_id} does not exist any more")
    if note.fencing_token != ctx.input.fencing_token:
        raise NonRetryable(
            f"note {ctx.input.object_id} is in round {note.fencing_token}, not {ctx.input.fencing_token}"
        )
    return note
