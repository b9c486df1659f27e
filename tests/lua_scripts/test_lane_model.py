"""The scripts against the model of tests.support.lane_model: every reply and every key (RELIABILITY 6.6).

Random sequences give the numbers, Hypothesis the smallest counterexample. Time jumps forward and back, the state is
lost alone or with everything, ids are hostile, weights and window differ from sequence to sequence.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.lua_scripts.raw import RawLanes
from tests.support.lane_model import Entry, LaneModel
from tests.support.redis_servers import RedisTarget

START = 1_800_000_000_000
IDS = (
    "a", "b", "b2", "wf-0123456789abcdef", "17", "inf", "{x}", "a:b", "a*?[]\\", "ein Wort", "'; return 1 --", "é",
    "\u2603\U0001f600", "x" * 200, "1.5", "nil", "%d%s",
)  # fmt: skip
POLICIES: tuple[tuple[tuple[int, int, int, int], int], ...] = (
    ((8, 6, 4, 2), 8), ((1, 1, 1, 1), 1), ((3, 1, 2, 1), 0), ((2, 5, 1, 3), 3), ((40, 30, 20, 10), 99),
)  # fmt: skip


class Twins:
    """The scripts and the model, given the same commands; each method compares the two replies."""

    def __init__(self, target: RedisTarget, policy: tuple[tuple[int, int, int, int], int]) -> None:
        self.real = RawLanes(target, *policy)
        self.model = LaneModel(*policy)
        self.now = START
        target.client.flushall()

    def push(self, workflow_id: str, lane: int, score_ms: int) -> None:
        assert self.real.push(workflow_id, lane, score_ms) == self.model.push(workflow_id, lane, score_ms)

    def push_many(self, entries: list[Entry]) -> None:
        assert self.real.push_many(entries) == self.model.push_many(entries)

    def pop(self, count: int) -> None:
        popped = self.real.pop(count, self.now)
        expected = self.model.pop(count, self.now)
        assert popped.entries == expected
        if len(expected) == count:
            assert popped.idle is None
        else:
            next_due_ms = self.model.next_due_ms()
            assert popped.idle == (self.now, self.model.epoch, -1 if next_due_ms is None else next_due_ms)

    def remove(self, ids: list[str]) -> None:
        assert self.real.call("lane_remove", *ids) == self.model.remove(ids)

    def stats(self) -> None:
        now_ms, epoch, cursor, burst_left, *numbers = self.real.call("lane_stats", self.now)
        assert (now_ms, epoch) == (self.now, self.model.epoch or 0)
        assert (cursor, burst_left) == (self.model.cursor, self.model.burst_left)
        assert [tuple(numbers[at : at + 4]) for at in range(0, 16, 4)] == self.model.stats(self.now)

    def wipe(self) -> None:
        self.real.target.client.flushall()
        self.model.wipe()

    def lose_state(self) -> None:
        self.real.target.client.delete(self.real.target.keys.lane_state)
        self.model.epoch, self.model.cursor, self.model.burst_left = None, 0, 0

    def compare_keys(self) -> None:
        assert [self.real.lane(lane) for lane in range(4)] == list(self.model.lanes)
        assert self.real.state() == self.model.state


def _play(twins: Twins, choose: random.Random, steps: int) -> None:
    def entry() -> Entry:
        return choose.choice(IDS), choose.choice((0, 1, 1, 2, 3)), twins.now + choose.choice((-500, -1, 0, 1, 40))

    for _ in range(steps):
        match choose.choices(("push", "many", "pop", "remove", "stats", "time", "loss"), (6, 3, 9, 1, 1, 4, 1))[0]:
            case "push":
                twins.push(*entry())
            case "many":
                twins.push_many([entry() for _ in range(choose.randint(1, 20))])
            case "pop":
                twins.pop(choose.choice((1, 1, 1, 2, 3, 8, 20, 500)))
            case "remove":
                twins.remove(choose.sample(IDS, 3))
            case "stats":
                twins.stats()
            case "time":
                twins.now += choose.choice((1, 1, 15, 15, 60, -1, -30))
            case _ if choose.random() < 0.3:
                choose.choice((twins.wipe, twins.lose_state))()
    twins.stats()
    twins.compare_keys()


def _play_many(target: RedisTarget, sequences: int, steps: int) -> int:
    runner = target.runner()
    for seed in range(sequences):
        choose = random.Random(seed)
        twins = Twins(target, choose.choice(POLICIES))
        twins.real.runner = runner
        try:
            _play(twins, choose, steps)
        except AssertionError as error:
            raise AssertionError(f"sequence with seed {seed}: {error}") from error
    return sequences * steps


@pytest.mark.req("dc-lua-fakeredis", "lane-pop-one", "lane-one-lane", "lane-shared-state")
def test_two_thousand_sequences_of_fifty_agree_with_the_model_on_a_real_server(real_redis: RedisTarget) -> None:
    assert _play_many(real_redis, 2_000, 50) == 100_000


@pytest.mark.req("dc-lua-fakeredis", "dc-lua-time")
def test_random_sequences_agree_with_the_model_on_fakeredis_too(redis_target: RedisTarget) -> None:
    # The same seeds on all three servers: equal to the model means equal to each other.
    assert _play_many(redis_target, 60, 50) == 3_000


_ids = st.sampled_from(IDS)
_lanes = st.integers(0, 3)
_offsets = st.sampled_from((-500, -1, 0, 1, 40))


class LaneMachine(RuleBasedStateMachine):
    """Hypothesis looks for a sequence that tells scripts and model apart, and makes it short."""

    def __init__(self, target: RedisTarget) -> None:
        super().__init__()
        self._target = target
        self.twins = Twins(target, POLICIES[0])

    @initialize(policy=st.sampled_from(POLICIES))
    def choose_policy(self, policy: tuple[tuple[int, int, int, int], int]) -> None:
        self.twins = Twins(self._target, policy)

    @rule(workflow_id=_ids, lane=_lanes, offset=_offsets)
    def push(self, workflow_id: str, lane: int, offset: int) -> None:
        self.twins.push(workflow_id, lane, self.twins.now + offset)

    @rule(pushed=st.lists(st.tuples(_ids, _lanes, _offsets), min_size=1, max_size=12))
    def push_many(self, pushed: list[tuple[str, int, int]]) -> None:
        self.twins.push_many([(i, lane, self.twins.now + offset) for i, lane, offset in pushed])

    @rule(count=st.sampled_from((1, 2, 3, 8, 20, 500)))
    def pop(self, count: int) -> None:
        self.twins.pop(count)

    @rule(ids=st.lists(_ids, min_size=1, max_size=4))
    def remove(self, ids: list[str]) -> None:
        self.twins.remove(ids)

    @rule(ms=st.sampled_from((1, 15, 60, -1, -30)))
    def move_time(self, ms: int) -> None:
        self.twins.now += ms

    @rule(everything=st.booleans())
    def lose(self, everything: bool) -> None:
        (self.twins.wipe if everything else self.twins.lose_state)()

    @invariant()
    def agree(self) -> None:
        self.twins.compare_keys()
        self.twins.stats()


@pytest.mark.req("dc-lua-fakeredis", "lane-skip-forfeit", "lane-burst-early-end")
def test_hypothesis_finds_no_sequence_that_tells_scripts_and_model_apart(redis_target: RedisTarget) -> None:
    chosen = settings(
        max_examples=40, stateful_step_count=30, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    checked: list[LaneMachine] = []

    def machine() -> LaneMachine:
        checked.append(LaneMachine(redis_target))
        return checked[-1]

    run_state_machine_as_test(machine, settings=chosen)
    assert len(checked) >= 40
