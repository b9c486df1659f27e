"""What must come of a workflow, told from its Definition alone: an interpreter without processes, time or faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from kernel.definition import Definition, Step
from tests.simulation.flows import Item

SATISFIES = ("complete_step", "skip_step")


class Expected(msgspec.Struct, frozen=True):
    """The end of one run. `outcomes`: of each step that is entered, how often which transition ends an invocation."""

    status: str
    outcomes: dict[str, Counter[str]]
    outputs: dict[str, Any]
    finalizers: dict[str, int]


def expected(definition: Definition) -> Expected:
    """Step by step in the order of their dependencies: who of them is entered does not depend on when."""
    outcomes: dict[str, Counter[str]] = {}
    ends: dict[str, str] = {}
    before: dict[str, Iterable[str]] = {step.name: step.depends_on for step in definition.plan.steps}
    for step in definition.steps:
        if all(ends.get(name) in SATISFIES for name in before[step.name]):
            items: tuple[Item, ...] = step.activity.items  # type: ignore[attr-defined]
            ends[step.name], outcomes[step.name] = _played(step, items)
    failed = "fail_step" in ends.values()
    hook = definition.failure_finalizer if failed else definition.success_finalizer
    return Expected(
        "failed" if failed else "completed",
        outcomes,
        {name: {"step": name, "run": 1} for name, end in ends.items() if end == "complete_step"},
        {"failure" if failed else "success": int(hook is not None), "success" if failed else "failure": 0},
    )


def _played(step: Step, items: tuple[Item, ...]) -> tuple[str, Counter[str]]:
    """How the step ends, and all its invocations. A failure makes it begin anew, as long as it has attempts left."""
    found: Counter[str] = Counter()
    failures = place = 0
    while place < len(items):
        item = items[place]
        place += 1
        if item.kind in ("sleep", "told", "submits"):
            found["suspend_step"] += 1
        elif item.kind == "yield":
            found["yield_step"] += 1
        elif item.kind == "fails" and failures < item.number:
            failures += 1
            if failures >= step.attempts_max:
                end = "skip_step" if step.on_failed == "skip" else "fail_step"
                found[end] += 1
                return end, found
            found["retry_step"] += 1
            place = 0
    found["complete_step"] += 1
    return "complete_step", found
