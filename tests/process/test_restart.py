"""A child that dies comes back, its death is proved and told, and a child that never starts is given up."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import pytest

from tests.process.supervised import all_gone, is_zombie, program
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.mark.req("dc-restart-child")
def test_a_killed_child_is_replaced_within_a_second(supervise) -> None:
    tree = supervise()
    tree.wait_running()
    old = tree.process_of("worker-0")

    old.kill()
    tree.wait_replaced("worker-0", old)

    (delay,) = [line["x"]["delay_ms"] for line in tree.log("child.backoff")]
    assert delay < 1_000, "what it takes beyond that is the machine's"
    wait_until(lambda: tree.child("worker-0")["state"] == "RUNNING", "the successor runs")
    assert tree.child("worker-0")["restarts"] == 1
    assert tree.child("worker-0")["last_exit"] == {"cause": "death", "text": "killed by SIGKILL", "words": ""}


def test_the_dispatcher_is_told_which_owner_is_proved_dead(supervise) -> None:
    tree = supervise(workers=2)
    tree.wait_running()
    victim = tree.child("worker-1")

    psutil.Process(victim["pid"]).kill()

    wait_until(lambda: tree.heard("owner_dead"), "the notice")
    # More than once if nobody acknowledges within a second.
    heard = {(fact["id"], fact["dead"], fact["cause"], fact["role"]) for fact in tree.heard("owner_dead")}
    ((_, *notice),) = heard
    assert notice == [victim["worker_id"], "death", "dispatcher"]
    wait_until(lambda: (tree.status() or {}).get("notices_open") == 0, "the acknowledgement arrives")


def test_every_dispatcher_is_told(supervise) -> None:
    tree = supervise(dispatchers=3)
    tree.wait_running()

    tree.process_of("worker-0").kill()

    wait_until(lambda: {fact["slot"] for fact in tree.heard("owner_dead")} == {0, 1, 2}, "all three hear it")


def test_without_a_dispatcher_the_workers_are_told(supervise) -> None:
    tree = supervise(workers=2, dispatchers=0)
    tree.wait_running()
    victim = tree.child("worker-0")

    psutil.Process(victim["pid"]).kill()

    notices = wait_until(lambda: tree.heard("owner_dead"), "a worker hears it")
    assert notices[0]["dead"] == victim["worker_id"]
    assert notices[0]["role"] == "worker"


def test_a_notice_is_repeated_until_it_is_acknowledged(supervise) -> None:
    tree = supervise(program(dispatcher="deaf_dispatcher"))
    tree.wait_running()

    tree.process_of("worker-0").kill()

    wait_until(lambda: len(tree.heard("owner_dead")) == 2, "at once and after 1 s")
    wait_until(lambda: (tree.status() or {}).get("notices_open") == 0, "the acknowledgement arrives")
    assert len({fact["id"] for fact in tree.heard("owner_dead")}) == 1


def test_a_dead_dispatcher_is_announced_to_its_successor(supervise) -> None:
    tree = supervise(workers=0)
    tree.wait_running()
    old = tree.child("dispatcher-0")

    psutil.Process(old["pid"]).kill()

    (notice, *_) = wait_until(lambda: tree.heard("owner_dead"), "the successor hears of it")
    assert notice["dead"] == old["worker_id"]
    assert notice["worker_id"] != old["worker_id"]


def test_the_group_of_a_dead_child_is_killed_with_it(supervise) -> None:
    tree = supervise(program(worker="parent_worker"))
    tree.wait_running()
    (fact,) = wait_until(lambda: tree.heard("has_child"), "a grandchild")
    grandchild = psutil.Process(fact["child"])

    psutil.Process(fact["pid"]).kill()

    wait_until(lambda: all_gone([grandchild]), "the grandchild is gone")


@pytest.mark.case("A63")
@pytest.mark.req("dc-restart-child")
def test_a_child_that_never_starts_is_given_up_with_one_line_and_exit_1(supervise) -> None:
    began = time.monotonic()
    tree = supervise(program(worker="crashing_worker"), restart_give_up=4)

    assert tree.wait_end() == 1
    assert time.monotonic() - began > 0.2 + 0.4 + 0.8  # no hot loop
    assert len(tree.log("child.started")) == 1 + 4
    assert [line["x"]["delay_ms"] for line in tree.log("child.backoff")] == [200, 400, 800]
    last_line = tree.log_text().splitlines()[-1]
    assert last_line == ("error: worker-0: failed 4 times in a row at start: mongodb://***@db/ does not answer")


def test_the_state_of_a_crash_loop_is_reported(supervise) -> None:
    tree = supervise(program(worker="crashing_worker"), restart_give_up=1_000_000)
    wait_until(tree.status, "it answers")

    def resting() -> dict[str, Any] | None:
        child = tree.child("worker-0")
        return child if child["restarts"] >= 2 and child["state"] == "BACKOFF" else None

    child = wait_until(resting, "two restarts, and back-off is shown")
    assert child is not None and child["pid"] is None
    assert child["last_exit"]["text"] == "exit status 1"
    assert "does not answer" in child["last_exit"]["words"]


@pytest.mark.case("A63")
@pytest.mark.req("dc-restart-child")
def test_a_child_without_a_store_is_forked_again_until_it_has_one(supervise, data_dir) -> None:
    tree = supervise(program(worker="storeless_worker"), restart_give_up=1, restart_first_s=0.01, restart_max_s=0.05)
    wait_until(tree.status, "it answers")

    def resting() -> dict[str, Any] | None:
        child = tree.child("worker-0")
        return child if child["restarts"] >= 5 and child["state"] == "BACKOFF" else None

    child = wait_until(resting, "many more starts than a broken program has")
    assert child is not None
    assert child["last_exit"] == {
        "cause": "death",
        "text": "exit status 69",
        "words": "mongodb://***@db/ does not answer",
    }

    (data_dir / "store-is-there").touch()

    tree.wait_running()


@pytest.mark.case("A63")
def test_a_child_that_dies_right_after_it_was_ready_is_restarted_with_back_off_and_then_given_up(supervise) -> None:
    tree = supervise(program(worker="quick_death_worker"), restart_give_up=3, restart_first_s=0.1)

    assert tree.wait_end() == 1
    assert [line["x"]["delay_ms"] for line in tree.log("child.backoff")] == [100, 200]
    assert "failed 3 times in a row at start: exit status 9" in tree.log_text()


def test_a_configuration_that_no_restart_will_mend_is_given_up_at_once(supervise) -> None:
    tree = supervise(program(worker="misconfigured_worker"))

    assert tree.wait_end() == 2
    assert len([line for line in tree.log("child.started") if line["x"]["child"] == "worker-0"]) == 1
    assert "error: worker-0: mongodb_uri: wrong" in tree.log_text().splitlines()[-1]


def test_kills_from_outside_never_end_a_tree(supervise) -> None:
    tree = supervise(program(worker="committing_worker"), restart_give_up=2, restart_first_s=0.05)
    for _ in range(5):
        tree.wait_running()
        wait_until(lambda: tree.child("worker-0")["counters"].get("commits"), "a commit is reported")
        old = tree.process_of("worker-0")
        old.kill()
        tree.wait_replaced("worker-0", old)

    tree.wait_running()
    assert {line["x"]["delay_ms"] for line in tree.log("child.backoff")} == {50}


@pytest.mark.case("A60", "A62")
def test_all_children_killed_at_once_are_all_replaced(supervise) -> None:
    tree = supervise(
        program(worker="chatty_worker"), workers=6, dispatchers=2, restart_first_s=0.05, restart_max_s=0.05
    )
    for _ in range(3):
        status = tree.wait_running()
        pids = {child["pid"] for child in status["children"]}
        for pid in pids:
            psutil.Process(pid).kill()
        wait_until(
            lambda pids=pids: not pids & {c["pid"] for c in (tree.status() or {"children": []})["children"]}, "new"
        )

    tree.wait_running()
    children = psutil.Process(tree.pid).children()
    assert len(children) == 8 + 1
    assert not [child for child in children if is_zombie(child)]


@pytest.mark.case("A71")
def test_a_worker_that_asks_is_drained_killed_and_replaced_and_the_death_counts_as_ordered(supervise) -> None:
    tree = supervise(program(worker="asking_worker"), drain_s=2.0)

    (asked,) = wait_until(lambda: tree.heard("asks"), "the question")
    (notice, *_) = wait_until(lambda: tree.heard("owner_dead"), "the notice")
    wait_until(lambda: tree.child("worker-0")["state"] == "RUNNING", "the successor runs")

    assert (notice["dead"], notice["cause"]) == (asked["worker_id"], "ordered")
    assert tree.child("worker-0")["last_exit"]["text"] == "killed by SIGKILL"
    assert tree.log("child.backoff") == []
    assert len(tree.heard("drain")) == 1


@pytest.mark.case("A65")
def test_a_supervisor_out_of_descriptors_loses_no_child_and_recovers(supervise) -> None:
    """The limit rises by one until a fork succeeds: so each descriptor that it needs is missing once, also the pidfd.

    Seen through the log and the process table alone: a control connection would itself take a descriptor.
    """
    tree = supervise(restart_first_s=0.05, restart_max_s=0.05, restart_give_up=1_000_000)
    wait_until(lambda: told(tree, "supervisor.ready"), "everything runs")
    supervisor = psutil.Process(tree.pid)
    limits = supervisor.rlimit(psutil.RLIMIT_NOFILE)
    lowest = len(os.listdir(f"/proc/{tree.pid}/fd")) - 6

    failed_at = [limit for limit in range(lowest, lowest + 20) if not forks_within(tree, supervisor, limit, limits)]

    assert failed_at == list(range(lowest, lowest + len(failed_at)))
    assert 1 < len(failed_at) < 20
    wait_until(lambda: len(supervisor.children()) == 3, "one child in each place")
    assert sorted(child.name() for child in supervisor.children()) == ["dispatcher-0", "guardian", "worker-0"]


def forks_within(tree, supervisor: psutil.Process, limit: int, limits: tuple[int, int]) -> bool:
    """Kill the worker while at most `limit` descriptors are allowed; whether its successor could be forked at once."""
    ready, failures, forks = (told(tree, f"child.{event}") for event in ("ready", "fork_failed", "started"))
    (worker,) = [child for child in supervisor.children() if child.name() == "worker-0"]
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (limit, limits[1]))
    worker.kill()
    wait_until(
        lambda: told(tree, "child.fork_failed") > failures or told(tree, "child.started") > forks,
        "a fork is tried",
    )
    failed = told(tree, "child.fork_failed") > failures
    supervisor.rlimit(psutil.RLIMIT_NOFILE, limits)
    wait_until(lambda: told(tree, "child.ready") > ready, "a successor is ready")
    return not failed


def told(tree, event: str) -> int:
    """How many lines of that event there are. Not all lines are JSON here: a child whose pidfd is missing is killed at
    once, and may have found before that it can open nothing either, which its interpreter tells."""
    return tree.log_text().count(f'"event":"{event}"')


def test_a_worker_that_asks_and_ends_at_once_is_replaced_at_once(supervise) -> None:
    tree = supervise(program(worker="resigning_worker"))

    wait_until(lambda: tree.heard("began")[1:], "dispatcher and successor have begun")

    assert tree.child("worker-0")["restarts"] == 1
    assert tree.child("worker-0")["last_exit"] == {"cause": "ordered", "text": "exit status 0", "words": ""}
    assert tree.log("child.backoff") == []
    assert tree.log("supervisor.fault") == []


@pytest.mark.case("A65")
def test_no_zombie_stays(supervise) -> None:
    tree = supervise(workers=4, restart_first_s=0.05, restart_max_s=0.05)
    for _ in range(8):
        tree.wait_running()
        old = tree.process_of("worker-2")
        old.kill()
        wait_until(lambda: not zombies(tree), "no zombie")
        tree.wait_replaced("worker-2", old)

    tree.wait_running()
    assert not zombies(tree)


def zombies(tree) -> list[psutil.Process]:
    return [child for child in psutil.Process(tree.pid).children() if is_zombie(child)]


def test_the_embedded_server_comes_back_empty_on_the_same_socket(supervise) -> None:
    tree = supervise(redis_url=None)
    tree.wait_running()
    old = tree.process_of("valkey")

    old.kill()

    tree.wait_replaced("valkey", old)
    tree.wait_running()
    assert tree.child("worker-0")["restarts"] == 0
