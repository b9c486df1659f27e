"""Observation as badly served as can be: shuffled, late, twice, poisoned, and its store away for a while (R-587).

In the end it shows what the authoritative rows say, and whatever it shows, or shows wrongly, decides nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kernel.directives import Sleep
from kernel.errors import StoreUnavailable, TooLarge
from kernel.observe.repair import Repair
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document, Instance
from kernel.store.conditional import Remove
from kernel.store.projection import Keep, ProjectionStore
from kernel.store.protocol import Query
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.engine.test_observe_engine import Side, side
from tests.support.engine_rig import SteppedRig
from tests.support.observations import Observed, ended
from tests.support.stores import memory_projection
from tests.support.wait import wait_until

__all__ = ["side"]

KEEP_MS = 10**12


class Unsteady(Observed):
    """Answers get lost: what was written is reported as not written."""

    def __init__(self, inner: ProjectionStore, chance: random.Random) -> None:
        super().__init__(inner)
        self._chance = chance

    def keep_all(self, kept: Any) -> int:
        count = super().keep_all(kept)
        if self._chance.random() < 0.2:
            raise StoreUnavailable("the answer got lost")
        return count


class Chaos:
    """Between the engine and its observer: keeps events back, shuffles and repeats them, and adds what can not be
    shown and what no store takes."""

    def __init__(self, rig: SteppedRig, side: Side, seed: int) -> None:
        self.chance = random.Random(seed)
        self._side = side
        side.store = Unsteady(side.store.inner, self.chance)
        side.store.poison = ("poison", TooLarge("too large for any store"))
        side.watch(rig, observe_batch=9, observe_queue=100_000, observe_flush_s=0.001)
        self._note = side.observer.note
        self._held: list[tuple[str, Instance, int | None]] = []
        side.observer.note = self._hold  # `watch` looks it up with every event
        self.poisoned = 0

    def _hold(self, event: str, *, instance: Instance | None = None, step: int | None = None, **_: object) -> None:
        if instance is None:
            return
        self._held += [(event, instance, step)] * self.chance.choice((1, 1, 1, 2, 3))
        if self.chance.random() < 0.1:
            self._held.append((event, msgspec.structs.replace(instance, created_time=None), step))
        if self.chance.random() < 0.1:
            self._held.append(("workflow.completed", ended("poison", self.chance.randrange(100)), None))
        if self.chance.random() < 0.3:
            self.let_go(self.chance.randrange(len(self._held)))

    def let_go(self, count: int) -> None:
        """Tell `count` of what was kept back, in any order."""
        self.chance.shuffle(self._held)
        for _ in range(count):
            event, instance, step = self._held.pop()
            self._note(event, instance=instance, step=step)

    def let_all_go(self) -> None:
        self.let_go(len(self._held))
        self._side.observer.note = self._note


def rows(store: ProjectionStore, table: str, key: str) -> dict[str, Document]:
    """Every row without the moment of its writing."""
    found = store.scan(Query(table, (), key, (key,), 100_000))
    documents = [store.get(table, str(name)) for (name,) in found]
    return {str(d[key]): {k: v for k, v in d.items() if k != "updated_time"} for d in documents if d is not None}


def seen_all(side: Side) -> None:
    wait_until(lambda: side.observer.counters["observation_queue"] == 0, "everything told is written", timeout=60)


def outcomes(store: ProjectionStore) -> dict[str, str]:
    """How each attempt ended. (Of an attempt before the last one the instance does not keep more.)"""
    return {key: row["outcome"] for key, row in rows(store, ATTEMPTS, "attempt_key").items()}


def many_kinds(rig: SteppedRig) -> Iterator[str]:
    """Workflows that complete, retry, sleep, fail, are canceled and are started over."""
    good = flow(rig, step(rig, "a", fails_first(1), max_retry=2), "b")
    naps = flow(rig, step(rig, "n", lambda ctx: "up" if ctx.resume else Sleep(seconds(3), "c")), "m", type="naps")
    bad = flow(rig, "x", step(rig, "y", raises(ValueError("no")), max_retry=1), type="bad")
    cured = flow(rig, step(rig, "z", fails_first(1, "ok")), type="cured")
    for _ in range(2):
        rig.worker(good, naps, bad, cured, slots=3)
    for number in range(12):
        yield rig.start((good, naps, bad, cured)[number % 4], f"job-{number}")
    canceled = rig.start(naps, "job-canceled")
    rig.run(lambda: rig.status(canceled) == "waiting", "it sleeps")
    rig.client.supersede(canceled)
    yield canceled
    again = rig.start(cured, "job-again")
    rig.run(lambda: rig.status(again) == "failed", "it failed")
    rig.start(cured, "job-again")
    yield again


@pytest.mark.req("flt-observer-chaos", "obs-revision-guard", "obs-attempt-key", "obs-poison")
@pytest.mark.parametrize("seed", range(8))
def test_after_any_disorder_the_snapshots_are_those_rebuilt_from_the_instances(
    rig: SteppedRig, side: Side, seed: int
) -> None:
    chaos = Chaos(rig, side, seed)
    ids = []
    for number, workflow_id in enumerate(many_kinds(rig)):
        ids.append(workflow_id)
        if number == 5:
            side.store.fault = StoreUnavailable("away")
        if number == 10:
            errors = side.observer.counters["observation_errors"]
            chaos.let_go(1)
            wait_until(lambda at=errors: side.observer.counters["observation_errors"] > at, "the outage is felt")
            side.store.fault = None
    rig.finish(*ids)
    chaos.let_all_go()
    seen_all(side)  # a store that fails is not waited for by `close`
    counters = side.drained()

    rebuilt = memory_projection(rig.clock)
    page = Repair(rig.store, rebuilt, KEEP_MS).repair_all()
    assert len(page.repaired) == len(ids) and page.next is None
    assert rows(side.store, SNAPSHOTS, "biz_key") == rows(rebuilt, SNAPSHOTS, "biz_key")
    seen, known = (outcomes(store) for store in (side.store, rebuilt))
    assert {key: row for key, row in seen.items() if key in known} == known
    assert counters["poisoned"] > 0 and counters["dropped"] == 0 and counters["queue"] == 0


# --- what the projection may not do ---------------------------------------------------------------------


@pytest.mark.req("layer-obs-subordinate")
def test_with_the_store_of_observations_away_no_step_runs_a_second_time(rig: SteppedRig, side: Side) -> None:
    side.store.fault = StoreUnavailable("away")
    side.watch(rig, observe_queue=5)
    definition = flow(rig, "a", "b", "c")
    rig.worker(definition)
    ids = [rig.start(definition, f"job-{n}") for n in range(10)]
    rig.finish(*ids)

    assert {rig.ledger.count(name, key) for name in "abc" for key in ids} == {1}
    assert {s.attempt for key in ids for s in rig.instance(key).steps} == {1}
    wait_until(lambda: side.observer.counters["observation_errors"] > 0, "it was away")


@pytest.mark.req("layer-projection-not-authority", "obs-repair")
def test_a_snapshot_that_says_failed_decides_nothing_and_is_repaired_on_demand(rig: SteppedRig, side: Side) -> None:
    """Corrupted with the highest revision, while the work sleeps and again when it has ended."""
    side.watch(rig)
    definition = flow(rig, "a", step(rig, "n", lambda ctx: "up" if ctx.resume else Sleep(seconds(3))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "job")
    rig.run(lambda: rig.status(workflow_id) == "waiting", "it sleeps")
    seen_all(side)
    before = rig.row(workflow_id)
    corrupt(side)
    worker.sweep()
    assert rig.row(workflow_id) == before

    rig.finish(workflow_id)
    side.drained()
    corrupt(side)
    worker.sweep()

    assert rig.status(workflow_id) == "completed"
    assert rig.output(workflow_id) == "up"
    assert rig.start(definition, "job") == workflow_id
    assert [rig.ledger.count("a"), rig.status(workflow_id)] == [1, "completed"], "the start did not run it over"
    Repair(rig.store, side.store, KEEP_MS).repair(biz_key="job")
    assert shown(side) == "completed"


def shown(side: Side) -> str | None:
    found = side.read.get("job")
    return None if found is None else found.status


def corrupt(side: Side) -> None:
    """Somebody's hand writes "failed" into the snapshot."""
    document = side.store.get(SNAPSHOTS, "job")
    assert document is not None
    side.store.keep_all([Keep(SNAPSHOTS, {**document, "status": "failed"})])
    assert shown(side) == "failed"


@pytest.mark.req("layer-read-write-split", "non-audit")
def test_nothing_is_lost_but_the_view_when_every_observation_is_deleted(rig: SteppedRig, side: Side) -> None:
    """Half way and at the end: what a business asks is answered as before, and no state is built from what was seen."""
    side.watch(rig)
    definition = flow(rig, "a", step(rig, "n", lambda ctx: "up" if ctx.resume else Sleep(seconds(3))), "c")
    rig.worker(definition)
    ids = [rig.start(definition, f"job-{number}") for number in range(10)]
    rig.run(lambda: all(rig.status(key) == "waiting" for key in ids), "all sleep")
    forget(side, rig, ids)
    rig.finish(*ids)
    forget(side, rig, ids)
    side.drained()

    assert {rig.status(key) for key in ids} == {"completed"}
    assert {rig.output(key) for key in ids} == {"c"}
    assert [rig.start(definition, f"job-{number}") for number in range(10)] == ids
    assert {rig.ledger.count(name, key) for name in "ac" for key in ids} == {1}, "nobody runs again"


def forget(side: Side, rig: SteppedRig, ids: list[str]) -> None:
    seen_all(side)
    before = [rig.row(key) for key in ids], [rig.client.get(key) for key in ids]
    for table, key in ((SNAPSHOTS, "biz_key"), (ATTEMPTS, "attempt_key")):
        found = rows(side.store, table, key)
        assert len(found) >= len(ids)
        side.store.remove_all([Remove("by hand", table, name, ()) for name in found])
        assert rows(side.store, table, key) == {}
    assert ([rig.row(key) for key in ids], [rig.client.get(key) for key in ids]) == before
