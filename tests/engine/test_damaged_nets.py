"""One damaged row beside the nets of a process: each of them goes on catching what the queue has lost (A45). An outage
is another thing: it would meet all of them, and so it ends the pass."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import NamedTuple

import pytest

from kernel.definition import Definition
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_rows import BODY
from kernel.store.tables import DEFINITIONS, INSTANCES, SIGNALS, TABLES
from tests.engine.flows import flow, step
from tests.engine.occupied import Occupied
from tests.engine.signals import leave
from tests.engine.test_claims import set_fields
from tests.engine.test_permits import waits
from tests.support.engine_rig import RigWorker, SteppedRig

HOUR_MS = 3_600_000


def overwrite(rig: SteppedRig, table: str, key: str, column: str = BODY) -> None:
    """Put bytes that no version of the kernel wrote into one column of one row."""
    assert isinstance(rig.store, SqliteStore)
    with closing(sqlite3.connect(rig.store.path)) as connection, connection:
        statement = f"UPDATE {table} SET {column} = ? WHERE {TABLES[table].key} = ?"
        assert connection.execute(statement, (b"\xc1", key)).rowcount == 1


class Lost(NamedTuple):
    """What only a scan finds, and a row among them that somebody may damage."""

    worker: RigWorker
    definitions: tuple[Definition, Definition]
    popped: str
    """A candidate that the queue has lost."""
    waiter: str
    """Waits for a permit, which is there, and stands in no line."""
    deferred: list[str]
    """Put off for an hour, though a worker of its version lives."""
    since_ms: int

    @property
    def all(self) -> set[str]:
        return {self.popped, self.waiter, *self.deferred}


def lose(rig: SteppedRig) -> Lost:
    occupied = Occupied(rig, "printer")
    gated, plain = flow(rig, step(rig, "a", resource="printer"), type="gated"), flow(rig, "p", type="plain")
    worker = rig.worker(gated, plain, permit_wait_ms=600_000)
    waits(rig, waiter := rig.start(gated, "waiter"))
    rig.queue.forgets = True
    popped, *deferred = [rig.start(plain, f"k{number}") for number in range(8)]
    for workflow_id in deferred:
        since = {"stored": "x", "offered": [], "since_time": 1}
        set_fields(rig, workflow_id, deferred=since, claimable_time=rig.clock.wall_ms() + HOUR_MS)
    rig.queue.forgets = False
    rig.permits.of("printer").line.clear()
    rig.queue.model.remove([waiter])
    occupied.free()
    return Lost(worker, (gated, plain), popped, waiter, sorted(deferred), rig.clock.wall_ms())


def brought_back(rig: SteppedRig, lost: Lost) -> set[str]:
    """What is in the queue and due."""
    now_ms = rig.clock.wall_ms()
    return {key for key in lost.all if (due_ms := rig.queue.due_of(key)) is not None and due_ms <= now_ms}


def damage(rig: SteppedRig, lost: Lost, what: str) -> str:
    """Spoil one row; the workflow to which that happens, if any."""
    victim, version = lost.deferred[0], lost.definitions[0].plan.key
    match what:
        case "deferred row":
            overwrite(rig, INSTANCES, victim)
        case "field of a deferred row":
            set_fields(rig, victim, retry_count="many")
        case "column of a due row":
            overwrite(rig, INSTANCES, lost.popped, "business_priority")
            return lost.popped
        case "row of a version":
            overwrite(rig, DEFINITIONS, version)
            return ""
        case "key of a version":
            overwrite(rig, DEFINITIONS, version, "definition_key")
            return ""
        case "row of the inbox":
            leave(rig, lost.popped)
            overwrite(rig, SIGNALS, "s1", "wait_key")
            return ""
    return victim


@pytest.mark.req("sch-scan-not-only-empty", "prm-wake-lost", "fpr-compatible-returns")
@pytest.mark.case("A45")
@pytest.mark.parametrize("what", ["deferred row", "field of a deferred row", "row of a version"])
def test_a_damaged_row_tears_no_net_of_a_worker(sqlite_rig: SteppedRig, what: str) -> None:
    """Its next scan finds all that is lost, and not only what lies before the damage."""
    rig = sqlite_rig
    lost = lose(rig)
    victim = damage(rig, lost, what)
    found = lost.all - {victim}

    rig.finish(*found, limit_ms=rig.settings.scan_ms + rig.settings.poll_ms)

    assert {rig.status(workflow_id) for workflow_id in found} == {"completed"}
    assert lost.worker.loop.status()["store"] == "up"


@pytest.mark.req("sch-activation-roles", "prm-wake-lost", "fpr-compatible-returns", "dc-roles-split")
@pytest.mark.case("A45")
@pytest.mark.parametrize("what", ["deferred row", "field of a deferred row"])
def test_a_damaged_row_tears_no_net_of_a_dispatcher(sqlite_rig: SteppedRig, what: str) -> None:
    rig = sqlite_rig
    lost = lose(rig)
    lost.worker.sweeps.touch_definitions()
    victim = damage(rig, lost, what)
    _, loop = rig.dispatcher(*lost.definitions)

    loop.pass_once()

    assert brought_back(rig, lost) == lost.all - {victim}
    undeferred = {str(event["workflow_id"]) for event in rig.recorder.of("claim.undeferred")}
    assert undeferred == {*lost.deferred} - {victim}


@pytest.mark.req("sch-activation-roles")
@pytest.mark.case("A45")
@pytest.mark.parametrize("what", ["column of a due row", "row of the inbox", "key of a version"])
def test_a_net_that_can_not_be_cast_leaves_a_dispatcher_the_others(sqlite_rig: SteppedRig, what: str) -> None:
    """The very reading of it fails: of what is runnable, of the inbox, of who lives."""
    rig = sqlite_rig
    lost = lose(rig)
    lost.worker.sweeps.touch_definitions()
    victim = damage(rig, lost, what)
    _, loop = rig.dispatcher(*lost.definitions)

    loop.pass_once()

    of_versions = set(lost.deferred) if what == "key of a version" else set()
    assert brought_back(rig, lost) == lost.all - {victim} - of_versions
    assert loop.status()["store"] == "up"


@pytest.mark.req("sch-scan-not-only-empty", "prm-wake-lost")
@pytest.mark.case("A45")
def test_a_net_that_can_not_be_cast_leaves_a_worker_the_others(sqlite_rig: SteppedRig) -> None:
    rig = sqlite_rig
    lost = lose(rig)
    others = lost.all - {damage(rig, lost, "column of a due row")}

    rig.finish(*others, limit_ms=rig.settings.scan_ms + rig.settings.poll_ms)

    assert {rig.status(workflow_id) for workflow_id in others} == {"completed"}


def fail_once_after(process: RigWorker, scans: int) -> None:
    """Let the store be away for one question, the first one after so many scans, and answer all others."""
    left = [True]
    process.store.scans.clear()
    process.store.down = lambda: len(process.store.scans) == scans and bool(left and left.pop())


@pytest.mark.req("sch-scan-bounded")
def test_an_outage_ends_the_pass_of_a_dispatcher_at_once(rig: SteppedRig, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever net meets it: each question of the later ones may cost a timeout (L3). It is said once."""
    lost = lose(rig)
    process, loop = rig.dispatcher(*lost.definitions)
    loop.pass_once()  # after which nothing is deferred any more

    def scans_of_a_pass() -> int:
        lost.worker.sweeps.touch_definitions()
        rig.advance(rig.settings.scan_ms)
        process.store.scans.clear()
        loop.pass_once()
        return len(process.store.scans)

    questions = scans_of_a_pass()
    assert {query.order for query in process.store.scans} >= {"claimable_time", "pending_time", "permit_wait.resource"}
    with caplog.at_level(logging.INFO, "kernel"):
        for scans in range(questions):
            fail_once_after(process, scans)
            assert (scans_of_a_pass(), loop.status()["store"]) == (scans, "down")

    assert [record.getMessage() for record in caplog.records] == ["the sweeps wait for the store: the store is away"]


@pytest.mark.req("sch-fallback-empty")
def test_an_outage_ends_the_sweep_of_a_worker_at_once(rig: SteppedRig, caplog: pytest.LogCaptureFixture) -> None:
    """The sign of life is the first to meet it; no later net is cast before the next sweep, a moment later."""
    lost = lose(rig)
    rig.advance(rig.settings.scan_ms)
    fail_once_after(lost.worker, 0)
    with caplog.at_level(logging.INFO, "kernel"):
        lost.worker.loop.pass_once()

    orders = {query.order for query in lost.worker.store.scans}
    assert "claimable_time" in orders, "the work that is due was asked for in the same round"
    assert orders.isdisjoint({"definition_key", "permit_wait.resource"}), "what was deferred, and who waits for permits"
    assert [record.getMessage() for record in caplog.records] == ["a sweep failed: the store is away"]
    rig.finish(*lost.all, limit_ms=rig.settings.scan_ms + rig.settings.poll_ms)


@pytest.mark.req("fpr-compatible-returns")
@pytest.mark.case("A45")
def test_a_damaged_row_of_a_version_hides_no_other_version(sqlite_rig: SteppedRig) -> None:
    """Whose workers no dispatcher sees alive, its work is put off for an hour."""
    rig = sqlite_rig
    lost = lose(rig)
    damage(rig, lost, "row of a version")
    rig.advance(4 * rig.settings.scan_ms)

    rig.pass_once(lost.worker)

    assert lost.worker.sweeps.live_definitions() == {lost.definitions[1].plan.key}
