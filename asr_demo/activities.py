"""The steps of a content job. Each may run more than once; each recognises its own work (core-inv-alo)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from asr_demo.asr_client import AsrRefused, AsrTaskUnknown, AsrUnavailable, Failed, Running, Succeeded
from asr_demo.asr_protocol import AsrOptions
from asr_demo.composer import summarize
from asr_demo.flow import AsrTask, JobInput, Ports, current_note
from asr_demo.wav import AudioRefused, check_wav
from kernel import Context, NonRetryable, Sleep, WorkflowCanceled


class AsrError(NonRetryable):
    """The speech step has come to its end without a transcript; `code` says which bound was passed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Audio(msgspec.Struct, frozen=True):
    """Output of `preprocess`."""

    seconds: float
    sha256: str


class Transcribed(msgspec.Struct, frozen=True):
    """Output of `transcribe_audio`: small; the transcript itself is a business product (stp-output-small)."""

    characters: int
    segments: int


class Composed(msgspec.Struct, frozen=True):
    """Output of `compose_content`."""

    characters: int


def preprocess(ctx: Context) -> Audio:
    """Check that the recording is one before anybody pays for it."""
    current_note(ctx)
    job: JobInput = ctx.input
    try:
        info = check_wav(Path(job.audio_path))
    except AudioRefused as refused:
        raise NonRetryable(f"{refused.code}: {refused.message}") from None
    return Audio(info.seconds, info.sha256)


def transcribe_audio(ctx: Context) -> Transcribed | Sleep:
    """Submit once, then poll by durable sleeps; deadline before task age before query (asr-order, T-10)."""
    current_note(ctx)
    task = ctx.checkpoint(AsrTask)
    if task is None or not task.task_id:
        return _submit(ctx, task)
    ports: Ports = ctx.ports
    now_ms = ports.clock.wall_ms()
    if now_ms > task.deadline_ms:
        raise AsrError("asr_deadline", f"task {task.task_id} passed its deadline; it is not asked for any more")
    if now_ms > task.submitted_at_ms + ports.policy.task_ttl_ms:
        raise AsrError("asr_task_expired", f"task {task.task_id} is older than its provider keeps tasks")
    client = ports.asr.get(task.provider)
    if client is None:
        raise AsrError("asr_provider_gone", f"provider {task.provider} of task {task.task_id} is not configured")
    try:
        answer = client.poll(task.task_id, options=task.options, timeout_s=_budget_s(ctx, ports))
    except AsrUnavailable as error:
        return _once_more(ports, task, error)
    except AsrTaskUnknown as error:
        raise AsrError("asr_task_unknown", f"task {task.task_id}: {error}") from None
    except AsrRefused as error:
        raise AsrError("asr_refused", f"task {task.task_id}: {error}") from None
    match answer:
        case Running():
            return _sleep(msgspec.structs.replace(task, poll_failures=0))
        case Failed():
            raise AsrError("asr_failed", f"task {task.task_id}: {answer.code}: {answer.reason}")
        case Succeeded():
            return _keep(ctx, answer)


def _submit(ctx: Context, task: AsrTask | None) -> Sleep:
    ports: Ports = ctx.ports
    job: JobInput = ctx.input
    now_ms = ports.clock.wall_ms()
    policy = ports.policy
    if task is None:
        task = AsrTask(ports.provider(), "", now_ms, now_ms + policy.deadline_ms, policy.poll_interval_ms, AsrOptions())
    if now_ms > task.deadline_ms:
        raise AsrError("asr_deadline", "the provider took no task before the deadline")
    try:
        # The key is the same in every attempt of this run: a submit whose answer was lost is recognised.
        submitted = ports.asr[task.provider].submit(
            Path(job.audio_path),
            idempotency_key=ctx.effect_key,
            options=task.options,
            timeout_s=_budget_s(ctx, ports),
        )
    except AsrUnavailable as error:
        return _once_more(ports, task, error)
    except AsrRefused as error:
        raise AsrError("asr_refused", f"submit: {error}") from None
    return _sleep(msgspec.structs.replace(task, task_id=submitted.task_id, submitted_at_ms=now_ms, poll_failures=0))


def _once_more(ports: Ports, task: AsrTask, error: AsrUnavailable) -> Sleep:
    """A call that failed on its way is asked again, up to the tolerated number in a row (asr-poll-error)."""
    failures = task.poll_failures + 1
    if failures > ports.policy.poll_failures_max:
        what = f"task {task.task_id}" if task.task_id else "submit"
        raise AsrError("asr_poll_failed", f"{what}: {failures} calls in a row failed; the last: {error}")
    return _sleep(msgspec.structs.replace(task, poll_failures=failures))


def _sleep(task: AsrTask) -> Sleep:
    return Sleep(timedelta(milliseconds=task.poll_interval_ms), checkpoint=task)


def _keep(ctx: Context, answer: Succeeded) -> Transcribed:
    job: JobInput = ctx.input
    segments = tuple(segment.text for segment in answer.segments) or (answer.transcript,)
    if not ctx.ports.notes.save_transcript(job.object_id, job.fencing_token, answer.transcript, segments):
        raise WorkflowCanceled(f"note {job.object_id} has left round {job.fencing_token}")
    return Transcribed(len(answer.transcript), len(segments))


def _budget_s(ctx: Context, ports: Ports) -> float:
    return max(0.1, min(ports.policy.call_timeout_s, ctx.remaining_s()))


def compose_content(ctx: Context) -> Composed:
    """Write the summary of this round; if it is there already, the work is done (fen-idempotent-shortcut)."""
    note = current_note(ctx)
    job: JobInput = ctx.input
    if note.summary is not None:
        return Composed(len(note.summary))
    summary = summarize(note.segments)
    if not summary:
        raise NonRetryable("no speech was recognised in the recording: there is nothing to summarise")
    if not ctx.ports.notes.save_summary(job.object_id, job.fencing_token, summary):
        raise WorkflowCanceled(f"note {job.object_id} has left round {job.fencing_token}")
    return Composed(len(summary))


def finalize(ctx: Context) -> dict[str, Any]:
    """See that what the user will get is really there."""
    note = current_note(ctx)
    if note.transcript is None or note.summary is None:
        raise NonRetryable(f"note {note.object_id} has no transcript or no summary")
    return {"object_id": note.object_id, "characters": len(note.summary)}


def publish(ctx: Context) -> None:
    """SuccessFinalizer: the note is completed in its round; a late one of an old round changes nothing."""
    job: JobInput = ctx.input
    ctx.ports.notes.end(job.object_id, job.fencing_token, "completed")


def mark_failed(ctx: Context) -> None:
    """FailureFinalizer: the note is failed in its round, which stays as it is (fen-fail-keeps-round)."""
    job: JobInput = ctx.input
    reason = "unknown" if ctx.error is None else f"{ctx.error.code}: {ctx.error.message}"
    ctx.ports.notes.end(job.object_id, job.fencing_token, "failed", reason)
