"""What a child has from its parent: nothing that it must not have (dc-fork-safety)."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.process.supervised import program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def inherited(supervise):
    tree = supervise(program(worker="curious_worker", companions=("echo",)), workers=3, redis_url=None)
    tree.wait_running()
    # Fork one more when all others have their channels: it could inherit the most.
    old = tree.process_of("worker-2")
    old.kill()
    tree.wait_replaced("worker-2", old)
    facts = wait_until(lambda: [f for f in tree.heard("inherited") if f["slot"] == 2][1:], "the successor's facts")
    return tree, facts[0]


def test_a_child_holds_its_own_descriptors_only(inherited) -> None:
    _, fact = inherited

    kinds = sorted(target.split(":")[0] for target in fact["descriptors"].values() if target != "gone")

    # stdin, stdout and stderr, link and log socket, both ends of the pipe for SIGTERM, nothing else
    assert kinds.count("/dev/null") == 1
    assert kinds.count("socket") == 2
    assert kinds.count("pipe") == 2 + 2
    assert len([kind for kind in kinds if not kind.startswith("/proc")]) == 1 + 2 + 4
    assert not [kind for kind in kinds if kind == "anon_inode" or "supervisor.lock" in kind]


@pytest.mark.req("dc-fork-safety")
def test_no_driver_is_loaded_before_the_fork(inherited) -> None:
    _, fact = inherited

    assert fact["drivers"] == []


def test_signals_are_the_childs_own(inherited) -> None:
    tree, fact = inherited

    assert fact["wakeup_fd"] == -1
    assert set(fact["ignored"]) <= {"SIGINT", "SIGPIPE", "SIGXFSZ"}
    assert "SIGINT" in fact["ignored"]
    assert fact["blocked"] == []
    assert fact["death_signal"] == signal.SIGTERM
    assert fact["group"] == fact["pid"]
    assert fact["threads"] == 1
    assert fact["environment_pid"] == tree.pid


def test_ctrl_c_on_the_terminal_does_not_reach_children(supervise) -> None:
    tree = supervise()
    tree.wait_running()
    worker = tree.process_of("worker-0")

    worker.send_signal(signal.SIGINT)
    psutil.Process(tree.pid).send_signal(signal.SIGINT)

    assert tree.wait_end() == 0
    assert len(tree.heard("drain")) == 2
