"""Ten thousand timers due in the same second: each activated once, in pages, without a herd (issue 3, part 2)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernel.candidates import Candidate
from kernel.clock import ManualClock
from kernel.directives import Sleep
from kernel.ids import RandomIds
from kernel.records import Document
from kernel.store.conditional import Equals, Insert
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES
from tests.engine.flows import flow, seconds, step
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.stores import sqlite_store

TIMERS = 10_000
PROCESSES = 4


class Reads:
    """Counts the readings of one process, by kind."""

    def __init__(self, process: RigWorker) -> None:
        self.gets = 0
        self._get = process.store.get
        process.store.get = self.get  # type: ignore[method-assign]

    def get(self, table: str, key: str) -> Document | None:
        self.gets += 1
        return self._get(table, key)


@pytest.fixture
def asleep(tmp_path: Path) -> Any:
    """A rig on SQLite in which ten thousand workflows sleep, all due within one second that has just passed."""
    clock = ManualClock()
    store = sqlite_store(tmp_path, clock)
    rig = SteppedRig(store, clock)
    rig.ids = RandomIds()
    definition = flow(rig, step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(10))))
    worker = rig.worker(definition)
    first = rig.start(definition)
    rig.pass_once(worker)
    row = rig.row(first)
    assert row["status"] == "waiting"
    rig.queue.wipe()
    _copies(store, row)
    clock.advance(11_000)
    yield rig, definition, clock
    store.close()


def _copies(store: Store, row: Document) -> None:
    inserts = []
    for n in range(1, TIMERS):
        due_ms = row["claimable_time"] + n % 1_000
        wait = {**row["steps"][0]["wait"], "poll_time": due_ms, "wait_id": f"wait-{n}"}
        step_ = {**row["steps"][0], "wait": wait}
        key = f"wf-{n:05}"
        document = {**row, "workflow_id": key, "biz_key": key, "claimable_time": due_ms, "wait": wait, "steps": [step_]}
        inserts.append(Insert("create", INSTANCES, key, document))
    store.insert_all(inserts)


def _rows(store: Store, status: str) -> list[tuple[Any, ...]]:
    query = Query(INSTANCES, (Equals("status", status),), "created_time", ("workflow_id",), 2 * TIMERS)
    return store.scan(query)


@pytest.mark.req("slp-activate", "slp-activate-once", "s10", "sch-activation-roles")
def test_many_sweeping_processes_activate_each_once_and_write_little_more_than_one(asleep: Any) -> None:
    """Four processes run the due scan in step, from the same row on. What they write in vain stays a small part: the
    bound is no time but a count, and it is linear."""
    rig, definition, _ = asleep
    processes = [rig.make_worker(definition, worker_id=f"d{n}") for n in range(PROCESSES)]
    reads = [Reads(process) for process in processes]
    barrier = threading.Barrier(PROCESSES)

    def sweep(process: RigWorker) -> int:
        activated = 0
        for _ in range(3):
            barrier.wait(60)
            activated += process.sweep().activated
        return activated

    with ThreadPoolExecutor(PROCESSES) as pool:
        activated = sum(pool.map(sweep, processes))

    tried = sum(process.store.names().count("activate_timer") for process in processes)
    calls = sum(len(process.store.writes) for process in processes)
    gets = sum(read.gets for read in reads)
    scans = sum(len(process.store.scans) for process in processes)
    running = [key for (key,) in _rows(rig.store, "running")]
    assert (activated, len(running), _rows(rig.store, "waiting")) == (TIMERS, TIMERS, [])
    assert {rig.row(key)["revision"] for key in running} == {rig.row(running[0])["revision"]}
    assert tried <= 1.5 * TIMERS
    assert gets <= 1.5 * TIMERS
    assert calls <= 3 * TIMERS / 32
    assert scans <= 3 * PROCESSES * TIMERS / 32


@pytest.mark.req("slp-activate", "slp-activate-once", "slp-not-early")
def test_workers_that_take_due_timers_from_the_lanes_share_their_commits(asleep: Any) -> None:
    """A pop brings several: two commits activate and claim them, after the one that found them asleep."""
    rig, definition, _ = asleep
    worker = rig.worker(definition, worker_id="taker", slots=32, scan_ms=3_600_000)
    keys = [key for (key,) in _rows(rig.store, "waiting")][:96]
    worker.scheduler.rebuild = lambda: None  # no sweep: the lanes alone
    rig.queue.push([Candidate(key, 1, 1) for key in keys])
    while not rig.ended(*keys):
        worker.scheduler.schedule_runnable_workflows()
        rig.base_runner.run_all()

    names = [write.names for write in worker.store.writes]
    activations = [call for call in names if "activate_timer" in call]
    assert sum(len(call) for call in activations) == 96
    assert len(activations) <= 96 / worker.engine.services.settings.stale_tries + 1
    assert rig.ledger.count("nap") == 96 + 1
    assert len(_rows(rig.store, "waiting")) == TIMERS - 96
