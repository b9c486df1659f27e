"""The side path of a real tree: what was accepted is stored when the tree ends, and a broken store costs no work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.observe.reading import Observations, Wanted
from kernel.observe.tables import OBSERVE_TABLES
from kernel.runtime.observer import OBSERVE_FILE
from kernel.runtime.observing import is_observed, open_observations, open_repair
from kernel.store.sqlite_lock import LockFile
from kernel.store.sqlite_projection import SqliteProjection
from tests.faults import apps
from tests.faults.rig import Tree, tree
from tests.support.program import CHECKOUT
from tests.support.rightless import rightless
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault]

STEPS = ("a", "b", "c", "d")
CALM: dict[str, Any] = {"lease_s": 30.0, "drain_s": 20.0}
"""Time enough for a step and for an orderly end, on a machine that is busy with other things as well."""


def observations(config: Config) -> Observations:
    wait_until(lambda: is_observed(config, config.data_dir), "the store of observations")
    return open_observations(config, config.data_dir, SystemClock(), prepare=False)


def counters(running: Tree) -> list[dict[str, Any]]:
    """What each worker and dispatcher of the tree last reported."""
    children = [*running.children("worker"), *running.children("dispatcher")]
    return [child["counters"] for child in children]


def total(running: Tree, name: str) -> int:
    return sum(counted.get(f"observation_{name}", 0) for counted in counters(running))


@pytest.mark.req("obs-drain-on-stop", "obs-counters", "shd-order")
def test_after_sigterm_every_accepted_event_is_stored(tmp_path: Path) -> None:
    """The flush period is a minute and no batch gets full: whatever is stored was stored by the end of its process."""
    with tree(tmp_path / "data", observe_flush_s=60.0, observe_batch=5_000, **CALM) as running:
        ids = running.start_many(apps.STEADY, "seen", 6)
        running.finish(*ids)
        rows = {workflow_id: running.row(workflow_id) for workflow_id in ids}
        wait_until(lambda: total(running, "queue") > 6 * 8, "the workers tell how much waits")
        assert total(running, "written") == 0
        pids = running.pids("worker")

        assert running.session.stop() == 0

        stages = [(line["pid"], line["event"]) for line in running.lines() if line["event"].startswith("drain.")]
    order = ["wakeups_stopped", "poll_stopped", "claims_ended", "observations_drained", "ended"]
    for pid in pids:
        assert [event for teller, event in stages if teller == pid] == [f"drain.{stage}" for stage in order]

    read = observations(running.config)
    try:
        for workflow_id, row in rows.items():
            found = read.of_workflow(workflow_id)
            assert found is not None
            assert (found.status, found.revision) == ("completed", row["revision"])
            attempts = read.attempts(found.biz_key).rows
            assert [(one.step, one.outcome) for one in attempts] == [(name, "completed") for name in STEPS]
    finally:
        read.close()


@pytest.mark.req("obs-no-affect", "obs-counters", "obs-nonblocking", "layer-obs-subordinate")
def test_with_a_store_that_can_not_be_opened_all_work_is_done_once_and_the_loss_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / OBSERVE_FILE).mkdir(parents=True)
    folder.chmod(0o700)
    with tree(folder, observe_queue=3, **CALM) as running:
        ids = running.start_many(apps.STEADY, "unseen", 4)
        running.finish(*ids)

        assert all(running.effects.counts(workflow_id) == dict.fromkeys(STEPS, 1) for workflow_id in ids)
        wait_until(lambda: total(running, "dropped") > 0 and total(running, "errors") > 0, "the loss is told")
        assert total(running, "written") == 0
        assert all(counted.get("observation_queue", 0) <= 3 for counted in counters(running))
        told = [line["pid"] for line in running.lines() if line["msg"].startswith("observations wait for their store")]
        assert told
        assert len(told) == len(set(told)), "said once by each process, not with each try"

        assert running.session.stop() == 0, "and nobody's end is held up for it"


@pytest.mark.req("obs-no-affect", "obs-counters", "s13")
def test_with_observations_made_read_only_all_work_is_done_once_and_nothing_is_written_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    path = folder / OBSERVE_FILE
    store = SqliteProjection(path, SystemClock(), durability="normal", tables=OBSERVE_TABLES)
    store.prepare()
    store.close()
    files = [path, folder / f"{OBSERVE_FILE}-lock"]
    for file in files:
        file.chmod(0o444)
    before = path.read_bytes()
    command = rightless("tests.faults.unwritable", str(folder), "6")

    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["entries"] == [dict.fromkeys(STEPS, 1)] * 6
    assert told["outputs"] == [number + len(STEPS) - 1 for number in range(6)]
    assert told["counters"]["observation_written"] == 0
    assert told["counters"]["observation_dropped"] > 0 and told["counters"]["observation_poisoned"] == 0
    assert told["exit_status"] == 0
    assert path.read_bytes() == before


@pytest.mark.req("obs-no-affect", "obs-counters")
def test_a_file_that_comes_back_is_written_again_without_a_restart(tmp_path: Path) -> None:
    """The observations are removed under a running tree: the next events make them anew, repair brings the rest."""
    with tree(tmp_path / "data") as running:
        first = running.start(apps.STEADY, "before", 1)
        running.finish(first)
        path = running.folder / OBSERVE_FILE
        wait_until(lambda: path.exists() and total(running, "written") > 0, "the first is written")
        for name in (path, *(Path(f"{path}{end}") for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)

        second = running.start(apps.STEADY, "after", 2)
        running.finish(second)
        revision = running.row(second)["revision"]

        def is_seen() -> bool:
            if not path.exists() or path.stat().st_size == 0:
                return False
            read = open_observations(running.config, running.folder, SystemClock())
            try:
                found = read.of_workflow(second)
                return found is not None and found.revision == revision
            finally:
                read.close()

        wait_until(is_seen, "the second is seen in a new file")
        repair = open_repair(running.config, running.folder, SystemClock())
        try:
            assert first in [one.workflow_id for one in repair.repair_all().repaired]
        finally:
            repair.close()


def test_switched_off_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with tree(tmp_path / "data", observe="off") as running:
        running.finish(running.start(apps.STEADY, "dark", 1))
        wait_until(lambda: all("commits" in counted for counted in counters(running)), "all have reported")

        assert not (running.folder / OBSERVE_FILE).exists()
        assert not any("observation_queue" in counted for counted in counters(running))
        assert all("claims_lost" in counted for counted in counters(running))


@pytest.mark.req("obs-drain-on-stop", "obs-no-affect")
def test_a_killed_worker_costs_events_and_no_snapshot_goes_back(tmp_path: Path) -> None:
    """What the dead one had not written is lost; its successor's events have higher revisions and end the story."""
    with tree(tmp_path / "data", observe_flush_s=0.05, **CALM) as running:
        ids = running.start_many(apps.STEADY, "killed", 8, hold_s=0.2)
        running.entered(ids[0], "b")
        os.kill(running.pids("worker")[0], signal.SIGKILL)
        running.finish(*ids)
        rows = {workflow_id: running.row(workflow_id)["revision"] for workflow_id in ids}
        assert running.session.stop() == 0

    read = observations(running.config)
    try:
        assert {workflow_id: _revision(read, workflow_id) for workflow_id in ids} == rows
        assert len(read.page(Wanted()).rows) == len(ids)
    finally:
        read.close()


def _revision(read: Observations, workflow_id: str) -> int | None:
    found = read.of_workflow(workflow_id)
    return None if found is None else found.revision


@contextmanager
def stopped(path: Path) -> Iterator[None]:
    """Inside the block nobody can write to that SQLite store: as if a process had been stopped while it did. Whoever
    tries waits for its whole time limit each time."""
    lock = LockFile(f"{path}-lock")
    try:
        wait_until(lock.try_acquire, "the store's lock", every=0.001)
        yield
        lock.release()
    finally:
        lock.close()


def workflow(running: Tree, *words: str) -> dict[str, Any]:
    """What an operator's command answers, asked beside the running tree."""
    command = [sys.executable, "-m", "supervisor", "workflow", *words, "--json", "--data-dir", str(running.folder)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def listed(running: Tree) -> dict[str, tuple[str, int]]:
    """Status and revision of every workflow, page by page, as `workflow list` has them."""
    known: dict[str, tuple[str, int]] = {}
    words: tuple[str, ...] = ()
    while True:
        page = workflow(running, "list", "--limit", "100", *words)
        known |= {row["workflow_id"]: (row["status"], row["revision"]) for row in page["workflows"]}
        if page["next"] is None:
            return known
        words = ("--after", page["next"])


BEFORE, MEANWHILE, ACROSS = 60, 240, 6


@pytest.mark.req("s13", "obs-no-affect", "obs-nonblocking", "obs-counters", "obs-repair")
def test_work_goes_on_while_the_store_is_stopped_and_the_repair_closes_every_gap(tmp_path: Path) -> None:
    """Some end before the outage, most begin and end in it, some begin in it and end after it: of those the last event
    is written, so that their snapshot is right, and what they lack are attempts alone."""
    with tree(tmp_path / "data", observe_queue=500, observe_flush_s=0.05, **CALM) as running:
        before = running.start_many(apps.STEADY, "before", BEFORE)
        running.finish(*before)
        _wait_seen(running, before)

        with stopped(running.folder / OBSERVE_FILE):
            meanwhile = running.start_many(apps.STEADY, "meanwhile", MEANWHILE)
            running.finish(*meanwhile)  # nobody has waited for the store: it is still stopped
            wait_until(lambda: total(running, "dropped") > 0 and total(running, "errors") > 0, "the loss is told")
            across = running.start_many(apps.STAGED, "across", ACROSS)
            running.open_gate(*apps.STAGES[:-1])
            for workflow_id in across:
                running.entered(workflow_id, apps.STAGES[-1])
            wait_until(lambda: all(one["observation_queue"] for one in counters(running)[:2]), "all have a queue")
        wait_until(lambda: total(running, "queue") == 0, "what was accepted is written")
        running.open_gate(apps.STAGES[-1])
        running.finish(*across)
        _wait_seen(running, across)

        for number, workflow_id in enumerate(meanwhile):
            assert running.effects.counts(workflow_id) == dict.fromkeys(STEPS, 1)
            assert running.output(workflow_id) == number + len(STEPS) - 1
        truth = {workflow_id: _stands(running, workflow_id) for workflow_id in (*before, *meanwhile, *across)}
        assert {status for status, _ in truth.values()} == {"completed"}
        assert listed(running) != truth, "there are gaps"
        assert any(len(_attempts(running, workflow_id)) < len(apps.STAGES) for workflow_id in across)

        repaired = workflow(running, "repair", "--all")

        assert repaired["unreadable"] == [] and repaired["repaired"] > 0
        assert listed(running) == truth
        for workflow_id in truth:
            steps = apps.STAGES if workflow_id in across else STEPS
            assert _attempts(running, workflow_id) == [(step, 1, "completed") for step in steps]
        assert workflow(running, "repair", "--all")["repaired"] == 0, "nothing is left to be repaired"
        assert total(running, "poisoned") == 0


def _stands(running: Tree, workflow_id: str) -> tuple[str, int]:
    row = running.instance(workflow_id)
    return row.status, row.revision


def _wait_seen(running: Tree, workflow_ids: Sequence[str]) -> None:
    """Wait until their last events are written."""
    read = observations(running.config)
    try:
        for workflow_id in workflow_ids:
            _, revision = _stands(running, workflow_id)
            wait_until(lambda of=workflow_id, to=revision: _revision(read, of) == to, f"{workflow_id} is seen")
    finally:
        read.close()


def _attempts(running: Tree, workflow_id: str) -> list[tuple[str, int, str]]:
    read = observations(running.config)
    try:
        seen = read.of_workflow(workflow_id)
        assert seen is not None
        rows = read.attempts(seen.biz_key).rows
        return sorted((one.step, one.attempt, one.outcome) for one in rows)
    finally:
        read.close()
