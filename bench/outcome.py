"""What became of the workflows of a run: read from the store and from the ledger after the load, off the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.app import STEPS
from bench.ledger import CLAIM, Entry
from bench.load import biz_key
from kernel.ids import workflow_id_for
from kernel.records import COMMIT_IDS_KEPT, to_instance
from kernel.states import COMPLETED
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES


@dataclass(frozen=True)
class Stored:
    """The instances as the store has them."""

    completed: int
    others: dict[str, int]
    """How many are in any other state, by its name; `missing` has no row, `parked` goes before the status."""
    writes: int
    """Row writes, counted by the mark that each write leaves in its row: the insert, claims, steps, releases. Renewals
    leave none and do not occur in workflows that end within a third of the lease."""
    writes_whole: bool
    """False when a row has dropped its oldest marks, so that `writes` is a lower bound."""
    last_end_ms: int | None
    """On the store's clock; None when nothing has ended."""


def read_stored(store: Store, count: int) -> Stored:
    """Read workflows 0 to count − 1."""
    states: Counter[str] = Counter()
    writes = 0
    whole = True
    ends = []
    for number in range(count):
        document = store.get(INSTANCES, workflow_id_for(biz_key(number)))
        if document is None:
            states["missing"] += 1
            continue
        instance = to_instance(document)
        states["parked" if instance.parked is not None else instance.status] += 1
        writes += len(instance.commit_ids)
        whole = whole and len(instance.commit_ids) < COMMIT_IDS_KEPT
        if instance.finish_time is not None:
            ends.append(instance.finish_time)
    completed = states.pop(COMPLETED, 0)
    return Stored(completed, dict(states), writes, whole, max(ends, default=None))


@dataclass(frozen=True)
class Entered:
    """The ledger's count: how often the steps of the load were entered."""

    step_runs: int
    missing: int
    """Steps that were never entered."""
    extra: int
    """Entries beyond the first of each step."""
    shares: dict[str, float]
    """Part of the entries by process, the busiest first."""


def count_entries(entries: Sequence[Entry], count: int) -> Entered:
    """Count the entries of workflows 0 to count − 1."""
    steps = [entry for entry in entries if entry.step != CLAIM and entry.number < count]
    entered = {(entry.number, entry.step) for entry in steps}
    by_pid = Counter(entry.pid for entry in steps).most_common()
    shares = {f"worker pid {pid}": round(number / len(steps), 3) for pid, number in by_pid}
    return Entered(len(steps), count * len(STEPS) - len(entered), len(steps) - len(entered), shares)
