"""Telling one page: a signal per subscriber in one call, and what is done when that call fails.

A store that does not answer is no subscriber's fault: the whole page is told again later, under the same ids. Anything
else may be one subscriber's: the page is halved until that one stands alone, and everybody else is told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fanout.event import FanOutEvent, signal_id_for
from fanout.pages import Subscriber
from fanout.progress import Sample, Tally, line_of, text_of
from kernel import (
    TERMINAL,
    ClaimLost,
    Context,
    KernelError,
    Refused,
    Signal,
    SignalReceipt,
    StepCanceled,
    Unavailable,
)

UNKNOWN, UNREADABLE = "unknown", "unreadable"
"""What a receipt says of its target beside the statuses of a workflow."""
PATIENCE = 3
"""Tries of a page before a fault that might pass is taken for the subscriber's own, because others could be told."""
PATIENCE_ALONE = 10
"""The same where nobody else of the page could be told, so that the fault may be everybody's."""
_DAMAGED = "corrupt_record"
_REASONS = {
    "unreadable": "its row can not be read",
    "malformed": "the id of its signal was used for another signal",
}
"""Of those whose signal the inbox has answered for, all the same not as it should be."""


class PageFailed(Exception):
    """This page can not be finished now; it is to be told again from its beginning."""


class Told(NamedTuple):
    """What became of a page."""

    tally: Tally
    samples: tuple[Sample, ...]


def tell(ctx: Context, event: FanOutEvent, subscribers: Sequence[Subscriber], earlier_tries: int) -> Told:
    """Deliver one signal to each of them, in one call if all is well (fan-page-signals).

    Raises PageFailed when the page should be tried again, and ClaimLost or StepCanceled when this invocation is over.
    """
    signals, twice, wrong = _signals(event, subscribers)
    receipts, failed = _deliver(ctx, list(signals.values()))
    if failed and not _may_pass_over(failed, len(receipts), earlier_tries + 1):
        raise PageFailed(f"{len(failed)} of {len(signals)} could not be told; {text_of(failed[0][1])}")
    wrong += [Sample(subscriber=line_of(signal.workflow_id), reason=text_of(error)) for signal, error in failed]
    malformed = len(wrong)
    wrong += [
        Sample(subscriber=line_of(signals[receipt.signal_id].workflow_id), reason=_REASONS[kind])
        for receipt in receipts
        if (kind := _kind(receipt)) in _REASONS
    ]
    return Told(_counted(receipts) + Tally(pages=1, duplicates=twice, malformed=malformed), tuple(wrong))


def _signals(event: FanOutEvent, subscribers: Sequence[Subscriber]) -> tuple[dict[str, Signal], int, list[Sample]]:
    """The signals by id, how many stood in the page twice, and those who can not be addressed."""
    signals: dict[str, Signal] = {}
    twice = 0
    wrong: list[Sample] = []
    for subscriber in subscribers:
        try:
            signal = _signal(event, subscriber)
        except Exception as error:  # whatever the author's data holds
            wrong.append(Sample(subscriber=line_of(_shown(subscriber)), reason=text_of(error)))
            continue
        if signal.signal_id in signals:
            twice += 1
        signals[signal.signal_id] = signal
    return signals, twice, wrong


def _signal(event: FanOutEvent, subscriber: Subscriber) -> Signal:
    if not isinstance(subscriber, Subscriber):
        raise Refused(f"subscriber: must be a fanout.Subscriber, is a {type(subscriber).__name__}")
    target = subscriber.target()
    wait_key = event.wait_key if subscriber.wait_key is None else subscriber.wait_key
    generation = event.generation if subscriber.generation is None else subscriber.generation
    # Made with the event's own id first, so that a wrong key or generation is named before anything is derived from it.
    signal = Signal(
        signal_id=event.event_id,
        workflow_id=target,
        signal_type=event.signal_type,
        wait_key=wait_key,
        generation=generation,
    )
    return Signal(
        signal_id=signal_id_for(event, target, wait_key, generation),
        workflow_id=signal.workflow_id,
        signal_type=signal.signal_type,
        wait_key=signal.wait_key,
        generation=signal.generation,
    )


def _deliver(ctx: Context, signals: list[Signal]) -> tuple[list[SignalReceipt], list[tuple[Signal, Exception]]]:
    """Deliver all; after a fault by halves. A signal that was stored before its call failed is a duplicate then."""
    receipts: list[SignalReceipt] = []
    failed: list[tuple[Signal, Exception]] = []
    batches = [signals] if signals else []
    while batches:
        batch = batches.pop()
        try:
            receipts += ctx.deliver_signals(batch)
        except (ClaimLost, StepCanceled):
            raise
        except Unavailable as error:
            raise PageFailed(text_of(error)) from error
        except Exception as error:
            if len(batch) == 1:
                failed.append((batch[0], error))
            else:
                middle = len(batch) // 2
                batches += [batch[middle:], batch[:middle]]
    return receipts, failed


def _may_pass_over(failed: Sequence[tuple[Signal, Exception]], told: int, tries: int) -> bool:
    """Whether the list may go on without those whose telling failed.

    A refusal and a damaged row are about that subscriber alone and will not pass. Any other fault is one of a program
    or of its surroundings, whoever it meets first: where it meets all of a page, going on would lose the list page by
    page, so it is waited out.
    """
    own = all(_is_of_its_row(error) for _, error in failed)
    if told:
        return own or tries >= PATIENCE
    return tries >= PATIENCE_ALONE and (own or len(failed) == 1)


def _is_of_its_row(error: Exception) -> bool:
    return isinstance(error, Refused) or (isinstance(error, KernelError) and error.code == _DAMAGED)


def _counted(receipts: Sequence[SignalReceipt]) -> Tally:
    counts = dict.fromkeys(("told", "duplicates", "unknown", "ended", "unreadable", "malformed", "woken"), 0)
    for receipt in receipts:
        counts["woken"] += receipt.activated
        counts[_kind(receipt)] += 1
    return Tally(**counts)


def _kind(receipt: SignalReceipt) -> str:
    if receipt.conflict:
        return "malformed"
    if receipt.target == UNREADABLE:
        return "unreadable"
    if receipt.duplicate:
        return "duplicates"
    if receipt.target == UNKNOWN:
        return "unknown"
    # A workflow that a sweep has woken by this very signal may have ended by now: it was told.
    return "ended" if receipt.target in TERMINAL and not receipt.matched else "told"


def _shown(subscriber: object) -> object:
    if not isinstance(subscriber, Subscriber):
        return ascii(subscriber)
    return ascii(subscriber.workflow_id if subscriber.biz_key is None else subscriber.biz_key)
