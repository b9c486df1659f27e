"""Writing rows of the side path: opened when there is something to write, patient with the store, strict with a row.

What fails is told apart by whose fault it is:

- the store's (it is away, slow, full, read-only, or refuses the user): the rows stay, and somebody calls again;
- the layout's (a newer kernel has made the store): this process writes nothing any more, and says so once;
- a row's (it is too large, or holds what can not be stored): halves are tried until it stands alone, and only it is
  dropped (obs-poison). A fault that nobody foresaw is taken for a row's: it can cost rows, and holds up no others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from kernel.errors import InvalidConfig, KernelError, SchemaMismatch, Unavailable, WrongProcess
from kernel.observe.tables import OBSERVE_TABLES
from kernel.store.projection import Keep, ProjectionStore

log = logging.getLogger("kernel.observe")

Answer = Literal["done", "again", "off"]
"""`done`: nothing of it is left to be written; `again`: the store does not take it now; `off`: it never will."""

_STORES_FAULT = (Unavailable, InvalidConfig, WrongProcess, SchemaMismatch)


class Batch:
    """Rows on their way: what is left of them after each try, in parts."""

    def __init__(self, kept: Sequence[Keep]) -> None:
        self.parts: deque[Sequence[Keep]] = deque([kept] if kept else [])


class RowWriter:
    """Writes for one process, from one thread at a time. `open_store` makes the store; nothing is opened before the
    first row."""

    def __init__(self, open_store: Callable[[], ProjectionStore]) -> None:
        self._open_store = open_store
        self._store: ProjectionStore | None = None
        self._prepared = False
        self._away = False
        self.errors = 0
        """Tries that failed by the store's fault."""
        self.poisoned = 0
        """Rows that no try could have written."""

    def write(self, batch: Batch) -> Answer:
        """Try to write what is left of a batch. Never raises."""
        try:
            store = self._ready()
        except SchemaMismatch as error:
            self.errors += 1
            log.warning("observation is off in this process: %s", error)
            self.close()
            return "off"
        except Exception as error:
            return self._not_now(error)
        while batch.parts:
            part = batch.parts.popleft()
            try:
                store.keep_all(part)
            except _STORES_FAULT as error:
                batch.parts.appendleft(part)
                self._prepared = False  # its file may have been replaced, its collections dropped: look again
                return self._not_now(error)
            except Exception as error:
                self._divide(batch, part, error)
        if self._away:
            self._away = False
            log.info("observations are written again")
        return "done"

    def close(self) -> None:
        """Close the store, if one was opened."""
        store, self._store = self._store, None
        self._prepared = False
        if store is None:
            return
        try:
            store.close()
        except Exception as error:
            log.debug("the store of observations could not be closed: %s", error)

    def _ready(self) -> ProjectionStore:
        if self._store is None:
            self._store = self._open_store()
        if not self._prepared:
            self._store.prepare()
            self._prepared = True
        return self._store

    def _not_now(self, error: Exception) -> Answer:
        self.errors += 1
        if not self._away:
            self._away = True
            # Said once for each time that it is away; work does not depend on it.
            log.warning("observations wait for their store: %s", _line(error))
        return "again"

    def _divide(self, batch: Batch, part: Sequence[Keep], error: Exception) -> None:
        if len(part) > 1:
            half = len(part) // 2
            batch.parts.extendleft((part[half:], part[:half]))
            return
        self.poisoned += 1
        table = part[0].table
        log.error("one row of %s is dropped: %s", table, _line(error), extra={"row": part[0].document.get(_key(table))})


def _key(table: str) -> str:
    return OBSERVE_TABLES[table].key if table in OBSERVE_TABLES else ""


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
