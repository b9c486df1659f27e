"""The `live_summary`: wait for the recording of a show, transcribe it, compose a summary, deliver it (e2e-story)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from asr_demo.activities import Audio, Composed, checked_audio
from asr_demo.flow import Wrap, in_ledger
from asr_demo.model import ModelBusy
from asr_demo.showing import paced
from asr_demo.speech import AsrTask, Transcribed, transcribe
from asr_demo.subscriptions import SummaryInput, SummaryPorts
from kernel import Context, Definition, NonRetryable, Sleep, Step, WaitForSignal

RECORDING_READY = "recording_ready"
WAIT_STEP = "wait_for_recording"
STEPS = (WAIT_STEP, "preprocess", "transcribe_audio", "compose_content", "finalize")
POLL_FALLBACK = timedelta(seconds=30)
COMPOSE_TIMEOUT = timedelta(seconds=6)


class Recording(msgspec.Struct, frozen=True):
    """Output of `wait_for_recording`: where the recording lies, and of which broadcast it is."""

    path: str
    generation: int


def wait_for_recording(ctx: Context) -> Recording | WaitForSignal:
    """Wait until somebody says that the recording is there; whoever woke us, the show itself decides (slp-reread)."""
    ports: SummaryPorts = ctx.ports
    job: SummaryInput = ctx.input
    ports.current(job)
    show = ports.shows.read(job.show_id)
    if show is None:
        raise NonRetryable(f"there is no show {job.show_id}")
    if show.recording is None:
        return WaitForSignal(RECORDING_READY, show.show_id, show.generation, poll_fallback=POLL_FALLBACK)
    return Recording(show.recording, show.generation)


def preprocess(ctx: Context) -> Audio:
    """Check that the recording is one before anybody pays for it."""
    ctx.ports.current(ctx.input)
    return checked_audio(_recording(ctx))


def transcribe_audio(ctx: Context) -> Transcribed | Sleep:
    """Have the recording transcribed for this subscription."""
    ports: SummaryPorts = ctx.ports
    job: SummaryInput = ctx.input
    ports.current(job)
    return transcribe(ctx, _recording(ctx), lambda _whole, segments: ports.save(job, "segments", list(segments)))


def _recording(ctx: Context) -> Path:
    recording = ctx.output(WAIT_STEP, Recording)
    assert recording is not None  # the step before has completed, and none of these is ever skipped
    return Path(recording.path)


async def compose_content(ctx: Context) -> Composed:
    """Have the summary of this round written.

    The model's call blocks, so it has a thread of its own. At this step's timeout the kernel ends the coroutine; the
    thread can not be ended and goes on, and what it writes then comes late: only the round keeps it from doing harm.
    """
    composed, summary = await asyncio.to_thread(_compose, ctx.ports, ctx.input)
    for piece, pause_s in paced(summary, ctx.ports.pace_s):
        ctx.stream.write(piece)
        await asyncio.sleep(pause_s)
    return composed


def _compose(ports: SummaryPorts, job: SummaryInput) -> tuple[Composed, str]:
    there = ports.current(job)
    summary = there.fields.get("summary")
    if summary is None:  # else the work of this round is done already (fen-idempotent-shortcut)
        try:
            summary = ports.model.summarize(f"{job.object_id}:{job.fencing_token}", there.fields["segments"])
        except ModelBusy as busy:
            raise NonRetryable(str(busy)) from None
        if not summary:
            raise NonRetryable("no speech was recognised in the recording: there is nothing to summarise")
        ports.save(job, "summary", summary)
    return Composed(len(summary)), summary


def finalize(ctx: Context) -> dict[str, Any]:
    """Deliver the summary; the receiver recognises a repeat by its key."""
    ports: SummaryPorts = ctx.ports
    job: SummaryInput = ctx.input
    summary = ports.current(job).fields.get("summary")
    if summary is None:
        raise NonRetryable(f"subscription {job.object_id} has no summary")
    ports.receiver.deliver(ctx.effect_key, job.object_id, summary, ports.clock.wall_ms())
    return {"object_id": job.object_id, "characters": len(summary)}


def publish(ctx: Context) -> None:
    """SuccessFinalizer: the subscription is completed in its round; of another round it changes nothing."""
    ctx.ports.subscriptions.complete(ctx.input.object_id, ctx.input.fencing_token)


def mark_failed(ctx: Context) -> None:
    """FailureFinalizer: the subscription has failed in its round, which stays as it is (fen-fail-keeps-round)."""
    reason = "unknown" if ctx.error is None else f"{ctx.error.code}: {ctx.error.message}"
    ctx.ports.subscriptions.fail(ctx.input.object_id, ctx.input.fencing_token, {"error": reason})


def live_summary(wrap: Wrap = lambda _name, activity: activity) -> Definition:
    """The Definition. The quick steps may fail a few times: their stores are files that many processes write."""
    quick = timedelta(seconds=30)
    steps = [
        Step(WAIT_STEP, in_ledger(wrap(WAIT_STEP, wait_for_recording)), timeout=quick, max_retry=3),
        Step("preprocess", in_ledger(wrap("preprocess", preprocess)), timeout=quick, max_retry=3),
        Step(
            "transcribe_audio",
            in_ledger(wrap("transcribe_audio", transcribe_audio)),
            timeout=timedelta(minutes=2),
            max_retry=3,
            resource="speech_recognition",
            checkpoint=AsrTask,
        ),
        Step(
            "compose_content",
            in_ledger(wrap("compose_content", compose_content)),
            timeout=COMPOSE_TIMEOUT,
            max_retry=3,
            resource="content_generation",
            streams=True,
        ),
        Step("finalize", in_ledger(wrap("finalize", finalize)), timeout=quick, max_retry=3),
    ]
    return Definition(
        type="live_summary",
        input=SummaryInput,
        identity=("tenant_id", "object_id"),
        steps=steps,
        success_finalizer=publish,
        failure_finalizer=mark_failed,
    )
