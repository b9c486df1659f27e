"""The cells of the crash matrix that run with real processes, as data (RELIABILITY §5).

A cell is a boundary and a point: killed before the call leaves, its answer lost, killed when the answer is there. One
workflow is sacrificed to each; what must be seen of it afterwards stands in the cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kernel import Definition
from kernel.ids import workflow_id_for
from tests.faults import apps
from tests.faults.arms import Arm, Point

Entries = dict[str | None, int]

BOUNDARIES = (
    "02", "05", "06", "07", "18", "19", "21", "26", "28", "29", "30", "31", "32", "33", "34", "35", "36", "38", "41",
    "44", "45", "59", "60", "61",
)  # fmt: skip
"""Those that the real-process part of the matrix must hold, each at least with `before` and `after`."""


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
    hold_s: float = 0.0
    nap_s: float = 0.0
    failures: int = 0

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
    attempts_after: tuple[int, ...] = (),
    attempts: tuple[int, ...] = (),
    attempts_before: tuple[int, ...] = (),
    touches: str = "",
    name: str = "",
    status: str = "completed",
    role: str = "",
    hold_s: float = 0.0,
    nap_s: float = 0.0,
    failures: int = 0,
    points: tuple[Point, ...] = ("before", "lost", "after"),
    follows: str = "",
) -> list[Cell]:
    """The three points of one boundary. `before` and `after` say what differs from an undisturbed run."""
    cells = []
    for point in points:
        changed = {"before": before, "after": after}.get(point) or {}
        tried = {"before": attempts_before, "after": attempts_after}.get(point) or attempts
        arm = Arm(call=call, point=point, touches=touches, role=role, follows=follows)
        cell = Cell(
            boundary, point, flow, arm, entries | changed, tried, status, name, hold_s, nap_s, failures,
        )  # fmt: skip
        cells.append(cell)
    return cells


ONCE: Entries = {"a": 1, "b": 1, "c": 1}

POPPED = [
    # The id was never taken from the index, or is lost from it; no attempt, no failure.
    Cell("18", "before", apps.LINE, Arm(call="pop", point="before", role="worker"), ONCE),
    Cell("18", "lost", apps.LINE, Arm(call="popped", point="lost", role="worker"), ONCE),
    Cell("18", "after", apps.LINE, Arm(call="popped", point="after", role="worker"), ONCE),
]

AT_WORK = [
    # A token that nobody knows: attempt not increased.
    *_three("19", apps.LINE, "claim", ONCE),
    *_three("21", apps.SLOW_FIRST, "renew", ONCE, hold_s=2.0, before={"a": 2}, after={"a": 2}),
    # Committed before the entry: the attempt counts, business code was never entered.
    *_three("26", apps.LINE, "begin_step", ONCE, attempts_after=(2, 1, 1)),
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
]  # fmt: skip

PUBLISHED = [
    *_three("02", apps.LINE, "create", ONCE),
    *_three("05", apps.SLEEPING, "raise_priority", {"a": 2}, attempts=(1,), nap_s=4.0),
    *_three("06", apps.LINE, "push", ONCE),
    # The index entry is there and nobody was told: the poll finds it.
    *_three("07", apps.LINE, "wakeup", ONCE),
]

# Whoever scans dies in the middle of it; the workers stand still meanwhile, so that a dispatcher is the one.
ACTIVATED = [
    *_three("44", apps.SLEEPING, "activate_timer", {"a": 2}, attempts=(1,), role="dispatcher", nap_s=2.0),
    *_three(
        "45", apps.SLEEPING, "push", {"a": 2}, attempts=(1,), role="dispatcher", nap_s=2.0,
        follows="activate_timer",
    ),
]  # fmt: skip

# Told to drain in the middle of a step: the step ends and commits, and the process dies giving the claim back.
DRAINED = _three("60", apps.SLOW_FIRST, "release", ONCE, hold_s=1.5)

PROCESSES: list[tuple[str, Point, int]] = [
    ("59", "before", 1),
    ("59", "after", 1),
    ("61", "before", 3),
    ("61", "after", 3),
]
"""A child"""


def workflow_id_of(cell: Cell) -> str:
    """The workflow that is sacrificed to the cell: its biz_key is the cell's name."""
    return workflow_id_for(cell.id)


def armed(cell: Cell) -> Arm:
    """The cell's arm, for its own workflow; a pop comes before it is known for whom."""
    key = "" if cell.arm.call == "pop" else workflow_id_of(cell)
    return msgspec.structs.replace(cell.arm, workflow_id=key)
