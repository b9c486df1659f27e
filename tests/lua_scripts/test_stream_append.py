"""The stream scripts call by call: offsets, lives, generations, the end, and what a call costs the server."""

from __future__ import annotations

import pytest

from kernel.errors import CoordinationRejected
from tests.lua_scripts.stream_raw import KEPT, READ_OUT, RUNNING, START, STREAM, RawStream
from tests.lua_scripts.test_script_budget import calls_of
from tests.support.redis_servers import RedisTarget

FIRST, SECOND, THIRD = (START, 1), (START, 2), (START, 3)
TEXT, END = b"\x11hello", b"\x15end"


def opened(target: RedisTarget) -> tuple[RawStream, int]:
    stream = RawStream(target)
    generation = stream.reset(FIRST)
    assert isinstance(generation, int)
    return stream, generation


@pytest.mark.req("sse-append-lua", "sse-offset-zero", "sse-list")
def test_offsets_begin_at_zero_and_are_contiguous_over_writers_and_batches(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)

    assert stream.append(generation, b"a") == 0
    assert stream.append(generation, b"b", b"c", b"d", writer="v") == 1
    assert stream.append(generation, b"e", request=2) == 4

    assert stream.frames() == [b"a", b"b", b"c", b"d", b"e"]
    assert stream.read(generation, 0)[4] == stream.read(generation, 0)[4] == stream.frames(), "reading removes nothing"


@pytest.mark.req("sse-append-lua", "sse-ttl-running")
def test_each_append_sets_the_life_of_the_frames_anew(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    redis_target.client.pexpire(stream.keys["stream_frames"], 5_000)
    redis_target.client.pexpire(stream.keys["stream_generation"], 5_000)

    stream.append(generation, TEXT, request=2)

    assert RUNNING - 30_000 < stream.lives("frames") <= RUNNING
    assert KEPT - 30_000 < stream.lives("state") <= KEPT
    stream.append(generation, *[TEXT] * 14, request=3)
    assert 0 < stream.lives("generation") <= 5_000, "a life that is much longer is renewed with every 16th frame"
    stream.append(generation, TEXT, request=4)
    assert KEPT - 30_000 < stream.lives("generation") <= KEPT


@pytest.mark.req("sse-append-lua")
@pytest.mark.case("A28")
@pytest.mark.crash("54")
def test_a_request_that_is_repeated_appends_once_even_after_the_end(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, b"first")
    offset = stream.append(generation, b"x", b"y", writer="v", request=9)
    stream.append(generation, b"between", request=2)

    assert stream.append(generation, b"x", b"y", writer="v", request=9) == offset == 1
    stream.finish(SECOND, END)
    assert stream.append(generation, b"x", b"y", writer="v", request=9) == offset
    assert stream.append(generation, b"x", b"y", writer="v", request=8) == "request", "an older one is no repeat"

    assert stream.frames() == [b"first", b"x", b"y", b"between", END]


@pytest.mark.req("sse-no-append-after-terminal", "sse-terminal-after-mongo")
@pytest.mark.crash("55")
def test_after_the_terminal_frame_nothing_is_appended(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)

    assert stream.finish(SECOND, END) == 1
    assert stream.append(generation, TEXT, request=2) == "terminal"
    assert stream.finish(SECOND, b"\x15another") == 1, "a repeat changes nothing"

    assert stream.frames() == [TEXT, END]
    assert stream.terminal() == (generation, 1, END)


@pytest.mark.req("sse-ttl-terminal")
def test_after_the_end_frames_live_shorter_than_generation_and_reference(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    stream.finish(SECOND, END)

    assert 0 < stream.lives("frames") <= READ_OUT
    for part in ("generation", "terminal", "state"):
        assert KEPT - 30_000 < stream.lives(part) <= KEPT


@pytest.mark.req("sse-reset", "sse-generation-key", "sse-stale-writer")
def test_a_reset_clears_frames_and_end_and_the_generation_goes_up_by_one(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    stream.finish(SECOND, END)

    assert [stream.reset(THIRD, reset_id) for reset_id in ("a", "b", "c")] == [generation + n for n in (1, 2, 3)]
    assert stream.generation() == generation + 3
    assert (stream.frames(), stream.terminal()) == ([], None)
    assert stream.append(generation, b"late", request=2) == "generation"
    assert stream.append(generation + 3, b"new", request=2) == 0
    assert stream.frames() == [b"new"]


@pytest.mark.req("sse-reset")
def test_a_reset_whose_answer_got_lost_is_answered_once_more_and_wipes_nothing(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)

    assert stream.reset(FIRST) == generation

    assert stream.frames() == [TEXT]


@pytest.mark.req("sor-reset-before-enqueue", "sse-stale-writer", "sse-round-isolation")
@pytest.mark.crash("08")
def test_a_reset_or_end_for_an_older_state_of_the_workflow_changes_nothing(redis_target: RedisTarget) -> None:
    """A publisher's reset that was held up, or a stopped worker's, meets what a later claim has written."""
    stream, _ = opened(redis_target)
    generation = stream.reset(THIRD, "claim")
    assert isinstance(generation, int)
    stream.append(generation, TEXT)

    assert stream.reset(SECOND, "late") == "stale"
    assert stream.reset(SECOND, "late", keep=True) == "stale"
    assert stream.finish(SECOND, END) == "stale"
    assert stream.reset((START - 1, 99), "old") == "stale"

    assert stream.append(generation, TEXT, request=2) == 1
    assert stream.terminal() is None


@pytest.mark.req("sse-reset")
def test_a_later_step_goes_on_where_an_earlier_one_ended(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)

    assert stream.reset(SECOND, "next", keep=True) == generation
    assert stream.append(generation, TEXT, request=2) == 1
    stream.finish(THIRD, END)
    assert stream.reset((START, 4), "again", keep=True) == generation + 1, "what has ended is never gone on with"


@pytest.mark.req("sse-reset", "sse-round-isolation")
def test_a_stream_without_a_generation_gets_one_that_no_earlier_life_of_redis_had(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    redis_target.client.flushall()

    assert stream.append(generation, TEXT, request=2) == "generation"
    assert stream.finish(SECOND, END) == "absent"
    assert stream.reset(FIRST, "again", now=START + 5_000) == START + 5_000 > generation
    assert redis_target.client.keys("*frames") == []


@pytest.mark.req("sse-loss-harmless", "sse-append-lua")
def test_frames_that_were_lost_begin_a_new_generation_so_that_no_offset_means_two(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, b"a", b"b")
    redis_target.client.delete(stream.keys["stream_frames"])

    assert stream.append(generation, b"c", request=2) == (0, generation + 1)
    assert stream.append(generation + 1, b"d", request=3) == 1
    assert stream.frames() == [b"c", b"d"]
    assert redis_target.client.pttl(stream.keys["stream_generation"]) > 0


@pytest.mark.req("sse-round-isolation")
def test_the_end_of_an_earlier_round_never_stands_for_a_later_one(redis_target: RedisTarget) -> None:
    """The reset between two rounds of one token got lost, and the second round streams nothing before it ends."""
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    stream.finish(SECOND, b"\x15failed")

    assert stream.finish(THIRD, b"\x15completed") == 0

    assert stream.terminal() == (generation + 1, 0, b"\x15completed")
    assert stream.frames() == [b"\x15completed"]


def test_the_frames_of_one_stream_are_bounded_and_the_end_still_fits(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)

    assert stream.append(generation, b"x" * 436, bytes_max=1_000) == 0
    assert stream.append(generation, b"x" * 437, request=2, bytes_max=1_000) == "full"
    assert stream.append(generation, b"x" * 436, request=2, bytes_max=1_000) == 1
    assert stream.finish(SECOND, END) == 2


def test_a_read_is_bounded_and_still_makes_progress(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, *(b"%03d" % n + b"x" * 997 for n in range(50)))

    sizes, offset = [], 0
    while offset < 50:
        found, start, length, terminal, records = stream.read(generation, offset, bytes_max=7_500, count_max=40)
        assert (found, start, length, terminal) == (generation, offset, 50, None)
        assert [int(record[:3]) for record in records] == list(range(offset, offset + len(records)))
        sizes.append(len(records))
        offset += len(records)

    assert sizes == [7] * 7 + [1]
    assert len(stream.read(generation, 0, bytes_max=1)[4]) == 1, "one is always read"
    assert len(stream.read(generation, 0, count_max=33)[4]) == 33


@pytest.mark.req("sse-double-check")
@pytest.mark.crash("56")
def test_a_read_for_another_generation_or_past_the_end_reads_from_zero_and_says_so(redis_target: RedisTarget) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, b"a", b"b")

    assert stream.read(generation, 1) == (generation, 1, 2, None, [b"b"])
    assert stream.read(generation, 2) == (generation, 2, 2, None, [])
    assert stream.read(generation, 3) == (generation, 0, 2, None, [b"a", b"b"])
    assert stream.read(generation - 1, 1) == (generation, 0, 2, None, [b"a", b"b"])
    redis_target.client.flushall()
    assert stream.read(generation, 1) == (0, 0, 0, None, [])


@pytest.mark.case("A37")
def test_every_key_has_a_time_to_live_whatever_was_the_last_thing_done(redis_target: RedisTarget) -> None:
    # What is left behind is checked after each test (redis_servers): here the writer dies at every point.
    stream, generation = opened(redis_target)
    lives = lambda: [redis_target.client.pttl(key) for key in redis_target.client.keys("*")]  # noqa: E731
    assert min(lives()) > 0
    stream.read(0, 0, watch=30_000)
    stream.append(generation, TEXT)
    assert min(lives()) > 0
    redis_target.client.delete(stream.keys["stream_frames"])
    stream.append(generation, TEXT, request=2)
    assert min(lives()) > 0
    stream.finish(SECOND, END)
    assert min(lives()) > 0 and len(lives()) == 5


def test_changes_are_told_only_while_somebody_watches(real_redis: RedisTarget) -> None:
    stream, generation = opened(real_redis)
    with real_redis.client.pubsub() as heard:
        heard.subscribe(real_redis.keys.stream_channel)
        heard.get_message(timeout=10)
        stream.append(generation, TEXT)
        stream.read(generation, 0, watch=30_000)
        stream.append(generation, TEXT, request=2)
        stream.reset(SECOND, "again")
        stream.finish(THIRD, END)
        stream.runner.command("PUBLISH", real_redis.keys.stream_channel, "last")

        told = []
        while (message := heard.get_message(timeout=10)) and message["data"] != b"last":
            told.append(message["data"])

    assert told == [b"%d" % STREAM.tag] * 3


@pytest.mark.req("dc-lua-keys")
def test_a_call_costs_as_many_commands_as_its_contract_says(real_redis: RedisTarget) -> None:
    stream, generation = opened(real_redis)
    stream.append(generation, TEXT)
    stream.read()
    stream.finish((START - 1, 1), END)

    append = {"mget": 1, "rpush": 1, "set": 1, "pexpire": 1}
    assert calls_of(real_redis, lambda: stream.append(generation, TEXT, request=2)) == append
    assert calls_of(real_redis, lambda: stream.read(generation, 0)) == {"mget": 1, "llen": 1, "lrange": 1}
    stream.read(generation, 0, watch=30_000)
    watched = calls_of(real_redis, lambda: stream.append(generation, TEXT, request=3))
    assert watched == append | {"publish": 1}
    reset = calls_of(real_redis, lambda: stream.reset(SECOND, "again"))
    assert reset == {"mget": 1, "del": 1, "set": 2, "publish": 1}
    finish = calls_of(real_redis, lambda: stream.finish(SECOND, END))
    assert finish == {"mget": 1, "rpush": 1, "set": 3, "pexpire": 1, "publish": 1}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s, g: s.append(g), "BADARG record"),
        (lambda s, g: s.append(g, *[b"x"] * 101), "BADARG record"),
        (lambda s, g: s.append(g, b""), "BADARG record"),
        (lambda s, g: s.append(g, b"x" * 65_537), "BADARG record"),
        (lambda s, g: s.append(g, b"x", request=0), "BADARG request"),
        (lambda s, g: s.append(g, b"x", request=10**15), "BADARG request"),
        (lambda s, g: s.append(g, b"x", request=-1), "BADARG terms"),
        (lambda s, g: s.append(g, b"x", writer="a b"), "BADARG terms"),
        (lambda s, g: s.append(g, b"x", writer=""), "BADARG terms"),
        (lambda s, g: s.append(g, b"x", running=0), "BADARG ttl"),
        (lambda s, g: s.append(g, b"x", kept=0), "BADARG ttl"),
        (lambda s, g: s.append(g, b"x", bytes_max="much"), "BADARG bytes_max"),
        (lambda s, g: s.reset((START, 1), "a:b"), "BADARG terms"),
        (lambda s, g: s.reset((START, 1), "r", kept=0), "BADARG kept_ttl_ms"),
        (lambda s, g: s.reset((START, -1), "r"), "BADARG terms"),
        (lambda s, g: s.finish((START, 1), b""), "BADARG record"),
        (lambda s, g: s.finish((START, 1), b"x" * 65_537), "BADARG record"),
        (lambda s, g: s.finish((START, 1), b"x", read_out=0), "BADARG ttl"),
        (lambda s, g: s.read(g, 0, count_max=0), "BADARG count_max"),
        (lambda s, g: s.read(g, 0, count_max=1_001), "BADARG count_max"),
        (lambda s, g: s.read(g, -1), "BADARG terms"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(redis_target: RedisTarget, call: object, said: str) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    before = redis_target.client.get(stream.keys["stream_state"])

    with pytest.raises(CoordinationRejected, match=said):
        call(stream, generation)  # type: ignore[operator]

    assert stream.frames() == [TEXT]
    assert redis_target.client.get(stream.keys["stream_state"]) == before


@pytest.mark.parametrize("part", ["frames", "generation", "state", "terminal"])
def test_a_key_of_a_wrong_type_is_refused_or_mended_and_never_read_as_a_frame(
    redis_target: RedisTarget, part: str
) -> None:
    stream, generation = opened(redis_target)
    stream.append(generation, TEXT)
    key = stream.keys[f"stream_{part}"]
    redis_target.client.delete(key)
    redis_target.client.hset(key, "a", "b")
    redis_target.client.pexpire(key, 60_000)

    if part == "frames":
        with pytest.raises(CoordinationRejected):
            stream.append(generation, TEXT, request=2)
        with pytest.raises(CoordinationRejected):
            stream.read(generation, 0)
    elif part != "terminal":
        assert stream.append(generation, TEXT, request=2) == "generation"
    again = stream.reset(SECOND, "mend")

    assert isinstance(again, int)
    assert stream.append(again, b"new") == 0
    assert stream.read(again, 0) == (again, 0, 1, None, [b"new"])


@pytest.mark.case("A36")
def test_at_maxmemory_an_append_is_refused_and_leaves_no_trace(own_redis: RedisTarget) -> None:
    stream, generation = opened(own_redis)
    stream.append(generation, TEXT)
    used = own_redis.client.info("memory")["used_memory"]
    own_redis.client.config_set("maxmemory", used - 1)

    with pytest.raises(Exception, match="OOM"):
        stream.append(generation, TEXT, request=2)

    assert stream.read(generation, 0)[4] == [TEXT], "reading goes on"
    own_redis.client.config_set("maxmemory", 0)
    assert stream.append(generation, TEXT, request=2) == 1
