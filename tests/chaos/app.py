"""The application under chaos: one type for each way in which a workflow can go on. All say what they do in the ledger.

A step's output names who made it (`by`, `attempt`): the checker compares that with the record, so that an output which
a stale worker had slipped in would be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from fanout import FanOutEvent, Page, Subscriber, make_fan_out, start_fan_out
from kernel import (
    App,
    BusinessObjects,
    Context,
    Definition,
    Limit,
    NonRetryable,
    Objects,
    PortsRequest,
    RetryPolicy,
    Sleep,
    Step,
    WaitForSignal,
    Yield,
)
from tests.faults.downstream import calling
from tests.faults.effects import EffectsFile, boot_ms, have_effect, noted

AT_ONCE, STARTS = 4, 10
RESOURCE = "downstream"
CALL_S, HEIR_S = 0.1, 2.5
PAGES, NAPS, POLLS = 4, 2, 3
GENERATIONS = 2
"""A waiting workflow waits for generation 1 and then for generation 2."""
RESUME, ROUND, PAGE, TIMER = "resume", "round", "page", "timer"
"""More kinds of records in the effects ledger."""
PAUSE = timedelta(milliseconds=200)
LIMIT = timedelta(seconds=20)


class Ports(EffectsFile):
    """The ledger of effects, and the application's business objects."""

    def __init__(self, data_dir: str, objects: Mapping[str, BusinessObjects]) -> None:
        super().__init__(data_dir)
        self.objects = objects


def ports(request: PortsRequest) -> Ports:
    return Ports(request.data_dir, request.objects)


class Task(msgspec.Struct, frozen=True):
    """The input of most types: a number that decides what they meet."""

    number: int = 0


class Order(msgspec.Struct, frozen=True):
    """The input of a round of a business object."""

    object_id: str
    fencing_token: str
    number: int


def _made(ctx: Context, value: int = 0) -> dict[str, Any]:
    return {"by": ctx.worker_id, "attempt": ctx.attempt, "value": value}


def _hold(ctx: Context, seconds: float = 0.05) -> None:
    ctx.cancel.wait(seconds)
    ctx.check()


@noted
def work(ctx: Context) -> dict[str, Any]:
    """Who takes over takes long, so that what his predecessor still had to commit finds him inside (S3)."""
    _hold(ctx, HEIR_S if ctx.attempt > 1 else 0.03 * (1 + getattr(ctx.input, "number", 0) % 10))
    have_effect(ctx)
    return _made(ctx)


def _chain(names: str) -> list[Step]:
    return [Step(name, work, timeout=LIMIT) for name in names]


CHAIN = Definition(type="chain", input=Task, steps=_chain("abcd"))
WAVE = Definition(
    type="wave",
    input=Task,
    steps=[
        Step("root", work, timeout=LIMIT),
        *(Step(f"side_{n}", work, timeout=LIMIT, depends_on=["root"]) for n in range(3)),
        Step("join", work, timeout=LIMIT, depends_on=[f"side_{n}" for n in range(3)]),
    ],
)


# --- what waits -----------------------------------------------------------------------------------------


@noted
def nap(ctx: Context) -> Any:
    """Sleeps NAPS times; each awakening says when that sleep was asked for, by the boot clock."""
    count, begun_ms = ctx.checkpoint() or (0, 0)
    if count:
        assert ctx.resume is not None
        ctx.ports.write(ctx, TIMER, f"{count} {begun_ms}")
    if count == NAPS:
        have_effect(ctx)
        return _made(ctx)
    return Sleep(PAUSE, checkpoint=(count + 1, boot_ms()))


NAPS_TYPE = Definition(type="naps", input=Task, steps=[*_chain("a"), Step("nap", nap, timeout=LIMIT)])


def waiting(fallback: timedelta | None) -> Any:
    """Waits for one generation after the other. With a fallback a poll that finds nothing waits again, a few times."""

    @noted
    def wait(ctx: Context) -> Any:
        generation, polls = ctx.checkpoint() or (0, 0)
        if ctx.resume is not None:
            ctx.ports.write(ctx, RESUME, f"{ctx.resume.kind} {generation} {ctx.resume.signal_id or '-'}")
            polls += ctx.resume.kind == "poll"
        if ctx.resume is None or ctx.resume.kind == "signal" or polls > POLLS:
            generation, polls = generation + 1, 0
        if generation > GENERATIONS:
            have_effect(ctx)
            return _made(ctx)
        return WaitForSignal("bell", ctx.biz_key, generation, poll_fallback=fallback, checkpoint=(generation, polls))

    return wait


WAITS = Definition(type="waits", input=Task, steps=[Step("wait", waiting(None), timeout=LIMIT), *_chain("z")])
POLLS_TYPE = Definition(
    type="polls", input=Task, steps=[Step("wait", waiting(timedelta(seconds=1)), timeout=LIMIT), *_chain("z")]
)


@noted
def turn_pages(ctx: Context) -> Any:
    page = ctx.checkpoint() or 0
    ctx.ports.write(ctx, PAGE, str(page))
    if page == PAGES:
        return _made(ctx)
    return Yield(checkpoint=page + 1)


PAGES_TYPE = Definition(type="pages", input=Task, steps=[Step("turn", turn_pages, timeout=LIMIT)])


# --- what fails -----------------------------------------------------------------------------------------


@noted
def third_time(ctx: Context) -> dict[str, Any]:
    if ctx.attempt < 3:
        raise ValueError(f"attempt {ctx.attempt} fails")
    return _made(ctx)


@noted
def never(ctx: Context) -> None:
    raise ValueError("as always")


@noted
def not_in_the_first_run(ctx: Context) -> dict[str, Any]:
    have_effect(ctx)
    if ctx.workflow_run == 1:
        raise NonRetryable("not in the first run")
    return _made(ctx)


@noted
def in_the_end(ctx: Context) -> None:
    have_effect(ctx)


_SOON = RetryPolicy(max_attempts=3, initial_interval=timedelta(milliseconds=50))
TRIES = Definition(
    type="tries",
    input=Task,
    steps=[
        Step("third", third_time, retry=_SOON, timeout=LIMIT),
        Step("never", never, on_failed="skip", timeout=LIMIT),
        *_chain("c"),
    ],
    success_finalizer=in_the_end,
)
FAILS = Definition(
    type="fails",
    input=Task,
    steps=[*_chain("a"), Step("b", not_in_the_first_run, timeout=LIMIT)],
    failure_finalizer=in_the_end,
)


@noted
def sleep_long(ctx: Context) -> Any:
    if ctx.resume is None:
        return Sleep(timedelta(seconds=2))
    return _made(ctx)


CUT = Definition(type="cut", input=Task, steps=[*_chain("a"), Step("long", sleep_long, timeout=LIMIT), *_chain("z")])


# --- what others count, read and own --------------------------------------------------------------------


@noted
def call(ctx: Context) -> dict[str, Any]:
    with calling(ctx, ctx.ports.path.parent, RESOURCE):
        threading.Event().wait(CALL_S)
    return _made(ctx)


LIMITED = Definition(type="limited", input=Task, steps=[Step("call", call, timeout=LIMIT, resource=RESOURCE)])


@noted
def show(ctx: Context) -> dict[str, Any]:
    shown = ctx.stream
    for number in range(20):
        shown.send("number", {"run": ctx.workflow_run, "attempt": ctx.attempt, "number": number})
        ctx.cancel.wait(0.02)
        ctx.check()
    return _made(ctx)


SHOWN = Definition(type="shown", input=Task, steps=[Step("show", show, timeout=LIMIT, streams=True)])


def _write(ctx: Context, verb: str) -> bool:
    """One business write of this round; the record says what became of it, and since when it was on its way."""
    order: Order = ctx.input
    began_ms = boot_ms()
    changes = () if verb == "begin" else ({"result": {"round": order.fencing_token}},)
    landed: bool = getattr(ctx.ports.objects[ORDERS.name], verb)(order.object_id, order.fencing_token, *changes)
    note = {"object": order.object_id, "round": order.fencing_token, "landed": landed, "began_ms": began_ms}
    ctx.ports.write(ctx, ROUND, msgspec.json.encode(note).decode())
    return landed


@noted
def serve(ctx: Context) -> dict[str, Any]:
    """One in four fails in its first run: its user asks again, and a new round replays it."""
    if not _write(ctx, "begin"):
        raise NonRetryable("another round")
    _hold(ctx)
    if ctx.input.number % 4 == 0 and ctx.workflow_run == 1:
        raise NonRetryable("not in the first round")
    return _made(ctx)


@noted
def served(ctx: Context) -> None:
    _write(ctx, "complete")


@noted
def not_served(ctx: Context) -> None:
    _write(ctx, "fail")


ORDERS = Objects(name="orders", grace_ms=200, round_fields=("result",))
SERVED = Definition(
    type="served",
    input=Order,
    identity=["object_id"],
    steps=[Step("serve", serve, timeout=LIMIT)],
    success_finalizer=served,
    failure_finalizer=not_served,
)


# --- one event for many ---------------------------------------------------------------------------------


class Story(msgspec.Struct, frozen=True):
    """The input of a story and of those who listen to its end."""

    name: str
    listeners: int

    @property
    def event(self) -> FanOutEvent:
        listed = {"story": self.name, "listeners": str(self.listeners)}
        return FanOutEvent(event_id=self.name, signal_type="ended", wait_key=self.name, identities=listed)


def listener_key(story: str, number: int) -> str:
    return f"listens:{story}:{number}"


def read_page(ctx: Context, cursor: int | None, limit: int) -> Page:
    story, count = ctx.input.identities["story"], int(ctx.input.identities["listeners"])
    first = cursor or 0
    last = min(first + limit, count)
    listed = [Subscriber(biz_key=listener_key(story, number)) for number in range(first, last)]
    return Page(subscribers=listed, next_cursor=last if last < count else None)


@noted
def listen(ctx: Context) -> Any:
    if ctx.resume is None:
        return WaitForSignal("ended", ctx.input.name, checkpoint=(0, 0))
    ctx.ports.write(ctx, RESUME, f"{ctx.resume.kind} 0 {ctx.resume.signal_id}")
    have_effect(ctx)
    return _made(ctx)


@noted
def tell_everybody(ctx: Context) -> None:
    start_fan_out(ctx, TELLS, ctx.input.event)


TELLS = make_fan_out("tells", read_page, page_size=25, backoff_first=PAUSE, backoff_max=timedelta(seconds=1))
STORY = Definition(type="story", input=Story, steps=_chain("a"), success_finalizer=tell_everybody)
LISTENS = Definition(type="listens", input=Story, steps=[Step("listen", listen, timeout=LIMIT)])

app = App(
    definitions=[
        CHAIN, WAVE, NAPS_TYPE, WAITS, POLLS_TYPE, PAGES_TYPE, TRIES, FAILS, CUT, LIMITED, SHOWN, SERVED, STORY, TELLS,
        LISTENS,
    ],
    limits={RESOURCE: Limit(max_concurrency=AT_ONCE, max_starts_per_second=STARTS)},
    dispatch_sources=[ORDERS],
    ports=ports,
)  # fmt: skip
