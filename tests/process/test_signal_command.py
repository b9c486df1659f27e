"""`kernel-supervisor workflow signal`: a delivery that any tree finds, one line per refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.ids import workflow_id_for
from kernel.runtime import STORE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import SIGNALS
from tests.engine.flows import flow, step
from tests.engine.signals import KEY, TYPE, asks, pending
from tests.support.engine_rig import LiveRig
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until

IDENTITY = (TYPE, "--key", KEY, "--generation", "2")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LiveRig]:
    """A workflow's tree, as far as it fits into this process, on the data folder that the command is given."""
    store = SqliteStore(tmp_path / STORE_FILE, SystemClock(), durability="normal")
    store.prepare()
    made = LiveRig(store)
    yield made
    made.close()
    store.close()


def told(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor", "workflow", "signal", *arguments, "--data-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=60)


def answer(folder: Path, *arguments: str) -> dict[str, Any]:
    done = told(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.req("sig-activate-atomic", "sig-unique", "sig-no-queue-needed")
def test_a_signal_from_the_shell_wakes_once_and_its_repeat_says_duplicate(rig: LiveRig, tmp_path: Path) -> None:
    rig.worker(flow(rig, step(rig, "ask", asks())))
    workflow_id = rig.start(next(iter(rig.workers[0].engine.services.app.definitions.values())))
    wait_until(lambda: rig.status(workflow_id) == "waiting", "it waits")

    first = answer(tmp_path, workflow_id, *IDENTITY, "--id", "from-shell")
    again = answer(tmp_path, workflow_id, *IDENTITY, "--id", "from-shell")

    said = {"v": 1, "signal_id": "from-shell"}
    woken = {"duplicate": False, "activated": True, "matched": True, "conflict": False, "target": "waiting"}
    assert first == said | woken
    assert (again["duplicate"], again["activated"], again["conflict"]) == (True, False, False)
    rig.wait_ended(workflow_id)
    assert rig.output(workflow_id) == ["from-shell"]


@pytest.mark.req("sig-terminal-target", "can-late-signal")
def test_unknown_finished_and_superseded_workflows_are_told_in_the_receipt(rig: LiveRig, tmp_path: Path) -> None:
    done, ended = flow(rig, "a", type="done"), flow(rig, step(rig, "ask", asks()), type="ended")
    rig.worker(done, ended)
    finished, superseded = rig.start(done, "k1"), rig.start(ended, "k2")
    rig.wait_ended(finished)
    rig.client.supersede(superseded)

    targets = {
        key: answer(tmp_path, key, *IDENTITY, "--id", f"for-{key}", "--early")["target"]
        for key in ("wf-nobody", finished, superseded)
    }

    assert targets == {"wf-nobody": "unknown", finished: "completed", superseded: "canceled"}
    assert sorted(pending(rig)) == sorted(f"for-{key}" for key in targets)
    shown = told(tmp_path, "wf-nobody", *IDENTITY, "--id", "plain", "--early")
    assert shown.stdout.splitlines() == [
        "signal_id  plain", "duplicate  false", "activated  false", "matched  false", "conflict  false",
        "target  unknown",
    ]  # fmt: skip
    assert shown.stderr == "nobody is there to wait for it: it is kept until he comes\n"


def test_a_signal_that_wakes_nobody_says_why_in_one_sentence(rig: LiveRig, tmp_path: Path) -> None:
    rig.worker(flow(rig, step(rig, "ask", asks())))
    workflow_id = rig.start(next(iter(rig.workers[0].engine.services.app.definitions.values())))
    wait_until(lambda: rig.status(workflow_id) == "waiting", "it waits")

    other = told(tmp_path, workflow_id, TYPE, "--key", KEY, "--generation", "3", "--id", "other")
    woken = told(tmp_path, workflow_id, *IDENTITY, "--id", "woken")
    rig.wait_ended(workflow_id)
    again = told(tmp_path, workflow_id, *IDENTITY, "--id", "woken")
    late = told(tmp_path, workflow_id, *IDENTITY, "--id", "late")

    assert [done.returncode for done in (other, woken, again, late)] == [0] * 4
    assert other.stderr == (
        f"{workflow_id} waits for {TYPE} --key {KEY} --generation 2, not for {TYPE} --key {KEY} --generation 3: "
        "the signal is kept until it does\n"
    )
    assert woken.stderr == ""
    assert late.stderr == "that workflow is completed: it waits for nothing now\n"
    assert again.stderr == "a signal of this id was delivered before: nothing is done twice\n"


def test_a_biz_key_names_its_workflow_and_nobody_is_told_nothing(rig: LiveRig, tmp_path: Path) -> None:
    """A mistyped id must not look like a signal that was delivered."""
    rig.worker(flow(rig, step(rig, "ask", asks())))
    workflow_id = rig.start(next(iter(rig.workers[0].engine.services.app.definitions.values())), "order:1")
    wait_until(lambda: rig.status(workflow_id) == "waiting", "it waits")

    for nobody in ("order:2", workflow_id_for("order:2")):
        refused = told(tmp_path, nobody, *IDENTITY, "--id", "lost")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.splitlines() == [
            f"error: workflow {nobody} does not exist: say --early to keep the signal until it does"
        ]
    assert rig.store.get(SIGNALS, "lost") is None

    woken = answer(tmp_path, "order:1", *IDENTITY, "--id", "rung")
    assert (woken["activated"], woken["target"]) == (True, "waiting")
    rig.wait_ended(workflow_id)
    assert rig.output(workflow_id) == ["rung"]


@pytest.mark.req("sig-early")
def test_an_early_signal_by_key_or_id_is_kept_for_the_workflow_that_comes(rig: LiveRig, tmp_path: Path) -> None:
    definition = flow(rig, step(rig, "ask", asks()))
    names = {"by-key": "order:1", "by-id": workflow_id_for("order:2")}

    for signal_id, name in names.items():
        assert answer(tmp_path, name, *IDENTITY, "--id", signal_id, "--early")["target"] == "unknown"

    rig.worker(definition)
    started = [rig.start(definition, key) for key in ("order:1", "order:2")]
    rig.wait_ended(*started)
    assert [rig.output(workflow_id) for workflow_id in started] == [["by-key"], ["by-id"]]


@pytest.mark.req("sig-unique")
def test_an_id_that_was_used_for_another_signal_is_one_line_and_a_failure(rig: LiveRig, tmp_path: Path) -> None:
    assert answer(tmp_path, "one", *IDENTITY, "--id", "used", "--early")["conflict"] is False

    done = told(tmp_path, "two", *IDENTITY, "--id", "used", "--early", "--json")

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == "error: id used was used for another signal: this one is not delivered"
    receipt = json.loads(done.stdout)
    assert (receipt["duplicate"], receipt["conflict"], receipt["activated"]) == (True, True, False)
    assert rig.store.get(SIGNALS, "used")["workflow_id"] == workflow_id_for("one")  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("wf", TYPE, "--key", "k", "--id", ""), "signal_id"),
        (("wf", TYPE, "--key", "k", "--id", "x" * 201), "signal_id"),
        (("wf", TYPE, "--key", "k", "--id", "a\x1b[2Jb"), "signal_id"),
        (("", TYPE, "--key", "k", "--id", "s"), "workflow_id"),
        (("wf\n", TYPE, "--key", "k", "--id", "s"), "workflow_id"),
        (("wf", "No", "--key", "k", "--id", "s"), "signal_type"),
        (("wf", TYPE, "--key", "  ", "--id", "s"), "wait_key"),
        (("wf", TYPE, "--key", "k", "--generation", "-1", "--id", "s"), "generation"),
        (("wf", TYPE, "--key", "k", "--generation", "9007199254740992", "--id", "s"), "generation"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    rig: LiveRig, tmp_path: Path, arguments: tuple[str, ...], field: str
) -> None:
    done = told(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {field}: ")
    assert "\x1b" not in line
    assert rig.store.get(SIGNALS, "s") is None
    assert pending(rig) == []


def test_without_a_data_folder_the_signal_is_not_taken(tmp_path: Path) -> None:
    done = told(tmp_path / "nowhere", "wf", *IDENTITY, "--id", "s")

    assert done.returncode == 69
    assert len(done.stderr.splitlines()) == 1
