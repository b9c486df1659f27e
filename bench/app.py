"""The application that `bench workflows` runs: three steps that do next to nothing, and say that they were entered.

`bench_trivial` measures the kernel's own work. `bench_held` is for runs in which workers are killed: its steps hold
their claim for some milliseconds, so that a kill meets work in progress, and it notes each claim as well.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.ledger import CLAIM, Ledger
from kernel import App, Context, Definition, PortsRequest, Step

STEPS = ("first", "second", "third")


class Work(msgspec.Struct, frozen=True):
    """The input of one workflow: its number in the run, and how long each step holds its claim."""

    number: int
    hold_ms: int = 0


def _step(ctx: Context) -> None:
    work: Work = ctx.input
    ctx.ports.note(work.number, STEPS.index(str(ctx.step)))
    if work.hold_ms:
        ctx.cancel.wait(work.hold_ms / 1000)
        ctx.check()


def _claimed(ctx: Context) -> None:
    work: Work = ctx.input
    ctx.ports.note(work.number, CLAIM)


def _ports(request: PortsRequest) -> Ledger:
    return Ledger(Path(request.data_dir))


TRIVIAL = Definition(type="bench_trivial", input=Work, steps=[Step(name, _step) for name in STEPS])
HELD = Definition(type="bench_held", input=Work, steps=[Step(name, _step) for name in STEPS], prepare=_claimed)

app = App(definitions=[TRIVIAL, HELD], ports=_ports)
