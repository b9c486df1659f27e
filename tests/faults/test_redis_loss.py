"""Redis is emptied, killed, away for good, or loses every message: that costs time, and never a workflow or a repeat.

Two long runs go on beneath all tests of the shared tree: sleeps of ten leases, and an activity of ten leases.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import pytest
import redis

from bench.redis_calls import RedisCalls
from kernel.coordination.keys import Keys
from kernel.errors import CoordinationUnavailable
from tests.faults import apps
from tests.faults.apps import Job
from tests.faults.deaf_proxy import deaf_proxy
from tests.faults.effects import boot_ms
from tests.faults.invariants import Watch, findings, orphans
from tests.faults.rig import LIMIT_S, PROMPT_MS, Tree, kill, tree, wait_for
from tests.faults.stalls import STEADY
from tests.process.supervised import NO_REDIS
from tests.support.figures import Figures
from tests.support.redis_servers import RedisServer
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

LEASES = 10
NAPPED = {"a": 1, "b": 2, "c": 1, "d": 2}
"""Entries of a napping workflow that nothing disturbs: a sleeping step is entered before and after its sleep."""


class Long:
    """The two long runs beneath."""

    def __init__(self, redisless: Tree) -> None:
        span_s = LEASES * redisless.config.lease_s
        self.sleeps = redisless.start_many(apps.SLEEPING, "ten leases", 3, nap_s=span_s)
        self.runs = redisless.start_many(apps.ONE, "long", 2, hold_s=span_s)


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("shaken") / "data", workers=3, **STEADY) as running:
        yield running


@pytest.fixture(scope="module")
def long(shaken: Tree) -> Iterator[tuple[Long, Watch]]:
    runs = Long(shaken)
    with Watch(shaken, only=[*runs.sleeps, *runs.runs]) as watch:
        yield runs, watch


@pytest.fixture
def calls(shaken: Tree) -> Iterator[RedisCalls]:
    redis_calls = RedisCalls(shaken.session.redis_url)
    yield redis_calls
    redis_calls.close()


@pytest.mark.req("core-redis-loss-latency", "flt-redis-flush")
def test_emptied_at_random_moments_under_100_workflows(shaken: Tree, long: object, calls: RedisCalls) -> None:
    """Every step is entered exactly as often as without any fault. New workflows come with each of the first moments,
    so that these meet work, however fast the machine is."""
    chance, ids = random.Random(24), list[str]()
    while len(ids) < 100 or not shaken.ended(ids):
        if len(ids) < 100:
            ids += shaken.start_many(apps.NAPPING, f"flushed {len(ids)}", 20, nap_s=0.3, hold_s=0.02)
        calls.flush()
        wait_for(boot_ms() + chance.randrange(30, 200))
    shaken.finish(*ids)

    assert [shaken.output(key) for key in ids] == [number % 20 + 3 for number in range(100)]
    assert all(shaken.effects.counts(key) == NAPPED for key in ids)


def server(shaken: Tree) -> psutil.Process:
    (child,) = shaken.children("valkey")
    return psutil.Process(child["pid"])


@pytest.mark.case("A25")
@pytest.mark.req("slp-no-pubsub", "slp-not-early", "slp-activate-once")
def test_killed_and_restarted_empty_while_100_workflows_sleep(shaken: Tree, long: object) -> None:
    ids = shaken.start_many(apps.SLEEPING, "asleep", 100, nap_s=6.0)
    wait_until(lambda: all(shaken.row(key)["status"] == "waiting" for key in ids), "all sleep")
    due_ms = {key: shaken.row(key)["claimable_time"] for key in ids}

    kill(server(shaken).pid)
    shaken.finish(*ids)

    fired_ms = {key: shaken.effects.of(key, "a")[1].wall_ms for key in ids}
    late_ms = [fired_ms[key] - due_ms[key] for key in ids]
    assert min(late_ms) >= 0
    assert all(shaken.effects.counts(key) == {"a": 2} for key in ids)


def all_moved(shaken: Tree, workers: set[int], since_ms: int) -> bool:
    """Whether each of these processes has entered a step since then."""
    return {effect.pid for effect in shaken.effects.all() if effect.at_ms > since_ms} >= workers


def all_moved_or_done(shaken: Tree, workers: set[int], since_ms: int, ids: list[str]) -> bool:
    return all_moved(shaken, workers, since_ms) or shaken.ended(ids)


@pytest.mark.case("A24", "A26")
def test_killed_ten_times_while_requests_are_accepted(shaken: Tree, long: object) -> None:
    """Every request is one instance and ends; after each restart every worker goes on, and in the end each listens."""
    shaken.wait_running()
    workers = set(shaken.pids())
    ids: list[str] = []
    for number in range(10):
        old = server(shaken).pid
        kill(old)
        killed_ms = boot_ms()
        accepted: list[str] = []
        while not all_moved(shaken, workers, killed_ms):  # while one comes late the others may have done it all
            assert boot_ms() - killed_ms < 1000 * LIMIT_S, "every worker goes on"
            accepted += shaken.start_many(apps.ONE, f"accepted {number}:{len(accepted)}", 20, hold_s=0.1)
            wait_until(partial(all_moved_or_done, shaken, workers, killed_ms, accepted), "they go on")
        ids += accepted
        shaken.wait_running(without=[old])
    shaken.finish(*ids)

    assert len(set(ids)) == len(ids) >= 200
    assert all(shaken.effects.counts(key) == {"a": 1} for key in ids)
    with redis.Redis.from_url(shaken.session.redis_url) as client:
        channel = Keys("default").wakeup_channel
        wait_until(lambda: client.pubsub_numsub(channel)[0][1] == len(workers), "every worker listens again")
    wait_until(lambda: {child.get("x_redis") for child in shaken.children()} == {"up"}, "every worker says so")
    assert set(shaken.pids()) == workers


@pytest.mark.req(
    "core-candidate-not-right", "core-inv-claim", "sch-wakeup-content", "flt-duplicate", "core-inv-one-instance"
)
def test_hints_in_every_lane_for_everybody_are_one_claim_and_ghosts_are_none(shaken: Tree, long: object) -> None:
    """Twenty workflows stand in all four lanes when they become due and everybody is told; ids without a row too."""
    plan, keys = apps.STEADY.plan, Keys("default")
    handles = [
        shaken.client.start_or_resume(plan, biz_key=f"hint {n}", input=Job(n), start_delay=timedelta(seconds=0.5))
        for n in range(20)
    ]
    ids = [handle.workflow_id for handle in handles]
    due = {handle.workflow_id: float(handle.instance.claimable_time or 0) for handle in handles}
    ghosts = {f"wf-ghost-{n}": 1.0 for n in range(20)}
    rows = len(shaken.rows())
    with redis.Redis.from_url(shaken.session.redis_url) as client:
        for lane in keys.lanes:
            client.zadd(lane, {**due, **ghosts})
        for junk in (b"", b"junk \xff", b"9" * 40, b"0"):
            client.publish(keys.wakeup_channel, junk)
        shaken.finish(*ids)
        wait_until(lambda: not any(client.zscore(lane, key) for lane in keys.lanes for key in ghosts), "no ghost")

    assert all(shaken.effects.counts(key) == dict.fromkeys("abcd", 1) for key in ids)
    assert [step.attempt for key in ids for step in shaken.instance(key).steps] == [1] * 80
    assert len(shaken.rows()) == rows
    assert not [effect for effect in shaken.effects.all() if effect.workflow_id in ghosts]


@pytest.mark.req("sch-fallback-down", "core-inv-claim", "slp-no-pubsub", "core-worker-replaceable")
def test_away_for_good_everything_runs_from_the_store(tmp_path: Path, long: object) -> None:
    """Sleeps too, and the proof of a death still frees at once: the lease is 30 s."""
    with tree(tmp_path / "data", redis_url=NO_REDIS, lease_s=30.0) as lonely:
        ids = lonely.start_many(apps.NAPPING, "lonely", 30, nap_s=0.5, hold_s=0.01)
        lonely.finish(*ids)
        held = lonely.start(apps.HELD, "held", 10)
        entered = lonely.entered(held, "b")
        killed_ms = boot_ms()
        kill(entered.pid)
        lonely.finish(held)

        assert [lonely.output(key) for key in ids] == [number + 3 for number in range(30)]
        assert all(lonely.effects.counts(key) == NAPPED for key in ids)
        for key in ids:
            sleeping, awake = lonely.effects.of(key, "b")
            assert awake.at_ms - sleeping.at_ms >= 500
        resumed = lonely.effects.of(held, "b")[1]
        assert resumed.at_ms - killed_ms <= PROMPT_MS
        wait_until(lambda: {child.get("x_redis") for child in lonely.children()} == {"down"}, "both say so")
        with pytest.raises(CoordinationUnavailable):
            RedisCalls(NO_REDIS).flush()


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    server = RedisServer("valkey")
    yield server
    server.close()


@pytest.mark.bound("L5")
@pytest.mark.req("sch-wakeup-lost", "sch-wakeup-latency", "flt-notify-loss", "l5")
def test_every_message_lost_costs_at_most_a_poll(
    tmp_path: Path, long: object, valkey: RedisServer, figure: Figures
) -> None:
    poll_s = 4.0
    with (
        deaf_proxy(valkey.socket) as proxy,
        tree(tmp_path / "data", redis_url=proxy.url, poll_s=poll_s, scan_s=120.0, lease_s=90.0) as deaf,
    ):
        heard = [start_latency_ms(deaf, f"heard {n}") for n in range(5)]
        proxy.deaf = True
        unheard = [start_latency_ms(deaf, f"unheard {n}") for n in range(2)]
        ids = deaf.start_many(apps.NAPPING, "silence", 20, nap_s=0.2)
        deaf.finish(*ids)

        # An idle worker has just polled: without the message it would come a whole poll later.
        assert median(heard) <= 1000 * poll_s / 2
        # The scan, 120 s, was not waited for.
        figure.check("L5", "start without wakeups, long poll", [ms / 1000 for ms in unheard], poll_s + 1.0)
        assert max(unheard) > median(heard), "the messages were really missed"
        assert proxy.lost >= 2
        assert all(deaf.effects.counts(key) == NAPPED for key in ids)


def start_latency_ms(idle: Tree, key: str) -> int:
    """Start a workflow on an idle tree; milliseconds until its first step is entered."""
    began_ms = boot_ms()
    workflow_id = idle.start(apps.ONE, key)
    latency_ms = idle.entered(workflow_id, "a").at_ms - began_ms
    idle.finish(workflow_id)
    return latency_ms


@pytest.mark.case("A01")
@pytest.mark.req("slp-not-early", "slp-activate-once")
def test_a_timer_of_ten_leases_fires_once_whatever_befell_redis(shaken: Tree, long: tuple[Long, Watch]) -> None:
    """While they waited nobody held a claim, and the attempt stayed as it was: the watch looked all the time."""
    runs, watch = long
    assert watch.looks > 0
    waiting = [row for row in map(shaken.instance, runs.sleeps) if row.status == "waiting"]
    assert {(row.claim_token, row.steps[0].attempt) for row in waiting} <= {(None, 0)}
    shaken.finish(*runs.sleeps)

    for key in runs.sleeps:
        first, second = shaken.effects.of(key)
        assert second.wall_ms - first.wall_ms >= 1000 * LEASES * shaken.config.lease_s
        assert shaken.instance(key).revision == 6
    assert watch.found == []


@pytest.mark.case("A02")
@pytest.mark.req("clm-no-steal")
def test_an_activity_of_ten_leases_is_never_taken_over(shaken: Tree, long: tuple[Long, Watch]) -> None:
    runs, _ = long
    shaken.finish(*runs.runs)

    for key in runs.runs:
        assert shaken.effects.counts(key) == {"a": 1}
        (step,) = shaken.instance(key).steps
        assert (step.attempt, step.takeovers) == (1, 0)
        assert step.elapsed_ms >= 1000 * LEASES * shaken.config.lease_s


def test_afterwards_every_invariant_holds(shaken: Tree) -> None:
    wait_until(lambda: not orphans(shaken.rows()), "no claim is left")
    rows = shaken.rows()

    assert findings(rows, shaken.effects.all(), [row["biz_key"] for row in rows]) == []
    stays(lambda: shaken.rows() == rows, "what has ended stays as it is", seconds=1, every=0.2)
    unnamed = [line for line in shaken.log("log") if line["x"]["logger"] == "kernel.threads"]
    assert not [line for line in unnamed if line["level"] == "error"]
