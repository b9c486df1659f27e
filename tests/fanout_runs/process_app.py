"""The application of the tests with real processes: shows, their followers, a fan-out in pages of ten, a main job.

Every show has its own list, followers and event, so that one tree serves many tests. The business facts are files in
the data folder: `ended-…` says that the show has; `pages-….jsonl` has a line for each reading of its list.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from fanout import FanOutEvent, Page, Subscriber, fan_out_key, make_fan_out, start_fan_out
from kernel import App, Context, Definition, Step, WaitForSignal, workflow_id_for
from tests.faults.arms import Arms, hurt
from tests.faults.effects import EffectsFile, noted, ports

PAGE_SIZE = 10
HELD = "held"
"""The show whose third page is held when it is read for the first time: there to be killed."""
_HOLD_S = 300.0


class Show(msgspec.Struct, frozen=True):
    """The input of a follower and of the main job: which show, and how many follow it."""

    name: str
    count: int

    @property
    def event(self) -> FanOutEvent:
        return FanOutEvent(
            event_id=f"{self.name}:ended",
            signal_type="show_ended",
            wait_key=self.name,
            identities={"show": self.name, "count": str(self.count)},
        )

    @property
    def fan_out_id(self) -> str:
        return workflow_id_for(fan_out_key("notify", self.event))

    def key(self, number: int) -> str:
        """The biz_key of follower 1 to count."""
        return f"{self.name}:{number}"


class Read(msgspec.Struct, frozen=True):
    """One reading of a page."""

    cursor: int | None
    pid: int


def reads(folder: Path, show: Show) -> list[Read]:
    """All readings of that list, oldest first."""
    try:
        lines = _pages(folder, show.name).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Read) for line in lines]


def _pages(folder: Path, name: str) -> Path:
    return folder / f"pages-{name}.jsonl"


def _folder(ctx: Context) -> Path:
    effects: EffectsFile = ctx.ports
    return effects.path.parent


def read_page(ctx: Context, cursor: int | None, limit: int) -> Page:
    """The reading is a boundary of its own."""
    arm = Arms(_folder(ctx)).met("worker", "read_page", ctx.workflow_id, [str(cursor)])
    no_answer = ConnectionError("no answer")
    return hurt(arm, lambda: _read_page(ctx, cursor, limit), no_answer, no_answer)


def _read_page(ctx: Context, cursor: int | None, limit: int) -> Page:
    folder, show = _folder(ctx), Show(ctx.input.identities["show"], int(ctx.input.identities["count"]))
    with open(_pages(folder, show.name), "ab") as file:
        file.write(msgspec.json.encode(Read(cursor, os.getpid())) + b"\n")
    if show.name == HELD and [read.cursor for read in reads(folder, show)].count(2 * PAGE_SIZE) == 1 and cursor == 20:
        ctx.cancel.wait(_HOLD_S)
        ctx.check()
    first = cursor or 0
    last = min(show.count, first + limit)
    subscribers = [Subscriber(biz_key=show.key(number)) for number in range(first + 1, last + 1)]
    return Page(subscribers=subscribers, next_cursor=last if last < show.count else None)


@noted
def follow(ctx: Context) -> Any:
    """Business first, then the wait."""
    show: Show = ctx.input
    if not (_folder(ctx) / f"ended-{show.name}").exists():
        return WaitForSignal(show.event.signal_type, show.event.wait_key)
    return "followed"


@noted
def work(ctx: Context) -> str:
    (_folder(ctx) / f"ended-{ctx.input.name}").touch()
    return "done"


def publish(ctx: Context) -> None:
    start_fan_out(ctx, NOTIFY, ctx.input.event)


NOTIFY = make_fan_out("notify", read_page, page_size=PAGE_SIZE)
FOLLOWER = Definition(type="follower", input=Show, steps=[Step("follow", follow)])
MAIN = Definition(type="main", input=Show, steps=[Step("work", work)], success_finalizer=publish)

app = App(definitions=[NOTIFY, FOLLOWER, MAIN], ports=ports)
