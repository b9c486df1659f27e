"""Claims that this worker gave up while the row may still bear their token: given back as soon as the store answers.

Nothing runs under such a claim any more, so nobody has to wait for its lease, and it is no death: the worker lives and
says so itself. A row that another has taken meanwhile bears another token and is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kernel import transitions
from kernel.engine.commit import settled
from kernel.engine.telling import Note, left_behind
from kernel.errors import KernelError, Unavailable
from kernel.records import Instance, to_instance
from kernel.store.protocol import Store
from kernel.transitions import Held

log = logging.getLogger("kernel.claim")


class GivenUp:
    """The tokens to give back. `add` from any thread; `give_back` in the worker's passes."""

    def __init__(self, store: Store, worker_id: str, commit_id: Callable[[], str], note: Note) -> None:
        self._store = store
        self._worker_id = worker_id
        self._commit_id = commit_id
        self._note = note
        self._held: list[Held] = []
        self._lock = threading.Lock()

    def add(self, held: Held) -> None:
        with self._lock:
            self._held.append(held)

    def give_back(self, *, after_ms: int = 0) -> list[Instance]:
        """Release what still bears our token; the instances that are free now, or in `after_ms`. Tried again while the
        store is away."""
        with self._lock:
            waiting, self._held = self._held, []
        freed: list[Instance] = []
        for held in waiting:
            release = transitions.release_dead(
                held,
                worker_id=self._worker_id,
                counted=False,
                deaths_max=0,
                after_ms=after_ms,
                commit_id=self._commit_id(),
            )
            try:
                document = settled(self._store, release)
                if document is not None:
                    freed.append(to_instance(document))
                    left_behind(self._note, freed[-1], self._worker_id)
                    self._note("claim.released", instance=freed[-1])
            except Unavailable as error:
                log.debug("the claim of %s can not be given back yet: %s", held.workflow_id, error)
                self.add(held)
            except KernelError as error:
                log.warning("the claim of %s is left to its lease: %s", held.workflow_id, error)
        return freed
