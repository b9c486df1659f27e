"""The speech step: submit once, then poll by durable sleeps, in any process, until the provider is done (group 20)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec

from asr_demo.asr_client import AsrRefused, AsrTaskUnknown, AsrUnavailable, Failed, Running, Succeeded
from asr_demo.asr_protocol import AsrOptions
from asr_demo.flow import Ports
from kernel import Context, NonRetryable, Sleep


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


class Transcribed(msgspec.Struct, frozen=True):
    """Output of the speech step: small; the transcript itself is a business product (stp-output-small)."""

    characters: int
    segments: int


class AsrError(NonRetryable):
    """The speech step has come to its end without a transcript; `code` says which bound was passed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


Keep = Callable[[str, tuple[str, ...]], None]
"""Takes the transcript and its segments into the business data, or raises."""


def transcribe(ctx: Context, audio: Path, keep: Keep) -> Transcribed | Sleep:
    """One invocation of the step. Order: deadline before task age before query (asr-order, T-10)."""
    task = ctx.checkpoint(AsrTask)
    if task is None or not task.task_id:
        return _submit(ctx, audio, task)
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
            segments = tuple(segment.text for segment in answer.segments) or (answer.transcript,)
            keep(answer.transcript, segments)
            return Transcribed(len(answer.transcript), len(segments))


def _submit(ctx: Context, audio: Path, task: AsrTask | None) -> Sleep:
    ports: Ports = ctx.ports
    now_ms = ports.clock.wall_ms()
    policy = ports.policy
    if task is None:
        task = AsrTask(ports.provider(), "", now_ms, now_ms + policy.deadline_ms, policy.poll_interval_ms, AsrOptions())
    if now_ms > task.deadline_ms:
        raise AsrError("asr_deadline", "the provider took no task before the deadline")
    try:
        # The key is the same in every attempt of this run: a submit whose answer was lost is recognised.
        submitted = ports.asr[task.provider].submit(
            audio, idempotency_key=ctx.effect_key, options=task.options, timeout_s=_budget_s(ctx, ports)
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


def _budget_s(ctx: Context, ports: Ports) -> float:
    return max(0.1, min(ports.policy.call_timeout_s, ctx.remaining_s()))
