"""Many at once: signal and poll, several sweeps, many producers; one wins, a hundred times (R-419, S9)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.engine.sweeps import Swept
from kernel.ids import RandomIds
from kernel.store.conditional import Put, Transition
from kernel.store.memory import MemoryStore
from kernel.store.tables import INSTANCES
from tests.engine.conftest import PATIENT
from tests.engine.flows import flow, seconds, step
from tests.engine.signals import asks, leave, made, matched, pending
from tests.support.engine_rig import LiveRig
from tests.support.stores import sqlite_store
from tests.support.wait import wait_until

ROUNDS = 100


@pytest.fixture(params=["memory", "sqlite"])
def racing(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A rig with real threads, ids that several of them may draw, and a hundred workflows that wait."""
    clock = SystemClock()
    store = MemoryStore(clock) if request.param == "memory" else sqlite_store(tmp_path, clock)
    rig = LiveRig(store, slots=ROUNDS, **PATIENT)
    rig.ids = RandomIds()
    yield rig
    rig.close()
    store.close()


def asleep(rig: LiveRig, fallback_s: float | None) -> list[str]:
    fallback = None if fallback_s is None else seconds(fallback_s)
    definition = flow(rig, step(rig, "ask", asks(fallback=fallback)))
    worker = rig.worker(definition, run=False)
    ids = [rig.start(definition, f"k{k}") for k in range(ROUNDS)]

    def all_wait() -> bool:
        worker.loop.pass_once()
        return worker.busy == 0 and all(rig.status(key) == "waiting" for key in ids)

    wait_until(all_wait, "all waiting", 60)
    return ids


def make_due(rig: LiveRig, workflow_ids: list[str]) -> None:
    """The poll time of their waits has come."""
    now_ms = rig.store.now_ms()
    changes = (Put("claimable_time", now_ms), Put("steps.0.wait.poll_time", now_ms))
    for key in workflow_ids:
        rig.store.apply(Transition("set_due", INSTANCES, key, (), changes))


def together(count: int, acts: list[Callable[[], Any]]) -> list[Any]:
    """All of `acts` at the same moment, each on a thread of its own."""
    barrier = threading.Barrier(count)

    def start(act: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return act()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, acts))


@pytest.mark.req("sig-compete", "sig-poll-fallback", "s9", "s10", "slp-activate-once")
@pytest.mark.case("A47")
def test_signal_and_poll_at_once_are_one_activation(racing: LiveRig) -> None:
    rig = racing
    ids = asleep(rig, 3_600)
    sweeper = rig.workers[0].sweeps
    make_due(rig, ids)
    before = {key: rig.row(key)["revision"] for key in ids}
    clients = [rig.make_client(rig.store) for _ in ids]

    for key, client in zip(ids, clients, strict=True):
        together(
            2,
            [
                lambda key=key, client=client: client.deliver_signals([made(key, f"s-{key}")]),  # type: ignore[misc]
                lambda key=key: sweeper._activate_all([key], Swept()),  # type: ignore[misc]
            ],
        )

    rows = [rig.row(key) for key in ids]
    assert [row["revision"] for row in rows] == [before[key] + 1 for key in ids]
    assert {row["status"] for row in rows} == {"running"}
    by_signal = {f"s-{row['workflow_id']}" for row in rows if row["resume"]["kind"] == "signal"}
    assert set(matched(rig)) == by_signal
    assert len(by_signal) + len(pending(rig)) == ROUNDS


@pytest.mark.req("s9", "sig-dup-once", "sig-unique", "sig-crash-between", "sig-scan-match")
def test_sweeps_and_producers_at_once_wake_each_wait_once(racing: LiveRig) -> None:
    """Per round: the row is there already, two sweeps find it, and two producers deliver the same id again."""
    rig = racing
    ids = asleep(rig, None)
    others = [rig.make_worker(*rig.workers[0].engine.services.app.definitions.values()) for _ in range(2)]
    before = {key: rig.row(key)["revision"] for key in ids}
    clients = [rig.make_client(rig.store) for _ in range(2)]

    for key in ids:
        leave(rig, key, f"s-{key}")
        together(
            4,
            [
                *(other.sweeps.inbox.repair for other in others),
                *(lambda c=client, key=key: c.deliver_signals([made(key, f"s-{key}")]) for client in clients),  # type: ignore[misc]
            ],
        )

    rows = [rig.row(key) for key in ids]
    assert [row["revision"] for row in rows] == [before[key] + 1 for key in ids]
    assert [row["resume"]["signal_id"] for row in rows] == [f"s-{key}" for key in ids]
    assert (pending(rig), len(matched(rig))) == ([], ROUNDS)


@pytest.mark.req("sig-check-after-suspend", "sig-early", "l6", "s9")
@pytest.mark.case("A46")
def test_signals_that_come_while_their_step_suspends_are_never_missed(racing: LiveRig) -> None:
    """A worker suspends a hundred steps while a producer tells each of them; nobody sweeps."""
    rig = racing
    definition = flow(rig, step(rig, "ask", asks()))
    worker = rig.worker(definition, scan_ms=3_600_000)
    worker.scheduler.repair = lambda: None
    ids = [rig.start(definition, f"k{k}") for k in range(ROUNDS)]
    rig.client.deliver_signals([made(key, f"s-{key}") for key in ids])

    rig.wait_ended(*ids, timeout=60)

    assert [rig.output(key) for key in ids] == [[f"s-{key}"] for key in ids]
    assert rig.ledger.count("ask") == 2 * ROUNDS


@pytest.mark.req("sig-then-queue")
def test_a_delivery_of_many_costs_few_commits_and_one_reading_each(racing: LiveRig) -> None:
    rig = racing
    ids = asleep(rig, None)
    strangers = [f"wf-nobody-{n}" for n in range(900)]
    rig.client_store.writes.clear()
    reads: list[str] = []
    get = rig.client_store.get
    rig.client_store.get = lambda table, key: (reads.append(key), get(table, key))[1]  # type: ignore[method-assign,func-returns-value]
    wakeups = rig.queue.wakeups

    receipts = rig.client.deliver_signals([made(key, f"s-{key}") for key in [*ids, *strangers]])

    assert [r.activated for r in receipts] == [True] * ROUNDS + [False] * 900
    assert len(rig.client_store.writes) == 5 + 2  # five batches; one of them has somebody to activate and to mark
    assert rig.queue.wakeups - wakeups == 1
    assert [reads.count(key) for key in ids] == [1] * ROUNDS
    assert [reads.count(key) for key in strangers] == [2] * 900
