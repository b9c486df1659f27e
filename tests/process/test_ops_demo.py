"""The demo's work as its operator finds it, in the folder that the demo leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, get_args

import pytest

from asr_demo.subscriptions import biz_key
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.observe.standing import standing_of
from kernel.observe.views import Waiting
from kernel.records import to_instance
from kernel.runtime import open_store
from kernel.runtime.observer import OBSERVE_FILE
from kernel.states import TERMINAL
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until

Operate = Callable[..., CompletedProcess[str]]


def run(folder: Path, *arguments: str, limit_s: float = 60) -> str:
    """What the command prints; the demo's embedded Redis has gone with its tree."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments, "--data-dir", str(folder)],
        cwd=folder.parent, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True,
        timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(folder: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(folder, "workflow", *arguments, "--json"))
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The demo with two subscribers while it runs, and its data folder, which it leaves."""
    folder = tmp_path / "demo"
    words = ["demo", "--subscribers", "2", "--keep", "--durability", "normal", "--data-dir", str(folder)]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", *words],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process, folder
        finally:
            process.terminate()
            process.wait(60)


class Watching:
    """Looks at every subscriber again and again, as its operator would, and judges each look."""

    def __init__(self, operate: Operate, store: Store) -> None:
        self._operate = operate
        self._store = store
        self.kinds: set[str] = set()
        self.compared = 0

    def look(self) -> None:
        for row in self._answer("list", "--type", "live_summary")["workflows"]:
            before = self._store.get(INSTANCES, row["workflow_id"])
            seen = self._answer("show", row["workflow_id"])
            after = self._store.get(INSTANCES, row["workflow_id"])
            waits, sentence = seen["now"]["waiting"], seen["now"]["sentence"]
            assert sentence and "\n" not in sentence
            if seen["status"] in TERMINAL:
                assert waits is None, sentence
                continue
            assert waits in get_args(Waiting), "one thing, whatever moment it is"
            self.kinds.add(waits)
            assert before is not None and after is not None
            if before["revision"] == after["revision"] == seen["revision"] and after.get("claim_token") is None:
                # Nobody holds it, and the record has not changed around this look: it says the same.
                assert waits == standing_of(to_instance(after), seen["now_ms"]).waiting, sentence
                self.compared += 1

    def _answer(self, *words: str) -> dict[str, Any]:
        done = self._operate("workflow", *words, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.mark.fault
@pytest.mark.timeout(300)
@pytest.mark.req("ops-find", "ops-chain", "ops-where-stuck", "lat-split")
def test_at_any_moment_a_subscriber_names_what_it_waits_for_and_afterwards_the_chain_to_its_object(
    demo: tuple[subprocess.Popen[bytes], Path], operate_on: Callable[[Path], Operate]
) -> None:
    process, folder = demo
    operate = operate_on(folder)
    # What is observed is written after the durable store was made; the file is there a moment before its tables.
    wait_until(
        lambda: (folder / OBSERVE_FILE).exists() and operate("workflow", "list").returncode == 0, "its stores", 60
    )
    with closing(open_store(Config(data_dir=str(folder)), folder, SystemClock(), prepare=False)) as store:
        watching = Watching(operate, store)

        def has_ended() -> bool:
            watching.look()
            return process.poll() is not None

        wait_until(has_ended, "the end of the demo", 240, every=0.02)
    assert process.returncode == 0
    assert watching.kinds >= {"timer", "signal"} or watching.kinds >= {"signal", "step"}, watching.kinds
    assert watching.compared > 10

    done = shown(folder, "list", "--type", "live_summary")["workflows"]
    key = done[0]["biz_key"]
    seen = shown(folder, "show", key, "--app", "asr_demo.show_app:app")
    attempts = shown(folder, "attempts", done[0]["workflow_id"])["attempts"]

    assert {row["status"] for row in done} == {"completed"} and len(done) == 2
    assert key == biz_key("demo", seen["object"]["object_id"])
    assert (seen["object"]["source"], seen["object"]["status"]) == ("subscriptions", "dispatched")
    assert seen["object"]["fencing_token"] == seen["round"]
    steps = {step["name"]: step for step in seen["steps"]}
    assert {row["step"] for row in attempts} == set(steps)
    for row in attempts:
        assert row["attempt_key"] == f"{seen['workflow_id']}/{row['workflow_run']}/{row['step']}/{row['attempt']}"
        assert row["worker_id"] and len(row["trace_id"]) == 32
    assert {row["worker_id"] for row in attempts} >= {step["worker_id"] for step in steps.values()}
    for split in (seen["split"], *(step["split"] for step in steps.values())):
        parts = [split[f"{kind}_ms"] for kind in ("scheduling", "traffic", "execution", "external")]
        assert sum(parts) == split["total_ms"]
    assert steps["wait_for_recording"]["split"]["external_ms"] > 0
    assert [row["status"] for row in seen["signals"]] == ["matched"]
