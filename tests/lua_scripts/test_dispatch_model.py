"""The scripts of the dispatch index against the model of tests.support.dispatch_model, on three servers."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kernel.coordination import BoundScript
from lua import get
from tests.lua_scripts.test_lane_model import IDS, START
from tests.support.dispatch_model import DispatchModel
from tests.support.redis_servers import RedisTarget

SOURCE = "subscriptions"
OTHER = "orders"
HOUR_MS = 3_600_000


class Twins:
    """Scripts and model with the same commands; each method compares the replies."""

    def __init__(self, target: RedisTarget, most: int = 100_000) -> None:
        self.target = target
        self.runner = target.runner()
        self.model = DispatchModel(most)
        self.now = START
        self.taken = 0
        target.client.flushall()

    def call(self, name: str, *args: bytes | str | int) -> Any:
        script = get(name)
        return self.runner.call(BoundScript(script, self.target.keys.of(script, SOURCE)), *args)

    def add(self, entries: list[tuple[str, int]]) -> None:
        text = "\x1f".join(f"{object_id}\x1f{due_ms}" for object_id, due_ms in entries)
        assert self.call("dispatch_add", self.model.most, HOUR_MS, "", text) == self.model.add(entries)

    def take(self, count: int) -> None:
        next_due_ms, *members = self.call("dispatch_take", count, self.now)
        taken, expected_ms = self.model.take(count, self.now)
        self.taken += len(taken)
        assert [member.decode() for member in members] == taken
        assert next_due_ms == (-1 if expected_ms is None else expected_ms)

    def hold(self, token: str) -> None:
        """With a hold that no test outlives; the exact time left is the server's."""
        left_ms = self.call("dispatch_scan_hold", token, HOUR_MS)
        expected_ms = self.model.hold(token, HOUR_MS, self.now)
        assert (left_ms == 0) == (expected_ms == 0)
        assert 0 <= left_ms <= HOUR_MS

    def free(self, token: str) -> None:
        assert self.call("dispatch_scan_free", token) == self.model.free(token, self.now)

    def wipe(self) -> None:
        self.target.client.flushall()
        self.model.wipe()

    def compare_keys(self) -> None:
        found = self.target.client.zrange(self.target.keys.dispatch(SOURCE), 0, -1, withscores=True)
        assert {member.decode(): int(score) for member, score in found} == self.model.due
        held = self.target.client.get(self.target.keys.dispatch_scan(SOURCE))
        assert (None if held is None else held.decode()) == (None if self.model.held is None else self.model.held[0])


def _play(twins: Twins, choose: random.Random, steps: int) -> None:
    def entry() -> tuple[str, int]:
        return choose.choice(IDS), twins.now + choose.choice((-500, -1, 0, 1, 40, 1_000_000))

    for _ in range(steps):
        match choose.choices(("add", "take", "time", "hold", "free", "loss"), (6, 6, 4, 2, 2, 1))[0]:
            case "add":
                twins.add([entry() for _ in range(choose.choice((1, 1, 2, 7, 40)))])
            case "take":
                twins.take(choose.choice((1, 2, 3, 8, 500)))
            case "time":
                twins.now += choose.choice((1, 15, 60, 900, -1, -30))
            case "hold":
                twins.hold(choose.choice("abc"))
            case "free":
                twins.free(choose.choice("abc"))
            case "loss":
                twins.wipe()
        twins.compare_keys()


@pytest.mark.req("dc-lua-fakeredis", "dsp-redis-first")
@pytest.mark.parametrize("most", [100_000, 5])
def test_random_sequences_agree_with_the_model(redis_target: RedisTarget, most: int) -> None:
    taken = 0
    for seed in range(40):
        twins = Twins(redis_target, most)
        try:
            _play(twins, random.Random(seed), 40)
        except AssertionError as error:
            raise AssertionError(f"sequence with seed {seed}: {error}") from error
        taken += twins.taken

    assert taken > 200, "the sequences took something"


class DispatchMachine(RuleBasedStateMachine):
    """Hypothesis looks for a sequence that tells scripts and model apart, and makes it short."""

    def __init__(self, target: RedisTarget) -> None:
        super().__init__()
        self.twins = Twins(target, 6)

    @rule(entries=st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from((-9, 0, 1, 40))), min_size=1, max_size=9))
    def add(self, entries: list[tuple[str, int]]) -> None:
        self.twins.add([(object_id, self.twins.now + offset) for object_id, offset in entries])

    @rule(count=st.sampled_from((1, 2, 5, 500)))
    def take(self, count: int) -> None:
        self.twins.take(count)

    @rule(ms=st.sampled_from((1, 39, -7)))
    def move_time(self, ms: int) -> None:
        self.twins.now += ms

    @rule(token=st.sampled_from("ab"), free=st.booleans())
    def turn(self, token: str, free: bool) -> None:
        (self.twins.free if free else self.twins.hold)(token)

    @rule()
    def lose(self) -> None:
        self.twins.wipe()

    @invariant()
    def agree(self) -> None:
        self.twins.compare_keys()


@pytest.mark.req("dc-lua-fakeredis")
def test_hypothesis_finds_no_sequence_that_tells_scripts_and_model_apart(redis_target: RedisTarget) -> None:
    chosen = settings(
        max_examples=30, stateful_step_count=25, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    checked: list[DispatchMachine] = []

    def machine() -> DispatchMachine:
        checked.append(DispatchMachine(redis_target))
        return checked[-1]

    run_state_machine_as_test(machine, settings=chosen)
    assert len(checked) >= 30
