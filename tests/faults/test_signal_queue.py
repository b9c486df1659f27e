"""What Redis hears when a signal has found its wait, and when: MONITOR beside the row (sig-then-queue).

The tree stands still meanwhile, so that all that Redis hears is the deliverer's, and the row stays as it left it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lua import get
from tests.faults.pausing import paused
from tests.faults.rig import ARMED, Tree, tree
from tests.faults.test_signal_crashes import asleep, told

END = "that-was-all"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Tree]:
    with tree(tmp_path / "data", ARMED, workers=1, lease_s=30.0) as running:
        running.wait_running()
        yield running


def heard(monitor: Any, port: redis.Redis) -> list[dict[str, Any]]:
    """The commands of clients and scripts since the monitor began."""
    port.set(END, "x", px=1_000)
    commands = []
    while END not in (entry := monitor.next_command())["command"]:
        commands.append(entry)
    return commands


@pytest.mark.fault
@pytest.mark.req("sig-then-queue", "core-candidate-not-right")
def test_the_entry_and_the_wakeup_follow_the_activation_and_a_worker_still_claims_in_the_store(running: Tree) -> None:
    workflow_id = asleep(running, "k")
    assert running.session.redis_url is not None
    with (
        redis.Redis.from_url(running.session.redis_url) as port,
        paused(running, [*running.pids(), *running.pids("dispatcher")]),
        port.monitor() as monitor,
    ):
        running.client.deliver_signals([told("k", "ring:k")])
        commands = heard(monitor, port)
        row = running.instance(workflow_id)

    pushes = [entry for entry in commands if entry["command"].startswith(f"EVALSHA {get('lane_push').sha1}")]
    wakeups = [entry for entry in commands if entry["command"].startswith("PUBLISH")]
    assert len(pushes) == len(wakeups) == 1, [entry["command"] for entry in commands]
    assert workflow_id in pushes[0]["command"]
    # The row has been activated before Redis has heard of it, and nobody has claimed it by that.
    assert row.resume is not None
    assert (row.status, row.resume.signal_id, row.claim_token) == ("running", "ring:k", None)
    # The entry has the time that the store gave the row when it was activated: nobody could know it before.
    assert str(row.claimable_time) in pushes[0]["command"].split()
    assert pushes[0]["time"] <= wakeups[0]["time"]

    running.finish(workflow_id)
    assert [effect.pid for effect in running.effects.of(workflow_id, "a")] == running.pids() * 2


@pytest.mark.fault
@pytest.mark.req("sig-then-queue", "sig-no-queue-needed")
def test_with_redis_gone_the_signal_activates_and_the_poll_claims(running: Tree) -> None:
    workflow_id = asleep(running, "k")
    (server,) = running.children("valkey")
    with paused(running, [*running.pids(), *running.pids("dispatcher"), server["pid"]]):
        running.client.deliver_signals([told("k", "ring:k")])
        row = running.instance(workflow_id)
        assert row.resume is not None
        assert (row.status, row.resume.signal_id) == ("running", "ring:k")
        assert row.claim_token is None
        os.kill(running.pids()[0], signal.SIGCONT)

        # Redis still stands still: what claims is the worker's own look into the store.
        running.finish(workflow_id)
