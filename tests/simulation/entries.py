"""The effects ledger: every entry into business code, and what became of it. Checkers read it, never logs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kernel.codec import decode
from kernel.context import Context
from kernel.records import Document
from kernel.store.tables import INSTANCES
from tests.simulation.fibers import current
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

Key = tuple[str, int, str]
"""workflow_id, run, step: or `success`, `failure` for a finalizer."""


class Entry:
    """One invocation of an activity or finalizer, under one claim of one process."""

    __slots__ = ("at_ms", "key", "process", "settled", "token", "troubles")

    def __init__(self, key: Key, process: Process, token: str, at_ms: int, troubles: int) -> None:
        self.key = key
        self.process = process
        self.token = token
        self.at_ms = at_ms
        self.troubles = troubles
        """What had befallen the process, and time, when the claim was taken."""
        self.settled = False
        """Whether an outcome of it was committed."""

    def __repr__(self) -> str:
        return f"{self.key[2]} of {self.key[0][:9]} run {self.key[1]} by {self.process.name}"


class Ledger:
    """All entries of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: list[Entry] = []
        self.last: dict[tuple[str, str], Entry] = {}
        """The latest entry of each (workflow_id, step)."""
        self.counts: Counter[Key] = Counter()
        self.failures: Counter[tuple[Key, int]] = Counter()
        """Errors that an activity has raised, by the place in its script."""
        self.sums: Counter[tuple[str, str, str]] = Counter()
        """How often each transition ended an invocation: by workflow_id and step."""
        self.claims: dict[str, tuple[Process, int]] = {}
        """Which process took each claim, and what had befallen it by then."""

    def enter(self, ctx: Context, what: str) -> Entry:
        """At the start of an activity (`what` its step) or finalizer. Checks that nobody but the holder is here."""
        world, process = self._world, world_process()
        key = (ctx.workflow_id, ctx.workflow_run, what)
        row = world.store.get(INSTANCES, ctx.workflow_id)
        assert row is not None
        token = row.get("claim_token", "")
        if row["status"] != "canceled":
            self._check(ctx, row, process, what)
        since = self.claims.get(token, (process, 0))[1]
        if process.troubles.until_ms >= row.get("claim_time", 0):
            since = -1  # a slow call was under way when it took the claim: a renewal may wait behind it
        entry = Entry(key, process, token, world.hub.now_ms, since)
        self.entries.append(entry)
        self.last[key[0], what] = entry
        self.counts[key] += 1
        if ctx.step is None and what != "prepare" and self.counts[key] > 1:
            world.sometimes.add("finalizer repeated")
        return entry

    def _check(self, ctx: Context, row: Document, process: Process, what: str) -> None:
        """The fence holds: whoever enters business code is the present holder of the claim (S3, S4)."""
        world, where = self._world, f"{what} of {ctx.workflow_id} entered by {process.name}"
        holder = self.claims.get(row.get("claim_token", ""), (None, 0))[0]
        if holder is not process:
            world.violation("S3", f"{where}, held by {holder and holder.name}")
        if row["workflow_run"] != ctx.workflow_run:
            world.violation("S7", f"{where} for run {ctx.workflow_run}, it is in run {row['workflow_run']}")
        if ctx.step is not None:
            step = next(step for step in row["steps"] if step["name"] == ctx.step)
            if step["status"] != "running":
                world.violation("S4", f"{where}, it is {step['status']}")
            if step["attempt"] != ctx.attempt:
                world.violation("S4", f"{where} as attempt {ctx.attempt}, it is at {step['attempt']}")
        elif what != "prepare" and any(step["status"] == "running" for step in row["steps"]) and what == "success":
            world.violation("S4", f"{where} while a step runs")

    def settle(self, workflow_id: str, step: str, token: str, how: str) -> None:
        """An outcome of this step was committed under this claim, by a transition of that name."""
        self.sums[workflow_id, step, how] += 1
        entry = self.last.get((workflow_id, step))
        if entry is not None and entry.token == token:
            entry.settled = True

    def submitted(self, entry: Entry, place: int) -> None:
        """A step hands a task to somebody outside: only while its checkpoint does not know of one (S8)."""
        row = self._world.store.get(INSTANCES, entry.key[0])
        assert row is not None
        step = next(step for step in row["steps"] if step["name"] == entry.key[2])
        known = decode(step["checkpoint"], int, "checkpoint") if "checkpoint" in step else 0
        if row["workflow_run"] == entry.key[1] and known > place:
            self._world.violation("S8", f"{entry} submits place {place} again, its checkpoint is at {known}")

    def check_extra(self) -> None:
        """Each entry that came to nothing has an excuse: its process ended, or something befell it since it took the
        claim, or the workflow was canceled. Nothing is run again for no reason."""
        world = self._world
        for entry in self.entries:
            if entry.settled or entry.key[2] == "prepare":
                continue
            process = entry.process
            excused = process.dead or process.troubles.count + world.jumps > entry.troubles
            if not excused and not world.watch.was_canceled(entry.key[0], entry.at_ms):
                world.violation("extra", f"{entry} at {entry.at_ms - world.start_ms} ms came to nothing, for no reason")


def world_process() -> Process:
    """The process of the fiber that runs."""
    owner = current().owner
    assert isinstance(owner, Process)
    return owner
