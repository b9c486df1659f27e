"""kernel.coordination.streams: what the kernel calls; lost answers, concurrent writers, hostile identities."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination import Keys, ScriptRunner, Streams, StreamTerms
from kernel.coordination.breaker import CircuitBreaker
from kernel.errors import CoordinationRejected, CoordinationUnavailable, InvalidId, Refused, TooLarge
from kernel.stream_words import Appended, Batch, NotAppended, Position, Seniority, StreamId, TerminalReference
from lua import get
from tests.lua_scripts.proxy import proxied
from tests.lua_scripts.sent_words import arguments_sent
from tests.support.redis_servers import NAMESPACE, RedisTarget

STREAM = StreamId("object-42", "wf-42", "f1")
FIRST, SECOND = Seniority(1_800_000_000_000, 4), Seniority(1_800_000_000_000, 5)
TERMS = StreamTerms(running_ms=600_000, read_out_ms=60_000, kept_ms=900_000, bytes_max=1_000_000)


def made(target: RedisTarget) -> Streams:
    return Streams(target.runner(), target.keys, TERMS)


def opened(desk: Streams, stream: StreamId = STREAM) -> int:
    generation = desk.reset(stream, FIRST, reset_id="r1")
    assert generation is not None
    return generation


@pytest.mark.req("sse-append-lua", "sse-offset-zero", "sse-reset")
def test_the_answers_are_typed(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    generation = opened(desk)

    assert desk.append(STREAM, generation, [b"a", b"b"], writer="w", request=1) == Appended(generation, 0)
    assert desk.append(STREAM, generation - 1, [b"c"], writer="w", request=2) == NotAppended("generation")
    assert desk.read(STREAM, 0, 0, bytes_max=100, count_max=1) == Batch(generation, 0, 2, None, [b"a"])
    assert desk.generation(STREAM) == generation
    assert desk.finish(STREAM, SECOND, b"\x15end") == 2
    assert desk.append(STREAM, generation, [b"c"], writer="w", request=2) == NotAppended("terminal")
    end = TerminalReference(generation, 2, b"\x15end")
    assert desk.read(STREAM, generation, 2, bytes_max=100, count_max=9) == Batch(generation, 2, 3, end, [b"\x15end"])
    assert desk.reset(STREAM, FIRST, reset_id="late") is None
    assert desk.finish(STREAM, FIRST, b"\x15end") == "stale"
    assert desk.reset(STREAM, SECOND, reset_id="r2") == generation + 1
    redis_target.client.delete(redis_target.keys.stream(STREAM)["stream_frames"])
    assert desk.append(STREAM, generation + 1, [b"c"], writer="w", request=3) == Appended(generation + 1, 0)
    redis_target.client.delete(redis_target.keys.stream(STREAM)["stream_frames"])
    assert desk.append(STREAM, generation + 1, [b"d"], writer="w", request=4) == Appended(generation + 2, 0)
    other = StreamId("object-42", "wf-42", "f2")
    assert (desk.generation(other), desk.finish(other, SECOND, b"\x15end")) == (0, "absent")


@pytest.mark.req("sse-append-lua")
@pytest.mark.case("A28")
@pytest.mark.crash("54")
def test_a_lost_answer_makes_one_frame_when_the_request_is_repeated(own_redis: RedisTarget) -> None:
    assert own_redis.server is not None
    with proxied(own_redis.server.socket) as proxy:
        runner = ScriptRunner(
            proxy.endpoint.connection, SystemClock(), call_timeout_s=1.0,
            breaker=CircuitBreaker(SystemClock(), failures=100),
        )  # fmt: skip
        desk = Streams(runner, own_redis.keys, TERMS)
        generation = opened(desk)
        for request in range(1, 6):
            proxy.lose_replies = 1
            with pytest.raises(CoordinationUnavailable):
                desk.append(STREAM, generation, [b"frame-%d" % request], writer="w", request=request)

            again = desk.append(STREAM, generation, [b"frame-%d" % request], writer="w", request=request)

            assert again == Appended(generation, request - 1)
        proxy.lose_replies = 1
        with pytest.raises(CoordinationUnavailable):
            desk.reset(STREAM, SECOND, reset_id="r2")
        assert desk.reset(STREAM, SECOND, reset_id="r2") == generation + 1, "one reset"
        runner.close()


@pytest.mark.req("sse-append-lua", "sse-list")
def test_concurrent_writers_get_unique_consecutive_offsets(real_redis: RedisTarget) -> None:
    desk = made(real_redis)
    generation = opened(desk)
    offsets: dict[int, bytes] = {}

    def write(name: str) -> None:
        for request in range(1, 101):
            record = f"{name}-{request}".encode()
            answer = desk.append(STREAM, generation, [record], writer=name, request=request)
            assert isinstance(answer, Appended)
            offsets[answer.offset] = record

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(offsets) == list(range(600))
    frames = real_redis.client.lrange(real_redis.keys.stream(STREAM)["stream_frames"], 0, -1)
    assert frames == [offsets[offset] for offset in range(600)]


@pytest.mark.req("id-stream-identity", "sse-identity")
def test_object_workflow_and_round_stand_in_every_key(valkey: RedisTarget) -> None:
    desk = made(valkey)
    desk.append(STREAM, opened(desk), [b"x"], writer="w", request=1)
    desk.read(STREAM, 0, 0, bytes_max=1, count_max=1, watch_ms=5_000)
    desk.finish(STREAM, SECOND, b"\x15end")

    names = sorted(key.decode() for key in valkey.client.keys("*"))

    parts = ("frames", "generation", "state", "terminal", "watch")
    assert names == [f"wk1:{{tests}}:stream:object-42:wf-42:f1:{part}" for part in parts]


HOSTILE = (
    "a:b",
    "a",
    "b",
    "c:f1",
    "{x}",
    "*",
    "?[a-z]",
    "a%3Ab",
    "a~b",
    "é☃",
    "x" * 200,
    "~" + "0" * 32,
    "☃" * 60,
    "a b",
    "\\",
)


@pytest.mark.req("id-stream-identity", "sse-round-isolation", "dc-lua-keys")
@pytest.mark.case("A39")
def test_no_two_streams_share_a_key_whatever_their_parts_are_called(valkey: RedisTarget) -> None:
    ids = [StreamId(a, b, c) for a in HOSTILE for b in HOSTILE for c in ("f1", "b:f1", ":", "x" * 200)]

    names = {key for stream in ids for key in valkey.keys.stream(stream).values()}

    assert len(names) == 5 * len(ids)
    assert all(
        key.startswith(b"wk1:{tests}:stream:") and key.count(b"{") == 1 and key.count(b":") == 6 for key in names
    )
    assert max(map(len, names)) < 400
    assert not any(character in key for key in names for character in b"*?[]\\ \r\n")


@pytest.mark.req("id-stream-identity")
@pytest.mark.parametrize(
    "parts", [("", "w", "f"), ("o", "", "f"), ("o", "w", ""), ("o\n", "w", "f"), ("o", "w" * 201, "f")]
)
def test_an_identity_that_lacks_a_part_is_refused(parts: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidId):
        StreamId(*parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "-",
        "1-",
        "-1",
        "1-1-1",
        "01-1",
        "1-01",
        "a-b",
        "1 - 1",
        "١-١",
        "1-1\n",
        "1" * 17 + "-1",
        None,
        7,
        b"1-1",
    ],
)
def test_a_last_event_id_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(InvalidId, match="last_event_id"):
        Position.parse(text)


def test_a_last_event_id_survives_the_way_there_and_back() -> None:
    assert Position.parse(str(Position(1_800_000_000_000, 0))) == Position(1_800_000_000_000, 0)


@pytest.mark.req("dc-lua-files")
def test_python_gives_each_argument_in_the_place_that_the_contract_names() -> None:
    keys = Keys(NAMESPACE)
    tag, channel = b"%d" % STREAM.tag, keys.stream_channel

    def sent(script: str, reply: Any, operation: Callable[[Streams], object]) -> dict[str, Any]:
        return arguments_sent(get(script), reply, lambda runner: operation(Streams(runner, keys, TERMS)))

    assert sent("stream_append", 0, lambda desk: desk.append(STREAM, 7, [b"x", b"y"], writer="w", request=3)) == {
        "wakeup_channel": channel, "wakeup_tag": tag, "bytes_max": b"1000000", "frames_ttl_ms": b"600000",
        "kept_ttl_ms": b"2400000", "terms": b"7 w 3", "record": (b"x", b"y"),
    }  # fmt: skip
    reset = sent("stream_reset", 1, lambda desk: desk.reset(STREAM, FIRST, reset_id="r", keep=True))
    assert reset == {"terms": b"1800000000000 4 r 1 2400000 " + tag, "wakeup_channel": channel}
    finish = sent("stream_finish", 1, lambda desk: desk.finish(STREAM, FIRST, b"end"))
    terms = b"1800000000000 4 60000 900000 " + tag
    assert finish == {"terms": terms, "record": b"end", "wakeup_channel": channel}
    read = sent("stream_read", [7, 3, 3, b""], lambda desk: desk.read(STREAM, 7, 3, bytes_max=100, count_max=10))
    assert read == {"terms": b"7 3 100 10 0"}


def test_what_is_no_frame_is_refused_before_anything_is_sent(valkey: RedisTarget) -> None:
    desk = made(valkey)
    generation = opened(desk)
    before = valkey.client.info("stats")["total_commands_processed"]

    for records, error in (([], Refused), ([b"x"] * 101, Refused), ([b""], Refused), ([bytes(2**26)], TooLarge)):
        with pytest.raises(error, match="record"):
            desk.append(STREAM, generation, records, writer="w", request=1)  # type: ignore[arg-type]
    for writer, request in (("a b", 1), ("", 1), ("w", 0), ("w", -1), ("w", 1.5), ("w", 10**15), ("w", True)):
        with pytest.raises(Refused):
            desk.append(STREAM, generation, [b"x"], writer=writer, request=request)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        desk.finish(STREAM, SECOND, bytes(65_537))

    assert valkey.client.info("stats")["total_commands_processed"] == before + 1, "the look itself"
    assert desk.append(STREAM, generation, [b"x"], writer="w", request=1) == Appended(generation, 0), "nothing is lost"


def test_a_reference_or_generation_that_no_kernel_wrote_is_reported(redis_target: RedisTarget) -> None:
    desk = made(redis_target)
    opened(desk)
    keys = redis_target.keys.stream(STREAM)
    redis_target.client.set(keys["stream_terminal"], b"junk", px=60_000)
    with pytest.raises(CoordinationRejected, match="reference"):
        desk.read(STREAM, 0, 0, bytes_max=1, count_max=1)
    redis_target.client.set(keys["stream_generation"], b"-1x", px=60_000)
    with pytest.raises(CoordinationRejected, match="generation"):
        desk.generation(STREAM)


@pytest.mark.req("sse-ttl-running", "sse-ttl-terminal")
@pytest.mark.case("A37")
def test_of_a_thousand_ended_streams_nothing_is_left_when_their_time_is_over(valkey: RedisTarget) -> None:
    """With the defaults that is 240 s after the end; here the time to live of each key tells it."""
    desk = Streams(valkey.runner(), valkey.keys)
    for n in range(1_000):
        stream = StreamId("object", f"wf-{n}", "f1")
        generation = opened(desk, stream)
        desk.append(stream, generation, [b"x"], writer="w", request=1)
        desk.finish(stream, SECOND, b"\x15end")

    names = valkey.client.keys("*")
    parts = ("frames", "terminal", "generation", "state")
    lives = {part: [valkey.client.pttl(n) for n in names if n.endswith(part.encode())] for part in parts}

    assert len(names) == 4_000
    assert 0 < min(lives["frames"]) <= max(lives["frames"]) <= 60_000
    for part in parts[1:]:
        assert 60_000 < min(lives[part]) <= max(lives[part]) <= 240_000


@pytest.mark.req("sse-ttl-running", "sse-ttl-terminal")
def test_the_settings_decide_how_long_keys_live_and_frames_never_outlive_their_generation() -> None:
    terms = StreamTerms.of(
        Config(stream_running_s=7_200, stream_read_out_s=60, stream_kept_s=50, stream_bytes_max=5_000)
    )

    assert terms == StreamTerms(running_ms=7_200_000, read_out_ms=60_000, kept_ms=60_001, bytes_max=5_000)
    assert StreamTerms.of(Config()) == StreamTerms()
