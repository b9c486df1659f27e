"""Each hand-off of accepted work can be made twice: the second is a no-op and names the same thing (core-handoffs)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from asr_demo.asr_tasks import NewTask, TaskTable
from asr_demo.observer import BroadcastInput, begin_observing
from asr_demo.subscriptions import SUBSCRIPTIONS, biz_key
from kernel import BusinessObjects, Client, Signal, plan
from kernel import transitions as change
from kernel.clock import ManualClock
from kernel.ids import SeededIds
from kernel.records import Wait, to_instance
from kernel.runtime import NoQueue
from kernel.store.conditional import Applied, Missed
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from kernel.transitions import Held, Rest
from tests.support.engine_runner import SteppedRunner

PLAN = plan("live_summary", ["wait_for_recording"])
KEY = biz_key("demo", "sub-001")


class World(NamedTuple):
    """What a web process and a scheduler work with, without any worker."""

    clock: ManualClock
    store: MemoryStore
    client: Client
    objects: BusinessObjects


@pytest.fixture
def world() -> Iterator[World]:
    clock, ids = ManualClock(), SeededIds(7)
    store = MemoryStore(clock)
    objects = BusinessObjects(SUBSCRIPTIONS, MemoryStore(clock, {SUBSCRIPTIONS.place: SUBSCRIPTIONS.table}), ids)
    client = Client(store, NoQueue(), clock, ids, SteppedRunner(clock).event(), input_bytes_max=1024)
    yield World(clock, store, client, objects)


def accept(world: World) -> tuple[str, bool]:
    accepted = world.objects.accept(
        "sub-001", type_=PLAN.type, biz_key=KEY, input={"object_id": "sub-001", "fencing_token": ""}, priority=1
    )
    return str(accepted.object.fencing_token), accepted.created


def claimed(world: World, token: str = "t1") -> Applied | Missed:
    workflow_id = world.client.start_or_resume(PLAN, biz_key=KEY).workflow_id
    return world.store.apply(
        change.claim(
            Held(workflow_id, token),
            worker_id="w",
            worker="w",
            lease_ms=1000,
            definition_keys=(PLAN.key,),
            commit_id=token,
        )
    )


@pytest.mark.req("core-handoffs")
def test_from_the_request_to_the_intent(world: World) -> None:
    (first, created), (second, again) = accept(world), accept(world)
    assert (first, created, again) == (second, True, False)


@pytest.mark.req("core-handoffs")
def test_from_the_intent_to_the_instance(world: World) -> None:
    token, _ = accept(world)
    handles = [world.client.start_or_resume(PLAN, biz_key=KEY) for _ in range(2)]
    assert [handle.branch for handle in handles] == ["created", "running"]
    assert handles[0].workflow_id == handles[1].workflow_id
    assert [world.objects.confirm("sub-001", token, None) for _ in range(2)] == [True, False]
    intent = world.objects.read("sub-001")
    assert intent is not None
    assert (intent.status, intent.fencing_token) == ("dispatched", token)


@pytest.mark.req("core-handoffs")
def test_from_the_instance_to_a_claim(world: World) -> None:
    first = claimed(world)
    assert isinstance(first, Applied)
    assert isinstance(claimed(world), Missed), "the same request again"
    assert world.store.get(INSTANCES, first.document["workflow_id"]) == first.document


@pytest.mark.req("core-handoffs")
def test_from_the_step_to_the_speech_service(tmp_path: Path) -> None:
    task = NewTask("wf-1:1:transcribe_audio", "body", "/talk.wav", "sound", 3.0)
    with closing(TaskTable(tmp_path)) as table:
        (first, created), (second, again) = table.submit(task, 10), table.submit(task, 10)
        assert (first, created, again) == (second, True, False)
        assert table.stats().asr_submits == 1


@pytest.mark.req("core-handoffs")
def test_from_the_wait_to_the_scheduler(world: World) -> None:
    """A timer fires once, however many saw it; a signal is taken once, however often it is delivered."""
    answer = claimed(world)
    assert isinstance(answer, Applied)
    instance = to_instance(answer.document)
    held = Held(instance.workflow_id, "t1")
    wait = Wait(
        wait_id="w1", kind="signal", step="wait_for_recording", step_index=0, signal_type="ready", wait_key="k",
        generation=0, poll_time=world.clock.wall_ms(),
    )  # fmt: skip
    world.store.apply(change.begin_step(held, instance, 0, worker_id="w", commit_id="b"))
    rest = Rest(status="waiting", claimable_time=wait.poll_time, wait=wait)
    slept = world.store.apply(
        change.suspend_step(held, 0, wait=wait, checkpoint=None, elapsed_ms=0, rest=rest, commit_id="s")
    )
    assert isinstance(slept, Applied)
    due = [
        change.activate_timer(to_instance(slept.document), 0, now_ms=world.clock.wall_ms(), commit_id=f"a{k}")
        for k in range(2)
    ]
    assert [type(world.store.apply(write)) for write in due] == [Applied, Missed]

    signal = Signal(signal_id="s1", workflow_id=instance.workflow_id, signal_type="ready", wait_key="k")
    receipts = [world.client.deliver_signals([signal])[0] for _ in range(2)]
    assert [(receipt.signal_id, receipt.duplicate) for receipt in receipts] == [("s1", False), ("s1", True)]


@pytest.mark.req("core-handoffs")
def test_from_the_workflow_to_the_business_end(world: World) -> None:
    token, _ = accept(world)
    ends = [world.objects.complete("sub-001", token, {"summary": "short"}) for _ in range(2)]
    rows = world.objects.get("sub-001")
    assert ends == [True, True]
    assert rows is not None
    assert (rows.status, rows.fields["summary"]) == ("completed", "short")


@pytest.mark.req("id-resource-generation")
def test_the_next_broadcast_of_a_show_is_watched_only_after_the_one_before_has_been_let_go(world: World) -> None:
    """The generation is the show's own number; the old observer is canceled before the new one exists."""
    seen: list[tuple[str, bool]] = []
    first = begin_observing(world.client, BroadcastInput("demo", "live-7", 1))
    insert = world.store.insert

    def watched(write: object) -> object:
        old = world.client.get(first)
        assert old is not None
        seen.append((old.status, old.claimable_time is None))
        return insert(write)  # type: ignore[arg-type]

    world.store.insert = watched  # type: ignore[method-assign, assignment]
    second = begin_observing(world.client, BroadcastInput("demo", "live-7", 2))

    assert seen == [("canceled", True)]
    assert first != second
    found = world.client.get(second)
    assert found is not None
    assert found.status == "running"
