"""Many callers at once, with real threads: one instance, one activation, no error (invariant 2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel.definition import plan
from kernel.store.tables import INSTANCES
from tests.engine.flows import flow, raises, step
from tests.support.engine_rig import LiveRig
from tests.support.wait import wait_until

CALLERS = 16
PLAN = plan("job", ["only"])


def all_at_once(call: Callable[[int], Any]) -> list[Any]:
    """`call(k)` on CALLERS threads that start together."""
    barrier = threading.Barrier(CALLERS)

    def one(k: int) -> Any:
        barrier.wait(60)
        return call(k)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(one, range(CALLERS)))


@pytest.fixture(params=["live", "live_sqlite"])
def any_live(request: pytest.FixtureRequest) -> LiveRig:
    rig: LiveRig = request.getfixturevalue(request.param)
    return rig


@pytest.mark.req("sor-unique-race", "core-inv-one-instance", "sor-returns")
def test_sixteen_callers_make_one_instance_and_one_activation(any_live: LiveRig) -> None:
    rig = any_live
    for round_ in range(5):
        key = f"k{round_}"

        handles = all_at_once(lambda k, key=key: rig.client.start_or_resume(PLAN, biz_key=key, input=k))

        assert len({handle.workflow_id for handle in handles}) == 1
        assert sum(handle.execution_activated for handle in handles) == 1
        assert {handle.status for handle in handles} == {"running"}
    inserted = [write for write in rig.client_store.writes if write.names == ("create",)]
    assert len(inserted) == 5 * CALLERS


@pytest.mark.req("sor-replay-race", "sor-no-second-instance")
def test_sixteen_replays_raise_the_count_by_one(any_live: LiveRig) -> None:
    rig = any_live
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "k")
    rig.wait_ended(workflow_id)
    worker.loop.drain()  # nobody may run the replay while the callers race
    wait_until(worker.loop.done.is_set, "the end of the worker")

    handles = all_at_once(lambda k: rig.client.start_or_resume(definition.plan, biz_key="k", input=k))

    assert sum(handle.execution_activated for handle in handles) == 1
    assert {handle.status for handle in handles} == {"running"}
    instance = rig.instance(workflow_id)
    assert (instance.retry_count, instance.workflow_run) == (1, 2)


@pytest.mark.req("sor-priority-rise")
def test_of_racing_priorities_the_highest_stands(any_live: LiveRig) -> None:
    rig = any_live
    lanes = [3, 2, 1, 0]

    handles = all_at_once(lambda k: rig.client.start_or_resume(PLAN, biz_key="k", priority=lanes[k % 4]))

    assert rig.row(handles[0].workflow_id)["business_priority"] == 0


@pytest.mark.req("sor-unique-race")
def test_a_key_that_appears_between_reading_and_writing_is_a_normal_branch(live: LiveRig) -> None:
    """The other caller's insert lands first although this one had seen nothing."""
    others: list[Any] = []

    def other_first(write: Any) -> None:
        if write.names == ("create",) and not others:
            others.append(live.make_client(live.store).start_or_resume(PLAN, biz_key="k", input="other"))

    live.client_store.fault_of = other_first
    mine = live.client.start_or_resume(PLAN, biz_key="k", input="mine")

    assert (others[0].execution_activated, mine.execution_activated) == (True, False)
    assert mine.workflow_id == others[0].workflow_id
    stored = live.store.find(INSTANCES, "biz_key", "k")
    assert stored is not None
    assert b"other" in stored["input"]
