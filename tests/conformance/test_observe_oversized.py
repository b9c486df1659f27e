"""A batch of observations with rows that no store takes, on a store that is away at first (A75)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.errors import StoreUnavailable
from kernel.observe.event_queue import QueueObserver
from kernel.observe.tables import SNAPSHOTS
from kernel.records import ErrorRecord
from kernel.store.projection import Keep, ProjectionStore
from kernel.store.protocol import Query
from tests.support.engine_runner import LiveRunner
from tests.support.observations import Observed, ended
from tests.support.wait import wait_until

OVERSIZED = ErrorRecord(code="broken", type="ValueError", message="x" * 17_000_000)
"""No commit of the kernel's leaves such a record; the side path must bear it all the same."""


class Unsteady(Observed):
    """Away at the first two writes, and again in the middle of the search for the bad rows."""

    def keep_all(self, kept: Sequence[Keep]) -> int:
        if self.calls.count("keep_all") in (0, 1, 5, 10):
            self.calls.append("keep_all")
            raise StoreUnavailable("away")
        return super().keep_all(kept)


@pytest.mark.case("A75")
@pytest.mark.req("obs-poison", "obs-transient-retry", "obs-counters")
def test_of_200_with_one_of_17_mb_and_one_that_is_no_text_198_are_stored(projection: ProjectionStore) -> None:
    store, clock = Unsteady(projection), SystemClock()
    runner = LiveRunner(clock)
    observer = QueueObserver(
        lambda: store, threads=runner, clock=clock, now_ms=clock.wall_ms,
        config=Config(observe_batch=200, observe_flush_s=60.0),
    )  # fmt: skip
    try:
        for number in range(200):
            bad = {50: {"error": OVERSIZED}, 150: {"worker": "\ud800"}}.get(number, {})
            observer.note("workflow.completed", instance=ended(f"job-{number:03}", **bad))
        wait_until(lambda: observer.counters["observation_queue"] == 0, "everything is settled", timeout=60)
        observer.note("workflow.completed", instance=ended("later"))
        assert observer.close(60)
    finally:
        observer.close(1)
        assert runner.close() == []

    names = {str(key) for (key,) in projection.scan(Query(SNAPSHOTS, (), "biz_key", ("biz_key",), 1_000))}
    assert names == {f"job-{number:03}" for number in range(200) if number not in (50, 150)} | {"later"}
    counters = observer.counters
    assert (counters["observation_poisoned"], counters["observation_dropped"]) == (2, 0)
    assert counters["observation_written"] == 199
    assert counters["observation_errors"] == 4, "tried again each time, and nothing lost by it"
