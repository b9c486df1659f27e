"""The three triggers that fill slots, with real threads: wakeup, poll and scan, each alone (group 9)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.flows import flow, step
from tests.support.engine_rig import LiveRig, RigWorker
from tests.support.wait import stays, wait_until


def latency_ms(rig: LiveRig, definition: Any, key: str) -> int:
    """From the start call to the entry of the first step."""
    began_ms = rig.clock.boot_ms()
    workflow_id = rig.start(definition, key)
    wait_until(lambda: rig.ledger.count("a", workflow_id), "the entry", timeout=20, every=0.002)
    return rig.ledger.of("a", workflow_id)[0].begin_ms - began_ms


def idle(rig: LiveRig, worker: RigWorker) -> None:
    """The worker has had its first look at the queue and sleeps."""
    wait_until(lambda: worker.queue.asked and rig.queue.pops > 1, "the first look")


@pytest.mark.req("sch-wakeup-latency", "sch-three-triggers")
def test_a_wakeup_makes_an_idle_worker_take_the_candidate_at_once(live: LiveRig) -> None:
    """Neither poll nor scan would come within ten seconds."""
    definition = flow(live, "a")
    worker = live.worker(definition, poll_ms=60_000, scan_ms=60_000)
    idle(live, worker)

    latencies = [latency_ms(live, definition, f"k{k}") for k in range(20)]

    assert sorted(latencies)[5] < 200, "all came, and at once those that met no pause of this machine"


@pytest.mark.req("sch-wakeup-lost", "sch-three-triggers")
def test_a_lost_wakeup_costs_at_most_a_poll_interval(live: LiveRig) -> None:
    live.queue.deaf = True
    definition = flow(live, "a")
    worker = live.worker(definition, poll_ms=400, scan_ms=60_000)
    idle(live, worker)

    latencies = [latency_ms(live, definition, f"k{k}") for k in range(4)]

    assert sorted(latencies)[1] < 400 + 600, "all came long before the scan, and so soon those that met no pause"
    assert max(latencies) > 20, "some of them came between two polls"


@pytest.mark.req("sch-three-triggers", "core-redis-loss-latency")
def test_a_candidate_that_the_queue_forgot_is_found_by_the_scan(live: LiveRig) -> None:
    live.queue.deaf = True
    definition = flow(live, "a")
    worker = live.worker(definition, poll_ms=100, scan_ms=600)
    idle(live, worker)
    live.queue.forgets = True
    workflow_id = live.start(definition)
    live.queue.forgets = False

    live.wait_ended(workflow_id)

    assert workflow_id in {candidate.workflow_id for candidate in live.queue.popped}


@pytest.mark.req("sch-wakeup-content")
def test_junk_wakeups_cause_vain_rounds_and_nothing_else(live: LiveRig) -> None:
    definition = flow(live, "a")
    worker = live.worker(definition)
    idle(live, worker)
    pops = live.queue.pops

    for _ in range(200):
        live.queue.wake()
    wait_until(lambda: live.queue.pops > pops, "a vain round")
    workflow_id = live.start(definition)
    live.wait_ended(workflow_id)

    wait_until(lambda: worker.busy == 0, "the slot is free: the end, which the row shows at once, is told of as well")
    assert live.ledger.count("a") == 1
    assert worker.loop.status()["store"] == "up"
    assert live.recorder.names() == [
        *("workflow.created", "claim.taken", "step.started", "step.completed", "workflow.completed"),
    ]


def test_a_wakeup_that_comes_during_a_pass_is_not_slept_through(live: LiveRig) -> None:
    """The pass has found nothing; before the worker sleeps another candidate arrives."""
    definition = flow(live, "a")
    worker = live.worker(definition, poll_ms=60_000, scan_ms=60_000)
    idle(live, worker)
    vain_pass = worker.scheduler.schedule_runnable_workflows
    started: list[str] = []

    def then_one_arrives() -> Any:
        found = vain_pass()
        if not started:
            started.append(live.start(definition))
        return found

    worker.scheduler.schedule_runnable_workflows = then_one_arrives
    live.queue.wake()
    wait_until(lambda: started, "the vain pass")

    live.wait_ended(started[0])

    assert live.status(started[0]) == "completed"


def test_an_idle_worker_sleeps(live: LiveRig) -> None:
    """One wakeup is one pass, not a loop."""
    worker = live.worker(flow(live, "a"), poll_ms=60_000, scan_ms=60_000)
    idle(live, worker)
    pops = live.queue.pops
    live.queue.wake()
    wait_until(lambda: live.queue.pops > pops, "one pass")

    stays(lambda: live.queue.pops <= pops + 2, "no further pass", 0.4)


@pytest.mark.req("sch-fallback-down", "sch-three-triggers")
def test_with_a_dead_queue_two_workers_share_the_work_from_the_store(live_sqlite: LiveRig) -> None:
    rig = live_sqlite
    rig.queue.down = True
    definition = flow(rig, "a", "b")
    workers = [rig.worker(definition, slots=4) for _ in range(2)]
    ids = [rig.start(definition, f"k{k}") for k in range(60)]

    rig.wait_ended(*ids, timeout=60)

    assert {rig.status(workflow_id) for workflow_id in ids} == {"completed"}
    assert len(rig.ledger.entries) == 120
    assert all(worker.loop.status()["redis"] == "down" for worker in workers)


@pytest.mark.req("core-redis-loss-latency")
def test_a_wiped_queue_is_rebuilt_at_the_next_look(live: LiveRig) -> None:
    """Not at the next scan, which is far away (DECISIONS detail 20)."""
    definition = flow(live, step(live, "a"))
    worker = live.worker(definition, poll_ms=200, scan_ms=60_000)
    idle(live, worker)
    live.queue.deaf = True
    ids = [live.start(definition, f"k{k}", start_delay=_delay(0.3)) for k in range(5)]
    live.queue.wipe()

    live.wait_ended(*ids)

    assert len(live.ledger.entries) == 5


def _delay(number: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=number)


@pytest.mark.req("sch-waiting-holds-none", "sch-slot-release")
def test_sleeping_workflows_hold_no_thread(live: LiveRig) -> None:
    from kernel.directives import Sleep

    definition = flow(live, step(live, "nap", lambda ctx: Sleep(_delay(3_600))))
    worker = live.worker(definition, slots=4)
    ids = [live.start(definition, f"k{k}") for k in range(200)]
    wait_until(lambda: all(live.status(workflow_id) == "waiting" for workflow_id in ids), "all asleep")

    wait_until(lambda: worker.busy == 0, "all slots are free")
    own = ["permits", "renewals", "scheduler"]
    wait_until(lambda: sorted(live.base_runner.alive()) == own, "only the worker's own threads")
    stays(lambda: len(live.base_runner.alive()) == 3, "no thread for a sleeper", 0.3)
