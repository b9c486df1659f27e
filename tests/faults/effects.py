"""The effects ledger: what activities did, written by themselves, beside the store and outside the kernel.

One file in the data folder, one line a record, each line one append: a record is there as soon as it was written,
whatever happens to its process next. Checkers read this file and the rows, never logs.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kernel import Context, PortsRequest
from kernel.clock import SystemClock
from tests.support.json_lines import JsonLines

FILE_NAME = "effects.jsonl"

ENTER, LEAVE, EFFECT = "enter", "leave", "effect"
"""Entered business code; left it (`note`: with a value of what type, or by which error); had an effect outside (`note`:
its idempotency key)."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One record. `at_ms` is the boot clock, which all processes of a machine share; `wall_ms` the store's clock."""

    what: str
    at_ms: int
    wall_ms: int
    pid: int
    worker_id: str
    workflow_id: str
    run: int
    step: str | None
    """None in a finalizer."""
    attempt: int
    note: str = ""


class EffectsFile:
    """The ledger as the activities of one process see it. Safe for its threads: a record is one write."""

    def __init__(self, data_dir: str | Path) -> None:
        self.path = Path(data_dir) / FILE_NAME
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self._clock = SystemClock()

    def write(self, ctx: Context, what: str, note: str = "") -> None:
        effect = Effect(
            what=what,
            at_ms=self._clock.boot_ms(),
            wall_ms=self._clock.wall_ms(),
            pid=os.getpid(),
            worker_id=ctx.worker_id,
            workflow_id=ctx.workflow_id,
            run=ctx.workflow_run,
            step=ctx.step,
            attempt=ctx.attempt,
            note=note,
        )
        os.write(self._fd, msgspec.json.encode(effect) + b"\n")

    def count(self, ctx: Context) -> int:
        """How often this step, or the finalizer, of this workflow was entered by now, by whatever process."""
        return sum(
            effect.what == ENTER and (effect.workflow_id, effect.step) == (ctx.workflow_id, ctx.step)
            for effect in read_effects(self.path.parent)
        )


def read_effects(data_dir: Path) -> list[Effect]:
    """All records in the order of their writing."""
    return Effects(data_dir).all()


class Effects:
    """The ledger as a test sees it; what was read once is not read again."""

    def __init__(self, data_dir: Path) -> None:
        self._lines = JsonLines(data_dir / FILE_NAME, Effect)
        self._effects: list[Effect] = []

    def all(self) -> list[Effect]:
        """All records in the order of their writing."""
        self._effects += self._lines.more()
        return list(self._effects)

    def of(self, workflow_id: str, step: str | None = "", what: str = ENTER) -> list[Effect]:
        """The records of one workflow; of one step (None: the finalizer), or of all when it is not named."""
        return [
            effect
            for effect in self.all()
            if (effect.workflow_id, effect.what) == (workflow_id, what) and step in ("", effect.step)
        ]

    def counts(self, workflow_id: str) -> dict[str | None, int]:
        """Entries per step."""
        counts: dict[str | None, int] = {}
        for effect in self.of(workflow_id):
            counts[effect.step] = counts.get(effect.step, 0) + 1
        return counts


def ports(request: PortsRequest) -> EffectsFile:
    """The ports of every application here."""
    return EffectsFile(request.data_dir)


def noted(activity: Callable[[Context], Any]) -> Callable[[Context], Any]:
    """Wrap an activity or finalizer so that it says when it enters and leaves, and with what."""

    @functools.wraps(activity)
    def wrapper(ctx: Context) -> Any:
        effects: EffectsFile = ctx.ports
        effects.write(ctx, ENTER)
        try:
            value = activity(ctx)
        except BaseException as error:
            effects.write(ctx, LEAVE, f"{type(error).__name__}: {error}")
            raise
        effects.write(ctx, LEAVE, type(value).__name__)
        return value

    return wrapper


def have_effect(ctx: Context) -> None:
    """An effect outside, under its idempotency key: whoever may not act any more does not get past the key."""
    key = ctx.effect_key
    effects: EffectsFile = ctx.ports
    effects.write(ctx, EFFECT, key)


def boot_ms() -> int:
    """Now, on the clock of `Effect.at_ms`."""
    return SystemClock().boot_ms()


def burn_cpu(seconds: float) -> int:
    """Pure Python that never waits."""
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        rounds += sum(range(200))
    return rounds
