"""The application of the crash matrix beside plain workflows: orders that are requested, a job that is shown.

An order fails in step b where its input says so, and its finalizers write what became of it into its business object,
each under its own round.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from kernel import App, BusinessObjects, Context, Definition, NonRetryable, Objects, PortsRequest, Step
from tests.faults.apps import LONG, _pass_gate
from tests.faults.effects import EffectsFile, have_effect, noted

GRACE_MS = 200
ORDERS = Objects(name="orders", grace_ms=GRACE_MS)
REFUSED_WRITE, WRITTEN = "refused", "written"


class Desk(EffectsFile):
    """The ledger, and the business objects of this process."""

    def __init__(self, request: PortsRequest) -> None:
        super().__init__(request.data_dir)
        self.orders: BusinessObjects = request.objects[ORDERS.name]


class Order(msgspec.Struct, frozen=True):
    """The input of a round. `fails`: step b is refused; `gate`: it waits there first."""

    object_id: str
    fencing_token: str = ""
    fails: bool = False
    gate: str = ""


@noted
def take(ctx: Context) -> str:
    have_effect(ctx)
    return "taken"


@noted
def serve(ctx: Context) -> str:
    if ctx.input.gate:
        _pass_gate(ctx, ctx.input.gate)
    if ctx.input.fails:
        raise NonRetryable("nothing can be served")
    have_effect(ctx)
    return f"served in {ctx.input.fencing_token}"


def told(ctx: Context, hit: bool) -> None:
    """What the business store said to the write of this round."""
    desk: Desk = ctx.ports
    desk.write(ctx, WRITTEN if hit else REFUSED_WRITE, ctx.input.fencing_token)


@noted
def served(ctx: Context) -> None:
    order: Order = ctx.input
    told(ctx, ctx.ports.orders.complete(order.object_id, order.fencing_token))


@noted
def not_served(ctx: Context) -> None:
    order: Order = ctx.input
    told(ctx, ctx.ports.orders.fail(order.object_id, order.fencing_token))


SERVED = Definition(
    type="served",
    input=Order,
    identity=["object_id"],
    steps=[Step("a", take), Step("b", serve, timeout=LONG)],
    success_finalizer=served,
    failure_finalizer=not_served,
)
app = App(definitions=[SERVED], dispatch_sources=[ORDERS], ports=Desk)


# --- what is shown and observed -----------------------------------------------------------------------


class Shown(msgspec.Struct, frozen=True):
    """`fails`: the first attempt does, behind its gate."""

    number: int = 0
    fails: bool = False


@noted
def compose(ctx: Context) -> Any:
    """Shows its attempt, waits at the gate of that attempt, and shows numbers, each a frame of its own; before the last
    one it waits at the gate of its end."""
    shown = ctx.stream
    shown.write(f"attempt {ctx.attempt} begins; ")
    shown.flush()
    _pass_gate(ctx, f"{ctx.workflow_id}-{ctx.attempt}")
    if ctx.input.fails and ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    for number in range(NUMBERS):
        if number == NUMBERS - 1:
            _pass_gate(ctx, f"{ctx.workflow_id}-{ctx.attempt}-end")
        shown.send("number", {"attempt": ctx.attempt, "number": number})
    return f"result of attempt {ctx.attempt}"


@noted
def at_gate(ctx: Context) -> str:
    """Waits at the gate that is named after its step."""
    _pass_gate(ctx, f"{ctx.workflow_id}-{ctx.step}")
    return str(ctx.step)


NUMBERS = 20
SHOWN = Definition(type="shown", input=Shown, steps=[Step("compose", compose, timeout=LONG, max_retry=1, streams=True)])
SEEN = Definition(
    type="seen",
    input=Shown,
    steps=[
        Step("a", take, timeout=timedelta(minutes=1)),
        Step("b", at_gate, timeout=LONG, depends_on=["a"]),
        Step("d", at_gate, timeout=LONG, depends_on=["a"]),
    ],
)


def just_effects(request: PortsRequest) -> EffectsFile:
    return EffectsFile(request.data_dir)


shown_app = App(definitions=[SHOWN, SEEN], ports=just_effects)
