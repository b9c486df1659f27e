"""Accepted requests, real processes: who accepts and who dispatches is killed, stopped, or has no Redis (group 7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel import BusinessObjects, workflow_id_for
from kernel.clock import SystemClock
from kernel.coordination import DispatchIndex, Keys
from kernel.dispatch import DispatchSource, DueIntent, Intent
from kernel.errors import Refused
from kernel.ids import RandomIds
from kernel.runtime import open_announcer, open_lanes, open_objects
from supervisor.boot import Program
from supervisor.roles import Roles
from tests.faults.accepting import DIE_AFTER_TAKE, DIED, HELD, HOLD, ORDERS, SERVED
from tests.faults.effects import EFFECT, boot_ms
from tests.faults.pausing import paused, stop_outside_commit
from tests.faults.rig import LIMIT_S, Tree, kill, tree, wait_for
from tests.faults.stalls import patient
from tests.process.supervised import NO_REDIS
from tests.support.requirements_index import CHECKOUT
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

HURT = Program(Roles("kernel.runtime:worker", "tests.faults.accepting:dispatcher"))
SETTINGS: dict[str, Any] = {
    "app": "tests.faults.accepting:app",
    "lease_s": 30.0,
    "dispatchers": 2,
    "dispatch_lease_s": 1.5,
    "dispatch_scan_s": 1.0,
    "dispatch_delay_s": 0.2,
    "restart_give_up": 1_000,
}


@contextmanager
def orders_tree(folder: Path, **more: Any) -> Iterator[tuple[Tree, BusinessObjects]]:
    """A running tree, and its business objects as another process sees them."""
    with tree(folder, HURT, **(SETTINGS | more)) as running:
        objects = open_objects(patient(running.config), folder, [ORDERS], SystemClock())[ORDERS.name]
        try:
            yield running, objects
        finally:
            objects.close()


def accept(objects: BusinessObjects, *numbers: int) -> list[str]:
    """Stored and pending, as by an accepting process that died right after that."""
    ids = [f"order-{number}" for number in numbers]
    for number, object_id in zip(numbers, ids, strict=True):
        key = f"{SERVED.type}:{object_id}"
        objects.accept(
            object_id, type_=SERVED.type, biz_key=key, input={"object_id": object_id, "number": number}, priority=0
        )
    return ids


def intent_of(objects: DispatchSource, object_id: str) -> Intent:
    found = objects.read(object_id)
    assert found is not None
    return found


def all_ids(objects: BusinessObjects) -> list[str]:
    ids: list[str] = []
    while page := objects.page(after=ids[-1] if ids else None, limit=1_000):
        ids += [row[ORDERS.key] for row in page]
    return ids


def unconfirmed(objects: BusinessObjects) -> list[str]:
    return [object_id for object_id in all_ids(objects) if intent_of(objects, object_id).status != "dispatched"]


def dispatched(objects: BusinessObjects, *ids: str) -> bool:
    return all(intent_of(objects, object_id).status == "dispatched" for object_id in ids)


def check_each_registered_once(running: Tree, objects: BusinessObjects, ids: list[str]) -> None:
    """One instance each, made from the stored input, entered once."""
    keys = {workflow_id_for(f"{SERVED.type}:{object_id}"): object_id for object_id in ids}
    running.finish(*keys)
    rows = {row["workflow_id"]: row for row in running.rows()}
    assert set(rows) == set(keys), "an instance for each accepted object, and no other"
    for workflow_id, object_id in keys.items():
        assert rows[workflow_id]["input"] == intent_of(objects, object_id).input
        assert rows[workflow_id]["retry_count"] == 0
    effects = Counter(effect.workflow_id for effect in running.effects.all() if effect.what == EFFECT)
    assert effects == Counter(dict.fromkeys(keys, 1))


@pytest.mark.req(
    "dsp-crash-before-object", "dsp-crash-after-object", "dsp-crash-after-start", "dsp-symmetric-failures",
    "dsp-crash-after-confirm", "core-inv-reach",
)  # fmt: skip
def test_a_thousand_requests_whose_accepting_processes_are_killed_all_end_dispatched_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder) as (running, objects):
        command = [sys.executable, "-m", "tests.faults.accepting", str(folder), running.session.redis_url, "1000", "7"]
        with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as accepting:
            try:
                dispatchers = 0
                while accepting.poll() is None:
                    wait_for(boot_ms() + 1_500)
                    try:
                        running.session.kill_child(dispatchers % 2, "dispatcher")
                        dispatchers += 1
                    except Refused:
                        continue  # that place is empty at the moment
                assert accepting.stdout is not None
                report = json.loads(accepting.stdout.read())
            finally:
                accepting.kill()
        wait_until(lambda: not unconfirmed(objects), "all are dispatched", LIMIT_S, every=0.2)

        ids = all_ids(objects)
        assert report["answered"] >= 1_000
        assert report["answered"] <= len(ids) <= report["answered"] + report["kills"]
        assert report["kills"] >= 20
        assert len(ids) > report["answered"], "some died with a stored object that they had not answered for"
        check_each_registered_once(running, objects, ids)


@pytest.mark.req("dsp-pop-crash")
@pytest.mark.crash("11")
def test_a_dispatcher_killed_with_hundred_candidates_in_its_hands_loses_none(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder, dispatchers=1, dispatch_scan_s=5.0) as (running, objects):
        (folder / DIE_AFTER_TAKE).touch()
        opened = open_lanes(patient(running.config), running.session.redis_url, SystemClock())
        assert opened is not None
        # It stands still meanwhile, so that it meets all of them at once and not some of them by its scan.
        with closing(opened[1]), paused(running, running.pids("dispatcher")):
            ids = accept(objects, *range(120))
            wait_until(lambda: objects.now_ms() >= (intent_of(objects, ids[-1]).due_time or 0), "all are due", LIMIT_S)
            index = DispatchIndex(opened[1], Keys(running.config.namespace), RandomIds())
            index.add(ORDERS.name, [DueIntent(object_id, objects.now_ms()) for object_id in ids])
        _there(folder / DIED)

        wait_until(lambda: dispatched(objects, *ids), "all are dispatched", LIMIT_S, every=0.1)
        assert int((folder / DIED).read_text()) not in running.pids("dispatcher")
        check_each_registered_once(running, objects, ids)


def _there(path: Path) -> bool:
    return wait_until(path.exists, f"{path.name} is there", LIMIT_S)


def held_by(folder: Path) -> int:
    """The dispatcher that stands still between claim and registration."""
    _there(folder / HELD)
    return int((folder / HELD).read_text())


@pytest.mark.req("dsp-crash-holder", "dsp-takeover")
@pytest.mark.crash("12")
def test_a_killed_holder_is_followed_by_another_with_a_token_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder) as (running, objects):
        (folder / HOLD).touch()
        (object_id,) = accept(objects, 1)
        first = held_by(folder)
        d1 = intent_of(objects, object_id)
        (folder / HOLD).touch()
        (folder / HELD).unlink()
        kill(first)
        second = held_by(folder)
        d2 = intent_of(objects, object_id)
        (folder / HELD).unlink()

        wait_until(lambda: dispatched(objects, object_id), "it is dispatched", LIMIT_S)

        assert (d1.status, d2.status) == ("processing", "processing")
        assert d1.claim_token and d2.claim_token and d1.claim_token != d2.claim_token
        assert first != second
        check_each_registered_once(running, objects, [object_id])


@pytest.mark.req("dsp-takeover", "dsp-cancel-ctx", "dsp-release-fenced")
@pytest.mark.crash("13")
def test_a_holder_that_was_stopped_past_its_lease_comes_back_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder) as (running, objects):
        (folder / HOLD).touch()
        (object_id,) = accept(objects, 1)
        first = held_by(folder)
        stop_outside_commit(folder, first)  # its lease is renewed by another thread of it
        (folder / HELD).unlink()
        wait_until(lambda: dispatched(objects, object_id), "another dispatches it", LIMIT_S)
        check_each_registered_once(running, objects, [object_id])
        after = objects.get(object_id), running.row(workflow_id_for(f"{SERVED.type}:{object_id}"))

        os.kill(first, signal.SIGCONT)

        def lost() -> int:
            found = [child for child in running.children("dispatcher") if child["pid"] == first]
            return int(found[0]["counters"].get("intents_lost", 0))

        assert wait_until(lost, "the first one gives up", LIMIT_S) == 1
        stays(lambda: (objects.get(object_id), running.row(after[1]["workflow_id"])) == after, "nothing changes", 1.0)
        check_each_registered_once(running, objects, [object_id])


def scans_of(running: Tree) -> int:
    return sum(child["counters"].get("intents_scans", 0) for child in running.children("dispatcher"))


@pytest.mark.req("dsp-redis-first", "dsp-candidate-add", "dsp-scan-mutex")
def test_an_announced_object_is_dispatched_although_the_next_scan_and_poll_are_an_hour_away(tmp_path: Path) -> None:
    folder, hour = tmp_path / "data", 3_600.0
    # Whoever gets no answer scans without a turn of its own: a Redis that stands still for a moment is waited for.
    settings = {"dispatch_scan_s": hour, "poll_s": hour, "scan_s": hour, "redis_budget_s": 20.0}
    with orders_tree(folder, **settings) as (running, objects):
        wait_until(lambda: scans_of(running) == 1, "the first scan, of one of them", LIMIT_S)
        announce = open_announcer(patient(running.config), running.session.redis_url)
        ids = accept(objects, *range(10))
        for object_id in ids:
            assert announce(ORDERS.name, object_id, intent_of(objects, object_id).due_time or 0)
        announce.close()

        wait_until(lambda: dispatched(objects, *ids), "all are dispatched", LIMIT_S)

        assert scans_of(running) == 1
        check_each_registered_once(running, objects, ids)


@pytest.mark.req("dsp-scan-mutex-redis-down", "dsp-no-simultaneous")
def test_without_redis_for_good_accepted_objects_are_dispatched_by_the_scan(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder, redis_url=NO_REDIS, dispatchers=3) as (running, objects):
        ids = accept(objects, *range(40))

        wait_until(lambda: dispatched(objects, *ids), "all are dispatched", LIMIT_S, every=0.1)

        check_each_registered_once(running, objects, ids)


@pytest.mark.req("dsp-redis-first")
def test_commits_of_a_dispatcher_are_counted_for_the_crash_loop_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with orders_tree(folder, dispatchers=1) as (running, objects):
        assert running.children("dispatcher")[0]["counters"].get("commits", 0) == 0
        ids = accept(objects, *range(5))

        def counted() -> bool:
            counters = running.children("dispatcher")[0]["counters"]
            return bool(counters.get("commits", 0) >= counters.get("intents_dispatched", 0) == len(ids))

        wait_until(counted, "five intents are counted as commits", LIMIT_S)


@pytest.mark.req("dc-roles-split")
def test_a_dispatcher_alone_registers_and_a_worker_alone_executes(tmp_path: Path) -> None:
    """One folder, two trees: intents become dispatched and nothing runs; then it runs without a dispatcher, and what is
    only accepted stays for one."""
    folder = tmp_path / "data"
    # After three of its scan periods a dispatcher defers what no worker runs: this one sees no such time.
    with orders_tree(folder, workers=0, dispatchers=1, scan_s=60.0) as (running, objects):
        ids = accept(objects, 1, 2, 3)
        wait_until(lambda: dispatched(objects, *ids), "the intents are dispatched", LIMIT_S)
        rows = running.rows()
        assert [(row["status"], row["steps"][0]["attempt"]) for row in rows] == [("running", 0)] * 3
        stays(lambda: running.rows() == rows, "nothing is executed", seconds=1)
        assert running.effects.all() == []

    with orders_tree(folder, workers=1, dispatchers=0) as (running, objects):
        (late,) = accept(objects, 4)
        check_each_registered_once(running, objects, ids)
        assert intent_of(objects, late).status == "pending"
