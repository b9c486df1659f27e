"""Store-now of a SQLite store: one time for all its processes, which nobody can set back or far ahead."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from kernel import transitions as make
from kernel.clock import ManualClock, SystemClock
from kernel.store.conditional import MISSED, Applied, Insert, PutNow, Transition
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_clock import MARK_MS, NOISE_MS, ClockState, Reading, read, tick
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from tests.conformance.instances import KEY, TOKEN, claimed, instance_document, row

LEASE_MS = 30_000
STEP_MAX_MS = LEASE_MS // 3


class Machine:
    """Clocks of one machine, and stores on one file as several of its processes open it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"
        self.clock = ManualClock()
        self.boot_id = "first start"
        self.stores: list[SqliteStore] = []
        self.open().insert(Insert("create", INSTANCES, "wf", instance_document("wf", 1)))

    def open(self) -> SqliteStore:
        store = SqliteStore(self._path, self.clock, durability="normal", lease_ms=LEASE_MS, boot_id=self.boot_id)
        store.prepare()
        self.stores.append(store)
        return store

    def restart(self, wall_ms: int) -> None:
        """All processes end; the machine starts anew and believes that it is `wall_ms`."""
        self.close()
        self.clock = ManualClock(wall_ms=wall_ms, boot_ms=100)
        self.boot_id += "'"

    def close(self) -> None:
        while self.stores:
            self.stores.pop().close()


@pytest.fixture
def machine(tmp_path: Path):
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def stamped(store: SqliteStore) -> int:
    """Store-now as it gets into a row."""
    answer = store.apply(Transition("stamp", INSTANCES, "wf", (), (PutNow("claim_time"),)))
    assert isinstance(answer, Applied)
    return int(answer.document["claim_time"])


def test_while_nobody_sets_the_wall_clock_store_now_is_the_wall_clock(machine: Machine) -> None:
    store = machine.open()
    for ms in (0, 1, 999, 1, 60_000, 5):
        machine.clock.advance(ms)
        assert stamped(store) == store.now_ms() == machine.clock.wall_ms()


def test_a_small_step_forwards_is_followed_by_all_processes(machine: Machine) -> None:
    one, other = machine.open(), machine.open()
    machine.clock.jump_wall(STEP_MAX_MS)

    assert stamped(one) == stamped(other) == other.now_ms() == machine.clock.wall_ms()


def test_after_a_small_step_backwards_time_stands_still_until_the_wall_has_caught_up(machine: Machine) -> None:
    one, other = machine.open(), machine.open()
    before = stamped(one)
    machine.clock.jump_wall(-5_000)

    assert stamped(other) == stamped(one) == before
    machine.clock.advance(4_999)
    assert stamped(one) == stamped(other) == before
    machine.clock.advance(2)
    assert stamped(other) == stamped(one) == before + 1 == machine.clock.wall_ms()


@pytest.mark.parametrize("step_ms", [STEP_MAX_MS + 1, 3_600_000, -STEP_MAX_MS - 1, -3_600_000])
def test_a_step_of_more_than_a_third_of_the_lease_is_absorbed_and_logged_once(
    step_ms: int, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = machine.open(), machine.open()
    before = stamped(one)
    machine.clock.jump_wall(step_ms)
    machine.clock.advance(7)

    with caplog.at_level(logging.WARNING, logger="kernel.store"):
        assert one.now_ms() == other.now_ms() == before + 7
        assert stamped(one) == stamped(other) == before + 7
        machine.clock.advance(100)
        assert machine.open().now_ms() == stamped(other) == before + 107

    assert [record.getMessage() for record in caplog.records if "stepped" in record.getMessage()] == [
        f"the wall clock stepped by {step_ms} ms; store-now goes on without that step until this machine restarts"
    ]


def test_a_clock_that_jumps_ahead_takes_no_lease_away(machine: Machine) -> None:
    store = machine.open()
    held = {**claimed(), "claimable_time": store.now_ms() + LEASE_MS}
    store.insert(Insert("create", INSTANCES, "held", instance_document("held", store.now_ms(), **held)))
    steal = make.take_over(
        Held("held", "thief"), dead_token=TOKEN, worker_id="w", worker="h", lease_ms=LEASE_MS,
        definition_keys=(KEY,), alone=True, commit_id="c",
    )  # fmt: skip

    machine.clock.jump_wall(3_600_000)
    assert store.apply(steal) == MISSED

    machine.clock.advance(LEASE_MS)
    assert isinstance(store.apply(steal), Applied)


def test_small_steps_after_an_absorbed_one_are_followed_again(machine: Machine) -> None:
    store = machine.open()
    before = stamped(store)
    machine.clock.jump_wall(3_600_000)
    assert stamped(store) == before

    machine.clock.jump_wall(2_000)
    assert stamped(store) == before + 2_000

    machine.clock.jump_wall(-3_600_000)
    assert stamped(store) == before + 2_000


@pytest.mark.parametrize("behind_ms", [1, 5_000, 50 * 365 * 86_400_000])
def test_after_a_restart_with_a_wall_clock_that_is_behind_time_goes_on(behind_ms: int, machine: Machine) -> None:
    """A machine without a clock of its own starts in 1970: nothing may happen earlier than what happened before."""
    before = stamped(machine.open())
    machine.restart(machine.clock.wall_ms() - behind_ms)

    store = machine.open()
    first = stamped(store)
    machine.clock.advance(500)

    assert before <= first <= before + 2 * MARK_MS
    assert stamped(store) == first + 500


def test_after_a_restart_store_now_is_the_wall_clock_again(machine: Machine) -> None:
    """Also when a step was absorbed before."""
    machine.clock.jump_wall(3_600_000)
    stamped(machine.open())
    machine.restart(machine.clock.wall_ms() + 90_000)

    assert stamped(machine.open()) == machine.clock.wall_ms()


def test_a_miss_keeps_nothing_and_what_is_read_before_any_write_is_right(machine: Machine) -> None:
    fresh = SqliteStore(machine.stores[0].path, machine.clock, lease_ms=LEASE_MS, boot_id=machine.boot_id)
    before = stamped(machine.stores[0])
    machine.clock.jump_wall(3_600_000)

    assert fresh.now_ms() == before
    assert fresh.apply(make.renew(Held("wf", "nobody"), 5)) == MISSED
    assert stamped(machine.stores[0]) == before
    assert row(machine.stores[0], "wf")["claim_time"] == before
    fresh.close()


def test_store_now_never_runs_backwards_whatever_the_wall_clock_does() -> None:
    """Ten thousand readings of random processes, some with an old view of the state, with steps of every size."""
    generator = random.Random(4)
    wall_ms, boot_ms, boot_id = 1_800_000_000_000, 5_000, "a"
    state: ClockState | None = None
    last_ms = 0
    for _ in range(10_000):
        passed_ms = generator.choice((0, 1, 10, 900, 20_000))
        wall_ms += passed_ms + generator.choice((0, 0, 0, 0, 3, -3, 5_000, -5_000, 11_000, -11_000, 10**9, -(10**9)))
        boot_ms += passed_ms
        if generator.random() < 0.01:
            boot_id, boot_ms = boot_id + "a", generator.randrange(10_000)
        step = tick(state, Reading(boot_id, boot_ms, wall_ms), STEP_MAX_MS)
        assert step.now_ms >= last_ms
        if generator.random() < 0.5 or step.state != state:
            state = step.state  # a commit
        last_ms = step.now_ms


def test_what_a_preempted_reader_sees_is_no_step() -> None:
    start = tick(None, Reading("a", 1_000, 50_000), STEP_MAX_MS).state

    slow = tick(start, Reading("a", 1_100, 50_100 + NOISE_MS + 300, spread_ms=300), STEP_MAX_MS)

    assert slow.now_ms == 50_100
    assert tick(slow.state, Reading("a", 1_200, 50_200), STEP_MAX_MS).now_ms == 50_200


def test_the_clocks_of_this_machine_are_read_close_together() -> None:
    clock = SystemClock()

    readings = [read(clock, "a") for _ in range(200)]

    offsets = [reading.wall_ms - reading.boot_ms for reading in readings]
    assert max(offsets) - min(offsets) <= NOISE_MS + max(reading.spread_ms for reading in readings)
