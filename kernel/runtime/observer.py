"""The observer that a process hands to its engine or client: the log, the counts, and the queue of the side path.

Nothing of the side path is opened here: its store is opened by the thread that writes, when there is something to
write. So a store that is away, slow or damaged delays no start and ends no process (obs-no-affect).
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernel.clock import Clock
from kernel.config import Config
from kernel.engine.ports import Event, Observer, Runner
from kernel.errors import InvalidConfig
from kernel.observe.event_queue import QueueObserver
from kernel.observe.events import LogObserver
from kernel.observe.retention import Retention
from kernel.observe.tables import OBSERVE_TABLES
from kernel.observe.tee import EventCounter, Tee
from kernel.store.mongo_projection import MongoProjection
from kernel.store.projection import ProjectionStore
from kernel.store.sqlite_projection import SqliteProjection

log = logging.getLogger("kernel.runtime")

OBSERVE_FILE = "observe.sqlite"
CALL_TIMEOUT_MS = 2_000
"""One call to the store of observations, or the wait for its lock."""
DRAIN_S = 5.0
"""How long a worker or dispatcher that ends writes what waits; at most a third of the grace time that it has."""
CLOSE_S = 2.0
"""How long a client that is closed does."""


def open_observation_store(
    config: Config, data_dir: str | os.PathLike[str], clock: Clock, *, timeout_ms: int = CALL_TIMEOUT_MS
) -> ProjectionStore:
    """The store of snapshots and attempts, not prepared: a file of its own in the data folder, or MongoDB through a
    client of its own. Raises InvalidConfig for a URI that is none, and StoreUnavailable."""
    uri = config.observe_mongodb_uri or config.mongodb_uri
    if uri is None:
        path = Path(data_dir) / OBSERVE_FILE
        # Never more than "normal": a loss of power may take the last moments of what can be rebuilt.
        return SqliteProjection(path, clock, durability="normal", lock_wait_ms=timeout_ms, tables=OBSERVE_TABLES)
    try:
        return MongoProjection(uri, config.mongodb_database, clock, timeout_ms=timeout_ms, tables=OBSERVE_TABLES)
    except InvalidConfig as error:
        raise (error if config.observe_mongodb_uri is None else InvalidConfig(f"observe_{error}")) from None


class Beside(Observer, Protocol):
    """One more observer of a process: metrics, spans."""

    def sample(self, counters: Mapping[str, object]) -> None:
        """Called with the counters of every status report."""
        ...

    def close(self) -> None:
        """Nothing will be noted any more: let go what still waits, within some seconds."""
        ...


class _AtExit:
    """Closes a queue at the end of the interpreter, if it is still there; it is not kept for that.

    A process that was forked inherits the interpreter's list but neither the thread that writes nor a usable lock:
    there it does nothing. The queue may outlive its client, as long as its thread has something to write.
    """

    def __init__(self, queue: QueueObserver) -> None:
        # What is closed or forgotten leaves the interpreter's list: a process may open many clients.
        self._queue = weakref.ref(queue, lambda _: atexit.unregister(self))
        self._pid = os.getpid()

    def __call__(self) -> None:
        queue = self._queue() if os.getpid() == self._pid else None
        if queue is not None and not queue.close(CLOSE_S):
            log.warning("observations were dropped at the end: their store did not take them in time")


class Observing:
    """The observer of one process, what it tells of itself, and its end."""

    def __init__(
        self,
        counter: EventCounter,
        queue: QueueObserver | None = None,
        retention: Retention | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._drain_s = drain_s
        self._counter = counter
        self._queue = queue
        self._retention = retention
        self._beside: Sequence[Beside] = ()
        self._at_exit: _AtExit | None = None
        self.observer: Observer = Tee(LogObserver(), counter, *(() if queue is None else (queue,)))

    def add(self, beside: Sequence[Beside]) -> None:
        """Let these observe, too: before `observer` is handed to anybody."""
        self._beside = beside
        self.observer = Tee(self.observer, *beside) if beside else self.observer

    def added_to(self, status: dict[str, Any]) -> dict[str, Any]:
        """A status report with the counters of this side (obs-counters, obs-claims-visible)."""
        found = self._added_to(status)
        for one in self._beside:
            one.sample(found["counters"])
        return found

    def _added_to(self, status: dict[str, Any]) -> dict[str, Any]:
        if self._queue is None:
            return {**status, "counters": {**status["counters"], **self._counter.counters}}
        counters = {**status["counters"], **self._counter.counters, **self._queue.counters}
        loops = {**status["loops"], "observations": self._queue.silent_ms / 1000}
        return {**status, "counters": counters, "loops": loops}

    def forget_old(self, stop: Event) -> None:
        """Remove what is older than its retention, until `stop`; the body of a thread of a dispatcher."""
        if self._retention is not None:
            self._retention.run(stop)

    def drain(self) -> None:
        """Write what waits, when nothing is left that could note more (obs-drain-on-stop)."""
        self._close(self._drain_s)

    def close(self) -> None:
        """As `drain`, in a hurry: what a client does when it is closed."""
        self._close(CLOSE_S)

    def close_at_exit(self) -> None:
        """Also close when the interpreter ends before anybody has called `close`: the thread that writes is a daemon,
        and what it has not written would be gone. For clients; a worker drains by itself, after its claims."""
        if self._queue is None:
            return
        self._at_exit = _AtExit(self._queue)
        atexit.register(self._at_exit)

    def _close(self, limit_s: float) -> None:
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        if self._queue is not None and not self._queue.close(limit_s):
            log.warning("observations were dropped at the end: their store did not take them in time")
        for one in self._beside:
            one.sample({} if self._queue is None else self._queue.counters)
            one.close()


def open_observer(
    config: Config,
    data_dir: str | os.PathLike[str],
    clock: Clock,
    runner: Runner,
    now_ms: Callable[[], int],
) -> Observing:
    """What one process observes with; `now_ms` is the clock of its durable store. Raises InvalidConfig for an
    `observe_mongodb_uri` that is none, before anything starts, and nothing else."""
    counter = EventCounter()
    if config.observe == "off":
        return Observing(counter)
    if config.observe_mongodb_uri is not None:
        open_observation_store(config, data_dir, clock)  # only read and checked: it connects with its first call

    def opened() -> ProjectionStore:
        return open_observation_store(config, data_dir, clock)

    queue = QueueObserver(opened, threads=runner, clock=clock, now_ms=now_ms, config=config)
    retention = Retention(opened, clock, round(config.observe_keep_s * 1000))
    return Observing(counter, queue, retention, min(DRAIN_S, config.drain_s / 3))
