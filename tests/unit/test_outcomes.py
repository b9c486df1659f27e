"""What a value or an error means for its step: the whole table, without an engine (group 13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel.definition import RetryPolicy, Step
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.engine.invoke import Outcome
from kernel.engine.outcomes import Complete, Continue, GiveUp, Retry, Suspend, decide, error_record
from kernel.engine.settings import Settings
from kernel.errors import ActivityPanic, NonRetryable, RetryAfter, StepTimeout, TooLarge, WorkflowCanceled
from kernel.records import StepRecord

SETTINGS = Settings(output_bytes_max=100, checkpoint_bytes_max=50)


def meaning(value: Any = None, error: BaseException | None = None, failures: int = 0, **options: Any) -> Any:
    step = Step("a", lambda ctx: None, **options)
    record = StepRecord(name="a", attempt=failures + 1, failures=failures, worker_id="w1")
    return decide(step, record, Outcome(value=value, error=error), SETTINGS, 0.5)


def test_values_and_directives() -> None:
    assert meaning(7) == Complete(b"\x01\x07")
    assert meaning(None) == Complete(b"\x01\xc0")
    assert meaning(Sleep(timedelta(seconds=2), 7)) == Suspend(2_000, b"\x01\x07")
    assert meaning(Sleep(timedelta(seconds=-2))) == Suspend(0, None)
    assert meaning(Yield(7)) == Continue(b"\x01\x07")
    signal = WaitForSignal("answer", "k")
    assert meaning(signal) == Suspend(None, None, signal)
    polled = WaitForSignal("answer", "k", poll_fallback=timedelta(seconds=1), checkpoint=7)
    assert meaning(polled) == Suspend(1_000, b"\x01\x07", polled)


ERRORS = (ValueError("no"), StepTimeout("late"), ActivityPanic("SystemExit: 1"))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
@pytest.mark.parametrize("on_failed", ["stop", "skip"])
@pytest.mark.req("act-one-classification", "stp-error-order", "stp-max-retry", "dbo-timeout-ordinary")
def test_errors_timeouts_and_panics_take_one_way(error: BaseException, failures: int, on_failed: Any) -> None:
    decision = meaning(error=error, failures=failures, max_retry=2, on_failed=on_failed)

    if failures < 2:
        assert isinstance(decision, Retry)
        assert decision.delay_ms is None
    else:
        assert isinstance(decision, GiveUp)
        assert decision.verdict == ("skip" if on_failed == "skip" else "fail")
    assert decision.error.attempt == failures + 1
    assert decision.error.worker_id == "w1"


@pytest.mark.req("stp-error-order", "can-activity")
def test_cancellation_wins_over_everything() -> None:
    asked: list[Any] = []
    policy = RetryPolicy(max_attempts=9, should_retry=lambda error: bool(asked.append(error)))
    decision = meaning(error=WorkflowCanceled("gone"), retry=policy, on_failed="skip")

    assert isinstance(decision, GiveUp)
    assert (decision.verdict, decision.error.kind, asked) == ("cancel", "canceled", [])


@pytest.mark.parametrize("error", [NonRetryable("never"), TooLarge("a checkpoint of 1 MiB")])
def test_hopeless_errors_are_not_retried(error: BaseException) -> None:
    decision = meaning(error=error, max_retry=9)

    assert isinstance(decision, GiveUp)
    assert decision.error.code == type(error).code  # type: ignore[attr-defined]


@pytest.mark.req("stp-retry-immediate", "stp-retry-backoff-future")
def test_the_delay_is_the_errors_own_or_the_policys_or_none() -> None:
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), max_attempts=5)

    assert meaning(error=ValueError(), max_retry=1).delay_ms is None
    assert [meaning(error=ValueError(), failures=n, retry=policy).delay_ms for n in range(3)] == [1_000, 2_000, 4_000]
    assert meaning(error=RetryAfter(70), retry=policy).delay_ms == 70
    assert meaning(error=RetryAfter(70), max_retry=1).delay_ms == 70


def test_values_that_are_too_large_give_up_with_their_name() -> None:
    for value, words in ((b"x" * 100, "output of step a"), (Yield(b"x" * 50), "checkpoint of step a")):
        decision = meaning(value, max_retry=3)
        assert isinstance(decision, GiveUp)
        assert (decision.error.code, words in decision.error.message) == ("too_large", True)


def test_a_foreign_error_keeps_its_own_code_if_that_is_a_word() -> None:
    class Declined(Exception):
        code = "card_declined"

    class Odd(Exception):
        code = "not a word!"

    class Numbered(Exception):
        code = 404

    assert error_record(Declined("no")).code == "card_declined"
    assert error_record(Odd("no")).code == error_record(Numbered("no")).code == "activity_error"
    assert error_record(NonRetryable("no")).code == "non_retryable"


def test_an_error_text_is_bounded_and_storable() -> None:
    assert len(error_record(ValueError("x" * 10_000)).message) == 2_000
    assert error_record(ValueError("a\ud800b")).message == "a?b"
    assert error_record(ValueError()).message == "ValueError"


@pytest.mark.req("dbo-should-retry-throws")
def test_a_predicate_that_fails_itself_vouches_for_nothing_and_the_error_stays_itself() -> None:
    def should_retry(error: BaseException) -> bool:
        raise LookupError("the predicate is broken")

    decision = meaning(error=ValueError("no"), retry=RetryPolicy(max_attempts=9, should_retry=should_retry))

    assert isinstance(decision, GiveUp)
    assert (decision.verdict, decision.error.type, decision.error.message) == ("fail", "ValueError", "no")
