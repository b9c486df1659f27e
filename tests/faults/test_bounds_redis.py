"""L2, L3 and L5, measured: what an emptied, a hanging and a deaf Redis cost.

Judged by the boot clock: of the ledger where work is entered, of this process where Redis itself is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from kernel.coordination.keys import Keys
from tests.faults import apps
from tests.faults.deaf_proxy import deaf_proxy
from tests.faults.effects import ENTER, boot_ms
from tests.faults.rig import LIMIT_S, Tree, settings, tree, wait_for
from tests.faults.stalls import but_worst, slack_of
from tests.support.figures import Figures
from tests.support.redis_servers import RedisServer
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

FAST = settings(Path("data"))
FLUSHES, QUEUED, ASLEEP = 7, 100, 20
WINDOW_MS, OUTAGE_MS, STORED = 3_000, 9_000, 5_000
STEP_S = 0.005
"""A step's time, by which the work that was stored cannot run out within the test on a machine that has nothing else to
do: 8 slots end at most 400 workflows of four such steps a second."""
LATENCIES = 41


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    server = RedisServer("valkey")
    yield server
    server.close()


@pytest.mark.bound("L2")
@pytest.mark.req("l2", "core-redis-loss-latency", "flt-redis-flush")
@pytest.mark.parametrize("dispatchers", [1, 0], ids=["dispatcher", "workers alone"])
def test_after_flushall_all_that_is_runnable_or_due_is_indexed_again_within_scan_and_poll(
    tmp_path: Path, figure: Figures, dispatchers: int
) -> None:
    """Every slot is taken, so that nobody pops and what is indexed stays there. Sleeps become due with the last
    flushes."""
    with tree(tmp_path / "data", dispatchers=dispatchers, slots=2, lease_s=30.0) as full:
        sleepers = full.start_many(apps.SLEEPING, "asleep", ASLEEP, nap_s=9.0)
        wait_until(lambda: all(full.row(key)["status"] == "waiting" for key in sleepers), "all sleep")
        held = full.start_many(apps.GATED, "held", 2 * 2)
        for workflow_id in held:
            full.entered(workflow_id, "only")
        queued = full.start_many(apps.STEADY, "queued", QUEUED)
        sleepers = [key for key in sleepers if full.row(key)["status"] == "waiting"]
        due_ms = max(full.row(key)["claimable_time"] for key in sleepers) - full.store.now_ms() + boot_ms()
        with redis.Redis.from_url(full.session.redis_url) as client:
            waits_ms = [indexed_again_ms(client, queued) for _ in range(FLUSHES - 2)]
            wait_for(due_ms)
            waits_ms += [indexed_again_ms(client, [*queued, *sleepers]) for _ in range(2)]
        full.open_gate(*held)
        full.finish(*held, *sleepers, *queued)

    seconds = [wait_ms / 1000 for wait_ms in waits_ms]
    by_whom = "dispatcher and workers" if dispatchers else "workers alone"
    what, bound_s = f"indexed again after FLUSHALL, {by_whom}", FAST.scan_s + FAST.poll_s
    figure.check("L2", what, but_worst(seconds), bound_s, at_least=FLUSHES - 1)


def indexed_again_ms(client: redis.Redis, workflow_ids: list[str]) -> int:
    """Empty Redis; milliseconds until the last of these ids stands in a lane again."""
    flushed_ms = boot_ms()
    client.flushall()
    lanes = Keys("default").lanes

    def missing() -> set[bytes]:
        found = {member for lane in lanes for member in client.zrange(lane, 0, -1)}
        return {key.encode() for key in workflow_ids} - found

    wait_until(lambda: not missing(), "all are indexed again", LIMIT_S, every=0.01)
    return boot_ms() - flushed_ms


@pytest.mark.bound("L3")
@pytest.mark.case("A29")
@pytest.mark.req("l3", "sch-fallback-down", "core-redis-loss-latency")
def test_while_redis_hangs_work_goes_on_at_half_its_speed_and_no_loop_is_blocked(
    tmp_path: Path, valkey: RedisServer, figure: Figures
) -> None:
    """A server that takes connections and answers nothing is worse than one that is gone. Work was stored before, so
    that only the workers are measured: steps entered in a second, before and then on the same tree."""
    url = f"unix://{valkey.socket}"
    with tree(tmp_path / "data", redis_url=url, lease_s=30.0) as running:
        for batch in range(0, STORED, 500):
            running.start_many(apps.STEADY, f"stored:{batch}", 500, hold_s=STEP_S)
        normal = entered_per_s(running, boot_ms(), WINDOW_MS)
        valkey.pause()
        paused_ms = boot_ms()
        blocked = loops_while(running, paused_ms + OUTAGE_MS)
        hanging = entered_per_s(running, paused_ms, OUTAGE_MS)
        left = STORED * 4 - sum(effect.what == ENTER for effect in running.effects.all())
        valkey.resume()

        assert left > 0, "there was work all the time"
        figure.check_least("L3", "speed while Redis hangs, of normal", [hanging / normal], 0.5)
        # A loop that has nothing to do moves once in a poll interval.
        what, bound_s = "longest stop of a loop while Redis hangs", 1.0 + FAST.poll_s
        figure.check("L3", what, blocked, bound_s, at_least=15, slack=slack_of(bound_s))


def entered_per_s(running: Tree, since_ms: int, window_ms: int) -> float:
    """Steps entered in a second of a window from `since_ms`; waits for its end."""
    wait_for(since_ms + window_ms)
    entries = (effect.at_ms for effect in running.effects.all() if effect.what == ENTER)
    return 1000 * sum(since_ms <= at_ms < since_ms + window_ms for at_ms in entries) / window_ms


def loops_while(running: Tree, until_ms: int) -> list[float]:
    """How long each loop that schedules or sweeps had stood still, by each report of each child until then."""
    seen: dict[tuple[Any, ...], float] = {}

    def look() -> bool:
        for child in running.session.status()["children"]:
            for name in ("scheduler", "sweeps"):
                if name in child["loops"]:
                    age_s = child["report_age_s"]
                    report = (child["name"], name, round(boot_ms() / 1000 - age_s, 1))
                    seen[report] = max(0.0, child["loops"][name] - age_s)
        return boot_ms() >= until_ms

    wait_until(look, "the end of the window", LIMIT_S, every=0.2)
    return list(seen.values())


@pytest.mark.bound("L5")
@pytest.mark.req("l5", "sch-wakeup-lost", "sch-wakeup-latency", "flt-notify-loss")
def test_when_every_wakeup_is_lost_work_starts_within_a_poll_interval_and_a_second(
    tmp_path: Path, valkey: RedisServer, figure: Figures
) -> None:
    """One after the other on an idle tree: nobody has just looked for another reason."""
    with (
        deaf_proxy(valkey.socket) as proxy,
        tree(tmp_path / "data", redis_url=proxy.url, dispatchers=0, scan_s=120.0, lease_s=30.0) as deaf,
    ):
        proxy.deaf = True
        seconds = []
        for number in range(LATENCIES):
            began_ms = boot_ms()
            workflow_id = deaf.start(apps.ONE, f"unheard:{number}")
            seconds.append((deaf.entered(workflow_id, "a").at_ms - began_ms) / 1000)
            deaf.finish(workflow_id)
        assert proxy.lost >= LATENCIES, "the wakeups were lost"

    figure.check("L5", "start without wakeups", but_worst(seconds), FAST.poll_s + 1.0, at_least=LATENCIES - 1)
