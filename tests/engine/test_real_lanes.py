"""The engine on the real lanes: priorities, wipes and outages of Redis as a worker process meets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernel.app import App
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.coordination.ready_queue import LaneQueue
from kernel.definition import Definition, Step
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.ids import RandomIds
from kernel.runtime import Engine
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from tests.support.redis_servers import RedisTarget
from tests.support.wait import stays, wait_until


class Bench:
    """A store, the lanes of one Redis, a publisher, and workers that write down what they run."""

    def __init__(self, target: RedisTarget) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.lanes = target.lanes()
        self.ids: list[str] = []
        self.order: list[str] = []
        self.running = 0
        self.most = 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()
        self.definition = Definition(type="job", steps=[Step("only", self._run)])
        self.client = Client(
            self.store, self.queue(), self.clock, RandomIds(), threading.Event(), input_bytes_max=10_000
        )
        self._loops: list[Any] = []

    def queue(self) -> LaneQueue:
        return LaneQueue(self.lanes, self.store.now_ms)

    def _run(self, ctx: Any) -> str:
        with self._lock:
            self.order.append(ctx.biz_key)
            self.running += 1
            self.most = max(self.most, self.running)
        self.gate.wait(20)
        with self._lock:
            self.running -= 1
        return "done"

    def start(self, key: str, priority: str) -> str:
        self.ids.append(self.client.start_or_resume(self.definition.plan, biz_key=key, priority=priority).workflow_id)
        return self.ids[-1]

    def engine(self, **settings: Any) -> Engine:
        defaults = {"slots": 1, "poll_ms": 100, "scan_ms": 60_000}
        return Engine(
            App(definitions=[self.definition]),
            Settings(**{**defaults, **settings}),
            store=self.store,
            queue=self.queue(),
            worker=Worker(RandomIds().token(), "test/1/worker-0"),
            clock=self.clock,
        )

    def work(self, **settings: Any) -> Engine:
        engine = self.engine(**settings)
        loop = engine.worker_loop()
        loop.start()
        self._loops.append(loop)
        return engine

    def statuses(self) -> set[str]:
        return {document["status"] for document in self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        return [row for key in self.ids if (row := self.store.get(INSTANCES, key)) is not None]

    def close(self) -> None:
        self.gate.set()
        for loop in self._loops:
            loop.drain()
        for loop in self._loops:
            assert loop.done.wait(20), "a worker did not drain"


@pytest.fixture
def bench(valkey: RedisTarget) -> Iterator[Bench]:
    made = Bench(valkey)
    yield made
    made.close()


@pytest.mark.req("lane-meaning", "req-start-args", "lane-member-score")
def test_each_business_priority_has_its_lane_and_the_score_is_the_due_time(bench: Bench) -> None:
    ids = [bench.start(f"k-{name}", name) for name in ("realtime", "async", "background", "compensation")]

    popped = bench.lanes.pop(4)

    assert [(entry.workflow_id, entry.lane) for entry in popped.entries] == [(id_, n) for n, id_ in enumerate(ids)]
    for entry in popped.entries:
        row = bench.store.get(INSTANCES, entry.workflow_id)
        assert row is not None
        assert row["business_priority"] == entry.lane
        assert abs(entry.score_ms - row["claimable_time"]) <= 50, "both clocks are this machine's"


@pytest.mark.req("lane-burst-no-capacity", "sch-slots")
def test_a_burst_of_realtime_work_gets_no_more_slots_than_there_are(bench: Bench) -> None:
    bench.lanes.pop(1)  # nothing is due: the burst window is armed
    bench.gate.clear()
    for number in range(12):
        bench.start(f"burst-{number}", "realtime")

    bench.work(slots=2)

    wait_until(lambda: bench.running == 2, "both slots are taken")
    stays(lambda: bench.running == 2, "two claims at once", 0.4)
    bench.gate.set()
    wait_until(lambda: bench.statuses() == {"completed"}, "all complete")
    assert bench.most == 2


@pytest.mark.req("lane-no-preempt")
def test_realtime_work_waits_for_the_slot_of_what_runs(bench: Bench) -> None:
    bench.gate.clear()
    bench.start("slow", "compensation")
    bench.work(slots=1)
    wait_until(lambda: bench.order == ["slow"], "the compensation job runs")

    bench.start("urgent", "realtime")

    stays(lambda: bench.order == ["slow"], "the running job is left alone", 0.4)
    bench.gate.set()
    wait_until(lambda: bench.statuses() == {"completed"}, "both complete")
    assert bench.order == ["slow", "urgent"]
    assert {row["steps"][0]["attempt"] for row in bench.rows()} == {1}


@pytest.mark.req("lane-persisted-priority", "lane-redis-back", "layer-redis-rebuild", "core-redis-loss-latency")
def test_a_wipe_puts_every_candidate_back_into_the_lane_of_its_stored_priority(
    bench: Bench, valkey: RedisTarget
) -> None:
    wanted = {bench.start(f"{name}-{n}", name): lane for lane, name in enumerate(NAMES) for n in range(5)}
    valkey.client.flushall()
    engine = bench.engine()

    engine.sweeps.recover(60_000)

    popped = [bench.lanes.pop(1).entries[0] for _ in range(20)]
    assert {entry.workflow_id: entry.lane for entry in popped} == wanted
    assert [entry.lane for entry in popped[:8]] == [0] * 5 + [1] * 3, "the rotation serves P0 first again"


@pytest.mark.req("sch-scan-30", "sch-scan-not-only-empty", "flt-pop-claim-crash")
def test_ids_that_were_popped_by_a_process_that_died_come_back_with_the_next_scan(bench: Bench) -> None:
    lost = bench.start("lost", "realtime")
    assert bench.lanes.pop(1).entries[0].workflow_id == lost
    for number in range(3):
        bench.start(f"other-{number}", "compensation")

    bench.work(slots=4, scan_ms=300, poll_ms=50)

    wait_until(lambda: bench.statuses() == {"completed"}, "the lost one completes, too")
    assert sorted(bench.order) == ["lost", "other-0", "other-1", "other-2"]


@pytest.mark.req("lane-redis-down", "sch-fallback-down", "core-inv-claim")
def test_without_redis_everything_due_completes_from_the_store(own_redis: RedisTarget) -> None:
    bench = Bench(own_redis)
    try:
        for number in range(12):
            bench.start(f"k-{number}", NAMES[number % 4])
        assert own_redis.server is not None
        own_redis.server.kill()

        bench.work(slots=3)

        wait_until(lambda: bench.statuses() == {"completed"}, "all complete")
        assert len(bench.order) == len(set(bench.order)) == 12
    finally:
        bench.close()


@pytest.mark.req("sch-slot-before-claim")
def test_a_round_takes_a_slot_then_a_candidate_then_the_claim_then_hands_over(bench: Bench) -> None:
    bench.start("k", "async")
    seen: list[str] = []
    engine = bench.engine(slots=1)
    scheduler, queue = engine.scheduler, engine.services.queue
    pop, apply_all, room, spawn = queue.pop, bench.store.apply_all, scheduler._room, engine.services.runner.spawn

    def noted(name: str, call: Any) -> Any:
        def wrapper(*args: Any, **named: Any) -> Any:
            seen.append(name)
            return call(*args, **named)

        return wrapper

    queue.pop = noted("candidate", pop)  # type: ignore[method-assign]
    bench.store.apply_all = noted("claim", apply_all)  # type: ignore[method-assign]
    scheduler._room = noted("slot", room)  # type: ignore[method-assign]
    engine.services.runner.spawn = noted("hand over", spawn)  # type: ignore[method-assign]

    scheduler.schedule_runnable_workflows()

    assert seen[:4] == ["slot", "candidate", "claim", "hand over"]
    wait_until(lambda: bench.statuses() == {"completed"}, "the claim was executed")


NAMES = ("realtime", "async", "background", "compensation")
