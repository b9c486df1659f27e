"""L6, measured: a signal lies in the inbox, its producer is gone for good, and a workflow waits for it, whatever died.

Judged by the boot clock, from the insert to the moment at which the row says that its wait is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.redis_calls import RedisCalls
from kernel import Signal
from kernel.transitions import receive_signal
from tests.faults.apps import BELL, WAITS
from tests.faults.effects import boot_ms
from tests.faults.rig import LIMIT_S, Tree, kill, settings, tree
from tests.faults.stalls import but_worst
from tests.support.figures import Figures
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("l6", "sig-scan-match", "sig-two-nets", "dc-tests-fault")]

ROUNDS = 3
SCAN_S = settings(Path("data")).scan_s


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Tree]:
    with tree(tmp_path / "data", workers=3, lease_s=30.0) as running:
        yield running


def nobody(waiting: Tree) -> None:
    """The producer alone has died."""


def a_dispatcher(waiting: Tree) -> None:
    kill(*waiting.pids("dispatcher"))


def a_worker(waiting: Tree) -> None:
    kill(waiting.pids()[0])


def all_workers_and_redis(waiting: Tree) -> None:
    kill(*waiting.pids())
    redis = RedisCalls(waiting.session.redis_url)
    redis.flush()
    redis.close()


def is_woken(waiting: Tree, workflow_id: str) -> bool:
    return bool(waiting.row(workflow_id)["status"] != "waiting")


DEATHS: tuple[Callable[[Tree], None], ...] = (nobody, a_dispatcher, a_worker, all_workers_and_redis)


@pytest.mark.bound("L6")
def test_a_pending_signal_wakes_its_waiter_within_a_scan_period_whatever_died(waiting: Tree, figure: Figures) -> None:
    keys = [f"wait:{number}" for number in range(ROUNDS * len(DEATHS))]
    ids = [waiting.start(WAITS, key, 7) for key in keys]
    wait_until(lambda: all(waiting.row(key)["status"] == "waiting" for key in ids), "all wait", LIMIT_S)
    seconds = []
    for number, (key, workflow_id) in enumerate(zip(keys, ids, strict=True)):
        waiting.wait_running()
        signal = Signal(signal_id=f"left:{key}", workflow_id=workflow_id, signal_type=BELL, wait_key=key, generation=1)
        began_ms = boot_ms()
        waiting.store.insert(receive_signal(signal, now_ms=waiting.store.now_ms()))
        DEATHS[number % len(DEATHS)](waiting)
        wait_until(partial(is_woken, waiting, workflow_id), "it is woken", LIMIT_S, every=0.005)
        seconds.append((boot_ms() - began_ms) / 1000)
    waiting.finish(*ids)

    assert [waiting.output(key) for key in ids] == [["signal", f"left:{key}"] for key in keys]
    matched_s = but_worst(seconds)
    figure.check("L6", "pending signal matched, whatever died", matched_s, SCAN_S, at_least=ROUNDS * len(DEATHS) - 1)
