"""One flow for each reusable shape (spl-forms), as an author writes it: a Definition, activities, an outside world.

The outside world is a folder of small files, so that it is there for all workers and for the test.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from kernel import App, Context, Definition, PortsRequest, Signal, Sleep, Step, WaitForSignal, Yield

SOON = timedelta(seconds=0.2)
PAGE = 4


class Job(msgspec.Struct, frozen=True):
    """What a flow works on, and which generation of it."""

    name: str
    generation: int = 1


class Outside:
    """Facts by name. To write one again is to write the same: every effect here may be repeated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "outside"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def say(self, name: str, value: str) -> None:
        draft = self._folder / f".{name}"
        draft.write_text(value)
        draft.rename(self._folder / name)

    def ask(self, name: str) -> str | None:
        path = self._folder / name
        return path.read_text() if path.exists() else None


def ports(request: PortsRequest) -> Outside:
    return Outside(Path(request.data_dir))


# --- linear content job -----------------------------------------------------------------------------------


def fetch(ctx: Context) -> str:
    return f"content of {ctx.input.name}"


def shorten(ctx: Context) -> str:
    text: str = ctx.output("fetch", str) or ""
    return text.upper()


def publish(ctx: Context) -> None:
    ctx.ports.say(f"published-{ctx.input.name}", ctx.output("shorten"))


# --- async external task with polling ---------------------------------------------------------------------


def transcribe(ctx: Context) -> str | Sleep:
    """Submit once, under a key; then poll by durable sleeps: no slot is held meanwhile."""
    task = ctx.checkpoint(str)
    if task is None:
        task = f"task-{ctx.input.name}"
        ctx.ports.say(task, "submitted")
        return Sleep(SOON, checkpoint=task)
    state: str | None = ctx.ports.ask(task)
    return Sleep(SOON, checkpoint=task) if state == "submitted" else f"{task}: {state}"


# --- wait for an event --------------------------------------------------------------------------------------


def recording(ctx: Context) -> str | WaitForSignal:
    """The fact decides; the signal only says that it is worth looking (slp-reread)."""
    fact: str | None = ctx.ports.ask(f"recording-{ctx.input.name}")
    if fact is None:
        return WaitForSignal("recording_ready", ctx.input.name)
    return fact


# --- durable fan-out ------------------------------------------------------------------------------------------


def tell_all(ctx: Context) -> int | Yield:
    """One page of those who wait at a time; the cursor is durable, and a page that is told twice is told once."""
    done: int = ctx.checkpoint() or 0
    waiting: list[str] = msgspec.json.decode(ctx.ports.ask(f"waiting-{ctx.input.name}") or "[]")
    page = waiting[done : done + PAGE]
    if not page:
        return done
    ctx.ports.say(f"recording-{ctx.input.name}", "it is there")
    ctx.deliver_signals(
        [
            Signal(
                signal_id=f"{ctx.input.name}:{workflow_id}",
                workflow_id=workflow_id,
                signal_type="recording_ready",
                wait_key=ctx.input.name,
            )
            for workflow_id in page
        ]
    )
    return Yield(checkpoint=done + len(page))


# --- resource observer ------------------------------------------------------------------------------------------


def observe(ctx: Context) -> str | Sleep:
    """Look at the resource again and again until it has ended."""
    state: str | None = ctx.ports.ask(f"show-{ctx.input.name}-{ctx.input.generation}")
    if state != "over":
        looks: int = (ctx.checkpoint() or 0) + 1
        ctx.ports.say(f"looks-{ctx.input.name}-{ctx.input.generation}", str(looks))
        return Sleep(SOON, checkpoint=looks)
    return f"generation {ctx.input.generation} is over"


def flow(type_: str, *steps: Any) -> Definition:
    return Definition(type=type_, input=Job, steps=[Step(step.__name__, step) for step in steps])


LINEAR = flow("linear_content", fetch, shorten, publish)
POLLING = flow("external_task", transcribe)
WAITING = flow("event_wait", recording)
FAN_OUT = flow("fan_out", tell_all)
OBSERVER = flow("resource_observer", observe)

app = App(definitions=[LINEAR, POLLING, WAITING, FAN_OUT, OBSERVER], ports=ports)
