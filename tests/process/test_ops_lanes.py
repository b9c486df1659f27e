"""`kernel-supervisor lanes` as operators meet it: a starved lane, a slow one and a busy crew are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Self

import pytest

import supervisor.ops_lanes
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination import Keys, LaneEntry, Lanes
from kernel.coordination.lane_sample import HEADS_MAX
from kernel.store.sqlite_projection import SqliteProjection
from supervisor.ops_shell import LOOKING_BUDGET_S
from tests.process.supervised import PATIENT_S
from tests.support.redis_servers import RedisTarget
from tests.support.snapshots import keep, snapshot

Operate = Callable[..., CompletedProcess[str]]
DUE_AGO_MS = 90_000


def worker(busy: int, slots: int = 8) -> dict[str, Any]:
    return {
        "name": "worker-0", "role": "worker", "state": "RUNNING", "silent": False, "slots_busy": busy, "x_slots": slots,
        "x_store": "up", "x_redis": "up",
    }  # fmt: skip


class Case:
    """The lanes of a namespace as the test fills them, and a supervisor that says what the test wants."""

    def __init__(self, target: RedisTarget, operate: Operate, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert target.server is not None
        self.options = f"--data-dir {data_dir}"
        self.client = target.client
        self.keys = Keys("default")
        self.lanes = Lanes(target.runner(), self.keys)
        self.children: list[dict[str, Any]] = [worker(busy=0)]
        self.between: Callable[[], object] = lambda: None
        self._operate = operate
        self._address = f"unix://{target.server.socket}"
        monkeypatch.setattr(supervisor.ops_lanes, "ControlClient", lambda _folder: self)
        monkeypatch.setattr(supervisor.ops_lanes, "pause", lambda _seconds: self.between())

    def fill(self, lane: int, count: int, *, due_in_ms: int = -DUE_AGO_MS) -> None:
        at_ms = self.lanes.report().server_ms + due_in_ms
        self.lanes.push([LaneEntry(f"wf-{lane}-{due_in_ms}-{n}", lane, at_ms + n) for n in range(count)], wake=False)

    def run(self, *arguments: str, budget_s: float = PATIENT_S) -> CompletedProcess[str]:
        environ = {"REDIS_URL": self._address, "KERNEL_REDIS_BUDGET_S": str(budget_s)}
        return self._operate("lanes", *arguments, environ=environ)

    def seen(self, *arguments: str) -> dict[str, Any]:
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def verdicts(self, *arguments: str) -> list[str]:
        return [lane["verdict"] for lane in self.seen(*arguments)["lanes"]]

    # What the command uses of a ControlClient.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, _op: str) -> dict[str, Any]:
        return {"state": "RUNNING", "children": self.children}


@pytest.fixture
def case(real_redis: RedisTarget, operate: Operate, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(real_redis, operate, data_dir, monkeypatch)


@pytest.mark.req("ops-lanes", "dc-cli-ops", "lane-stats")
def test_the_figures_are_those_of_the_stats_call(case: Case) -> None:
    case.fill(0, 3)
    case.fill(2, 5, due_in_ms=-4_000)
    case.fill(2, 2, due_in_ms=3_600_000)
    before = case.lanes.report()

    found = case.seen("--seconds", "0")

    after = case.lanes.report()
    for lane in range(4):
        row = found["lanes"][lane]
        assert (row["lane"], row["depth"], row["ready"], row["delayed"]) == (
            lane, before.lanes[lane].depth, before.lanes[lane].ready, before.lanes[lane].delayed,
        )  # fmt: skip
        assert before.lanes[lane].oldest_wait_ms <= row["oldest_wait_ms"] <= after.lanes[lane].oldest_wait_ms
    assert before.server_ms <= found["now_ms"] <= after.server_ms
    assert [row["weight_share"] for row in found["lanes"]] == [0.4, 0.3, 0.2, 0.1]
    assert [row["oldest"] for row in found["lanes"]] == ["wf-0--90000-0", None, "wf-2--4000-0", None]


def test_empty_lanes_are_told_as_empty(case: Case) -> None:
    assert case.verdicts() == ["empty"] * 4
    assert case.run().stdout.splitlines()[0] == "nothing is due in any lane"
    case.fill(3, 2, due_in_ms=3_600_000)
    assert case.verdicts() == ["empty", "empty", "empty", "later"]
    assert case.run().stdout.splitlines()[0] == "nothing is due in any lane"


@pytest.mark.req("lane-stats-use", "ops-lanes")
def test_lanes_that_lost_their_memory_are_not_told_as_nothing_due(case: Case, observed: SqliteProjection) -> None:
    """Redis was emptied, and no scan has been there yet: the durable store is full of due work."""
    since_ms = SystemClock().wall_ms() - 40_000
    for n in range(12):
        keep(observed, snapshot(f"job:{n}", business_priority=n % 2, created_time=since_ms))
    case.fill(0, 6)
    full = case.seen("--seconds", "0")
    case.client.delete(*case.keys.lanes)
    emptied = case.seen("--seconds", "0")
    text = case.run("--seconds", "0").stdout

    assert [row["verdict"] for row in full["lanes"]] == ["due", "empty", "empty", "empty"]
    assert [row["verdict"] for row in emptied["lanes"]] == ["not queued", "not queued", "empty", "empty"]
    assert emptied["lanes"][1]["unqueued"]["count"] == 6
    assert text.startswith("all lanes are empty; of P0 (realtime) 6 or more are due by their snapshots, ")
    assert "nobody runs their version, or Redis lost them" in text.splitlines()[0]
    assert text.splitlines()[1] == f"  try: kernel-supervisor doctor {case.options}"


@pytest.mark.req("lane-stats-use", "ops-where-stuck")
def test_empty_lanes_of_workers_that_can_take_nothing_lead_on(case: Case) -> None:
    """A store that takes no writes: what is due was taken, and can not be claimed."""
    case.children = [{**worker(busy=0), "x_store": "down"}]

    lines = case.run("--seconds", "0").stdout.splitlines()

    assert (
        lines[0] == "nothing is due in any lane, but worker-0 does not reach the durable store, or can not write to it"
    )
    assert lines[1] == f"  try: kernel-supervisor doctor {case.options}"


def test_an_answer_of_redis_may_come_late(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine: nobody's work waits for this command."""
    budgets: list[float] = []
    plain = supervisor.ops_lanes.open_lanes

    def noting(config: Config, *more: Any) -> Any:
        budgets.append(config.redis_budget_s)
        return plain(config, *more)

    monkeypatch.setattr(supervisor.ops_lanes, "open_lanes", noting)
    case.run("--seconds", "0", budget_s=1.0)

    assert budgets == [LOOKING_BUDGET_S]


@pytest.mark.req("lane-stats-use", "ops-lanes")
def test_a_starved_lane_and_a_slow_one_have_different_verdicts(case: Case) -> None:
    """P3 is slow: two of twenty pops are its own. P1 is what a lane would be that nobody asks."""
    for lane in range(4):
        case.fill(lane, 400)
    case.between = lambda: case.lanes.pop(40)
    slow = case.seen()
    case.between = lambda: case.client.zpopmin(case.keys.lanes[0], 30)
    starved = case.seen()

    assert [row["taken"] for row in slow["lanes"]] == [16, 12, 8, 4]
    assert [row["share"] for row in slow["lanes"]] == [0.4, 0.3, 0.2, 0.1]
    assert [row["verdict"] for row in slow["lanes"]] == ["draining"] * 4
    assert [row["verdict"] for row in starved["lanes"]] == ["draining", "not moving", "not moving", "not moving"]
    assert starved["lanes"][1]["reason"] == (
        "8 of 8 slots are free and nobody takes from it; other lanes gave out 30 meanwhile"
    )


@pytest.mark.req("lane-stats-use")
def test_frozen_workers_leave_history_waiting_and_realtime_at_nothing(case: Case) -> None:
    case.fill(3, 50)
    case.children = [{**worker(busy=0), "silent": True}]

    first, second = case.seen(), case.seen()

    assert second["lanes"][3]["oldest_wait_ms"] > first["lanes"][3]["oldest_wait_ms"] >= DUE_AGO_MS - 50
    assert second["lanes"][0]["oldest_wait_ms"] == 0
    assert (second["lanes"][3]["verdict"], second["lanes"][0]["verdict"]) == ("no worker free", "empty")
    assert second["lanes"][3]["reason"] == "worker-0 is silent: stopped, or it hangs"


@pytest.mark.req("ops-where-stuck", "lane-stats-use")
def test_the_screen_begins_with_the_lane_that_needs_somebody(case: Case) -> None:
    case.fill(3, 20)
    case.fill(0, 2, due_in_ms=-840_500)
    case.children = [worker(busy=8)]

    lines = case.run().stdout.splitlines()

    assert lines[0] == "P0 (realtime) has waited 14 min: no worker free, all 8 slots are busy"
    assert lines[2].split() == ["LANE", "OLDEST", "WAIT", "READY", "DELAYED", "TAKEN", "SHARE", "WEIGHT", "VERDICT"]
    assert lines[3].endswith("40%     no worker free: all 8 slots are busy")
    assert lines[8] == f"oldest in P0  kernel-supervisor workflow show wf-0--840500-0 {case.options}"
    assert lines[-1] == "workers: 1, slots busy 8 of 8"


def test_ten_thousand_are_read_by_their_heads_and_what_was_all_taken_is_told_as_at_least(case: Case) -> None:
    case.fill(2, 10_000)
    case.between = lambda: case.client.zpopmin(case.keys.lanes[2], 2 * HEADS_MAX)

    row = case.seen()["lanes"][2]

    assert (row["depth"], row["taken"], row["taken_is_at_least"]) == (10_000 - 2 * HEADS_MAX, HEADS_MAX, True)


def test_one_that_was_put_back_later_counts_as_taken(case: Case) -> None:
    """A worker that can not claim it gives it back with another due time: the lane has moved."""
    case.fill(1, 3)
    later_ms = case.lanes.report().server_ms + 60_000
    case.between = lambda: case.lanes.push([LaneEntry("wf-1--90000-0", 1, later_ms)], wake=False)

    assert case.seen()["lanes"][1]["taken"] == 1


def test_a_sweep_that_pushes_somebody_again_has_not_taken_him(case: Case) -> None:
    """Its time is converted from the store's clock, and off by some milliseconds from the one before."""
    case.fill(1, 3)
    at_ms = case.lanes.report().server_ms - DUE_AGO_MS + 7
    case.between = lambda: case.lanes.push([LaneEntry("wf-1--90000-0", 1, at_ms)], wake=False)

    row = case.seen()["lanes"][1]

    assert (row["taken"], row["verdict"]) == (0, "not moving")


def test_watch_prints_one_look_after_the_other(case: Case) -> None:
    looks = iter(range(3))

    def stop_at_last() -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    case.between = stop_at_last

    done = case.run("--watch", "--json")

    assert done.returncode == 130
    assert [json.loads(line)["v"] for line in done.stdout.splitlines()] == [1, 1]


@pytest.mark.parametrize(
    "arguments", [("--seconds", "-1"), ("--seconds", "soon"), ("--watch", "--seconds", "0"), ("P0",)]
)
def test_a_bad_question_is_one_line(case: Case, arguments: tuple[str, ...]) -> None:
    done = case.run(*arguments)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_hostile_members_are_shown_and_not_obeyed(case: Case) -> None:
    case.client.zadd(case.keys.lanes[1], {b"\x1b[2J\xff\x07'; rm -rf /": 5.0, b"": 6.0})

    text, as_json = case.run().stdout, case.run("--json").stdout

    assert not (set(text) | set(as_json)) & set("\x1b\x07\xff")
    assert json.loads(as_json)["lanes"][1]["oldest"] == "\x1b[2J\\xff\x07'; rm -rf /"


def test_a_key_that_is_no_lane_is_one_line(case: Case) -> None:
    case.client.set(case.keys.lanes[0], "none of ours", ex=60)

    done = case.run()

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "[coordination_rejected]" in done.stderr
    case.client.delete(case.keys.lanes[0])


def test_redis_that_is_away_is_one_line_and_exit_69(operate: Operate, data_dir: Path, tmp_path: Path) -> None:
    away = operate("lanes", environ={"REDIS_URL": f"unix://{tmp_path}/nobody.sock"})
    unknown = operate("lanes", "--json")

    for done in (away, unknown):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
        assert "[coordination_unavailable]" in done.stderr
    assert f"no Redis is known here: no tree runs in {data_dir}" in unknown.stderr


def test_without_a_supervisor_it_says_that_workers_are_not_known(
    real_redis: RedisTarget, operate: Operate, data_dir: Path
) -> None:
    assert real_redis.server is not None
    Lanes(real_redis.runner(), Keys("default")).push([LaneEntry("wf-1", 1, 1)], wake=False)

    environ = {"REDIS_URL": f"unix://{real_redis.server.socket}", "KERNEL_REDIS_BUDGET_S": str(PATIENT_S)}
    done = operate("lanes", "--seconds", "0.01", "--json", environ=environ)

    found = json.loads(done.stdout)
    assert (found["workers"], found["supervisor"]) == (None, f"no supervisor is running in {data_dir}")
    assert (found["lanes"][1]["verdict"], found["lanes"][1]["reason"]) == (
        "not moving", "no supervisor answers here: whether workers are free is not known",
    )  # fmt: skip
