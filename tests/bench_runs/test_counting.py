"""What the bench counts, and when it says that a promise was broken: without a tree, from records made here."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bench.app import TRIVIAL, Work
from bench.ledger import CLAIM, Entry, Ledger, count_records, read_entries
from bench.load import BATCH, biz_key, warm_up
from bench.measured_run import Measured
from bench.outcome import Entered, Stored, count_entries, read_stored
from bench.plan import Plan
from bench.recovery import Kill, Recovery, Resumed, recovery
from bench.redis_calls import RedisCalls
from bench.workflow_row import percentile, row_of, text_of, violations_of
from kernel.client import Client
from kernel.clock import ManualClock
from kernel.coordination.lanes import LaneEntry
from kernel.ids import SeededIds, workflow_id_for
from kernel.runtime import NoQueue
from kernel.store.memory import MemoryStore
from tests.support.redis_servers import RedisTarget

S = 1_000_000_000


def at(seconds: float, number: int, step: int, pid: int) -> Entry:
    return Entry(round(seconds * S), number, step, pid)


def plan(**changes: object) -> Plan:
    settings: dict[str, object] = {
        "count": 2, "workers": 2, "slots": 8, "durability": "full", "kill_every_s": None, "flush_every_s": None,
        "seed": 0, "limit_s": 60.0, "idle_samples": 4,
    }  # fmt: skip
    return Plan(**{**settings, **changes})  # type: ignore[arg-type]


def measured(**changes: object) -> Measured:
    """A run of two workflows that kept every promise, but for `changes`."""
    facts: dict[str, object] = {
        "plan": plan(), "poll_s": 5.0, "server": "valkey 9", "idle_ms": [1.0, 2.0, 3.0, 4.0], "bare_per_s": [100.0],
        "seconds": 0.5, "in_time": True, "round_trips": 3, "worker_cpu_s": 0.001,
        "stored": Stored(completed=2, others={}, writes=12, writes_whole=True, last_end_ms=500),
        "entered": Entered(step_runs=6, missing=0, extra=0, shares={}), "kills": [], "flushes": 0,
        "recovery": Recovery([]),
    }  # fmt: skip
    return Measured(**{**facts, **changes})  # type: ignore[arg-type]


# --- the ledger -----------------------------------------------------------------------------------------


def test_every_entry_is_read_back_in_order_of_time_with_its_process(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path), Ledger(tmp_path)
    one.note(7, 0)
    other.note(7, 1)
    one.note(8, CLAIM)

    entries = read_entries(tmp_path)

    assert [(entry.number, entry.step) for entry in entries] == [(7, 0), (7, 1), (8, CLAIM)]
    assert len({entry.pid for entry in entries}) == 1
    assert count_records(tmp_path) == 3


def test_a_torn_last_record_is_not_counted(tmp_path: Path) -> None:
    Ledger(tmp_path).note(1, 2)
    (file,) = (tmp_path / "entries").iterdir()
    file.write_bytes(file.read_bytes() + b"\x01\x02\x03")

    assert [(entry.number, entry.step) for entry in read_entries(tmp_path)] == [(1, 2)]


def test_steps_entered_again_and_steps_never_entered_are_told_apart() -> None:
    entries = [at(1, 0, 0, 10), at(2, 0, 0, 11), at(3, 0, 1, 11), at(4, 1, CLAIM, 10), at(5, 9, 0, 10)]

    entered = count_entries(entries, count=2)

    # Claims and workflow 9, which is not of the load, count for nothing.
    assert (entered.step_runs, entered.extra, entered.missing) == (3, 1, 4)
    assert entered.shares == {"worker pid 11": 0.667, "worker pid 10": 0.333}


# --- store and Redis ------------------------------------------------------------------------------------


def test_writes_are_counted_from_the_rows_and_missing_workflows_are_named() -> None:
    store = MemoryStore(ManualClock())
    client = Client(store, NoQueue(), ManualClock(), SeededIds(1), threading.Event(), input_bytes_max=10_000)
    handles = client.start_many(TRIVIAL.plan, [(biz_key(number), Work(number)) for number in range(2)])
    client.supersede(handles[1].workflow_id)

    stored = read_stored(store, count=3)

    assert stored.writes == 3  # two inserts and one supersede
    assert stored.others == {"running": 1, "canceled": 1, "missing": 1}
    assert stored.completed == 0


def test_the_warm_up_is_a_batch_of_its_own_numbers_and_is_waited_for() -> None:
    store = MemoryStore(ManualClock())
    client = Client(store, NoQueue(), ManualClock(), SeededIds(1), threading.Event(), input_bytes_max=10_000)
    turns: list[int] = []

    def beside() -> None:
        turns.append(len(turns))
        if len(turns) == 2:
            for number in range(7, 7 + BATCH):
                client.supersede(workflow_id_for(biz_key(number)))

    warm_up(client, store, 7, beside)

    assert len(turns) == 2
    assert read_stored(store, count=8).others == {"missing": 7, "canceled": 1}
    assert client.get(workflow_id_for(biz_key(7 + BATCH))) is None


def test_a_script_call_is_one_round_trip_whatever_it_runs_inside(valkey: RedisTarget) -> None:
    assert valkey.server is not None
    calls = RedisCalls(f"unix://{valkey.server.socket}")
    lanes = valkey.lanes()
    lanes.push([LaneEntry("warm", 1, 0), LaneEntry("up", 1, 0)])
    lanes.pop(8)  # from here on the server knows both scripts: no call is asked twice
    before = calls.round_trips()

    lanes.push([LaneEntry("a", 1, 0), LaneEntry("b", 2, 0)])
    lanes.pop(8)
    valkey.client.ping()

    assert calls.round_trips() - before == 2
    calls.close()


def test_flush_takes_everything_away(valkey: RedisTarget) -> None:
    assert valkey.server is not None
    calls = RedisCalls(f"unix://{valkey.server.socket}")
    valkey.lanes().push([LaneEntry("a", 1, 0)])

    calls.flush()

    assert valkey.client.dbsize() == 0
    calls.close()


# --- work of the killed ---------------------------------------------------------------------------------


def test_work_of_a_killed_worker_is_timed_from_the_kill_to_its_next_sign_of_life() -> None:
    entries = [at(1.0, 0, CLAIM, 10), at(1.1, 0, 0, 10), at(1.4, 0, CLAIM, 11), at(1.5, 0, 0, 11)]

    found = recovery(entries, [Kill(round(1.2 * S), 10)], [], poll_s=5)

    assert found.resumed == [Resumed(0, pytest.approx(0.2), 1.0)]
    assert found.late == []


def test_work_that_had_ended_or_had_moved_on_before_the_kill_is_not_counted() -> None:
    ended = [at(1.0, 0, 2, 10)]
    moved_on = [at(1.0, 1, 0, 10), at(1.1, 1, 0, 11), at(1.3, 1, 1, 11)]

    found = recovery(sorted(ended + moved_on), [Kill(round(1.2 * S), 10)], [], poll_s=5)

    assert found.resumed == []
    assert (found.max_s, found.median_s) == (None, None)


def test_after_one_second_it_is_late_unless_redis_was_emptied_meanwhile() -> None:
    entries = [at(1.0, 0, 0, 10), at(3.0, 0, 0, 11)]
    kills = [Kill(round(1.1 * S), 10)]

    assert [one.number for one in recovery(entries, kills, [], poll_s=5).late] == [0]
    assert recovery(entries, kills, [2 * S], poll_s=5).late == []
    assert [one.number for one in recovery(entries, kills, [2 * S], poll_s=1.5).late] == [0]
    assert len(recovery(entries, kills, [round(0.9 * S)], poll_s=5).late) == 1  # before the kill: no excuse


def test_work_killed_twice_without_progress_waits_for_a_worker_of_its_own() -> None:
    twice = [at(1.0, 0, 0, 10), at(1.5, 0, 0, 11), at(9.0, 0, 0, 12)]
    progress_between = [at(1.0, 0, 0, 10), at(1.5, 0, 0, 11), at(1.6, 0, 1, 11), at(9.0, 0, 1, 12)]
    kills = [Kill(round(1.1 * S), 10), Kill(round(1.7 * S), 11)]

    assert recovery(twice, kills, [], poll_s=5).late == []
    assert len(recovery(progress_between, kills, [], poll_s=5).late) == 1


# --- the verdict ----------------------------------------------------------------------------------------


def test_a_good_run_breaks_no_promise() -> None:
    assert violations_of(measured()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stored": Stored(1, {"running": 1}, 12, True, 500)}, "1 of 2 workflows completed (1 running)"),
        ({"stored": Stored(1, {"parked": 1}, 12, True, 500), "in_time": False}, "completed within 60 s (1 parked)"),
        ({"entered": Entered(5, 1, 0, {})}, "1 of 6 steps were never entered"),
        ({"entered": Entered(7, 0, 1, {})}, "1 steps were entered again, but nothing was killed"),
        ({"entered": Entered(15, 0, 9, {}), "kills": [Kill(0, 1)]}, "1 kills × 8 slots allow 8"),
        ({"recovery": Recovery([Resumed(0, 1.4, 1.0)])}, "went on late: after up to 1.40 s"),
    ],
)
def test_a_broken_promise_is_told(changes: dict[str, object], words: str) -> None:
    (violation,) = violations_of(measured(**changes))

    assert words in violation


def test_a_kill_may_repeat_one_step_of_each_slot() -> None:
    run = measured(plan=plan(kill_every_s=1.0), entered=Entered(14, 0, 8, {}), kills=[Kill(0, 1)])

    assert violations_of(run) == []


def test_the_row_divides_what_was_counted() -> None:
    row = row_of(measured())

    assert (row["per_s"], row["store_writes_per_workflow"], row["redis_trips_per_workflow"]) == (4.0, 6.0, 1.5)
    assert (row["store_writes_per_s"], row["bare_commits_per_s"], row["ratio"]) == (24, 100, 0.24)
    assert (row["p50_ms"], row["p99_ms"], row["worker_cpu_us_per_workflow"]) == (2.0, 4.0, 500)
    assert row["recovered_s"] is None


def test_with_faults_there_is_no_ratio_and_the_text_says_what_was_done() -> None:
    run = measured(
        plan=plan(kill_every_s=1.0), bare_per_s=[], kills=[Kill(0, 1)], recovery=Recovery([Resumed(0, 0.25, 1.0)])
    )
    row = row_of(run)

    assert (row["ratio"], row["bare_commits_per_s"], row["recovered_s"]) == (None, None, 0.25)
    assert any("1 workflows went on after 0.25 s (median), 0.25 s at most" in line for line in text_of([run], row))
    assert any("1 kills, 0 flushes, seed 0" in line for line in text_of([run], row))


def test_a_percentile_is_a_value_that_occurred() -> None:
    values = [float(n) for n in range(1, 201)]

    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (100.0, 198.0, 200.0)
    assert percentile([7.0], 50) == 7.0


def test_a_load_with_faults_outlasts_them_and_is_never_far_behind() -> None:
    faulty = plan(count=1000, kill_every_s=1.0, flush_every_s=2.0)

    assert (plan().hold_ms, plan().open_max) == (0, None)
    assert faulty.hold_ms * 3 * 1000 / faulty.places >= 9_000
    assert faulty.open_max == 32
    assert plan(kill_every_s=1.0, open_limit=200).open_max == 200
