"""Workflows whose steps call the downstream service of these tests, each call under a permit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from kernel import App, Context, Definition, Limit, Sleep, Step
from tests.faults.downstream import calling
from tests.faults.effects import EffectsFile, noted, ports

AT_ONCE, STARTS = 4, 10
GATE = "permit-gate"


class Call(msgspec.Struct, frozen=True):
    """How long the call takes, and for whom it is made."""

    hold_s: float = 0.0
    tenant: str = "a"
    nap_s: float = 0.0
    gated: bool = False


def _folder(ctx: Context) -> Path:
    effects: EffectsFile = ctx.ports
    return effects.path.parent


def _take_time(ctx: Context) -> None:
    """Deaf to everything: a call that has been made can not be called back."""
    threading.Event().wait(ctx.input.hold_s)
    while ctx.input.gated and not (_folder(ctx) / GATE).exists():
        threading.Event().wait(0.01)


def call(kind: str) -> Callable[[Context], Any]:
    @noted
    def activity(ctx: Context) -> str:
        with calling(ctx, _folder(ctx), kind):
            _take_time(ctx)
        return "called"

    return activity


@noted
def submit_and_poll(ctx: Context) -> Any:
    """The first invocation submits and sleeps, the second one polls: both are calls (B-11)."""
    with calling(ctx, _folder(ctx), "job"):
        _take_time(ctx)
    return "done" if ctx.resume else Sleep(timedelta(seconds=ctx.input.nap_s), checkpoint="submitted")


def one(type: str, kind: str, **options: Any) -> Definition:
    step = Step("call", call(kind), timeout=timedelta(minutes=30), resource=kind)
    return Definition(type=type, input=Call, steps=[step], **options)


LIMITED = one("limited", "limited")
RATED = one("rated", "rated")
BOTH = one("both", "both")
FREE = one("free", "free")
POLLED = Definition(type="polled", input=Call, steps=[Step("job", submit_and_poll, resource="job")])
TENANT = Definition(
    type="tenant",
    input=Call,
    steps=[Step("call", call("tenant"), timeout=timedelta(minutes=30))],
    resource=lambda job: f"tenant_work:{job.tenant}",
)
PLAIN = Definition(type="plain", input=Call, steps=[Step("call", call("plain"))])

app = App(
    definitions=[LIMITED, RATED, BOTH, FREE, POLLED, TENANT, PLAIN],
    limits={
        "limited": Limit(max_concurrency=AT_ONCE),
        "rated": Limit(max_starts_per_second=STARTS),
        "both": Limit(max_concurrency=AT_ONCE, max_starts_per_second=STARTS),
        "free": Limit(),
        "job": Limit(max_concurrency=AT_ONCE),
        "tenant_work": Limit(max_concurrency=2),
    },
    ports=ports,
)
