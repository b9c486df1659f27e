"""The side path beside a working engine: it sees what was committed, and whatever befalls it changes no work (S13)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.config import Config
from kernel.definition import Definition
from kernel.directives import Sleep
from kernel.errors import InvalidConfig, StoreUnavailable, TooLarge
from kernel.observe.event_queue import QueueObserver
from kernel.observe.reading import Observations, Wanted
from kernel.records import Document, Instance
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from tests.engine.flows import fails_first, flow, gives, seconds, step
from tests.support.engine_ledger import Ledger
from tests.support.engine_rig import LiveRig, Rig, SteppedRig
from tests.support.engine_runner import LiveRunner
from tests.support.observations import Observed
from tests.support.stores import memory_projection
from tests.support.wait import wait_until


class Side:
    """An observer with real threads on a store that fails as told."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.store = Observed(memory_projection(self.clock))
        self.runner = LiveRunner(self.clock)
        self.observer: Any = None
        self.read = Observations(self.store)

    def watch(self, rig: Rig, **settings: Any) -> Side:
        """From now on whatever is told in `rig` is told here as well."""
        config = Config(**({"observe_flush_s": 0.02} | settings))
        self.observer = QueueObserver(
            lambda: self.store, threads=self.runner, clock=self.clock, now_ms=rig.store.now_ms, config=config
        )
        told = rig.recorder.note

        def note(event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
            told(event, instance=instance, step=step, **fields)
            self.observer.note(event, instance=instance, step=step, **fields)

        rig.recorder.note = note  # type: ignore[method-assign]
        return self

    def heal(self) -> None:
        self.store.fault = self.store.poison = None
        if self.store.gate is not None:
            self.store.gate.set()

    def drained(self) -> dict[str, int]:
        """Everything is written; the counters then."""
        assert self.observer.close(60)
        return {name.removeprefix("observation_"): count for name, count in self.observer.counters.items()}

    def close(self) -> None:
        self.heal()
        if self.observer is not None:
            self.observer.close(60)
        assert self.runner.close() == []
        assert not self.runner.errors


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.close()


def two_steps(ledger: Ledger) -> Definition:
    """A retry, a sleep, a result."""
    return Definition(
        type="job",
        steps=[
            step(ledger, "first", fails_first(1, "one"), max_retry=1),
            step(ledger, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(5), "cursor")),
            step(ledger, "last", gives("two")),
        ],
    )


@pytest.mark.req("obs-after-commit", "obs-snapshot-one", "obs-attempt-key")
def test_what_is_seen_in_the_end_is_what_was_committed(rig: SteppedRig, side: Side) -> None:
    side.watch(rig)
    workflow_id = rig.drive(two_steps(rig.ledger), "job")

    counters = side.drained()

    row, found = rig.row(workflow_id), side.read.of_workflow(workflow_id)
    assert found is not None
    assert (found.revision, found.status, found.finish_time) == (row["revision"], "completed", row["finish_time"])
    assert [(s.name, s.status, s.attempt) for s in found.steps] == [
        ("first", "completed", 2),
        ("nap", "completed", 1),
        ("last", "completed", 1),
    ]
    attempts = side.read.attempts("job").rows
    assert sorted((one.step, one.attempt, one.outcome) for one in attempts) == [
        ("first", 1, "failed"),
        ("first", 2, "completed"),
        ("last", 1, "completed"),
        ("nap", 1, "completed"),
    ]
    assert len(side.read.page(Wanted()).rows) == 1
    assert counters["written"] > 6 and counters["dropped"] == counters["errors"] == counters["poisoned"] == 0
    revisions = [row.document["revision"] for row in side.store.kept]
    told = {instance.revision for _, instance, _ in rig.recorder.told if instance is not None}
    assert set(revisions) <= told, "every row is of a commit that was told of"


def run(watch: Side | None, clock: ManualClock) -> tuple[list[Document], Counter[Any], list[str]]:
    """The same work in the same order: the rows in the end, who entered what, and what was told."""
    rig = SteppedRig(MemoryStore(clock), clock)
    if watch is not None:
        watch.watch(rig, observe_queue=5)
    definition = two_steps(rig.ledger)
    rig.worker(definition)
    ids = [rig.start(definition, f"job-{n}") for n in range(5)]
    rig.finish(*ids)
    rows = [rig.row(workflow_id) for workflow_id in ids]
    return rows, Counter((e.workflow_id, e.step, e.attempt) for e in rig.ledger.entries), rig.recorder.names()


@pytest.mark.req("obs-no-affect", "core-side-paths-do-not-decide")
@pytest.mark.parametrize("how", ["away", "no right", "hangs", "too large", "broken"])
def test_whatever_befalls_the_side_path_the_same_work_is_done_in_the_same_way(side: Side, how: str) -> None:
    """S13: rows, entries and events are those of a run that nobody observes, to the last byte."""
    if how == "away":
        side.store.fault = StoreUnavailable("away")
    elif how == "no right":
        side.store.fault = InvalidConfig("mongodb_uri: the user lacks the right to do this")
    elif how == "hangs":
        side.store.gate = threading.Event()
    elif how == "too large":
        side.store.poison = ("job", TooLarge("too large"))
    else:
        side.store.fault = RuntimeError("nobody foresaw this")

    observed = run(side, ManualClock())

    assert observed == run(None, ManualClock())
    assert set(observed[1].values()) == {1} | ({2} if any(e[1] == "nap" for e in observed[1]) else set())
    if how != "too large":
        assert side.observer.counters["observation_dropped"] > 0
    assert side.observer.counters["observation_queue"] <= 5


@pytest.mark.req("obs-nonblocking", "obs-no-affect")
def test_workers_work_on_while_the_store_of_observations_hangs(live: LiveRig, side: Side) -> None:
    """Nobody opens the gate until all work has ended: a thread that waited for the side path would wait for ever."""
    side.store.gate = threading.Event()
    side.watch(live, observe_queue=20, observe_batch=4)
    definition = flow(live, "a", "b", "c")
    for _ in range(2):
        live.worker(definition)
    ids = [live.start(definition, f"job-{n}") for n in range(20)]

    live.wait_ended(*ids)

    assert all(live.status(workflow_id) == "completed" for workflow_id in ids)
    assert all(len(live.ledger.of(name, workflow_id)) == 1 for workflow_id in ids for name in "abc")
    assert side.observer.counters["observation_dropped"] > 0
    assert side.store.kept == []


@pytest.mark.req("obs-transient-retry", "obs-accepted-kept")
def test_after_an_outage_every_snapshot_is_that_of_its_row(live: LiveRig, side: Side) -> None:
    side.store.fault = StoreUnavailable("away")
    side.watch(live, observe_batch=7)
    definition = flow(live, "a", "b")
    worker = live.worker(definition)
    ids = [live.start(definition, f"job-{n}") for n in range(10)]
    live.wait_ended(*ids)
    wait_until(lambda: worker.busy == 0, "everything is told: a row shows its end a moment before")
    wait_until(lambda: side.observer.counters["observation_errors"] > 1, "the outage was felt")

    side.heal()
    counters = side.drained()

    assert counters["dropped"] == 0
    for workflow_id in ids:
        found, row = side.read.of_workflow(workflow_id), live.row(workflow_id)
        assert found is not None
        assert (found.revision, found.status) == (row["revision"], "completed")
        assert len(side.read.attempts(found.biz_key).rows) == 2


@pytest.mark.req("obs-events", "obs-snapshot-one")
def test_a_replay_is_seen_as_another_run_of_the_same_key(rig: SteppedRig, side: Side) -> None:
    side.watch(rig)
    definition = flow(rig, step(rig, "a", fails_first(1)))
    workflow_id = rig.drive(definition, "job")
    assert rig.status(workflow_id) == "failed"

    rig.start(definition, "job")
    rig.finish(workflow_id)
    side.drained()

    found = side.read.get("job")
    assert found is not None
    assert (found.workflow_run, found.status, found.revision) == (2, "completed", rig.row(workflow_id)["revision"])
    attempts = side.read.attempts("job").rows
    assert [(one.workflow_run, one.attempt, one.outcome) for one in attempts] == [
        (1, 1, "failed"),
        (2, 1, "completed"),
    ]


def test_the_readers_are_never_asked_by_work(rig: SteppedRig, side: Side) -> None:
    side.watch(rig)
    rig.drive(two_steps(rig.ledger), "job")
    side.drained()

    assert set(side.store.calls) == {"prepare", "keep_all"}
    with pytest.raises(KeyError):
        side.store.get(INSTANCES, "job")
