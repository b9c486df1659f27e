"""How long observations are kept: those of work that has ended go after a time, in small pages, at a low rate.

The attempts go before their snapshot, so that whoever stops in between leaves the snapshot by which they are found
again. Work that was started over meanwhile has no end in its snapshot any more: the guard keeps it, whatever the page
said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kernel.clock import Clock
from kernel.errors import KernelError
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.store.conditional import AtMost, Equals, Remove, Removed
from kernel.store.projection import ProjectionStore
from kernel.store.protocol import Query

log = logging.getLogger("kernel.observe")

PAGE_ROWS = 100
PAGES_MAX = 10
"""Pages of one turn; what is left waits for the next."""
PERIOD_S = 60.0
FIRST_S = 5.0


class Stop(Protocol):
    """As threading.Event."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Retention:
    """Removes what has ended more than `keep_ms` ago. `open_store` makes a store of its own, at the first turn."""

    def __init__(self, open_store: Callable[[], ProjectionStore], clock: Clock, keep_ms: int) -> None:
        self._open_store = open_store
        self._clock = clock
        self._keep_ms = keep_ms
        self.removed = 0
        """Snapshots that are gone."""

    def run(self, stop: Stop) -> None:
        """A turn each minute until stopped. A store that fails is closed and opened again the next time."""
        store: ProjectionStore | None = None
        wait_s = FIRST_S
        while not stop.wait(wait_s):
            wait_s = PERIOD_S
            try:
                if store is None:
                    store = self._open_store()
                    store.prepare()
                self.turn(store, stop)
            except Exception as error:
                log.debug("old observations are not removed yet: %s", error)
                _close(store)
                store = None
        _close(store)

    def turn(self, store: ProjectionStore, stop: Stop | None = None) -> int:
        """Up to PAGES_MAX pages; how many snapshots were removed. Raises what the store raises."""
        before_ms = self._clock.wall_ms() - self._keep_ms
        removed = 0
        for _ in range(PAGES_MAX):
            query = Query(SNAPSHOTS, (AtMost("finish_time", before_ms),), "finish_time", ("biz_key",), PAGE_ROWS)
            keys = [str(biz_key) for (biz_key,) in store.scan(query)]
            for biz_key in keys:
                if stop is not None and stop.is_set():
                    return removed
                self._remove_attempts(store, biz_key, before_ms)
            guards = (AtMost("finish_time", before_ms),)
            answers = store.remove_all([Remove("forget_snapshot", SNAPSHOTS, key, guards) for key in keys])
            gone = sum(isinstance(answer, Removed) for answer in answers)
            removed += gone
            self.removed += gone
            if len(keys) < PAGE_ROWS or not gone:
                break
        return removed

    @staticmethod
    def _remove_attempts(store: ProjectionStore, biz_key: str, before_ms: int) -> None:
        guards = (Equals("biz_key", biz_key), AtMost("updated_time", before_ms))
        while True:
            query = Query(ATTEMPTS, guards, "updated_time", ("attempt_key",), PAGE_ROWS)
            keys = [str(key) for (key,) in store.scan(query)]
            answers = store.remove_all([Remove("forget_attempt", ATTEMPTS, key, guards[1:]) for key in keys])
            if len(keys) < PAGE_ROWS or not any(isinstance(answer, Removed) for answer in answers):
                return


def _close(store: ProjectionStore | None) -> None:
    if store is None:
        return
    try:
        store.close()
    except KernelError as error:
        log.debug("the store of observations could not be closed: %s", error)
