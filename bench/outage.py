"""The store of observations stopped in the middle of a load, and what it then lacks and gets back.

Its write lock is held: whoever wants to write waits for its whole time limit and is refused, as if a process had been
stopped while it wrote. That is the worst that a store can do to those beside it; one that is gone refuses at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel.errors import KernelError
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.protocol import Query, Store
from kernel.store.sqlite_lock import LockFile
from kernel.store.tables import INSTANCES
from supervisor.session import Session

BEGINS_AT = 1 / 6
"""The part of the workflows that has ended when the outage begins."""
SETTLE_S = 60.0
"""What was accepted must be written within so long after the load."""
_PAGE = 100


class OperatorFailed(KernelError):
    """A command of an operator has failed."""

    code = "operator_failed"


@dataclass(frozen=True)
class Observed:
    """What became of the observations of one run. Counters are those of workers and dispatchers together."""

    outage_s: float
    """How long the store was stopped; 0 when it was not."""
    meanwhile: int
    """Steps that were entered in that time."""
    outlasted: bool
    """Whether some of the load was still to come when it ended."""
    settled: bool
    """Whether everything that was accepted was written by `SETTLE_S` after the load."""
    counters: dict[str, int]
    """written, dropped, errors, poisoned."""
    gaps: int
    """Workflows of which something was missing: those that `workflow repair --all` has rebuilt."""
    repair_s: float
    wrong: int
    """Workflows that `workflow list` shows otherwise than they are, after the repair."""
    gaps_left: int
    """Those that a second `workflow repair --all` would rebuild."""


class Outage:
    """One outage of `outage_s` seconds; none when that is 0. `step` is called often, from the loop that publishes."""

    def __init__(self, folder: Path, outage_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = LockFile(f"{folder / OBSERVE_FILE}-lock") if outage_s else None
        self._wanted_s = outage_s
        self._clock = clock
        self._begun_s: float | None = None
        self._entered = 0
        self.lasted_s = 0.0
        self.meanwhile = 0

    @property
    def is_over(self) -> bool:
        return self._wanted_s == 0 or self.lasted_s > 0

    def step(self, entered: Callable[[], int], all_entries: int) -> None:
        """Begin or end it when its time has come; `entered` counts the steps that were entered, of `all_entries`."""
        if self._lock is None or self.is_over:
            return
        if self._begun_s is None:
            count = entered()
            if count >= BEGINS_AT * all_entries and self._lock.acquire():
                self._begun_s, self._entered = self._clock(), count
        elif self._clock() - self._begun_s >= self._wanted_s:
            self.end(entered())

    def end(self, entered: int) -> None:
        """End it, if it lasts."""
        if self._lock is None or self._begun_s is None or self.is_over:
            return
        self._lock.release()
        self.lasted_s = self._clock() - self._begun_s
        self.meanwhile = entered - self._entered

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def observed(session: Session, store: Store, folder: Path, outage: Outage, *, outlasted: bool) -> Observed:
    """Wait until what was accepted is written; then count what is missing, have it repaired, and compare. All by the
    commands of an operator, beside the running tree. Raises NoSupervisor when the tree has ended by itself, and
    OperatorFailed."""
    settled, counters = _settled(session)
    began_s = time.monotonic()
    repaired = _said(folder, "repair", "--all")["repaired"]
    repair_s = time.monotonic() - began_s
    truth = dict(_truth(store))
    listed = {row["workflow_id"]: (row["status"], row["revision"]) for row in _listed(folder)}
    return Observed(
        outage_s=outage.lasted_s,
        meanwhile=outage.meanwhile,
        outlasted=outlasted,
        settled=settled,
        counters=counters,
        gaps=repaired,
        repair_s=repair_s,
        wrong=sum(listed.get(key) != truth.get(key) for key in listed.keys() | truth.keys()),
        gaps_left=_said(folder, "repair", "--all")["repaired"],
    )


def _settled(session: Session) -> tuple[bool, dict[str, int]]:
    names = ("queue", "written", "dropped", "errors", "poisoned")
    deadline = time.monotonic() + SETTLE_S
    empty, before = 0, dict[str, int]()
    while True:
        children = session.status()["children"]
        totals = {
            name: sum(child["counters"].get(f"observation_{name}", 0) for child in children if child["counters"])
            for name in names
        }
        # Processes report once a second or two: what they said last may be of before the end of the load.
        empty = empty + 1 if totals.pop("queue") == 0 and totals == before else 0
        before = totals
        if empty == 5 or time.monotonic() >= deadline:
            return empty == 5, totals
        time.sleep(0.5)


def _truth(store: Store) -> Iterator[tuple[str, tuple[str, int]]]:
    """Status and revision of every workflow, as the durable store has them."""
    after: tuple[str, str] | None = None
    while True:
        query = Query(INSTANCES, (), "workflow_id", ("workflow_id", "status", "revision"), _PAGE, after)
        rows = store.scan(query)
        yield from ((workflow_id, (status, revision)) for workflow_id, status, revision in rows)
        if len(rows) < _PAGE:
            return
        after = (rows[-1][0], rows[-1][0])


def _listed(folder: Path) -> Iterator[dict[str, Any]]:
    """Every row of `workflow list`, page by page."""
    words: tuple[str, ...] = ()
    while True:
        page = _said(folder, "list", "--limit", str(_PAGE), *words)
        yield from page["workflows"]
        if page["next"] is None:
            return
        words = ("--after", page["next"])


def _said(folder: Path, *words: str) -> dict[str, Any]:
    """The answer of `kernel-supervisor workflow …`, without the settings of the user's own trees. Raises OperatorFailed
    with its last line when it gives none."""
    command = [sys.executable, "-m", "supervisor", "workflow", *words, "--json", "--data-dir", str(folder.absolute())]
    done = subprocess.run(
        [*command, "--config", os.devnull], env={}, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise OperatorFailed(f"workflow {words[0]}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
