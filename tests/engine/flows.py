"""Short ways to declare what a test needs: steps whose entries are noted, and Definitions of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kernel.context import Context
from kernel.definition import Definition, Step
from tests.support.engine_ledger import Ledger
from tests.support.engine_rig import Rig

Activity = Callable[[Context], Any]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def gives(value: Any) -> Activity:
    """An activity that returns `value`."""
    return lambda ctx: value


def raises(error: BaseException) -> Activity:
    """An activity that raises `error` whenever it is entered."""

    def activity(ctx: Context) -> Any:
        raise error

    return activity


def fails_first(times: int, value: Any = "done", error: type[Exception] = ValueError) -> Activity:
    """An activity whose first `times` calls for each workflow raise, and that returns `value` afterwards."""
    calls: Counter[str] = Counter()

    def activity(ctx: Context) -> Any:
        calls[ctx.workflow_id] += 1
        if calls[ctx.workflow_id] <= times:
            raise error(f"failure {calls[ctx.workflow_id]}")
        return value

    return activity


def step(rig: Rig | Ledger, name: str, activity: Activity | None = None, **options: Any) -> Step:
    """A step whose entries the rig's ledger notes; by default it returns its own name."""
    ledger = rig if isinstance(rig, Ledger) else rig.ledger
    return Step(name, ledger(activity or gives(name)), **options)


def flow(rig: Rig, *steps: Step | str, type: str = "job", **options: Any) -> Definition:
    """A Definition of these steps; a text is a step that returns its own name."""
    made = [step(rig, entry) if isinstance(entry, str) else entry for entry in steps]
    return Definition(type=type, steps=made, **options)
