"""The application that `bench fanout` runs: subscribers that wait for one signal each, and the fan-out that gives it.

The list of subscribers is computed, so that its reading costs nothing and what is measured is the telling. Pages and
wakes are noted in the ledger, outside the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.ledger import Ledger
from fanout import Cursor, FanOutEvent, Page, Subscriber, make_fan_out
from kernel import App, Context, Definition, PortsRequest, Step, WaitForSignal

WOKEN, PAGE, PAGE_DONE = 1, 2, 3
"""What a record of the ledger says: a subscriber was entered after its signal, a page was begun, a page was told."""
EVENT = FanOutEvent(event_id="bench", signal_type="bench_ready", wait_key="bench", identities={"list": "all"})
PAGE_SIZE = 200


class Waiting(msgspec.Struct, frozen=True):
    """The input of one subscriber: its number in the run."""

    number: int


def biz_key(number: int) -> str:
    """The business key of subscriber `number`; the data folder, and so the key, belongs to one run."""
    return f"subscriber:{number}"


def event(count: int) -> FanOutEvent:
    """The event for a list of `count` subscribers."""
    return msgspec.structs.replace(EVENT, identities={"count": str(count)})


def _wait(ctx: Context) -> WaitForSignal | None:
    """No poll fallback: a signal that gets lost shall show."""
    if ctx.resume is None:
        return WaitForSignal(EVENT.signal_type, EVENT.wait_key)
    ctx.ports.note(ctx.input.number, WOKEN)
    return None


def _read_page(ctx: Context, cursor: Cursor | None, limit: int) -> Page:
    first = cursor if isinstance(cursor, int) else 0
    last = min(first + limit, int(ctx.input.identities["count"]))
    more = last < int(ctx.input.identities["count"])
    return Page(
        subscribers=[Subscriber(biz_key=biz_key(number)) for number in range(first, last)],
        next_cursor=last if more else None,
    )


def _noted(definition: Definition) -> Definition:
    """The same fan-out, that says when it begins a page and when it has told one."""
    (step,) = definition.steps
    tell = step.activity

    def page(ctx: Context) -> Any:
        number = (ctx.checkpoint(dict) or {}).get("cursor") or 0
        ctx.ports.note(number, PAGE)
        told = tell(ctx)
        ctx.ports.note(number, PAGE_DONE)
        return told

    return msgspec.structs.replace(definition, steps=[msgspec.structs.replace(step, activity=page)])


def _ports(request: PortsRequest) -> Ledger:
    return Ledger(Path(request.data_dir))


SUBSCRIBER = Definition(type="bench_subscriber", input=Waiting, steps=[Step("wait", _wait)])
FAN_OUT = _noted(make_fan_out("bench_fanout", _read_page, page_size=PAGE_SIZE))

app = App(definitions=[SUBSCRIBER, FAN_OUT], ports=_ports)
