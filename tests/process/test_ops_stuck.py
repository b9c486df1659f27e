"""Why is it not moving? Asked of a running tree: every way of standing still has a reading of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel import plan
from kernel.clock import SystemClock
from kernel.config import Config, load
from kernel.observe.views import Waiting
from kernel.runtime import embedded_redis_url, open_client
from kernel.runtime.observing import is_observed, open_observations
from tests.process.supervised import PATIENT_S
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(300)  # a real tree, and a process for each command

FLOWS = '''
import threading
from datetime import timedelta
from pathlib import Path

from kernel import App, Definition, Limit, RetryPolicy, Sleep, Step, WaitForSignal


def hold(ctx):
    """Until the test opens the gate."""
    while not Path("gate").exists():
        ctx.check()
        threading.Event().wait(0.05)
    return "held"


def broken(ctx):
    if Path("gate").exists():
        return "mended"
    raise ValueError("the \\x1b[2J machine is jammed")


def sleepy(ctx):
    return "slept" if ctx.checkpoint() else Sleep(timedelta(hours=2), checkpoint={"asleep": True})


def asking(ctx):
    if Path("paid").exists():
        return "paid"
    return WaitForSignal("paid", "order-7", generation=2, poll_fallback=timedelta(hours=3))


HOUR = timedelta(hours=1)
app = App(
    definitions=[
        Definition(type="holding", steps=[Step("hold", hold, timeout=HOUR)]),
        Definition(type="printing", steps=[Step("print_it", hold, timeout=HOUR, resource="printer")]),
        Definition(
            type="failing",
            steps=[Step("break_it", broken, retry=RetryPolicy(initial_interval=HOUR, max_interval=HOUR))],
        ),
        Definition(type="sleeping", steps=[Step("doze", sleepy)]),
        Definition(type="asking", steps=[Step("ask", asking)]),
    ],
    limits={"printer": Limit(max_concurrency=1)},
)
'''


class Tree:
    """One worker with two slots, a dispatcher, an embedded Valkey, and the shell of its operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stuck_flows.py").write_text(FLOWS)
        # Who waits for a place asks again by himself after that long, and then waits for a worker who asks for him.
        self.environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), "KERNEL_PERMIT_WAIT_S": "600"}
        self.environ["KERNEL_REDIS_BUDGET_S"] = str(PATIENT_S)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "start", "--app", "stuck_flows:app", "--workers", "1", "--slots", "2",
             "--durability", "normal", "--log-file", "kernel.log"],
            cwd=folder, env=self.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def config(self) -> Config:
        return load({"data_dir": str(self.folder / ".kernel"), "redis_budget_s": PATIENT_S}, environ={}).config

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def seen(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def now(self, key: str) -> dict[str, Any]:
        """What `show` reads."""
        found: dict[str, Any] = self.seen("workflow", "show", key)["now"]
        return found

    def begin(self, *rows: tuple[str, str, str, Waiting]) -> None:
        """Start workflows of (type, step, key), in this process because it is faster, until each waits for what it is
        to wait for."""
        config = self.config()
        with open_client(config, config.data_dir, embedded_redis_url(config.data_dir)) as client:
            for type_, step, key, _ in rows:
                client.start_or_resume(plan(type_, [step]), biz_key=key)
        for _, _, key, waiting in rows:
            self.wait_until_it_waits(key, waiting)

    def wait_until_it_waits(self, key: str, waiting: Waiting | None) -> None:
        config = self.config()
        wait_until(lambda: is_observed(config, config.data_dir), "the store of observations")
        read = open_observations(config, config.data_dir, SystemClock(), prepare=False)
        try:
            wait_until(lambda: (seen := read.get(key)) is not None and seen.waiting == waiting, f"{key}: {waiting}", 60)
        finally:
            read.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """Every kind of standing still at once: two slots are held, one place is held, the others wait."""
    made = Tree(tmp_path_factory.mktemp("stuck"))
    try:
        wait_until(lambda: made.run("status").returncode == 0, "the tree is up", 60)
        made.begin(
            ("printing", "print_it", "printer-holder", "step"),
            ("failing", "break_it", "jammed", "retry"),
            ("sleeping", "doze", "sleeper", "timer"),
            ("asking", "ask", "asker", "signal"),
        )
        made.begin(("printing", "print_it", "printer-waiter", "permit"))
        made.begin(("holding", "hold", "slot-holder", "step"))
        made.begin(("holding", "hold", "slot-waiter", "worker"))
        yield made
    finally:
        (made.folder / "gate").touch()
        made.process.terminate()
        made.process.wait(60)
    assert made.process.returncode == 0


@pytest.mark.req("ops-where-stuck", "ops-find", "dc-cli-ops")
def test_waiting_for_a_worker_before_a_permit_and_failing_in_a_step_are_three_readings(tree: Tree) -> None:
    worker, permit, retry = (tree.now(key) for key in ("slot-waiter", "printer-waiter", "jammed"))

    assert worker["sentence"].startswith("due: no worker has taken it yet for hold, since ")
    assert worker["help"] == "kernel-supervisor lanes"
    assert permit["sentence"].startswith("print_it waits for a place of printer, since ")
    assert permit["help"].startswith("kernel-supervisor limits explain wf-")
    assert retry["sentence"].startswith(
        "break_it has failed 1 time and is tried again: activity_error ValueError: the \x1b[2J machine is jammed "
        "(attempt 1, "
    )
    assert retry["help"].startswith("kernel-supervisor workflow attempts wf-")


@pytest.mark.req("ops-find")
def test_what_sleeps_asks_and_is_executed_says_so_too(tree: Tree) -> None:
    timer, signal, step = (tree.now(key) for key in ("sleeper", "asker", "slot-holder"))

    assert timer["sentence"].startswith("doze sleeps, since ")
    assert re.search(r"\(in 11\d min\)", timer["sentence"]), "of two hours some minutes may be over"
    assert signal["sentence"].startswith("ask waits for the signal paid, key order-7, generation 2, since ")
    assert signal["help"].endswith(" paid --key order-7 --generation 2 --id SIGNAL_ID")
    assert step["sentence"].startswith("hold is executed by ") and ", attempt 1, since " in step["sentence"]


@pytest.mark.req("ops-find", "ops-aggregate")
def test_the_list_finds_each_of_them_by_what_it_waits_for(tree: Tree) -> None:
    def keys(*filters: str) -> set[str]:
        return {row["biz_key"] for row in tree.seen("workflow", "list", *filters)["workflows"]}

    assert keys("--waiting", "worker") == {"slot-waiter"}
    assert keys("--waiting", "permit", "--on", "printer") == {"printer-waiter"}
    assert keys("--waiting", "retry", "--step", "break_it") == {"jammed"}
    assert keys("--error", "activity_error") == {"jammed"}
    assert keys("--waiting", "step") == {"printer-holder", "slot-holder"}
    assert keys("--waiting", "signal", "--on", "paid") == {"asker"}
    assert keys("--status", "completed") == set()


@pytest.mark.req("ops-lanes", "lane-stats-use")
def test_the_lanes_say_that_no_worker_is_free(tree: Tree) -> None:
    found = tree.seen("lanes", "--seconds", "1")

    lane = found["lanes"][1]
    assert (lane["ready"], lane["verdict"], lane["reason"]) == (1, "no worker free", "all 2 slots are busy")
    assert found["workers"]["slots"] == found["workers"]["busy"] == 2
    assert lane["oldest"] == tree.seen("workflow", "show", "slot-waiter")["workflow_id"]


@pytest.mark.req("ops-chain", "obs-snapshot-use")
def test_the_screen_leads_on_to_the_attempts(tree: Tree) -> None:
    screen = tree.run("workflow", "show", "jammed").stdout
    attempts = tree.run("workflow", "attempts", "jammed", "break_it").stdout.splitlines()

    assert "\x1b" not in screen + "".join(attempts)
    assert r"  break_it: activity_error ValueError: the \x1b[2J machine is jammed (attempt 1, " in screen
    assert len(attempts) == 1 and attempts[0].startswith("run 1  break_it  attempt 1  failed  ")
    assert r"activity_error ValueError: the \x1b[2J machine is jammed" in attempts[0]


@pytest.mark.req("lat-split")
def test_the_columns_of_the_screen_sum_to_the_total(tree: Tree) -> None:
    screen = tree.run("workflow", "show", "printer-waiter").stdout
    rows = screen.partition("where time went, in seconds\n")[2].splitlines()[1:3]

    for row in rows:
        scheduling, permit, external, execution, total = (float(figure) for figure in row.split()[1:])
        assert round((scheduling + permit + external + execution - total) * 1000) == 0
        assert permit > 0 and external == execution == 0


@pytest.mark.req("ops-find", "dc-cli-ops")
def test_when_the_gate_opens_they_go_on_and_the_readings_follow(tree: Tree) -> None:
    """The last test: it ends what the others look at."""
    (tree.folder / "gate").touch()
    (tree.folder / "paid").touch()
    told = tree.run("workflow", "watch", "slot-waiter")
    signal = tree.now("asker")
    words = signal["help"].replace("SIGNAL_ID", "s-1").split()[1:]
    sent = tree.run(*words)

    assert told.returncode == sent.returncode == 0, told.stderr + sent.stderr
    assert "completed  1/1 steps  completed at " in told.stdout.splitlines()[-1]
    for key in ("printer-holder", "printer-waiter", "slot-holder", "asker"):
        tree.wait_until_it_waits(key, None)
        assert tree.now(key)["sentence"].startswith("completed at ")
    assert "  matched    s-1  paid, key order-7, generation 2" in tree.run("workflow", "show", "asker").stdout
    assert tree.seen("lanes", "--seconds", "0")["lanes"][1]["verdict"] in ("empty", "later")
