"""The steps of a content job. Each may run more than once; each recognises its own work (core-inv-alo)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asr_demo.flow import JobInput, NotePorts, current_note
from asr_demo.showing import paced
from asr_demo.speech import Transcribed, transcribe
from asr_demo.wav import AudioRefused, check_wav
from kernel import Context, NonRetryable, Sleep


class Audio(msgspec.Struct, frozen=True):
    """Output of `preprocess`."""

    seconds: float
    sha256: str


class Composed(msgspec.Struct, frozen=True):
    """Output of `compose_content`."""

    characters: int


def checked_audio(path: Path) -> Audio:
    """What is in the recording, before anybody pays for it; NonRetryable for one that is none."""
    try:
        info = check_wav(path)
    except AudioRefused as refused:
        raise NonRetryable(f"{refused.code}: {refused.message}") from None
    return Audio(info.seconds, info.sha256)


def preprocess(ctx: Context) -> Audio:
    """Check that the recording is one."""
    current_note(ctx)
    job: JobInput = ctx.input
    return checked_audio(Path(job.audio_path))


def transcribe_audio(ctx: Context) -> Transcribed | Sleep:
    """Have the recording transcribed into the note of this round."""
    current_note(ctx)
    job: JobInput = ctx.input

    def keep(transcript: str, segments: tuple[str, ...]) -> None:
        if not ctx.ports.notes.save_transcript(job.object_id, job.fencing_token, transcript, segments):
            raise NonRetryable(f"note {job.object_id} has left round {job.fencing_token}")

    return transcribe(ctx, Path(job.audio_path), keep)


def compose_content(ctx: Context) -> Composed:
    """Write the summary of this round; if it is there already, the work is done (fen-idempotent-shortcut)."""
    note = current_note(ctx)
    if note.summary is not None:
        _show(ctx, note.summary)  # what an attempt that died had shown is gone with it
        return Composed(len(note.summary))
    ports: NotePorts = ctx.ports
    summary = ports.compose(note.segments)
    if not summary:
        raise NonRetryable("there is no sentence in the text: there is nothing to summarise")
    _show(ctx, summary)
    if not ports.notes.save_summary(note.object_id, note.fencing_token, summary):
        raise NonRetryable(f"note {note.object_id} has left round {note.fencing_token}")
    return Composed(len(summary))


def _show(ctx: Context, summary: str) -> None:
    for piece, pause_s in paced(summary, ctx.ports.pace_s):
        ctx.stream.write(piece)
        ctx.cancel.wait(pause_s)


def finalize(ctx: Context) -> dict[str, Any]:
    """See that what the user will get is really there."""
    note = current_note(ctx)
    if note.transcript is None or note.summary is None:
        raise NonRetryable(f"note {note.object_id} has no transcript or no summary")
    return {"object_id": note.object_id, "characters": len(note.summary)}


def publish(ctx: Context) -> None:
    """SuccessFinalizer: the note is completed in its round; a late one of an old round changes nothing."""
    ctx.ports.notes.end(ctx.input.object_id, ctx.input.fencing_token, "completed")


def mark_failed(ctx: Context) -> None:
    """FailureFinalizer: the note is failed in its round, which stays as it is (fen-fail-keeps-round)."""
    reason = "unknown" if ctx.error is None else f"{ctx.error.code}: {ctx.error.message}"
    ctx.ports.notes.end(ctx.input.object_id, ctx.input.fencing_token, "failed", reason)
