"""The fan-out as a workflow of one step: read a page, tell it, yield; until the list ends (group 22).

Two layers keep it exact (fan-two-layers): the checkpoint says how far the list is handled, and each signal's unique id
says whether a subscriber was told. A crash anywhere repeats at most one page, and the repeat wakes nobody twice.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from fanout.delivery import PageFailed, tell
from fanout.event import IDENTITY, FanOutEvent, fan_out_key
from fanout.pages import PAGE_SIZE_MAX, Page, ReadPage, checked
from fanout.progress import SAMPLES_KEPT, Outcome, Progress, Tally, is_of_another_version, text_of
from kernel import (
    ClaimLost,
    Context,
    Definition,
    Directive,
    InvalidDefinition,
    KernelError,
    NonRetryable,
    Plan,
    RetryPolicy,
    Sleep,
    Step,
    StepCanceled,
    WorkflowCanceled,
    Yield,
)

log = logging.getLogger("fanout")

STEP = "tell_subscribers"
PAGE_SIZE = 200

_TIMEOUT = timedelta(minutes=5)
_BACKOFF_FIRST, _BACKOFF_MAX = timedelta(seconds=1), timedelta(minutes=1)
_SAID_EVERY = 10
"""Of the tries of one page that were in vain, the first and every tenth is logged: it is tried for ever."""
_READ_SHARE = 0.9
"""Of the time that is left: an async read that takes longer is given up here, so that its cursor is kept."""
_LOST = RetryPolicy(max_attempts=1_000, initial_interval=_BACKOFF_FIRST, max_interval=_BACKOFF_MAX, jitter=0.1)
"""For what no activity can return from: its timeout, and a checkpoint that does not decode. The list starts over then,
and the ids of the signals keep everybody from being told twice."""


class Starter(Protocol):
    """Who may start a fan-out: a finalizer's Context, or a publisher's Client."""

    def start_or_resume(self, plan: Plan, *, biz_key: str, input: Any = None, priority: int | str = "async") -> Any: ...


def make_fan_out(
    type: str,
    read_page: ReadPage,
    *,
    page_size: int = PAGE_SIZE,
    timeout: timedelta = _TIMEOUT,
    backoff_first: timedelta = _BACKOFF_FIRST,
    backoff_max: timedelta = _BACKOFF_MAX,
    prepare: Callable[[Any], Any] | None = None,
    success_finalizer: Callable[..., Any] | None = None,
    failure_finalizer: Callable[..., Any] | None = None,
) -> Definition:
    """A Definition of type `type` that tells everybody whom `read_page` gives of one FanOutEvent.

    `page_size` (1 to 1,000) is how many subscribers one claim reads and tells; `timeout` is for one page. A page that
    can not be read or told is tried again, for ever, after a back-off that doubles from `backoff_first` to
    `backoff_max`; the log says so at the first and every tenth try, and the checkpoint holds the last fault.
    `read_page` ends the fan-out by raising NonRetryable (failed) or WorkflowCanceled (canceled); nothing else does.
    Raises InvalidDefinition naming the field and the rule (fan-page-limit).
    """
    if not callable(read_page):
        raise InvalidDefinition(f"{type}: read_page is not callable")
    if not isinstance(page_size, int) or isinstance(page_size, bool) or not 1 <= page_size <= PAGE_SIZE_MAX:
        raise InvalidDefinition(f"{type}: page_size must be a whole number from 1 to {PAGE_SIZE_MAX}, is {page_size!r}")
    # The policy knows the rules of its two intervals.
    backoff = RetryPolicy(initial_interval=backoff_first, max_interval=backoff_max)
    step = Step(STEP, partial(_page, read_page, page_size, backoff), timeout=timeout, retry=_LOST)
    return Definition(
        type=type,
        steps=[step],
        input=FanOutEvent,
        identity=IDENTITY,
        prepare=prepare,
        success_finalizer=success_finalizer,
        failure_finalizer=failure_finalizer,
    )


def start_fan_out(
    starter: Starter, fan_out: Definition | Plan, event: FanOutEvent, *, priority: int | str = "background"
) -> str:
    """Start the one fan-out of `event`, or find it; its workflow_id (fan-start-idempotent).

    For a SuccessFinalizer (its Context) or a publisher (a Client). The caller is done when the row exists: nobody is
    told yet, and nothing that happens to the fan-out reaches the caller's own workflow (fan-main-not-delayed).
    """
    plan = fan_out.plan if isinstance(fan_out, Definition) else fan_out
    key = fan_out_key(plan.type, event)
    started = starter.start_or_resume(plan, biz_key=key, input=event, priority=priority)
    return started if isinstance(started, str) else str(started.workflow_id)


# --- the step -----------------------------------------------------------------------------------------------


def _page(read_page: ReadPage, limit: int, backoff: RetryPolicy, ctx: Context) -> Any:
    """One invocation: one page. What it returns is a directive or the output; a coroutine where `read_page` is one."""
    stored = ctx.checkpoint(dict)
    if stored is not None and is_of_another_version(stored):
        # Another worker may know it: leave everything as it is, and let that one come by.
        return Sleep(backoff.max_interval, checkpoint=stored)
    progress = ctx.checkpoint(Progress) or Progress()
    try:
        found = read_page(ctx, progress.cursor, limit)
        if inspect.isawaitable(found):
            return _page_later(found, limit, backoff, ctx, progress)
        return _told(found, limit, ctx, progress)
    except (ClaimLost, StepCanceled, NonRetryable, WorkflowCanceled):
        raise
    except Exception as error:
        return _again(ctx, progress, backoff, error)


async def _page_later(
    found: Awaitable[Page], limit: int, backoff: RetryPolicy, ctx: Context, progress: Progress
) -> Any:
    """The same, when the page has to be awaited on the process's event loop."""
    import asyncio  # a publisher imports this module for a Plan alone, and has no use for a loop

    try:
        page = await asyncio.wait_for(found, ctx.remaining_s() * _READ_SHARE)
        return await _beside(partial(_told, page, limit, ctx, progress))
    except (ClaimLost, StepCanceled, NonRetryable, WorkflowCanceled):
        raise
    except Exception as error:
        return _again(ctx, progress, backoff, error)


async def _beside(call: Callable[[], Any]) -> Any:
    """Run `call`, which waits for the store, off the loop that other activities share. It is waited for even when this
    task is cancelled: two invocations of a step never run side by side (act-timeout-cancel-wait)."""
    import asyncio  # as above

    telling = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(telling)
    except asyncio.CancelledError:
        await asyncio.wait([telling])
        telling.exception()  # looked at: nobody else will, and the cancellation is what counts
        raise


def _told(found: object, limit: int, ctx: Context, progress: Progress) -> Outcome | Directive:
    """Tell the page that was read: the directive for the next one, or the output after the last."""
    page = checked(found, progress.cursor, limit)
    landmark = progress.landmark if page.next_cursor is None else progress.landmark.passed(page.next_cursor)
    told = tell(ctx, ctx.input, page.subscribers, progress.told_tries)
    tally = progress.tally + told.tally
    samples = (*progress.samples, *told.samples)[:SAMPLES_KEPT]
    if page.next_cursor is None:
        return Outcome(tally=tally, samples=samples)
    return Yield(checkpoint=Progress(cursor=page.next_cursor, landmark=landmark, tally=tally, samples=samples))


def _again(ctx: Context, progress: Progress, backoff: RetryPolicy, error: Exception) -> Sleep:
    """The same page after a back-off, counted (DECISIONS detail 21): the cursor stays where it is."""
    tries = progress.page_tries + 1
    fault = str(error) if isinstance(error, PageFailed) else text_of(error)
    if tries == 1 or tries % _SAID_EVERY == 0:
        _say(ctx, progress, tries, fault, error)
    checkpoint = Progress(
        cursor=progress.cursor,
        landmark=progress.landmark,
        page_tries=tries,
        told_tries=progress.told_tries + isinstance(error, PageFailed),
        fault=fault,
        tally=progress.tally + Tally(tries=1),
        samples=progress.samples,
    )
    return Sleep(timedelta(milliseconds=backoff.delay_ms(tries, 0.5)), checkpoint=checkpoint)


def _say(ctx: Context, progress: Progress, tries: int, fault: str, error: Exception) -> None:
    """Warn of a page that does not come to an end; once with the place in the author's program."""
    foreign = not isinstance(error, PageFailed | KernelError)
    log.warning(
        "fan-out %s (%s): the page after cursor %s can not be told, try %d: %s",
        *(ctx.workflow_id, ctx.type, ascii(progress.cursor), tries, fault),
        exc_info=error if foreign and tries == 1 else None,
    )
