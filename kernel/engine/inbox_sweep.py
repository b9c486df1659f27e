"""The net beneath the inbox: bounded passes over what is pending, and the end of what nobody can miss (group 21).

Any process may run a pass, also several at once: they decide nothing that a guard does not check again. A pass goes on
where the last one stopped and wraps, so that early signals, which may wait for months, hide nobody (DECISIONS 14).
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from kernel import transitions
from kernel.engine.matching import IDENTITY, signal_of
from kernel.engine.services import Services
from kernel.errors import KernelError, Refused
from kernel.signals import Signal
from kernel.states import LIVE, TERMINAL
from kernel.store.conditional import AtMost, OneOf, Remove, Removed
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES, SIGNALS

log = logging.getLogger("kernel.signals")

_COLUMNS = (*IDENTITY, "pending_time")
_SEEN_MAX = 16_384
_AGAIN_MS = 1_000


class Repaired(msgspec.Struct):
    """What one pass did."""

    looked_at: int = 0
    activated: int = 0
    removed: int = 0


class _Target(msgspec.Struct, frozen=True):
    """How the workflow of a pending signal stands, from its columns."""

    status: str | None = None
    finish_time: int | None = None


class InboxSweep:
    """The passes of one process over the inbox."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._inbox = services.inbox
        self._clock = services.clock
        self._ids = services.ids
        self._settings = services.settings
        self._next_ms = 0
        self._after: tuple[Any, str] | None = None
        self._ended: set[tuple[str, str, int | None]] = set()
        """Signals for runs that have ended and have not consumed them: looked at once and not in every pass."""

    def pass_when_due(self) -> None:
        """A pass at the scan rate, and nothing in between: a scheduling round is not to cost a reading. The first call
        of a process always makes one. Never raises: work is claimed although the inbox can not be read."""
        now_ms = self._clock.boot_ms()
        if now_ms < self._next_ms:
            return
        # Jittered, and early enough for a loop that asks only every poll interval to stay within the scan period (L6).
        self._next_ms = now_ms + round(self._settings.scan_ms * (0.6 + 0.2 * self._ids.fraction()))
        try:
            self.pass_once()
        except KernelError as error:
            log.warning("the inbox is looked at again in a moment: %s", error)
            self._next_ms = now_ms + min(self._settings.scan_ms, _AGAIN_MS)
        except Exception:
            log.exception("a pass over the inbox failed")

    def pass_once(self) -> Repaired:
        """Repair, then retention."""
        repaired = self.repair()
        repaired.removed += self.retain()
        return repaired

    def repair(self) -> Repaired:
        """Wake what a pending signal matches, and complete marks that an instance proves (sig-scan-match). A page costs
        two scans, and a reading for each signal of a live workflow. Raises StoreUnavailable."""
        repaired = Repaired()
        for _ in range(self._settings.scan_pages):
            rows = self._store.scan(Query(SIGNALS, (), "pending_time", _COLUMNS, self._settings.scan_page, self._after))
            self._after = (rows[-1][5], rows[-1][0]) if len(rows) == self._settings.scan_page else None
            self._look(rows, repaired)
            if self._after is None:
                break
        return repaired

    def _look(self, rows: list[tuple[Any, ...]], repaired: Repaired) -> None:
        targets = self._targets({str(row[1]) for row in rows})
        before_ms = self._store.now_ms() - self._settings.signal_pending_keep_ms
        over: list[Signal] = []
        for row in rows:
            try:
                signal = signal_of(row)
            except Refused as error:
                log.error("a row of the inbox does not decode and is left alone: %s", error)
                continue
            repaired.looked_at += 1
            target = targets.get(signal.workflow_id, _Target())
            if target.status in LIVE or not self._ended_before(signal, target):
                repaired.activated += self._inbox.repair(signal)
            if isinstance(row[5], int) and row[5] <= before_ms and _over_since(target, before_ms):
                over.append(signal)
        repaired.removed += self._forget_pending(over, before_ms)

    def _targets(self, workflow_ids: set[str]) -> dict[str, _Target]:
        if not workflow_ids:
            return {}
        query = Query(
            table=INSTANCES,
            guards=(OneOf("workflow_id", tuple(sorted(workflow_ids))),),
            order="workflow_id",
            columns=("workflow_id", "status", "finish_time"),
            limit=len(workflow_ids),
        )
        return {row[0]: _Target(row[1], row[2]) for row in self._store.scan(query)}

    def _ended_before(self, signal: Signal, target: _Target) -> bool:
        """Whether this very end of the workflow was looked at: it proves the same for ever. A replay is another."""
        if target.status is None:
            return True
        if len(self._ended) >= _SEEN_MAX:
            self._ended.clear()
        known = (signal.signal_id, target.status, target.finish_time)
        if known in self._ended:
            return True
        self._ended.add(known)
        return False

    # --- retention -----------------------------------------------------------------------------------------

    def _forget_pending(self, signals: list[Signal], before_ms: int) -> int:
        """Asked again right before: a workflow that was started or replayed meanwhile keeps its signals."""
        targets = self._targets({signal.workflow_id for signal in signals})
        return self._removed(
            [
                transitions.forget_pending(signal.signal_id, signal.workflow_id, until_ms=before_ms)
                for signal in signals
                if _over_since(targets.get(signal.workflow_id, _Target()), before_ms)
            ]
        )

    def retain(self) -> int:
        """Remove rows that were matched long ago; how many."""
        until_ms = self._store.now_ms() - self._settings.signal_matched_keep_ms
        removed = 0
        for _ in range(self._settings.scan_pages):
            guards = (AtMost("match_time", until_ms),)
            rows = self._store.scan(Query(SIGNALS, guards, "match_time", ("signal_id",), self._settings.scan_page))
            gone = self._removed([transitions.forget_matched(row[0], until_ms=until_ms) for row in rows])
            removed += gone
            if len(rows) < self._settings.scan_page or not gone:
                break
        return removed

    def _removed(self, removals: list[Remove]) -> int:
        if not removals:
            return 0
        answers = self._store.remove_all(removals)
        return sum(isinstance(answer, Removed) for answer in answers)


def _over_since(target: _Target, time_ms: int) -> bool:
    """Whether the workflow is unknown, or was terminal already at `time_ms`."""
    if target.status is None:
        return True
    return target.status in TERMINAL and target.finish_time is not None and target.finish_time <= time_ms
