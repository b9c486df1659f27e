"""What must hold of all rows and all effects at any time, whatever died (RELIABILITY §3.1). Findings are texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.states import TERMINAL
from tests.faults.effects import ENTER, LEAVE, Effect
from tests.faults.rig import Tree
from tests.support.looking import Looking


def findings(rows: Iterable[Document], effects: Iterable[Effect], keys: Iterable[str]) -> list[str]:
    """Every broken rule in a tree that has come to rest; `keys` are the biz_keys that were accepted."""
    rows, effects = list(rows), list(effects)
    return [
        *_one_row_a_key(rows, list(keys)),
        *(found for row in rows for found in broken_in(row)),
        *_runs_after_completion(rows, effects),
        *_side_by_side(effects),
    ]


def _one_row_a_key(rows: list[Document], keys: list[str]) -> Iterator[str]:
    """S1 and S2: an accepted request is one row, for ever."""
    counted = Counter(row["biz_key"] for row in rows)
    for key in keys:
        if counted[key] != 1:
            yield f"{key}: {counted[key]} rows"
    for row in rows:
        if row["workflow_id"] != workflow_id_for(row["biz_key"]):
            yield f"{row['biz_key']}: has the id {row['workflow_id']}"


def broken_in(row: Document) -> Iterator[str]:
    """What one row must never show, also while work is going on (S5, S6, clm-release-clears)."""
    name = f"{row['biz_key']} (revision {row['revision']})"
    for step in row["steps"]:
        if (step["status"] == "completed") != (step["name"] in row["outputs"]):
            yield f"{name}: step {step['name']} is {step['status']}, outputs {sorted(row['outputs'])}"
        if (step["status"] == "waiting") != ("wait" in step):
            yield f"{name}: step {step['name']} is {step['status']} with wait {step.get('wait')}"
    claim = [field in row for field in ("claim_token", "claim_time", "worker_id", "worker")]
    if any(claim) != all(claim):
        yield f"{name}: half a claim {claim}"
    if row["status"] in TERMINAL:
        left = [field for field in ("claim_token", "claimable_time", "wait", "parked") if field in row]
        if left:
            yield f"{name}: {row['status']} and yet {left}"
    elif "claimable_time" not in row and "parked" not in row:
        yield f"{name}: {row['status']} and nobody will ever look at it again"
    if row["status"] == "waiting" and "claim_token" in row:
        yield f"{name}: waits and is claimed"


def orphans(rows: Iterable[Document]) -> list[str]:
    """Claims in a tree in which nothing runs any more."""
    return [row["biz_key"] for row in rows if "claim_token" in row]


def _runs_after_completion(rows: list[Document], effects: list[Effect]) -> Iterator[str]:
    """S4: a completed step is not entered again in the same run. No clock is asked: that of a machine may be set, and
    only a committed beginning gives the next number, and none can be committed after the end."""
    done = {
        (row["workflow_id"], row["workflow_run"], step["name"]): step["attempt"]
        for row in rows
        for step in row["steps"]
        if step["status"] in ("completed", "skipped")
    }
    for effect in effects:
        last = done.get((effect.workflow_id, effect.run, str(effect.step)))
        if effect.what == ENTER and last is not None and effect.attempt > last:
            yield f"{effect.workflow_id}: attempt {effect.attempt} of {effect.step} entered, it has ended in {last}"


def _side_by_side(effects: list[Effect]) -> Iterator[str]:
    """No two invocations of one step overlap. One that never left ended with its process, and is not looked at."""
    inside: dict[tuple[object, ...], Effect] = {}
    left: dict[tuple[object, ...], list[tuple[Effect, int]]] = {}
    for effect in effects:
        step = (effect.workflow_id, effect.run, effect.step)
        key = (*step, effect.worker_id)
        if effect.what == ENTER:
            if key in inside:
                yield f"{effect.workflow_id}: {effect.step} twice at once in {effect.pid}"
            inside[key] = effect
        elif effect.what == LEAVE:
            left.setdefault(step, []).append((inside.pop(key), effect.at_ms))
    for invocations in left.values():
        invocations.sort(key=lambda invocation: invocation[0].at_ms)
        for (first, left_ms), (second, _) in pairwise(invocations):
            if second.at_ms < left_ms:
                yield f"{first.workflow_id}: {first.step} by {first.pid} and {second.pid} side by side"


class Watch(Looking):
    """Reads all rows again and again while a test hurts the tree; what it saw broken it says at the end.

    A row's revision never falls, and a terminal row never changes (S6). `only`: those workflows and no others.
    """

    def __init__(self, tree: Tree, every_s: float = 0.05, *, only: Iterable[str] = ()) -> None:
        super().__init__("watch", every_s)
        self._tree = tree
        self._only = tuple(only)
        self._last: dict[str, Document] = {}
        self.found: list[str] = []
        self.looks = 0

    def _turn(self) -> None:
        for row in map(self._tree.row, self._only) if self._only else self._tree.rows():
            self._look(row)
        self.looks += 1

    def _failed(self, error: Exception) -> None:
        self.found.append(f"the watch ended: {error!r}")

    def _look(self, row: Document) -> None:
        self.found.extend(broken_in(row))
        last = self._last.get(row["workflow_id"])
        if last is not None:
            if row["revision"] < last["revision"]:
                self.found.append(f"{row['biz_key']}: revision {last['revision']} became {row['revision']}")
            if last["status"] in TERMINAL and row != last:
                self.found.append(f"{row['biz_key']}: was {last['status']} and changed")
        self._last[row["workflow_id"]] = row
