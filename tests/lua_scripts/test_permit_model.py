"""The permit scripts against the model of tests.support.permit_model: every reply and every key (RELIABILITY 6.6).

Random sequences give the numbers, Hypothesis the smallest counterexample. Time jumps forward and back, limits change
between calls, the same owner asks twice, Redis is emptied or loses one key, ids are hostile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kernel.coordination import ScriptRunner
from tests.lua_scripts.permit_raw import START, Limits, Pair, RawPermits
from tests.support.permit_model import PermitModel
from tests.support.redis_servers import RedisTarget

IDS = ("a", "b", "wf-0123456789abcdef", "{x}", "a:b", "ein Wort", "'; return 1 --", "é☃", "x" * 200, "1.5", "%d")
STEPS = ("print", "$workflow")
TOKENS = ("t1", "t2")
LIMITS: tuple[Limits, ...] = (
    (1, 0, False), (2, 0, False), (3, 2, False), (0, 1, False), (0, 3, False), (8, 5, False), (0, 0, False),
    (2, 0, True), (0, 0, True), (40, 0, False),
)  # fmt: skip
TIMES = (1, 1, 15, 200, 999, 1_000, 2_000, 5_000, 12_000, 31_000, -1, -400, -700)
Owner = tuple[str, str, str]


class Twins:
    """The scripts and the model, given the same commands; each method compares the two replies."""

    def __init__(self, target: RedisTarget, runner: ScriptRunner) -> None:
        self.real = RawPermits(target, runner=runner)
        self.model = PermitModel()
        self.now = START
        self.granted: list[tuple[Owner, int, int]] = []
        target.client.flushall()

    def acquire(self, pair: Pair, token: str, request: int, lane: int, limits: Limits, wait: int) -> None:
        reply = self.real.acquire(
            pair[0], limits, self.now, step=pair[1], token=token, request=request, lane=lane, lease=3_000, wait=wait
        )
        expected = self.model.acquire(pair, token, request, lane, limits, 3_000, wait, self.now)
        assert reply == expected
        if reply[0] in (1, 2, 3):
            self.granted = [*self.granted[-12:], ((*pair, token), request, reply[1])]

    def start(self, owner: Owner, limits: Limits) -> None:
        rate = limits[1] or 3
        assert self.real.start(owner, 3_000, rate, self.now) == self.model.start(owner, 3_000, rate, self.now)

    def renew(self, owners: list[tuple[Owner, int, int]]) -> None:
        assert self.real.renew(owners, 3_000, self.now) == self.model.renew(owners, 3_000, self.now)

    def release(self, owners: Sequence[tuple[str, ...]], limits: Limits) -> None:
        assert self.real.release(owners, limits, self.now) == self.model.release(owners, limits, self.now)

    def deferred(self, pair: Pair, lane: int, in_line: bool) -> None:
        assert self.real.deferred(pair, lane, self.now, in_line) == self.model.deferred(pair, lane, in_line, self.now)

    def stats(self, pair: Pair) -> None:
        got, expected = self.real.stats(pair, self.now), self.model.stats(pair, self.now)
        if self.model.starts == sorted(self.model.starts, reverse=True):
            assert got == expected
        else:
            assert got[:3] + got[4:] == expected[:3] + expected[4:]

    def wipe(self) -> None:
        self.real.target.client.flushall()
        self.model.wipe()

    def lose_holders(self) -> None:
        self.real.target.client.delete(self.real.keys["permit_holders"])
        self.model.holders.clear()
        self.model.epoch, self.model.lined, self.model.cursor = None, False, 0

    def compare_keys(self) -> None:
        model = self.model
        assert self.real.holders() == model.holders
        assert self.real.state() == (model.epoch, model.lined, model.cursor)
        assert self.real.starts() == model.starts
        assert self.real.scores("reserved") == model.reserved
        assert self.real.scores("waiting") == {pair: entry.expiry for pair, entry in model.line.items()}
        assert self.real.line() == {pair: (entry.lane, entry.number) for pair, entry in model.line.items()}
        assert [self.real.ready(lane) for lane in range(4)] == list(model.lanes.lanes)


def _play(twins: Twins, choose: random.Random, steps: int) -> None:
    limits = choose.choice(LIMITS)

    def pair() -> Pair:
        return choose.choice(IDS), STEPS[choose.random() < 0.1]

    kinds = ("acquire", "release", "sweep", "renew", "deferred", "stats", "time", "limits", "loss", "start", "leave")
    for _ in range(steps):
        match choose.choices(kinds, (14, 6, 2, 2, 2, 1, 7, 1, 0.3, 4, 2))[0]:
            case "acquire":
                request, lane = choose.choice((0, 0, 0, 1, 1023)), choose.choice((0, 1, 1, 2, 3))
                twins.acquire(pair(), choose.choice(TOKENS), request, lane, limits, choose.choice((500, 3_000)))
            case "release":
                owners = [owner for owner, _, _ in choose.sample(twins.granted, min(2, len(twins.granted)))]
                twins.release([*owners, (*pair(), "t3")][: choose.randint(1, 3)], limits)
            case "leave":
                twins.release([pair() for _ in range(choose.randint(1, 2))], limits)
            case "sweep":
                twins.release([], limits)
            case "renew" if twins.granted:
                twins.renew(choose.sample(twins.granted, choose.randint(1, len(twins.granted))))
            case "start" if twins.granted:
                twins.start(choose.choice(twins.granted)[0], limits)
            case "deferred":
                twins.deferred(pair(), choose.choice((0, 1, 1, 2, 3)), choose.random() < 0.5)
            case "stats":
                twins.stats(pair())
            case "time":
                twins.now += choose.choice(TIMES)
            case "limits":
                limits = choose.choice(LIMITS)
            case "loss":
                choose.choice((twins.wipe, twins.lose_holders))()
    twins.stats(pair())
    twins.compare_keys()


def _play_many(target: RedisTarget, sequences: int, steps: int) -> int:
    runner = target.runner()
    for seed in range(sequences):
        twins = Twins(target, runner)
        try:
            _play(twins, random.Random(seed), steps)
        except AssertionError as error:
            raise AssertionError(f"sequence with seed {seed}: {error}") from error
    return sequences * steps


@pytest.mark.req("dc-lua-fakeredis", "prm-lua-steps", "prm-atomic", "prm-expiry", "prm-release-owner-only")
def test_two_thousand_sequences_of_fifty_agree_with_the_model(valkey: RedisTarget) -> None:
    assert _play_many(valkey, 2_000, 50) == 100_000


@pytest.mark.req("dc-lua-fakeredis", "dc-lua-time")
def test_random_sequences_agree_with_the_model_on_every_server(redis_target: RedisTarget) -> None:
    # The same seeds on all three servers: equal to the model means equal to each other.
    assert _play_many(redis_target, 30, 50) == 1_500


_pairs = st.tuples(st.sampled_from(IDS[:5]), st.just("print"))
_tokens = st.sampled_from(TOKENS)
_lanes = st.integers(0, 3)
_limits = st.sampled_from(LIMITS)


class PermitMachine(RuleBasedStateMachine):
    """Hypothesis looks for a sequence that tells scripts and model apart, and makes it short."""

    def __init__(self, target: RedisTarget, runner: ScriptRunner) -> None:
        super().__init__()
        self.twins = Twins(target, runner)

    @rule(pair=_pairs, token=_tokens, request=st.sampled_from((0, 1)), lane=_lanes, limits=_limits)
    def acquire(self, pair: Pair, token: str, request: int, lane: int, limits: Limits) -> None:
        self.twins.acquire(pair, token, request, lane, limits, 3_000)

    @rule(owners=st.lists(st.tuples(_pairs, _tokens), max_size=3), gone=st.lists(_pairs, max_size=2), limits=_limits)
    def release(self, owners: list[Any], gone: list[Pair], limits: Limits) -> None:
        self.twins.release([*((*pair, token) for pair, token in owners), *gone], limits)

    @rule(pair=_pairs, token=_tokens, epoch=st.sampled_from((START, START + 1)))
    def renew(self, pair: Pair, token: str, epoch: int) -> None:
        self.twins.renew([((*pair, token), 0, epoch)])

    @rule(pair=_pairs, token=_tokens, limits=_limits)
    def start(self, pair: Pair, token: str, limits: Limits) -> None:
        self.twins.start((*pair, token), limits)

    @rule(pair=_pairs, lane=_lanes, in_line=st.booleans())
    def deferred(self, pair: Pair, lane: int, in_line: bool) -> None:
        self.twins.deferred(pair, lane, in_line)

    @rule(ms=st.sampled_from((1, 15, 999, 2_000, 12_000, -1, -700)))
    def move_time(self, ms: int) -> None:
        self.twins.now += ms

    @rule(everything=st.booleans())
    def lose(self, everything: bool) -> None:
        (self.twins.wipe if everything else self.twins.lose_holders)()

    @invariant()
    def agree(self) -> None:
        self.twins.compare_keys()


@pytest.mark.req("dc-lua-fakeredis", "prm-lua-steps")
def test_hypothesis_finds_no_sequence_that_tells_scripts_and_model_apart(redis_target: RedisTarget) -> None:
    chosen = settings(
        max_examples=30, stateful_step_count=20, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    runner = redis_target.runner()
    checked: list[PermitMachine] = []

    def machine() -> PermitMachine:
        checked.append(PermitMachine(redis_target, runner))
        return checked[-1]

    run_state_machine_as_test(machine, settings=chosen)
    assert len(checked) >= 30
