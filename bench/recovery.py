"""How long the work of a killed worker lay still, from the ledger alone.

A worker holds a workflow from its claim to its end, so the workflows that a process held when it was killed are those
whose last record of that process is followed by one of another process. The time from the kill to that next record is
what a user would have waited. A workflow without a later record had ended before the kill, or never goes on; the latter
is found by counting what completed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from bench.ledger import CLAIM, Entry
from kernel.transitions.claims import SUSPECT_DEATHS

KILL_BOUND_S = 1.0
"""Work of a worker whose death is proved goes on within this time (DECISIONS 27)."""


class Kill(NamedTuple):
    """A worker that was killed; `at_ns` was taken just before the order to kill it."""

    at_ns: int
    pid: int


class Resumed(NamedTuple):
    """One workflow that a killed worker held. `bound_s`: one second, or a poll interval after a lost queue; None for a
    suspect, which was killed twice without progress and waits for a worker of its own (DECISIONS detail 4)."""

    number: int
    seconds: float
    bound_s: float | None

    @property
    def late(self) -> bool:
        return self.bound_s is not None and self.seconds > self.bound_s


class Recovery(NamedTuple):
    """All work that was held by killed workers. The times are None when a kill met no work."""

    resumed: list[Resumed]

    @property
    def max_s(self) -> float | None:
        return max((one.seconds for one in self.resumed), default=None)

    @property
    def median_s(self) -> float | None:
        return median(one.seconds for one in self.resumed) if self.resumed else None

    @property
    def late(self) -> list[Resumed]:
        return [one for one in self.resumed if one.late]


def recovery(entries: Sequence[Entry], kills: Sequence[Kill], flushes_ns: Sequence[int], poll_s: float) -> Recovery:
    """`entries` are sorted by time. A flush within the wait may have taken the candidate away; then the next poll is
    what finds the work again, and `poll_s` is the bound."""
    by_workflow: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_workflow[entry.number].append(entry)
    killed_ns = {kill.pid: kill.at_ns for kill in kills}
    resumed: list[Resumed] = []
    for records in by_workflow.values():
        resumed += _resumed(records, killed_ns, flushes_ns, poll_s)
    return Recovery(resumed)


def _resumed(
    records: Sequence[Entry], killed_ns: Mapping[int, int], flushes_ns: Sequence[int], poll_s: float
) -> Iterator[Resumed]:
    """The waits of one workflow, in the order of its records."""
    deaths, furthest = 0, -1
    for before, after in pairwise(records):
        if before.step != CLAIM and before.step > furthest:
            # A step beyond all earlier ones is entered only after those were committed: progress forgives deaths.
            deaths, furthest = 0, before.step
        killed_at_ns = killed_ns.get(before.pid)
        if before.pid == after.pid or killed_at_ns is None or after.at_ns <= killed_at_ns:
            continue
        deaths += 1
        flushed = any(killed_at_ns <= flush_ns <= after.at_ns for flush_ns in flushes_ns)
        bound_s = max(KILL_BOUND_S, poll_s) if flushed else KILL_BOUND_S
        waited_s = (after.at_ns - killed_at_ns) / 1e9
        yield Resumed(after.number, waited_s, bound_s if deaths < SUSPECT_DEATHS else None)
