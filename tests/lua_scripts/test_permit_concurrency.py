"""Many at once, against the server's own clock: the limits hold whoever asks, from however many threads."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading

import pytest

from kernel.config import Limit
from kernel.coordination import Granted, Keys, Owner, Permits, Refused
from tests.lua_scripts.permit_user import COUNTER
from tests.lua_scripts.test_lane_concurrency import run_threads
from tests.support.redis_servers import NAMESPACE, RedisTarget
from tests.support.requirements_index import CHECKOUT

LEASE_MS, WAIT_MS = 30_000, 1_000


def permits_of(target: RedisTarget) -> Permits:
    return Permits(target.runner(), Keys(NAMESPACE), lease_ms=LEASE_MS, wait_ms=WAIT_MS)


@pytest.mark.req("prm-atomic", "prm-two-limits")
def test_of_sixty_four_at_once_exactly_eight_are_granted_a_hundred_times_over(real_redis: RedisTarget) -> None:
    rounds = 100
    clients = [permits_of(real_redis) for _ in range(8)]
    limit = Limit(max_concurrency=8)
    granted: dict[int, list[Owner]] = {at: [] for at in range(rounds)}
    gate = threading.Barrier(64)

    def work(name: int) -> None:
        for at in range(rounds):
            gate.wait(60)
            owner = Owner(f"w{name}", "print", f"token-{at}")
            answer = clients[name % 8].acquire(f"printer_{at}", owner, limit, lane=1)
            if isinstance(answer, Granted):
                granted[at].append(owner)

    run_threads([threading.Thread(target=work, args=(name,)) for name in range(64)])

    assert [len(owners) for owners in granted.values()] == [8] * rounds
    assert clients[0].stats("printer_0").held == 8


@pytest.mark.req("prm-global", "prm-vs-max-workers", "prm-two-limits")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_limit_is_the_same_for_any_number_of_processes_and_threads(valkey: RedisTarget, processes: int) -> None:
    """An independent counter sees at most three calls at once, of processes that could run six each."""
    assert valkey.server is not None
    valkey.client.set(COUNTER, 0, px=600_000)
    command = [sys.executable, "-m", "tests.lua_scripts.permit_user", str(valkey.server.socket), "6", "20", "3"]

    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
            )
            for _ in range(processes)
        ]
        for process in started:
            running.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=100)[0].split() for process in started]

    assert [int(calls) for _, calls in answers] == [120] * processes
    assert max(int(most) for most, _ in answers) <= 3
    assert permits_of(valkey).stats("printer").held == 0


@pytest.mark.req("prm-window", "prm-two-limits")
def test_on_the_servers_clock_no_window_of_a_second_holds_more_grants_than_the_limit(real_redis: RedisTarget) -> None:
    """Eight ask as fast as they can. The marks are the server's own, read off the key after each grant."""
    limit = Limit(max_starts_per_second=20)
    marks: list[int] = []
    numbers = itertools.count()
    clients = [permits_of(real_redis) for _ in range(8)]
    key = real_redis.keys.permit("printer")["permit_starts"]

    def work(name: int) -> None:
        while len(marks) < 100:
            owner = Owner(f"w{name}", "print", f"token-{next(numbers)}")
            answer = clients[name].acquire("printer", owner, limit, lane=1)
            if isinstance(answer, Granted):
                marks.append(1)
                clients[name].release("printer", [owner], limit)

    run_threads([threading.Thread(target=work, args=(name,)) for name in range(8)])
    found = sorted(int(mark) for mark in real_redis.client.lrange(key, 0, -1))

    assert len(found) >= 100
    assert all(later - earlier >= 1_000 for earlier, later in zip(found, found[20:], strict=False))


@pytest.mark.req("prm-release", "prm-no-retry-burn")
def test_a_hundred_in_line_are_all_served_by_hand_over_alone(valkey: RedisTarget) -> None:
    """Nobody asks before its id was handed over: no place gets lost between a release and the next holder."""
    permits, lanes = permits_of(valkey), valkey.lanes()
    limit = Limit(max_concurrency=4)
    holders = [Owner(f"h{n}", "print", "t") for n in range(4)]
    for owner in holders:
        assert isinstance(permits.acquire("printer", owner, limit, lane=1), Granted)
    for n in range(100):
        assert isinstance(permits.acquire("printer", Owner(f"w{n}", "print", "t"), limit, lane=n % 4), Refused)

    served: list[str] = []
    running = holders
    while running:
        permits.release("printer", [running.pop(0)], limit)
        for entry in lanes.pop(4).entries:
            owner = Owner(entry.workflow_id, "print", "t2")
            answer = permits.acquire("printer", owner, limit, lane=entry.lane)
            assert isinstance(answer, Granted)
            assert answer.kind == "handed"
            served.append(entry.workflow_id)
            running.append(owner)

    assert sorted(served) == sorted(f"w{n}" for n in range(100))
    assert permits.stats("printer").waiting == 0
