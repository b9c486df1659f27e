"""The publisher's side beside starting: lanes by name, waiting for a result, and what it says of each end."""

from __future__ import annotations

import ast
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel.client import Client
from kernel.clock import ManualClock
from kernel.closing import Closing
from kernel.config import Config
from kernel.definition import plan
from kernel.errors import (
    CheckpointError,
    CoordinationRejected,
    DefinitionMismatch,
    InvalidPriority,
    Parked,
    ResultTimeout,
    StoreUnavailable,
    UnknownWorkflow,
    WorkflowFailed,
    WorkflowWasCanceled,
)
from kernel.ids import SeededIds
from kernel.runtime import NoQueue, open_client
from kernel.states import lane_of
from kernel.store.conditional import Clear, Put, Transition
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from tests.support.engine_queue import MemoryQueue, QueueView
from tests.support.engine_runner import SteppedRunner
from tests.support.redis_servers import RedisServer
from tests.support.requirements_index import CHECKOUT


@pytest.mark.parametrize(
    ("priority", "lane"),
    [("realtime", 0), ("async", 1), ("background", 2), ("compensation", 3), (0, 0), (1, 1), (2, 2), (3, 3)],
)
def test_priorities_are_lanes_by_name_or_number(priority: int | str, lane: int) -> None:
    assert lane_of(priority) == lane


@pytest.mark.parametrize("priority", ["Realtime", "0", "", 4, -1, True, False, 1.0, None, [0]])
def test_whatever_else_is_no_priority(priority: Any) -> None:
    with pytest.raises(InvalidPriority, match="realtime, async, background, compensation"):
        lane_of(priority)


class Publisher:
    """A client on a memory store and a clock that stands still until somebody waits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.runner = SteppedRunner(self.clock)
        self.queue = MemoryQueue(self.store.now_ms)
        pause: Any = self.runner.event()
        view = QueueView(self.queue)
        self.client = Client(self.store, view, self.clock, SeededIds(1), pause, input_bytes_max=1_000)

    def start(self) -> str:
        return self.client.start_or_resume(plan("job", ["a", "b"]), biz_key="k").workflow_id

    def change(self, workflow_id: str, *changes: Any) -> None:
        self.store.apply(Transition("by hand", INSTANCES, workflow_id, (), changes))


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def test_the_result_is_the_last_steps_output_as_the_asked_type(publisher: Publisher) -> None:
    workflow_id = publisher.start()
    publisher.change(workflow_id, Put("status", "completed"), Put("outputs", {"a": b"\x01\x01", "b": b"\x01\x02"}))

    assert publisher.client.result(workflow_id, timedelta(0), int) == 2
    with pytest.raises(CheckpointError, match="output of step b"):
        publisher.client.result(workflow_id, timedelta(0), str)
    publisher.change(workflow_id, Clear("outputs.b"))
    assert publisher.client.result(workflow_id, timedelta(0)) is None


def test_waiting_for_a_result_ends_with_it_or_with_the_callers_patience(publisher: Publisher) -> None:
    workflow_id = publisher.start()
    began_ms = publisher.clock.boot_ms()
    with pytest.raises(ResultTimeout, match=f"{workflow_id} is still running after 0:00:03"):
        publisher.client.result(workflow_id, timedelta(seconds=3))
    assert 3_000 <= publisher.clock.boot_ms() - began_ms <= 3_300

    done_ms = publisher.clock.boot_ms() + 5_000
    publisher.runner.call_at(done_ms, lambda: publisher.change(workflow_id, Put("status", "completed")))
    publisher.client.result(workflow_id, timedelta(seconds=60))

    assert publisher.clock.boot_ms() - done_ms <= 300


def test_waiting_for_a_result_outlasts_an_outage_of_the_store(publisher: Publisher, monkeypatch: Any) -> None:
    workflow_id = publisher.start()
    publisher.change(workflow_id, Put("status", "completed"), Put("outputs", {"b": b"\x01\x02"}))
    back_ms = publisher.clock.boot_ms() + 20_000
    answers = publisher.store.get

    def away(table: str, key: str) -> Any:
        if publisher.clock.boot_ms() < back_ms:
            raise StoreUnavailable("it restarts")
        return answers(table, key)

    monkeypatch.setattr(publisher.store, "get", away)
    began_ms = publisher.clock.boot_ms()
    with pytest.raises(StoreUnavailable, match="it restarts"):
        publisher.client.result(workflow_id, timedelta(seconds=3))
    assert 3_000 <= publisher.clock.boot_ms() - began_ms <= 3_300

    assert publisher.client.result(workflow_id, timedelta(seconds=60), int) == 2
    assert 0 <= publisher.clock.boot_ms() - back_ms <= 300


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ((Put("status", "canceled"),), WorkflowWasCanceled, "was canceled"),
        ((Put("status", "failed"),), WorkflowFailed, "no error was recorded"),
        (
            (Put("status", "failed"), Put("error", {"code": "c", "type": "ValueError", "message": "no"})),
            WorkflowFailed,
            "ValueError: no",
        ),
        ((Put("parked", {"reason": "it kills", "since_time": 1}),), Parked, "it kills"),
    ],
)
def test_every_other_end_is_an_error_of_its_own(publisher: Publisher, changes: Any, error: Any, words: str) -> None:
    workflow_id = publisher.start()
    publisher.change(workflow_id, *changes)

    with pytest.raises(error, match=words):
        publisher.client.result(workflow_id, timedelta(seconds=9))


def test_an_unknown_workflow_has_no_result_and_is_no_instance(publisher: Publisher) -> None:
    with pytest.raises(UnknownWorkflow, match="wf-nothing"):
        publisher.client.result("wf-nothing", timedelta(seconds=9))
    assert publisher.client.get("wf-nothing") is None


@pytest.mark.req("sor-enqueue-failure")
def test_a_queue_that_refuses_does_not_fail_the_start(publisher: Publisher) -> None:
    def rejects() -> None:
        raise CoordinationRejected("WRONGTYPE a lane holds something else")

    publisher.queue.hang = rejects

    handle = publisher.client.start_or_resume(plan("job", ["a"]), biz_key="k")

    assert handle.execution_activated
    assert publisher.client.get(handle.workflow_id) == handle.instance


@pytest.mark.req("sor-same-entry")
def test_one_function_makes_instances_and_one_class_calls_it() -> None:
    """Requests, retries, compensation and replays have no second way to a row of workflow_instances."""
    makers, callers = [], []
    for package in ("kernel", "fanout", "supervisor", "asr_demo", "bench"):
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                name, place = ast.unparse(node.func), path.relative_to(CHECKOUT).as_posix()
                if name.endswith("Insert") and any(ast.unparse(argument) == "INSTANCES" for argument in node.args):
                    makers.append(place)
                if name in ("transitions.create", "create"):
                    callers.append(place)

    assert makers == ["kernel/transitions/start.py"]
    assert callers == ["kernel/client.py"]


def test_a_biz_key_that_belongs_to_another_type_is_refused_and_nothing_is_changed() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    client = Client(store, NoQueue(), clock, SeededIds(3), threading.Event(), input_bytes_max=1_000)
    first = client.start_or_resume(plan("first", ["a"]), biz_key="k")
    before = store.get("workflow_instances", first.workflow_id)

    with pytest.raises(DefinitionMismatch, match="type first"):
        client.start_or_resume(plan("second", ["a"]), biz_key="k", priority=0)

    assert store.get("workflow_instances", first.workflow_id) == before


# --- the end -----------------------------------------------------------------------------------------------


def test_a_client_closes_its_store_and_its_connection_once(tmp_path: Path) -> None:
    """Also after an error in the block, and when it is closed again; nothing stays open that it opened."""
    redis = RedisServer("valkey")
    try:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(ZeroDivisionError), open_client(Config(), tmp_path, f"unix://{redis.socket}") as client:
            client.start_or_resume(plan("job", ["a"]), biz_key="key-1")
            assert len(os.listdir("/proc/self/fd")) > len(before)
            raise ZeroDivisionError
        client.close()
    finally:
        redis.close()

    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(StoreUnavailable):
        client.start_or_resume(plan("job", ["a"]), biz_key="key-2")


def test_what_can_not_be_closed_does_not_keep_the_rest_open() -> None:
    closed: list[str] = []

    def fails() -> None:
        raise OSError("no")

    closing = Closing([lambda: closed.append("first"), fails, lambda: closed.append("last")])
    with pytest.raises(OSError, match="no"):
        closing.close()
    closing.close()

    assert closed == ["last", "first"]


def test_a_folder_where_no_tree_ever_ran_is_named_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreUnavailable) as refused:
        open_client(Config(), ".kernel", None)

    assert str(refused.value) == f"there is no data folder {tmp_path}/.kernel: the first start of a tree there makes it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("sse-disconnect")
def test_whoever_follows_a_stream_of_a_closed_client_ends(tmp_path: Path) -> None:
    """Its store answers nobody any more, which looks like one that will be back: a thread would wait for ever."""
    client = open_client(Config(app="shop:app", stream_poll_s=0.2), tmp_path, None)
    shown = plan("shown", ["a"], streams=True)
    events = client.start_or_resume(shown, biz_key="k").stream()
    found: list[type[BaseException]] = []

    def follow() -> None:
        try:
            list(events)
        except StoreUnavailable as error:
            found.append(type(error))

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    client.close()
    reader.join(60)

    assert not reader.is_alive()
    assert found == [StoreUnavailable]
