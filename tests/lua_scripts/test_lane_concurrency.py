"""Many poppers and pushers at once: each id once, in one lane, and the weights hold for all of them together."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections import Counter

import pytest

from kernel.coordination import LaneEntry
from tests.support.redis_servers import RedisTarget
from tests.support.requirements_index import CHECKOUT


@pytest.mark.req("lane-pop-one")
def test_sixteen_poppers_get_each_of_a_thousand_ids_once(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    lanes.push([LaneEntry(f"id-{n}", n % 4, n) for n in range(1_000)], wake=False)
    popped: list[str] = []
    counts = (1, 1, 3, 8)

    def work(name: int) -> None:
        while entries := lanes.pop(counts[name % 4]).entries:
            popped.extend(entry.workflow_id for entry in entries)

    run_threads([threading.Thread(target=work, args=(name,)) for name in range(16)])

    assert Counter(popped) == Counter({f"id-{n}": 1 for n in range(1_000)})
    assert all(lane.depth == 0 for lane in lanes.stats())


@pytest.mark.req("lane-one-lane")
def test_concurrent_pushes_leave_every_id_in_one_lane_the_highest(redis_target: RedisTarget) -> None:
    lanes = redis_target.lanes()
    ids = [f"id-{n}" for n in range(20)]

    def work(seed: int) -> None:
        choose = random.Random(seed)
        pushes = [LaneEntry(workflow_id, lane, seed) for workflow_id in ids for lane in range(4)]
        choose.shuffle(pushes)
        for at in range(0, len(pushes), 4):
            lanes.push(pushes[at : at + choose.choice((1, 4))], wake=False)
            lanes.push(pushes[at + 1 : at + 4], wake=False)

    run_threads([threading.Thread(target=work, args=(seed,)) for seed in range(8)])

    assert [lane.depth for lane in lanes.stats()] == [20, 0, 0, 0]


@pytest.mark.req("lane-shared-state", "lane-weights")
def test_four_processes_popping_forty_times_together_get_16_12_8_4(real_redis: RedisTarget) -> None:
    assert real_redis.server is not None
    lanes = real_redis.lanes()
    lanes.push([LaneEntry(f"p{lane}-{n}", lane, n) for lane in range(4) for n in range(60)], wake=False)
    command = [sys.executable, "-m", "tests.lua_scripts.popper", str(real_redis.server.socket), "10"]

    with contextlib.ExitStack() as running:
        processes = [
            running.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
            )
            for _ in range(4)
        ]
        for process in processes:
            running.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        outputs = [process.communicate("go\n", timeout=60)[0] for process in processes]

    ids = [workflow_id for output in outputs for workflow_id in output.split()]
    assert Counter(workflow_id[:2] for workflow_id in ids) == {"p0": 16, "p1": 12, "p2": 8, "p3": 4}
    assert len(set(ids)) == 40


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
