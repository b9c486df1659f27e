"""The net beneath the inbox: bounded passes over what is pending, and the end of what nobody can miss (group 21).

Any process may run a pass, also several at once: they decide nothing that a guard does not check again. A pass goes on
where the last one stopped and wraps, so that early signals, which may wait for months, hide nobody (DECISIONS 14).
What they cost is a row of two scans each: an instance whose revision has not changed is not read again for them.

A worker looks at one page before it claims, once in a scan period, and at all the others on a thread beside that: what
is matched last waits for the length of the inbox and not for a number of passes, and nobody's claim waits for it (L6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from kernel import transitions
from kernel.engine.matching import IDENTITY, consumed, signal_of, waiting_for
from kernel.engine.services import Services
from kernel.engine.vain_looks import Standing, VainLooks
from kernel.errors import CorruptRecord, KernelError, Refused, UnknownVersion
from kernel.records import Instance, to_instance
from kernel.signals import Signal
from kernel.states import TERMINAL
from kernel.store.conditional import AtMost, OneOf, Remove, Removed
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS

log = logging.getLogger("kernel.signals")

_COLUMNS = (*IDENTITY, "pending_time")
_AGAIN_MS = 1_000
_PASS_MS = 2_000
"""After so long a pass leaves the rest to the next one: a dispatcher has other sweeps to make."""


class Repaired(msgspec.Struct):
    """What one pass did."""

    looked_at: int = 0
    activated: int = 0
    removed: int = 0


class InboxSweep:
    """The passes of one process over the inbox."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._inbox = services.inbox
        self._clock = services.clock
        self._ids = services.ids
        self._runner = services.runner
        self._settings = services.settings
        self._next_ms = 0
        self._after: tuple[Any, str] | None = None
        self._vain = VainLooks()
        self._beside = False
        """Whether the rest of a pass runs on another thread: all of this is that thread's then."""
        self._more = False

    def pass_when_due(self) -> None:
        """A page at the scan rate, and nothing in between: a scheduling round is not to cost a reading, nor to wait for
        a long inbox. Where there is more, the rest of the pass is made beside it. The first call of a process always
        looks at a page. Never raises: work is claimed although the inbox can not be read."""
        now_ms = self._clock.boot_ms()
        if self._beside or now_ms < self._next_ms:
            return
        # Jittered, and early enough for a loop that asks only every poll interval to stay within the scan period (L6).
        self._next_ms = now_ms + round(self._settings.scan_ms * (0.6 + 0.2 * self._ids.fraction()))
        if not self._tried(self._begin) or not self._more:
            return
        self._beside = True
        try:
            self._runner.spawn("inbox", self._finish)
        except RuntimeError:
            log.exception("no thread could be started for the inbox, a later pass goes on")
            self._beside = False

    def _finish(self) -> None:
        """The rest of a pass: to the end of the inbox, however long; where that takes until the next pass is due, that
        one goes on from here."""
        try:
            self._tried(self._rest)
        finally:
            self._beside = False

    def _begin(self) -> None:
        self._more = True
        self._page()
        _, old = self._retain_page()
        self._more = old or self._after is not None

    def _rest(self) -> None:
        while self._after is not None and self._clock.boot_ms() < self._next_ms:
            self._page()
        self.retain()

    def _tried(self, part: Callable[[], object]) -> bool:
        try:
            part()
        except KernelError as error:
            log.warning("the inbox is looked at again in a moment: %s", error)
            self._next_ms = self._clock.boot_ms() + min(self._settings.scan_ms, _AGAIN_MS)
            return False
        except Exception:
            log.exception("a pass over the inbox failed")
            return False
        return True

    def pass_once(self) -> Repaired:
        """Repair, then retention."""
        repaired = self.repair()
        repaired.removed += self.retain()
        return repaired

    def repair(self) -> Repaired:
        """Wake what a pending signal matches, and complete marks that an instance proves (sig-scan-match); at most
        `scan_pages` pages, and none is begun after two seconds. Raises StoreUnavailable."""
        repaired = Repaired()
        ends_ms = self._clock.boot_ms() + _PASS_MS
        for _ in range(self._settings.scan_pages):
            self._page(repaired)
            if self._after is None or self._clock.boot_ms() >= ends_ms:
                break
        return repaired

    def _page(self, repaired: Repaired | None = None) -> None:
        """The next page: two scans, and a reading for each workflow that has changed since it was looked at."""
        rows = self._store.scan(Query(SIGNALS, (), "pending_time", _COLUMNS, self._settings.scan_page, self._after))
        self._look(rows, repaired or Repaired())
        self._after = (rows[-1][5], rows[-1][0]) if len(rows) == self._settings.scan_page else None
        if self._after is None:
            self._vain.turn()

    def _look(self, rows: list[tuple[Any, ...]], repaired: Repaired) -> None:
        targets = self._targets({str(row[1]) for row in rows})
        before_ms = self._store.now_ms() - self._settings.signal_pending_keep_ms
        page = _Instances(self._store)
        over: list[Signal] = []
        for row in rows:
            try:
                signal = signal_of(row)
            except Refused as error:
                log.error("a row of the inbox does not decode and is left alone: %s", error)
                continue
            repaired.looked_at += 1
            target = targets.get(signal.workflow_id, Standing())
            if target.status is not None and not self._vain.knows(signal.signal_id, target):
                repaired.activated += self._matched(signal, page)
            if isinstance(row[5], int) and row[5] <= before_ms and _over_since(target, before_ms):
                over.append(signal)
        repaired.removed += self._forget_pending(over, before_ms)

    def _matched(self, signal: Signal, page: _Instances) -> bool:
        """Whether this signal has woken its workflow just now. What was read for another signal of the page serves here
        as well: it says only that there was nothing to do at that revision."""
        instance = page.get(signal.workflow_id)
        if instance is None:
            return False
        if consumed(instance, signal.signal_id) or waiting_for(instance, signal) is not None:
            page.forget(signal.workflow_id)
            return self._inbox.repair(signal)
        self._vain.add(signal.signal_id, Standing(instance.status, instance.finish_time, instance.revision))
        return False

    def _targets(self, workflow_ids: set[str]) -> dict[str, Standing]:
        if not workflow_ids:
            return {}
        query = Query(
            table=INSTANCES,
            guards=(OneOf("workflow_id", tuple(sorted(workflow_ids))),),
            order="workflow_id",
            columns=("workflow_id", "status", "finish_time", "revision"),
            limit=len(workflow_ids),
        )
        return {row[0]: Standing(*row[1:]) for row in self._store.scan(query)}

    # --- retention -----------------------------------------------------------------------------------------

    def _forget_pending(self, signals: list[Signal], before_ms: int) -> int:
        """Asked again right before: a workflow that was started or replayed meanwhile keeps its signals."""
        targets = self._targets({signal.workflow_id for signal in signals})
        return self._removed(
            [
                transitions.forget_pending(signal.signal_id, signal.workflow_id, until_ms=before_ms)
                for signal in signals
                if _over_since(targets.get(signal.workflow_id, Standing()), before_ms)
            ]
        )

    def retain(self) -> int:
        """Remove rows that were matched long ago, at most `scan_pages` pages; how many."""
        removed = 0
        for _ in range(self._settings.scan_pages):
            gone, more = self._retain_page()
            removed += gone
            if not more:
                break
        return removed

    def _retain_page(self) -> tuple[int, bool]:
        """How many went, and whether there may be more."""
        until_ms = self._store.now_ms() - self._settings.signal_matched_keep_ms
        guards = (AtMost("match_time", until_ms),)
        rows = self._store.scan(Query(SIGNALS, guards, "match_time", ("signal_id",), self._settings.scan_page))
        gone = self._removed([transitions.forget_matched(row[0], until_ms=until_ms) for row in rows])
        return gone, gone > 0 and len(rows) == self._settings.scan_page

    def _removed(self, removals: list[Remove]) -> int:
        if not removals:
            return 0
        answers = self._store.remove_all(removals)
        return sum(isinstance(answer, Removed) for answer in answers)


class _Instances:
    """The instances of one page of signals, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Instance | None] = {}

    def get(self, workflow_id: str) -> Instance | None:
        """None also for a row that does not decode, which must not stop the page. Raises StoreUnavailable."""
        if workflow_id not in self._known:
            self._known[workflow_id] = self._read(workflow_id)
        return self._known[workflow_id]

    def forget(self, workflow_id: str) -> None:
        """It is about to be changed."""
        self._known.pop(workflow_id, None)

    def _read(self, workflow_id: str) -> Instance | None:
        try:
            document = self._store.get(INSTANCES, workflow_id)
            return None if document is None else to_instance(document)
        except (CorruptRecord, UnknownVersion) as error:
            log.error("a row does not decode and is left alone: %s", error)
            return None


def _over_since(target: Standing, time_ms: int) -> bool:
    """Whether the workflow is unknown, or was terminal already at `time_ms`."""
    if target.status is None:
        return True
    return target.status in TERMINAL and target.finish_time is not None and target.finish_time <= time_ms
