"""What an invocation's outcome means for its step: one classification for values, errors, timeouts and panics.

Order for an error (stp-error-order): canceled → retry while the budget lasts → skip where the step allows it →
failed. Errors, timeouts and panics take the same way (act-one-classification).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kernel.codec import encode
from kernel.definition import Step
from kernel.directives import WAIT_DAYS_MAX, Sleep, WaitForSignal, Yield, interval_ms
from kernel.engine.invoke import Outcome, text_of
from kernel.engine.settings import Settings
from kernel.errors import (
    ActivityPanic,
    KernelError,
    MaxStepRetriesExceeded,
    NonRetryable,
    RetryAfter,
    StepTimeout,
    TooLarge,
    WorkflowCanceled,
)
from kernel.records import ERROR_CHARACTERS_MAX, ErrorKind, ErrorRecord, StepRecord, Wait

_DELAY_MS_MAX = WAIT_DAYS_MAX * 86_400_000


class Complete(msgspec.Struct, frozen=True):
    """The step is done; `output` is its encoded value."""

    output: bytes


class Suspend(msgspec.Struct, frozen=True):
    """The step waits: `interval_ms` until its poll time, None when only a signal wakes it."""

    interval_ms: int | None
    checkpoint: bytes | None
    signal: WaitForSignal | None = None


class Continue(msgspec.Struct, frozen=True):
    """The step gives its slot back and goes on from `checkpoint`."""

    checkpoint: bytes | None


class Retry(msgspec.Struct, frozen=True):
    """Another attempt, not before `delay_ms`; None means at once (stp-retry-immediate)."""

    error: ErrorRecord
    delay_ms: int | None


class GiveUp(msgspec.Struct, frozen=True):
    """No further attempt: the step is skipped, failed, or its workflow canceled."""

    error: ErrorRecord
    verdict: Literal["skip", "fail", "cancel"]


Decision = Complete | Suspend | Continue | Retry | GiveUp


def decide(step: Step, record: StepRecord, outcome: Outcome, settings: Settings, fraction: float) -> Decision:
    """Classify one outcome of `step`; `record` is the step as committed before the invocation."""
    error = outcome.error
    if error is None:
        try:
            return _value(step, outcome.value, settings)
        except KernelError as refused:
            # A value that can not be stored is a failure of the step, before anything is written (TooLarge, BadReturn).
            error = refused
    return _error(step, record, error, fraction)


def _value(step: Step, value: object, settings: Settings) -> Decision:
    match value:
        case Sleep():
            return Suspend(interval_ms(value.interval), _checkpoint(step, value.checkpoint, settings))
        case WaitForSignal():
            fallback = None if value.poll_fallback is None else interval_ms(value.poll_fallback)
            return Suspend(fallback, _checkpoint(step, value.checkpoint, settings), value)
        case Yield():
            return Continue(_checkpoint(step, value.checkpoint, settings))
        case _:
            return Complete(encode(value, f"output of step {step.name}", settings.output_bytes_max))


def _checkpoint(step: Step, value: object, settings: Settings) -> bytes | None:
    if value is None:
        return None
    return encode(value, f"checkpoint of step {step.name}", settings.checkpoint_bytes_max)


def _error(step: Step, record: StepRecord, error: BaseException, fraction: float) -> Decision:
    if isinstance(error, WorkflowCanceled):
        return GiveUp(error_record(error, record), "cancel")
    failures = record.failures + 1
    if failures < step.attempts_max and _may_retry(step, error):
        return Retry(error_record(error, record), _delay_ms(step, error, failures, fraction))
    final = error_record(error, record)
    if step.attempts_max > 1 and failures >= step.attempts_max:
        # Only when more than one attempt was allowed and all are used; a declined retry stays itself (DECISIONS 4).
        message = f"{step.attempts_max} attempts failed; the last: {final.type}: {final.message}"
        final = ErrorRecord(
            code=MaxStepRetriesExceeded.code,
            type=final.type,
            message=message[:ERROR_CHARACTERS_MAX],
            kind=final.kind,
            attempt=final.attempt,
            worker_id=final.worker_id,
        )
    return GiveUp(final, "skip" if step.on_failed == "skip" else "fail")


def _may_retry(step: Step, error: BaseException) -> bool:
    if isinstance(error, NonRetryable | TooLarge):
        return False
    if step.retry is not None and step.retry.should_retry is not None:
        try:
            return bool(step.retry.should_retry(error))
        except BaseException:
            # Nobody vouches for another attempt: do not make one; the error itself is what is kept.
            return False
    return True


def _delay_ms(step: Step, error: BaseException, failures: int, fraction: float) -> int | None:
    if isinstance(error, RetryAfter) and _is_delay(error.delay_ms):
        # As a header gave it: perhaps a fraction, perhaps absurd. What reaches the row must be a whole, bounded number.
        return round(min(max(0, error.delay_ms), _DELAY_MS_MAX))
    return None if step.retry is None else step.retry.delay_ms(failures, fraction)


def _is_delay(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def error_record(error: BaseException, record: StepRecord | None = None) -> ErrorRecord:
    """The durable form of an exception: the kernel's code or the class name, and one bounded message."""
    kind: ErrorKind = "error"
    if isinstance(error, StepTimeout):
        kind = "timeout"
    elif isinstance(error, ActivityPanic):
        kind = "panic"
    elif isinstance(error, WorkflowCanceled):
        kind = "canceled"
    code = error.code if isinstance(error, KernelError) else "activity_error"
    custom = _code_of(error)
    if not isinstance(error, KernelError) and isinstance(custom, str) and custom.isidentifier():
        code = custom[:64]
    message = text_of(error) or type(error).__name__
    return ErrorRecord(
        code=code,
        type=type(error).__name__[:200],
        # Lone surrogates of a foreign message would make the row unsavable.
        message=message[:ERROR_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8"),
        kind=kind,
        attempt=0 if record is None else record.attempt,
        worker_id=None if record is None else record.worker_id,
    )


def _code_of(error: BaseException) -> object:
    try:
        return getattr(error, "code", None)
    except BaseException:
        return None  # a property of foreign code that fails: the class name is enough


def wait_of(suspend: Suspend, name: str, index: int, wait_id: str, now_ms: int) -> Wait:
    """The wait that a suspension writes; its poll time is absolute, on the store's clock."""
    signal = suspend.signal
    return Wait(
        wait_id=wait_id,
        kind="timer" if signal is None else "signal",
        step=name,
        step_index=index,
        signal_type=None if signal is None else signal.signal_type,
        wait_key=None if signal is None else signal.wait_key,
        generation=None if signal is None else signal.generation,
        poll_time=None if suspend.interval_ms is None else now_ms + suspend.interval_ms,
        since_time=now_ms,
    )
