"""What an owner held that had to be killed when its tree ended: it is free before the last process is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.runtime import embedded_redis_url, open_client, open_store
from kernel.store.tables import INSTANCES
from supervisor.boot import Program
from tests.process.metered_flows import Job, metered
from tests.process.supervised import LIMIT_S, PATIENT_S, Supervised, program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault

REAL: dict[str, Any] = {
    "app": "tests.process.metered_flows:app",
    "redis_url": None,
    "redis_budget_s": PATIENT_S,
    "lease_s": 3600.0,
    "drain_s": 2.0,
}
"""No test waits for a lease of an hour."""


def heard_by_the_releaser(tree: Supervised) -> list[tuple[str, str]]:
    return sorted((fact["dead"], fact["cause"]) for fact in tree.heard("owner_dead") if fact["role"] == "releaser")


def started(tree: Supervised) -> set[str]:
    return {line["x"]["child"] for line in tree.log("child.started")}


@pytest.mark.req("shd-grace", "shd-no-force-clear")
@pytest.mark.parametrize("stopped", [False, True], ids=["busy", "stopped"])
def test_the_work_of_a_killed_worker_goes_on_with_the_next_tree(
    supervise: Callable[..., Supervised], data_dir: Path, tmp_path: Path, stopped: bool
) -> None:
    """`stopped`: no process of the tree could give back anything by itself."""
    gate, config = tmp_path / "gate", Config(data_dir=str(data_dir), redis_budget_s=PATIENT_S)
    tree = supervise(Program(), **REAL)
    tree.wait_running()
    with open_client(config, data_dir, embedded_redis_url(data_dir)) as client:
        held = client.start_or_resume(metered.plan, biz_key="held", input=Job(1, str(gate)))
    wait_until(lambda: list(tmp_path.glob("gate.*")), "the activity runs", LIMIT_S)
    for name in ("worker-0", "dispatcher-0") if stopped else ():
        tree.process_of(name).suspend()

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1
    assert "worker-0" in {line["x"]["child"] for line in tree.log("child.killed")}
    with closing(open_store(config, data_dir, SystemClock())) as store:
        row = store.get(INSTANCES, held.workflow_id)
        assert row is not None
        assert "claim_token" not in row
        assert row["claimable_time"] <= store.now_ms(), "whoever comes may take it"
        assert row.get("deaths", 0) == 0, "a death by order says nothing of the work"
    said = [line["msg"] for line in tree.lines() if line["role"] == "releaser" and line["event"] == "log"]
    assert said == ["released 1 claims of a worker that is proved dead"]

    gate.touch()
    supervise(Program(), **REAL).wait_running()
    with open_client(config, data_dir, embedded_redis_url(data_dir)) as client:
        assert client.result(held.workflow_id, timedelta(seconds=LIMIT_S)) == "rested"


def test_the_last_death_is_told_to_a_releaser(supervise: Callable[..., Supervised]) -> None:
    tree = supervise(program(worker="stubborn_worker"), workers=2, drain_s=3.0)
    tree.wait_running()
    owners = [tree.child(f"worker-{number}")["worker_id"] for number in range(2)]

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1
    assert set(heard_by_the_releaser(tree)) == {(owner, "ordered") for owner in owners}
    (end,) = [line["x"] for line in tree.log("child.exited") if line["x"]["child"] == "releaser"]
    assert end["cause"] == "ordered"


def test_a_crash_in_the_drain_is_told_with_its_cause(supervise: Callable[..., Supervised], data_dir: Path) -> None:
    tree = supervise(program(worker="gated"), drain_s=300.0)
    tree.wait_running()
    owner = tree.child("worker-0")["worker_id"]
    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: tree.child("dispatcher-0")["state"] == "STOPPED", "the dispatcher has ended")

    tree.process_of("worker-0").kill()

    assert tree.wait_end() == 1
    assert set(heard_by_the_releaser(tree)) == {(owner, "death")}


def test_who_ends_by_himself_needs_no_releaser(supervise: Callable[..., Supervised]) -> None:
    tree = supervise()
    tree.wait_running()

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0
    assert started(tree) == {"worker-0", "dispatcher-0"}


@pytest.mark.req("dc-signal-cascade")
def test_a_releaser_that_can_not_release_holds_the_end_up_no_longer_than_others_may(
    supervise: Callable[..., Supervised],
) -> None:
    tree = supervise(program(worker="stubborn_worker", releaser="deaf_releaser"), drain_s=300.0)
    tree.wait_running()

    tree.process.send_signal(signal.SIGQUIT)

    assert tree.wait_end() == 1
    assert [line["x"]["child"] for line in tree.log("child.killed")] == ["worker-0", "releaser"]
