"""The stream scripts against the model of tests.support.stream_model: every reply and every key (RELIABILITY 6.6).

Random sequences give the numbers, Hypothesis the smallest counterexample. Writers repeat requests, speak for old
generations and old records; Redis loses everything or one key; records hold any bytes.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kernel.coordination import ScriptRunner
from tests.lua_scripts.stream_raw import START, RawStream
from tests.support.redis_servers import RedisTarget
from tests.support.stream_model import Age, StreamModel

WRITERS = ("a", "b", "w10", "Zz9", *(f"w{n}" for n in range(8)))
RECORDS = (b"x", b"\x11text", b"\x00", b"\r\n\n", b"\xff" * 40, "é☃".encode(), b"%d $1 ' 0 1", b" 1 2 3")
BYTES_MAX = 3_000


class Twins:
    """The scripts and the model, given the same commands; each method compares the two replies."""

    def __init__(self, target: RedisTarget, runner: ScriptRunner) -> None:
        self.real = RawStream(target, runner=runner)
        self.model = StreamModel()
        self.now = START
        self.appended = 0
        target.client.flushall()

    @property
    def generation(self) -> int:
        return self.model.generation or 7

    def append(self, generation: int, records: list[bytes], writer: str, request: int) -> None:
        reply = self.real.append(generation, *records, writer=writer, request=request, bytes_max=BYTES_MAX)
        assert reply == self.model.append(generation, records, writer, request, BYTES_MAX)
        self.appended += not isinstance(reply, str)

    def reset(self, age: Age, reset_id: str, keep: bool) -> None:
        reply = self.real.reset(age, reset_id, keep=keep, now=self.now)
        assert reply == self.model.reset(age, reset_id, keep, self.now)

    def finish(self, age: Age, record: bytes) -> None:
        assert self.real.finish(age, record) == self.model.finish(age, record)

    def read(self, generation: int, offset: int, bytes_max: int, count_max: int, watch: bool) -> None:
        reply = self.real.read(generation, offset, bytes_max=bytes_max, count_max=count_max, watch=60_000 * watch)
        assert reply == self.model.read(generation, offset, bytes_max, count_max, watch)

    def wipe(self) -> None:
        self.real.target.client.flushall()
        self.model.wipe()

    def lose(self, part: str) -> None:
        self.real.target.client.delete(self.real.keys[f"stream_{part}"])
        if part == "frames":
            self.model.frames = []
        elif part == "generation":
            self.model.generation = None
        elif part == "terminal":
            self.model.terminal = None
        else:
            self.model.known = False

    def compare_keys(self) -> None:
        model = self.model
        assert self.real.frames() == model.frames
        assert self.real.generation() == model.generation
        assert self.real.terminal() == model.terminal
        expected = (model.age, model.reset_id, model.next, model.bytes, model.writers) if model.known else None
        found = self.real.state()
        assert found == expected
        assert found is None or expected is None or list(found[4]) == list(expected[4])


def _play(twins: Twins, choose: random.Random, steps: int) -> None:
    requests: dict[str, int] = {}

    def age() -> Age:
        return START, choose.randint(1, 6)

    kinds = ("append", "reset", "finish", "read", "time", "loss")
    for _ in range(steps):
        match choose.choices(kinds, (14, 3, 1, 6, 3, 0.6))[0]:
            case "append":
                writer = choose.choice(WRITERS)
                request = requests.get(writer, 0) + choose.choice((0, 1, 1, 1, 2, -1))
                requests[writer] = max(request, 1)
                generation = twins.generation + choose.choice((0, 0, 0, 0, 0, 0, -1, 1))
                records = [choose.choice(RECORDS) for _ in range(choose.choice((1, 1, 1, 2, 5)))]
                twins.append(generation, records, writer, max(request, 1))
            case "reset":
                twins.reset(age(), choose.choice("rst"), choose.random() < 0.3)
            case "finish":
                twins.finish(age(), choose.choice(RECORDS))
            case "read":
                generation = choose.choice((0, twins.generation, twins.generation, twins.generation - 1))
                offset = choose.choice((0, 0, 1, twins.model.next, twins.model.next + 1, 40))
                twins.read(
                    generation, offset, choose.choice((1, 60, 10_000)), choose.choice((1, 3, 40)), choose.random() < 0.3
                )
            case "time":
                twins.now += choose.choice((1, 900, 60_000, -500))
            case "loss":
                lost = choose.choice(("all", "frames", "generation", "terminal", "state"))
                twins.wipe() if lost == "all" else twins.lose(lost)
    twins.read(0, 0, 10_000, 1_000, False)
    twins.compare_keys()


def _play_many(target: RedisTarget, sequences: int, steps: int) -> int:
    runner = target.runner()
    appended = 0
    for seed in range(sequences):
        twins = Twins(target, runner)
        try:
            _play(twins, random.Random(seed), steps)
        except AssertionError as error:
            raise AssertionError(f"sequence with seed {seed}: {error}") from error
        appended += twins.appended
    return appended


@pytest.mark.req(
    "dc-lua-fakeredis", "dc-lua-files", "sse-append-lua", "sse-stale-writer", "sse-no-append-after-terminal"
)
def test_two_thousand_sequences_of_fifty_agree_with_the_model(valkey: RedisTarget) -> None:
    assert _play_many(valkey, 2_000, 50) > 10_000, "most sequences append"


@pytest.mark.req("dc-lua-fakeredis", "sse-append-lua")
def test_random_sequences_agree_with_the_model_on_every_server(redis_target: RedisTarget) -> None:
    # The same seeds on all three servers: equal to the model means equal to each other.
    assert _play_many(redis_target, 30, 50) > 150


_ages = st.tuples(st.just(START), st.integers(1, 3))


class StreamMachine(RuleBasedStateMachine):
    """Hypothesis looks for a sequence that tells scripts and model apart, and makes it short."""

    def __init__(self, target: RedisTarget, runner: ScriptRunner) -> None:
        super().__init__()
        self.twins = Twins(target, runner)

    @rule(
        behind=st.sampled_from((0, 0, 1)),
        writer=st.sampled_from("ab"),
        request=st.integers(1, 4),
        record=st.binary(min_size=1, max_size=9),
    )
    def append(self, behind: int, writer: str, request: int, record: bytes) -> None:
        self.twins.append(self.twins.generation - behind, [record], writer, request)

    @rule(age=_ages, reset_id=st.sampled_from("rs"), keep=st.booleans())
    def reset(self, age: Age, reset_id: str, keep: bool) -> None:
        self.twins.reset(age, reset_id, keep)

    @rule(age=_ages, record=st.sampled_from(RECORDS))
    def finish(self, age: Age, record: bytes) -> None:
        self.twins.finish(age, record)

    @rule(offset=st.integers(0, 3), count_max=st.sampled_from((1, 2, 40)), watch=st.booleans())
    def read(self, offset: int, count_max: int, watch: bool) -> None:
        self.twins.read(self.twins.generation, offset, 20, count_max, watch)

    @rule(part=st.sampled_from(("frames", "generation", "terminal", "state")))
    def lose(self, part: str) -> None:
        self.twins.lose(part)

    @rule()
    def wipe(self) -> None:
        self.twins.wipe()

    @rule(ms=st.sampled_from((1, 1_000)))
    def move_time(self, ms: int) -> None:
        self.twins.now += ms

    @invariant()
    def agree(self) -> None:
        self.twins.compare_keys()


@pytest.mark.req("dc-lua-fakeredis", "sse-append-lua")
def test_hypothesis_finds_no_sequence_that_tells_scripts_and_model_apart(redis_target: RedisTarget) -> None:
    chosen = settings(
        max_examples=30, stateful_step_count=20, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    runner = redis_target.runner()
    checked: list[StreamMachine] = []

    def machine() -> StreamMachine:
        checked.append(StreamMachine(redis_target, runner))
        return checked[-1]

    run_state_machine_as_test(machine, settings=chosen)
    assert len(checked) >= 30
