"""Limits of batch, round and slots, and the scan under its mutex: how much one dispatcher takes, and who scans."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.engine.threads import ThreadRunner
from kernel.errors import StoreUnavailable
from tests.support.engine_runner import Killed
from tests.support.outbox_rig import SOURCE, OutboxRig, objects_on

SCAN_MS = 30_000


def fill(rig: OutboxRig, count: int) -> None:
    for number in range(count):
        rig.accept(f"k{number:05}")


@pytest.mark.req("dsp-limits")
@pytest.mark.parametrize("redis", ["redis", "no redis"])
def test_a_round_that_is_no_multiple_of_the_batch_ends_with_a_smaller_one(redis: str) -> None:
    rig = OutboxRig()
    fill(rig, 100)
    rig.index.down = redis == "no redis"
    desk = rig.desk(dispatch_batch=20, dispatch_round=50)
    handled = []
    while desk.round() == 0:
        handled.append(len(desk.source.of("claim")) - sum(handled))

    assert [count for count in handled if count] == [50, 50]


@pytest.mark.req("dsp-limits")
@pytest.mark.parametrize("redis", ["redis", "no redis"])
def test_of_ten_thousand_pending_objects_a_round_handles_three_hundred_in_batches_of_hundred(redis: str) -> None:
    rig = OutboxRig()
    fill(rig, 10_000)
    rig.index.down = redis == "no redis"
    desk = rig.desk(scan_pages=8)
    handled, batches = [], []
    for _ in range(4):
        claims, takes = len(desk.source.of("claim")), len(desk.index.of("take"))
        assert desk.round() == 0, "the rest is wanted at once, in a round of its own"
        handled.append(len(desk.source.of("claim")) - claims)
        batches += [len(answer.object_ids) for _, answer in desk.index.of("take")[takes:]]

    assert handled == ([300] * 4 if rig.index.down else [0, 300, 300, 300])
    assert max(batches, default=0) <= 100
    assert all(len(page) <= 100 for _, page in desk.source.of("due"))


@pytest.mark.req("dsp-limits")
@pytest.mark.parametrize("redis", ["redis", "no redis"])
def test_rounds_go_on_until_all_of_two_thousand_are_dispatched_once_each(redis: str) -> None:
    rig = OutboxRig()
    fill(rig, 2_000)
    rig.index.down = redis == "no redis"
    desk = rig.desk(scan_pages=3)

    rig.settle(desk)

    assert rig.statuses() == {"dispatched": 2_000}
    assert Counter(args[0] for args, _ in desk.source.of("confirm")).most_common(1)[0][1] == 1


@pytest.mark.req("dsp-claim-one")
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_while_a_batch_of_hundred_is_registered_as_many_are_processing_as_there_are_slots(
    slots: int, kind: str, tmp_path: Path
) -> None:
    clock = SystemClock()
    rig = OutboxRig(objects_on(kind, tmp_path, clock), clock=clock, runner=ThreadRunner(clock))
    fill(rig, 100)
    desk = rig.desk(dispatch_slots=slots)
    lock, held, most = threading.Lock(), 0, 0

    def count(change: int) -> None:
        nonlocal held, most
        with lock:
            held += change
            most = max(most, held)

    # From before the claim leaves until the confirm is answered: at least as long as the row is processing.
    desk.source.before = lambda name, args: count(1) if name == "claim" else None
    desk.source.after = lambda name, args, answer: count(-1) if name == "confirm" else None
    rig.settle_live(desk)

    assert rig.statuses() == {"dispatched": 100}
    assert 1 <= most <= slots
    rig.objects_store.close()


@pytest.mark.req("dsp-pop-crash")
def test_hundred_candidates_that_were_taken_by_a_process_that_died_are_found_again() -> None:
    rig = OutboxRig()
    for number in range(100):
        rig.accept(f"k{number}", announce=True)
    first, second = rig.desk(), rig.desk()

    def die(name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "take":
            assert len(answer.object_ids) == 100
            raise Killed

    first.index.after = die
    first.round()

    assert first.dead
    assert rig.index.of().due == {}
    assert rig.statuses() == {"pending": 100}, "none is claimed by the dead process"
    rig.pass_time(SCAN_MS)
    rig.settle(second)
    assert rig.statuses() == {"dispatched": 100}


@pytest.mark.req("core-redis-loss-latency")
def test_a_wipe_costs_the_time_until_the_next_scan() -> None:
    rig = OutboxRig()
    desk = rig.desk()
    rig.settle(desk)
    for number in range(20):
        rig.accept(f"k{number}", announce=True)
    rig.index.wipe()

    rig.settle(desk)
    assert rig.statuses() == {"pending": 20}
    rig.pass_time(SCAN_MS)
    rig.settle(desk)

    assert rig.statuses() == {"dispatched": 20}


def test_rows_that_are_left_alone_hide_none_behind_them() -> None:
    """Three pages of live leases and delayed intents come first; the cursor passes them and wraps."""
    rig = OutboxRig()
    rig.index.down = True
    fill(rig, 30)
    for object_id in rig.object_ids():
        seen = rig.intent(object_id)
        assert rig.objects.claim(object_id, seen, "another", 10_000)
    rig.accept("behind")
    desk = rig.desk(dispatch_batch=10, dispatch_round=10)

    for _ in range(4):
        rig.settle(desk)
        rig.pass_time(1_000)
    assert rig.intent("behind").status == "dispatched"
    rig.pass_time(SCAN_MS + 10_000)
    rig.settle(desk)

    assert rig.statuses() == {"dispatched": 31}


# --- who scans --------------------------------------------------------------------------------------


def scans_of(rig: OutboxRig) -> int:
    return sum(desk.counters["scans"] for desk in rig.desks)


def pass_periods(rig: OutboxRig, periods: int) -> None:
    """Every dispatcher gets a round each half second, as its loop would at the latest."""
    for _ in range(periods * SCAN_MS // 500):
        rig.settle()
        rig.pass_time(500)


@pytest.mark.req("dsp-scan-mutex")
def test_three_dispatchers_scan_once_an_interval_together() -> None:
    rig = OutboxRig()
    for _ in range(3):
        rig.desk()

    pass_periods(rig, 6)

    assert 6 <= scans_of(rig) <= 7
    assert sum(len(desk.source.of("due")) for desk in rig.desks) == scans_of(rig), "one page each: it is empty"


@pytest.mark.req("dsp-scan-mutex")
@pytest.mark.crash("17")
def test_when_the_holder_of_the_turn_is_killed_another_scans_after_its_time() -> None:
    rig = OutboxRig()
    desks = [rig.desk() for _ in range(3)]
    first = desks[0]
    first.source.before = lambda name, args: first.kill() if name == "due" else None
    first.round()
    assert first.dead
    rig.accept()

    rig.settle()
    assert (scans_of(rig), rig.intent().status) == (1, "pending"), "the turn is the dead one's for its time"
    pass_periods(rig, 1)
    rig.pass_time(500)
    rig.settle()

    assert (scans_of(rig), rig.intent().status) == (2, "dispatched")


@pytest.mark.req("dsp-scan-mutex-redis-down", "layer-redis-rebuild")
def test_without_redis_for_good_everybody_scans_and_everything_is_dispatched_once() -> None:
    rig = OutboxRig()
    rig.index.down = True
    fill(rig, 50)
    for _ in range(3):
        rig.desk()

    pass_periods(rig, 2)
    fill_more = [rig.accept(f"later{n}") for n in range(10)]
    pass_periods(rig, 2)

    assert rig.statuses() == {"dispatched": 50 + len(fill_more)}
    assert 12 <= scans_of(rig) <= 15
    confirmed = Counter(args[0] for desk in rig.desks for args, hit in desk.source.of("confirm") if hit)
    assert set(confirmed.values()) == {1}


@pytest.mark.req("dsp-scan-mutex")
@pytest.mark.crash("17")
def test_two_scans_at_once_after_a_wipe_are_harmless() -> None:
    rig = OutboxRig()
    fill(rig, 10)
    first, second = rig.desk(), rig.desk()

    def wipe(name: str, args: tuple[Any, ...]) -> None:
        if name == "due" and second.counters["scans"] == 0:
            rig.index.wipe()
            second.round()

    first.source.before = wipe
    rig.settle(first, second)

    assert (first.counters["scans"], second.counters["scans"]) == (1, 1)
    assert rig.statuses() == {"dispatched": 10}
    assert first.counters["dispatched"] + second.counters["dispatched"] == 10


def test_a_scan_that_fails_gives_its_turn_to_another() -> None:
    rig = OutboxRig()
    rig.accept()
    broken, sound = rig.desk(), rig.desk()

    def fail(name: str, args: tuple[Any, ...]) -> None:
        if name == "due":
            raise StoreUnavailable("cut off")

    broken.source.before = fail
    assert broken.round() == 1_000
    rig.settle(sound)

    assert rig.intent().status == "dispatched"
    assert rig.index.of(SOURCE).held is not None
