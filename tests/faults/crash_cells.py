"""The cells of the crash matrix that run with real processes, as data (RELIABILITY §5).

A cell is a boundary and a point: killed before the call leaves, its answer lost, killed when the answer is there. One
workflow is sacrificed to each; what must be seen of it afterwards stands in the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kernel import Definition
from kernel.ids import workflow_id_for
from tests.faults import apps
from tests.faults.arms import Arm, Point

Entries = dict[str | None, int]


@dataclass(frozen=True)
class Cell:
    """One boundary, one point, one workflow."""

    boundary: str
    point: Point
    flow: Definition
    arm: Arm
    entries: Entries
    """How often each step (None: the finalizer) is entered in all."""
    attempts: tuple[int, ...] = ()
    """The attempt of each step at the end; where not given, as many as entries."""
    status: str = "completed"
    name: str = ""
    nap_s: float = 0.0
    failures: int = 0
    statuses: tuple[str, ...] = ()
    """Of the steps at the end, where the cell says so."""
    effects: int | None = None
    """How many effects outside there are in all, each under the same key, where the cell says so."""

    @property
    def id(self) -> str:
        return "-".join(filter(None, (self.boundary, self.name, self.point)))

    @property
    def kills(self) -> bool:
        """Whether the point ends a process."""
        return self.point in ("before", "after")


def _three(
    boundary: str,
    flow: Definition,
    call: str,
    entries: Entries,
    *,
    before: Entries | None = None,
    after: Entries | None = None,
    attempts: tuple[int, ...] = (),
    attempts_before: tuple[int, ...] = (),
    attempts_after: tuple[int, ...] = (),
    touches: str = "",
    role: str = "",
    follows: str = "",
    **more: Any,
) -> list[Cell]:
    """The three points of one boundary. `before` and `after` say what differs from an undisturbed run."""
    cells = []
    points: tuple[Point, ...] = ("before", "lost", "after")
    for point in points:
        changed = {"before": before, "after": after}.get(point) or {}
        tried = {"before": attempts_before, "after": attempts_after}.get(point) or attempts
        arm = Arm(call=call, point=point, touches=touches, role=role, follows=follows)
        cells.append(Cell(boundary, point, flow, arm, entries | changed, tried, **more))
    return cells


ONCE: Entries = {"a": 1, "b": 1, "c": 1}

SUBMITTED: list[tuple[Point, int, int]] = [("before", 1, 0), ("lost", 2, 1), ("after", 2, 0)]
"""How many submits there are, and how many failures of the step."""

POPPED = [
    # The id was never taken from the index, or is lost from it; no attempt, no failure.
    Cell("18", "before", apps.LINE, Arm(call="pop", point="before", role="worker"), ONCE),
    Cell("18", "lost", apps.LINE, Arm(call="popped", point="lost", role="worker"), ONCE),
    Cell("18", "after", apps.LINE, Arm(call="popped", point="after", role="worker"), ONCE),
]

# While it is held in its step: armed when it is there.
RENEWED = _three("21", apps.GATED, "renew", {"only": 1}, before={"only": 2}, after={"only": 2})

AT_WORK = [
    # A token that nobody knows: attempt not increased.
    *_three("19", apps.LINE, "claim", ONCE),
    # Committed before the entry: the attempt counts, business code was never entered.
    *_three("26", apps.LINE, "begin_step", ONCE, attempts_after=(2, 1, 1)),
    # The one window in which a task is submitted twice: the same key both times, and never again once it is kept.
    *(
        Cell(
            "27", point, apps.SUBMITS, Arm(call="submit", point=point), {"a": 3}, (2,), nap_s=0.3, effects=effects,
            failures=failures,
        )
        for point, effects, failures in SUBMITTED
    ),
    # The answer is there, and with it the next step is begun: neither runs twice.
    *_three(
        "28", apps.LINE, "complete_step", ONCE, touches="outputs.a", before={"a": 2}, attempts_after=(1, 2, 1)
    ),
    *_three(
        "28", apps.LINE, "complete_step", ONCE, touches="outputs.b", name="second", before={"b": 2},
        attempts_after=(1, 1, 2),
    ),
    # Budget exact: total entries = 1 + max_retry + crashes.
    *_three(
        "29", apps.FAILS, "retry_step", {"a": 2, None: 1}, before={"a": 3}, status="failed", failures=2,
    ),
    *_three("30", apps.FAILS, "push", {"a": 2, None: 1}, follows="retry_step", status="failed", failures=2),
    *_three(
        "30", apps.YIELDS, "push", {"a": 2}, follows="yield_step", name="yield", attempts=(1,), attempts_before=(1,),
        attempts_after=(1,),
    ),
    *_three("31", apps.SKIPS, "skip_step", {"a": 1, "b": 1}, before={"a": 2}, failures=1),
    *_three(
        "32", apps.FAILS, "fail_step", {"a": 2, None: 1}, before={"a": 3}, status="failed", failures=2,
    ),
    *_three("34", apps.FAILS, "finish_failed", {"a": 2, None: 1}, before={None: 2}, status="failed", failures=2),
    # The write of the business: killed before it, an error after it, killed after it.
    *_three(
        "33", apps.FAILS, "finalizer", {"a": 2, None: 2}, status="failed", failures=2,
    ),
    *_three("35", apps.FINAL, "finalizer", {"a": 1, None: 2}),
    *_three("36", apps.FINAL, "finish_completed", {"a": 1, None: 1}, before={None: 2}),
    # Without a finalizer the last completion is the end of the workflow.
    *_three("36", apps.LINE, "complete_step", ONCE, touches="finish_time", name="merged", before={"c": 2}),
    *_three(
        "38", apps.SLEEPING, "suspend_step", {"a": 2}, before={"a": 3}, attempts=(1,), attempts_before=(2,),
        attempts_after=(1,), nap_s=0.3,
    ),
    *_three(
        "41", apps.YIELDS, "yield_step", {"a": 2}, before={"a": 3}, attempts=(1,), attempts_before=(2,),
        attempts_after=(1,),
    ),
    # No finalizer, and none of the steps behind it.
    *_three(
        "42", apps.CANCELS, "finish_canceled", {"a": 1, "b": 0}, before={"a": 2}, status="canceled",
        statuses=("skipped", "pending"), failures=1,
    ),
]  # fmt: skip

PUBLISHED = [
    *_three("02", apps.LINE, "create", ONCE, role="publisher"),
    # Of one that is there already, and waits until the test rings.
    *_three("03", apps.WAITS, "find", {"a": 2}, attempts=(1,), role="publisher"),
    *_three("05", apps.WAITS, "raise_priority", {"a": 2}, attempts=(1,), role="publisher"),
    *_three("06", apps.LINE, "push", ONCE, role="publisher"),
    # The index entry is there and nobody was told: the poll finds it.
    *_three("07", apps.LINE, "wakeup", ONCE, role="publisher"),
]

# Of one that waits, and of one that is held by a worker: its step stays as it is, nothing comes after it.
SUPERSEDED = [
    *_three(
        "43", apps.WAITS, "supersede", {"a": 1}, role="publisher", attempts=(0,), status="canceled",
        statuses=("waiting",),
    ),
    *_three(
        "43", apps.GATED, "supersede", {"only": 1}, role="publisher", name="held", status="canceled",
        statuses=("running",),
    ),
]  # fmt: skip

# No worker runs this version, and only a dispatcher says so.
DEFERRED = _three("20", apps.OTHER, "defer_for_fingerprint", {"a": 0, "b": 0}, role="dispatcher", status="running")

# Whoever scans dies in the middle of it; the workers stand still meanwhile, so that a dispatcher is the one.
ACTIVATED = [
    *_three("44", apps.SLEEPING, "activate_timer", {"a": 2}, attempts=(1,), role="dispatcher", nap_s=4.0),
    *_three(
        "45", apps.SLEEPING, "push", {"a": 2}, attempts=(1,), role="dispatcher", nap_s=4.0,
        follows="activate_timer",
    ),
]  # fmt: skip

# Told to drain in the middle of a step: the step ends and commits, and the process dies giving the claim back.
DRAINED = _three("60", apps.GATED_FIRST, "release", ONCE)

PROCESSES: list[tuple[str, Point, int]] = [
    ("59", "before", 1),
    ("59", "after", 1),
    ("61", "before", 3),
    ("61", "after", 3),
]
"""A child is killed at its sign of being ready: once, or three times in a row."""


def workflow_id_of(cell: Cell) -> str:
    """The workflow that is sacrificed to the cell: its biz_key is the cell's name."""
    return workflow_id_for(cell.id)


def armed(cell: Cell) -> Arm:
    """The cell's arm, for its own workflow; a pop comes before it is known for whom."""
    key = "" if cell.arm.call == "pop" else workflow_id_of(cell)
    return msgspec.structs.replace(cell.arm, workflow_id=key)
