"""An application whose first activity holds its worker until a file is there, so that a test can kill it in between."""

from __future__ import annotations

import os
import select
from datetime import timedelta
from pathlib import Path

import msgspec

from kernel import App, Context, Definition, Limit, Objects, Sleep, Step


class Job(msgspec.Struct, frozen=True):
    number: int
    gate: str = ""


class Slept(msgspec.Struct, frozen=True, tag="slept/1"):
    pass


def work(ctx: Context) -> int:
    gate = Path(ctx.input.gate)
    if ctx.input.gate:
        gate.with_suffix(f".{os.getpid()}").touch()
        while not gate.exists():
            select.poll().poll(20)
            ctx.check()
    return int(ctx.input.number)


def nap(ctx: Context) -> Sleep | str:
    return "rested" if ctx.checkpoint(Slept) else Sleep(timedelta(milliseconds=50), checkpoint=Slept())


metered = Definition(
    type="metered",
    input=Job,
    identity=("number",),
    steps=[Step("work", work, resource="desk"), Step("nap", nap, checkpoint=Slept)],
)
orders = Objects(name="orders", grace_ms=0)
app = App(definitions=[metered], limits={"desk": Limit(max_concurrency=4)}, dispatch_sources=[orders])
