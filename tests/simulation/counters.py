"""What must have happened at least once in a campaign: one that never met it has proved little (RELIABILITY §6.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

SOMETIMES = (
    "stale commit rejected",
    "takeover of a running step",
    "signal before wait",
    "signal and timer racing",
    "duplicate-key branch",
    "replay race lost",
    "permit denied then granted",
    "index wiped while 3 instances were runnable",
    "unknown write resolved as applied",
    "unknown write resolved as not applied",
    "fan-out page repeated",
    "reader saw a reset in mid-batch",
    "finalizer repeated",
    "fingerprint refused",
    "poison parked",
    "parked and put back",
    "started afresh under another plan",
    "permit granted again after a wipe",
    "permit restored after a wipe",
    "all indexed again after a wipe",
    "Redis hung",
    "the store hung",
)
"""The names; `Sometimes.add` refuses any other."""


class Sometimes:
    """Counts of one run, or of many together."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts = Counter(dict.fromkeys(SOMETIMES, 0))
        self.counts.update(counts or {})

    def add(self, name: str) -> None:
        assert name in self.counts, f"{name!r} is not in SOMETIMES"
        self.counts[name] += 1

    def zeros(self) -> list[str]:
        return [name for name in SOMETIMES if not self.counts[name]]

    @staticmethod
    def sum(many: Iterable[dict[str, int]]) -> Sometimes:
        total = Sometimes()
        for counts in many:
            total.counts.update(counts)
        return total
