"""The index of due intents and the turn to scan, through `DispatchIndex`, on three servers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from kernel.candidates import ScanTurn
from kernel.coordination import BoundScript, DispatchIndex, Keys, dispatch_index
from kernel.dispatch import DueIntent
from kernel.errors import CoordinationRejected, CoordinationUnavailable, InvalidId, InvalidName, Refused
from kernel.ids import RandomIds
from lua import get
from tests.lua_scripts.test_lane_concurrency import run_threads
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

SOURCE = "subscriptions"
NOW = 1_800_000_000_000


def index_of(target: RedisTarget) -> DispatchIndex:
    return DispatchIndex(target.runner(), target.keys, RandomIds())


def due(*ids: str, at: int = NOW) -> list[DueIntent]:
    return [DueIntent(object_id, at) for object_id in ids]


def scores(target: RedisTarget) -> dict[str, int]:
    found = target.client.zrange(target.keys.dispatch(SOURCE), 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


@pytest.mark.req("dsp-redis-first", "dsp-due-only")
def test_what_is_due_is_taken_in_order_and_the_rest_is_told(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    index.add(SOURCE, [DueIntent("late", NOW + 5_000), DueIntent("b", NOW), DueIntent("a", NOW - 1)])

    first, second, none = index.take(SOURCE, 1, NOW), index.take(SOURCE, 9, NOW), index.take(SOURCE, 9, NOW)

    assert (first.object_ids, first.next_due_ms) == (("a",), NOW)
    assert (second.object_ids, second.next_due_ms) == (("b",), NOW + 5_000)
    assert (none.object_ids, none.next_due_ms) == ((), NOW + 5_000)
    assert index.take(SOURCE, 9, NOW + 5_000).object_ids == ("late",)
    assert index.take(SOURCE, 9, NOW + 9_000).next_due_ms is None


@pytest.mark.req("dsp-candidate-add")
def test_of_two_times_of_one_object_the_earlier_stays(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)

    assert index.add(SOURCE, due("k", at=NOW + 60_000)) == 1
    assert index.add(SOURCE, due("k", at=NOW)) == 0  # a new round must not wait for the delay of the old one
    assert index.add(SOURCE, due("k", at=NOW + 90_000)) == 0
    assert scores(redis_target) == {"k": NOW}


@pytest.mark.req("dsp-redis-identity-only")
def test_a_member_is_the_identity_and_nothing_else(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)

    index.announce(SOURCE, "tenant:object/17 é", NOW)

    assert list(scores(redis_target)) == ["tenant:object/17 é"]


def test_the_index_lives_a_day_after_its_last_note_and_the_turn_as_long_as_it_is_held(
    redis_target: RedisTarget,
) -> None:
    index = index_of(redis_target)
    index.add(SOURCE, due("k"))
    index.hold_scan(SOURCE, 60_000)

    assert 86_000_000 < redis_target.client.pttl(redis_target.keys.dispatch(SOURCE)) <= 86_400_000
    assert 0 < redis_target.client.pttl(redis_target.keys.dispatch_scan(SOURCE)) <= 60_000


def test_beyond_the_limit_those_due_last_are_dropped(
    redis_target: RedisTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_index, "CANDIDATES_MAX", 3)
    index = index_of(redis_target)

    index.add(SOURCE, [DueIntent(f"k{n}", NOW + n) for n in range(5)])
    index.add(SOURCE, due("first", at=NOW - 1))

    assert list(scores(redis_target)) == ["first", "k0", "k1"]


@pytest.mark.req("dsp-limits")
def test_twelve_hundred_are_added_in_three_calls_and_taken_once_each_by_eight_takers(
    redis_target: RedisTarget,
) -> None:
    index = index_of(redis_target)
    assert index.add(SOURCE, [DueIntent(f"k{n}", NOW + n) for n in range(1_200)]) == 1_200
    taken: list[str] = []

    def work() -> None:
        while ids := index.take(SOURCE, 100, NOW + 2_000).object_ids:
            taken.extend(ids)

    run_threads([threading.Thread(target=work) for _ in range(8)])

    assert Counter(taken) == Counter({f"k{n}": 1 for n in range(1_200)})


def test_sources_and_namespaces_have_indexes_of_their_own(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    index.add(SOURCE, due("k"))

    assert index.take("orders", 9, NOW).object_ids == ()
    assert DispatchIndex(redis_target.runner(), Keys("other"), RandomIds()).take(SOURCE, 9, NOW).object_ids == ()
    with pytest.raises(InvalidName):
        index.add("no:name", due("k"))


def test_what_no_kernel_can_have_written_is_dropped_and_hides_nobody(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    key = redis_target.keys.dispatch(SOURCE)
    redis_target.client.zadd(key, {b"\xff\xfe": 1, b"a\x1fb": 1.5, b"x" * 300: 2, b"never": float("inf")})
    index.add(SOURCE, due("good"))

    found = index.take(SOURCE, 4, NOW)

    assert (found.object_ids, found.next_due_ms) == (("good",), None)
    redis_target.client.delete(key)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("dispatch_add", (0, 1, "", "a\x1f1")),
        ("dispatch_add", (9, 0, "", "a\x1f1")),
        ("dispatch_add", (9, 9, "", "")),
        ("dispatch_add", (9, 9, "", "a")),
        ("dispatch_add", (9, 9, "", "a\x1fb")),
        ("dispatch_add", (9, 9, "", "\x1f1")),
        ("dispatch_add", (9, 9, "", "a\x1f12345678901234567")),
        ("dispatch_add", (9, 9, "", "\x1f".join(["a\x1f1"] * 501))),
        ("dispatch_take", (0, 1)),
        ("dispatch_take", (501, 1)),
        ("dispatch_take", (1.5, 1)),
        ("dispatch_take", (1, "soon")),
        ("dispatch_scan_hold", ("", 9)),
        ("dispatch_scan_hold", ("t", 0)),
        ("dispatch_scan_free", ("",)),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(
    redis_target: RedisTarget, name: str, args: tuple[str | int, ...]
) -> None:
    script = get(name)
    bound = BoundScript(script, redis_target.keys.of(script, SOURCE))

    with pytest.raises(CoordinationRejected, match="BADARG"):
        redis_target.runner().call(bound, *args)

    assert list(redis_target.client.scan_iter()) == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda index: index.add(SOURCE, due("")), InvalidId),
        (lambda index: index.add(SOURCE, due("a\x1fb")), InvalidId),
        (lambda index: index.add(SOURCE, due("k", at=2**53)), Refused),
        (lambda index: index.take(SOURCE, 0, NOW), Refused),
        (lambda index: index.take(SOURCE, 501, NOW), Refused),
    ],
)
def test_python_refuses_bad_input_before_it_sends(
    valkey: RedisTarget, call: Callable[[DispatchIndex], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(index_of(valkey))

    assert list(valkey.client.scan_iter()) == []


# --- what every script keeps ---------------------------------------------------------------------------


@pytest.mark.req("dc-lua-files")
def test_python_gives_each_argument_in_the_place_that_the_contract_names() -> None:
    words = dispatch_index._add_args([DueIntent("a", 5), DueIntent("b", -6)], b"channel")

    assert dict(zip(get("dispatch_add").args, words, strict=True)) == {
        "most": 100_000, "ttl_ms": 86_400_000, "wakeup_channel": b"channel", "entries": "a\x1f5\x1fb\x1f0",
    }  # fmt: skip
    assert get("dispatch_take").args == ("count", "until_ms")
    assert get("dispatch_scan_hold").args == ("token", "hold_ms")
    assert get("dispatch_scan_free").args == ("token",)


@pytest.mark.req("dc-lua-keys")
def test_each_operation_is_one_call_of_few_commands_on_keys_of_its_own(real_redis: RedisTarget) -> None:
    index = index_of(real_redis)

    def each_operation() -> None:
        index.add(SOURCE, due("a", "b"))
        index.add(SOURCE, due("a"))
        index.take(SOURCE, 1, NOW)
        index.take(SOURCE, 5, NOW - 1)
        token = index.hold_scan(SOURCE, 60_000).token
        index.hold_scan(SOURCE, 60_000)
        assert token is not None
        index.free_scan(SOURCE, token)
        index.take(SOURCE, 5, NOW)

    each_operation()
    real_redis.client.config_resetstat()
    each_operation()

    stats = real_redis.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    assert calls.pop("evalsha") == 8
    calls = {name: calls[name] for name in calls if name not in ("info", "config|resetstat")}
    assert calls == {
        "zrange": 5, "zadd": 2, "zcard": 1, "pexpire": 2, "publish": 1, "zremrangebyrank": 2,
        "set": 2, "pttl": 1, "get": 1, "del": 1,
    }  # fmt: skip
    with real_redis.client.monitor() as monitor:
        each_operation()
        index._runner.command("PING")
        touched = set()
        while (entry := monitor.next_command())["command"].strip('"').upper() != "PING":
            words = entry["command"].replace('"', "").split()
            if entry["client_type"] == "lua" and words[0].upper() != "PUBLISH":
                touched.add(words[1])
    assert touched == {key(SOURCE).decode() for key in (real_redis.keys.dispatch, real_redis.keys.dispatch_scan)}


# --- wakeups -------------------------------------------------------------------------------------------


def test_only_an_id_that_becomes_due_earlier_than_all_others_is_published(real_redis: RedisTarget) -> None:
    index = index_of(real_redis)
    heard = real_redis.client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe(real_redis.keys.dispatch_channel)
    wait_until(lambda: real_redis.client.pubsub_numsub(real_redis.keys.dispatch_channel)[0][1], "the subscription")

    index.add(SOURCE, due("first", at=NOW + 100))
    index.add(SOURCE, due("later", at=NOW + 200))
    index.add(SOURCE, due("first", at=NOW + 300))
    index.add(SOURCE, due("silent", at=NOW + 50), wake=False)
    index.add(SOURCE, [*due("later2", at=NOW + 900), *due("earlier", at=NOW + 7)])
    real_redis.client.publish(real_redis.keys.dispatch_channel, "end")

    published = []
    while not published or published[-1] != b"end":
        published.append(wait_until(lambda: heard.get_message(timeout=1), "what was published")["data"])
    heard.close()
    assert published == [str(NOW + 100).encode(), str(NOW + 7).encode(), b"end"]


# --- the turn to scan ------------------------------------------------------------------------------------


@pytest.mark.req("dsp-scan-mutex")
def test_one_of_many_gets_the_turn_and_the_others_learn_when_to_ask_again(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    turns: list[ScanTurn] = []

    run_threads([threading.Thread(target=lambda: turns.append(index.hold_scan(SOURCE, 60_000))) for _ in range(12)])

    assert len([turn for turn in turns if turn.token is not None]) == 1
    assert all(0 < turn.free_in_ms <= 60_000 for turn in turns if turn.token is None)
    assert index.hold_scan("orders", 60_000).token is not None, "each source has a turn of its own"


@pytest.mark.req("dsp-scan-mutex")
def test_a_turn_ends_by_itself_and_by_its_own_holder_only(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    brief = index.hold_scan(SOURCE, 30)
    assert brief.token is not None
    second = wait_until(lambda: index.hold_scan(SOURCE, 60_000).token, "the turn is free again")

    assert index.free_scan(SOURCE, brief.token) is False, "the holder before has nothing to give back"
    assert index.hold_scan(SOURCE, 60_000).token is None
    assert index.free_scan(SOURCE, second) is True
    assert index.free_scan(SOURCE, second) is False
    assert index.hold_scan(SOURCE, 60_000).token is not None


def test_a_foreign_key_in_place_of_the_turn_stops_the_scan_for_one_period_only(redis_target: RedisTarget) -> None:
    index = index_of(redis_target)
    redis_target.client.rpush(redis_target.keys.dispatch_scan(SOURCE), "foreign")

    assert 0 < index.hold_scan(SOURCE, 200).free_in_ms <= 200
    wait_until(lambda: index.hold_scan(SOURCE, 60_000).token, "the turn is free after that")


@pytest.mark.req("dsp-scan-mutex-redis-down", "dsp-candidate-add")
def test_without_redis_announcing_is_no_error_and_the_rest_says_so(own_redis: RedisTarget) -> None:
    index = index_of(own_redis)
    assert index.announce(SOURCE, "k", NOW) is True
    assert own_redis.server is not None
    own_redis.server.kill()

    assert index.announce(SOURCE, "k2", NOW) is False
    for call in (lambda: index.take(SOURCE, 1, NOW), lambda: index.hold_scan(SOURCE, 9)):
        with pytest.raises(CoordinationUnavailable):
            call()
