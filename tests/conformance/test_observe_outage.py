"""The store of observations is really away for a while: everything that was accepted is there afterwards, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.engine.threads import ThreadRunner
from kernel.observe.event_queue import QueueObserver
from kernel.observe.reading import Observations, Wanted
from kernel.observe.tables import OBSERVE_TABLES
from kernel.store.mongo_projection import MongoProjection
from kernel.store.projection import ProjectionStore
from kernel.store.sqlite_lock import LockFile
from kernel.store.sqlite_projection import SqliteProjection
from tests.support.mongo_server import StandIn
from tests.support.observations import CREATED_MS, ended
from tests.support.wait import wait_until

CLOCK = SystemClock()


def observer_on(open_store: Callable[[], ProjectionStore]) -> QueueObserver:
    config = Config(observe_flush_s=0.02, observe_batch=20)
    return QueueObserver(open_store, threads=ThreadRunner(CLOCK), clock=CLOCK, now_ms=CLOCK.wall_ms, config=config)


def note_fifty(observer: QueueObserver) -> None:
    for number in range(50):
        instance = ended(f"job-{number:02}", created_time=CREATED_MS + number)
        observer.note("step.completed", instance=instance, step=0)


def check_fifty(observer: QueueObserver, read: Observations) -> None:
    wait_until(lambda: observer.counters["observation_queue"] == 0, "everything is written")
    keys = [line.biz_key for line in read.page(Wanted(), limit=100).rows]
    assert keys == [f"job-{number:02}" for number in reversed(range(50))]
    assert all(len(read.attempts(key).rows) == 1 for key in keys)
    counters = observer.counters
    assert (counters["observation_written"], counters["observation_dropped"]) == (50, 0)
    assert counters["observation_poisoned"] == 0


@pytest.mark.req("obs-transient-retry")
@pytest.mark.stand_in
def test_a_server_that_is_not_there_yet_gets_everything_when_it_comes_and_comes_again(tmp_path: Path) -> None:
    server = StandIn(tmp_path / "mongo")
    server.start()  # for a port of its own
    server.kill()

    def opened(timeout_ms: int = 500) -> MongoProjection:
        return MongoProjection(server.uri, "watched", CLOCK, timeout_ms=timeout_ms, tables=OBSERVE_TABLES)

    observer = observer_on(opened)
    try:
        observer.note("step.completed", instance=ended("job-00", created_time=CREATED_MS), step=0)
        wait_until(lambda: observer.counters["observation_errors"] > 0, "its absence is felt")
        server.start()
        wait_until(lambda: observer.counters["observation_queue"] == 0, "the first is written")
        server.kill()
        for number in range(1, 50):
            instance = ended(f"job-{number:02}", created_time=CREATED_MS + number)
            observer.note("step.completed", instance=instance, step=0)
        wait_until(lambda: observer.counters["observation_errors"] > 2, "it is away again")
        server.start()
        with closing(Observations(opened(20_000))) as read:
            check_fifty(observer, read)
    finally:
        observer.close(10)
        server.kill()


@pytest.mark.req("obs-transient-retry", "obs-nonblocking")
def test_a_file_that_another_program_keeps_locked_gets_everything_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "observe.sqlite"

    def opened() -> SqliteProjection:
        return SqliteProjection(path, CLOCK, durability="normal", lock_wait_ms=50, tables=OBSERVE_TABLES)

    with closing(opened()) as store:
        store.prepare()
    lock = LockFile(f"{path}-lock")
    assert lock.try_acquire()
    observer = observer_on(opened)
    noting = threading.Thread(target=note_fifty, args=(observer,))
    noting.start()
    noting.join(30)
    assert not noting.is_alive(), "nobody who notes waits for the lock"
    wait_until(lambda: observer.counters["observation_errors"] > 2, "the writer is kept waiting")

    lock.release()
    lock.close()

    with closing(Observations(opened())) as read:
        check_fifty(observer, read)
    assert observer.close(10)
