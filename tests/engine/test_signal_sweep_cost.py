"""What the net beneath the inbox costs: nothing for what has not changed, and no claim waits for a long inbox (L6)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.engine.vain_looks import Standing, VainLooks
from kernel.errors import StoreUnavailable
from kernel.store.tables import INSTANCES, SIGNALS
from tests.engine.flows import flow, step
from tests.engine.signals import asks, leave, pending, tell, wait_asleep
from tests.support.engine_rig import RigWorker, SteppedRig


def readings(worker: RigWorker) -> list[str]:
    """The keys of all instances that this worker reads from now on."""
    seen: list[str] = []
    get = worker.store.get

    def noted(table: str, key: str) -> Any:
        if table == INSTANCES:
            seen.append(key)
        return get(table, key)

    worker.store.get = noted  # type: ignore[method-assign]
    return seen


def asleep(rig: SteppedRig, count: int, **settings: Any) -> tuple[RigWorker, list[str]]:
    """A worker, and workflows that wait."""
    definition = flow(rig, step(rig, "ask", asks(times=2)))
    worker = rig.worker(definition, **settings)
    ids = [rig.start(definition, f"k{n}") for n in range(count)]
    wait_asleep(rig, worker, *ids)
    return worker, ids


@pytest.mark.req("sig-scan-match")
def test_an_instance_that_has_not_changed_is_not_read_again(durable_rig: SteppedRig) -> None:
    """Early signals of live workflows, five each: one reading a workflow, and none in all later passes."""
    rig = durable_rig
    worker, ids = asleep(rig, 6)
    for key in ids:
        for n in range(5):
            leave(rig, key, f"{key}-{n}", generation=90 + n)
    seen = readings(worker)

    worker.sweeps.inbox.repair()
    assert sorted(seen) == sorted(ids)
    for _ in range(5):
        worker.sweeps.inbox.repair()
    assert sorted(seen) == sorted(ids)

    tell(rig, ids[2])
    rig.run(lambda: rig.ledger.count("ask", ids[2]) == 2 and worker.busy == 0, "its second wait", worker)
    seen.clear()
    worker.sweeps.inbox.repair()
    assert seen == [ids[2]], "only the one that has changed"
    leave(rig, ids[3], "late")
    assert worker.sweeps.inbox.repair().activated == 1


@pytest.mark.req("sig-scan-match", "sig-crash-insert")
def test_a_wait_that_begins_after_a_look_in_vain_is_found_by_the_next(rig: SteppedRig) -> None:
    """The look was right when it was made; the suspension that came after it could not ask the inbox."""
    definition = flow(rig, step(rig, "first", asks(generation=1)), step(rig, "ask", asks()))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    wait_asleep(rig, worker, workflow_id)
    leave(rig, workflow_id, "early")
    worker.sweeps.inbox.repair()
    worker.sweeps.inbox.repair()
    worker.engine.services.inbox.recheck = lambda instance: None  # type: ignore[method-assign]
    tell(rig, workflow_id, "go", generation=1)
    rig.run(lambda: rig.row(workflow_id)["steps"][1]["status"] == "waiting", "the second wait", worker)
    assert rig.status(workflow_id) == "waiting"

    assert worker.sweeps.inbox.repair().activated == 1
    rig.finish(workflow_id)
    assert pending(rig) == []


@pytest.mark.req("sig-repair-in-schedule", "l6")
def test_a_round_looks_at_one_page_before_it_claims_and_the_rest_of_a_long_inbox_follows_beside(
    rig: SteppedRig,
) -> None:
    """Thirty pages are in front of the one signal that somebody waits for; a pass of a dispatcher has two."""
    worker, (workflow_id, early) = asleep(rig, 2, scan_page=10, scan_pages=2)
    for n in range(300):
        leave(rig, early, f"early-{n:03}", age_ms=1_000 + n, generation=99)
    leave(rig, workflow_id, "late")
    rig.advance(rig.settings.scan_ms)
    worker.store.scans.clear()
    before: list[int] = []
    pop = worker.queue.pop

    def noted(n: int) -> Any:
        before.append(len([query for query in worker.store.scans if query.order == "pending_time"]))
        return pop(n)

    worker.queue.pop = noted  # type: ignore[method-assign]
    worker.scheduler.schedule_runnable_workflows()
    assert before[0] == 1, "a page, and then the queue"
    assert rig.status(workflow_id) == "waiting"

    rig.base_runner.run_all()

    assert "late" not in pending(rig), "the whole inbox is behind the round"
    assert len([query for query in worker.store.scans if query.order == "pending_time"]) == 31


@pytest.mark.req("sig-repair-in-schedule")
def test_no_second_pass_begins_while_the_rest_of_one_is_made(rig: SteppedRig) -> None:
    worker, (workflow_id,) = asleep(rig, 1, scan_page=5)
    for n in range(20):
        leave(rig, workflow_id, f"early-{n:03}", age_ms=1_000 + n, generation=99)
    rig.advance(rig.settings.scan_ms)
    worker.store.scans.clear()

    for _ in range(3):
        worker.sweeps.inbox.pass_when_due()
        rig.clock.advance(rig.settings.scan_ms)
    assert [query.order for query in worker.store.scans if query.table == SIGNALS] == ["pending_time", "match_time"]
    rig.base_runner.run_all()
    worker.sweeps.inbox.pass_when_due()
    assert len([query for query in worker.store.scans if query.order == "pending_time"]) == 2, "where it stopped"


def test_a_slow_pass_leaves_the_rest_to_the_next(rig: SteppedRig) -> None:
    worker, (workflow_id,) = asleep(rig, 1, scan_page=5)
    for n in range(23):
        leave(rig, workflow_id, f"early-{n:03}", age_ms=1_000 + n, generation=99)
    scan = worker.store.scan

    def slow(query: Any) -> Any:
        rig.clock.advance(600)
        return scan(query)

    worker.store.scan = slow  # type: ignore[method-assign]

    assert [worker.sweeps.inbox.repair().looked_at for _ in range(4)] == [10, 10, 3, 10]


def test_a_store_that_goes_away_in_the_rest_of_a_pass_costs_a_moment(rig: SteppedRig) -> None:
    worker, (workflow_id, early) = asleep(rig, 2, scan_page=5)
    for n in range(20):
        leave(rig, early, f"early-{n:03}", age_ms=1_000 + n, generation=99)
    leave(rig, workflow_id, "late")
    rig.advance(rig.settings.scan_ms)
    worker.sweeps.inbox.pass_when_due()
    scan = worker.store.scan

    def away(query: Any) -> Any:
        raise StoreUnavailable("away")

    worker.store.scan = away  # type: ignore[method-assign]
    rig.base_runner.run_all()
    worker.store.scan = scan  # type: ignore[method-assign]
    assert rig.status(workflow_id) == "waiting"

    rig.advance(1_000)
    worker.sweeps.inbox.pass_when_due()
    rig.base_runner.run_all()
    assert "late" not in pending(rig)


def test_the_memory_is_bounded_and_keeps_what_fits_turn_after_turn() -> None:
    vain, stands = VainLooks(known_max=100), Standing("waiting", None, 3)
    ids = [f"s{n}" for n in range(150)]
    found = []
    for _ in range(5):
        found.append(0)
        for signal_id in ids:
            if vain.knows(signal_id, stands):
                found[-1] += 1
            else:
                vain.add(signal_id, stands)
        vain.turn()
        assert len(vain) <= 200

    assert found == [0, 100, 100, 100, 100]
    assert not vain.knows("s0", Standing("waiting", None, 4))
    for _ in range(2):
        vain.turn()
    assert len(vain) == 0, "what is gone from the inbox is forgotten"
