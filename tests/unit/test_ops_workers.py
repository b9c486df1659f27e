"""Whether the worker that a snapshot names still runs: only what is certain here is said."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from kernel.config import Config
from kernel.errors import Refused
from supervisor import ops_tree
from supervisor.control_client import NoSupervisor
from supervisor.ops_now import Holder
from supervisor.ops_workers import Workers
from tests.support.snapshots import BEGIN_MS, snapshot

HERE = socket.gethostname()
MINE, OTHER = f"{HERE}/{os.getpid()}/worker-0", f"{HERE}/4194305/worker-0"
"""This very process, and a number that no process of Linux ever has."""
CHILDREN = [
    {"worker_id": "w1", "pid": 12},
    {"worker_id": "w2", "pid": None},
    {"worker_id": None, "pid": 13},
    {"worker_id": "w3", "pid": 14, "silent": True},
]


class Tree:
    """A supervisor that answers, refuses, is silent, or is not there."""

    def __init__(self, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer = answer
        self.asked = 0
        monkeypatch.setattr(ops_tree, "ControlClient", self)

    def __call__(self, folder: str, timeout_s: float) -> Tree:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None: ...

    def request(self, op: str) -> dict[str, Any]:
        return {"children": self.answer}


NOBODY, SILENT, CONFUSED = NoSupervisor("no supervisor"), TimeoutError(), Refused("no")
SHARED = {"mongodb_uri": "mongodb://shared:1"}
FUTURE_MS = 4_000_000_000_000
"""A claim that is younger than every process."""
CASES: list[tuple[Any, dict[str, Any], dict[str, Any], Holder]] = [
    (CHILDREN, {}, {"worker_id": "w1"}, "runs"),
    (CHILDREN, {}, {"worker_id": "w3"}, "silent"),
    (CHILDREN, {}, {"worker_id": "w2"}, "gone"),
    (CHILDREN, {}, {"worker_id": "w9"}, "gone"),
    (CHILDREN, SHARED, {"worker_id": "w1"}, "runs"),
    (CHILDREN, SHARED, {"worker_id": "w9", "worker": OTHER}, "unknown"),
    (NOBODY, SHARED, {"worker_id": "w9", "worker": OTHER}, "unknown"),
    (NOBODY, {"observe_mongodb_uri": "mongodb://shared:1"}, {"worker_id": "w9", "worker": OTHER}, "unknown"),
    (NOBODY, {}, {"worker_id": "w1", "worker": OTHER}, "gone"),
    (NOBODY, {}, {"worker_id": "w1", "worker": MINE, "claim_time": FUTURE_MS}, "unknown"),
    (NOBODY, {}, {"worker_id": "w1", "worker": MINE, "claim_time": 1_000}, "gone"),
    (NOBODY, {}, {"worker_id": "w1", "worker": "elsewhere/1/worker-0"}, "unknown"),
    (NOBODY, {}, {"worker_id": "w1", "worker": f"{HERE}/x/worker-0"}, "unknown"),
    (NOBODY, {}, {"worker_id": "w1"}, "unknown"),
    (SILENT, {}, {"worker_id": "w1", "worker": OTHER}, "unknown"),
    (CONFUSED, {}, {"worker_id": "w1", "worker": OTHER}, "unknown"),
]


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize(("answer", "settings", "fields", "holder"), CASES)
def test_a_worker_is_gone_only_where_nothing_else_is_possible(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: Any,
    settings: dict[str, Any],
    fields: dict[str, Any],
    holder: Holder,
) -> None:
    tree = Tree(answer, monkeypatch)
    workers = Workers(Config(data_dir=str(tmp_path), **settings))
    held = snapshot(**({"waiting": "step", "claim_token": "t", "claim_time": BEGIN_MS} | fields))

    assert [workers.holder(held), workers.holder(held)] == [holder, holder]
    assert tree.asked == 1


def test_workers_are_known_by_their_machine_and_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Tree([{"worker_id": "w1", "pid": 12, "name": "worker-0"}], monkeypatch)
    held = snapshot(waiting="step", worker_id="w2", worker="elsewhere/7/worker-1")

    names = Workers(Config(data_dir=str(tmp_path))).names(held)

    assert names == {"w1": f"{HERE}/12/worker-0", "w2": "elsewhere/7/worker-1"}


def test_the_tree_is_not_asked_of_what_nobody_executes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = Tree(CHILDREN, monkeypatch)

    assert Workers(Config(data_dir=str(tmp_path))).holder(snapshot(waiting="worker", worker_id="w1")) == "unknown"
    assert tree.asked == 0
