"""The recovery of dispatch intents: what becomes of one accepted object, on the memory and the SQLite store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.codec import decode
from kernel.dispatch import DueIntent, Intent
from kernel.engine.threads import ThreadRunner
from kernel.errors import StoreUnavailable
from tests.support.outbox_rig import SOURCE, Desk, OutboxRig, objects_on
from tests.support.wait import stays, wait_until

LEASE_MS = 3_000
SCAN_MS = 30_000


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxRig]:
    clock = ManualClock()
    store = objects_on(request.param, tmp_path, clock)
    yield OutboxRig(store, clock=clock)
    store.close()


def slow(desk: Desk, ms: int) -> None:
    """From now on each registration of this dispatcher takes that long, while its timers run."""
    inner = desk.store.fault_of

    def take_time(write: Any) -> Any:
        if "create" in write.names:
            desk.rig.pass_time(ms)
        return inner(write)

    desk.store.fault_of = take_time


@pytest.mark.req("dsp-no-simultaneous", "dsp-crash-after-object", "req-dispatched-meaning", "dsp-confirm-holder")
def test_an_object_that_was_accepted_while_no_dispatcher_ran_is_dispatched_by_the_first_one(rig: OutboxRig) -> None:
    token = rig.accept()
    rig.pass_time(60_000)

    rig.settle(rig.desk())

    intent, instance = rig.intent(), rig.instance()
    assert (intent.status, intent.fencing_token) == ("dispatched", token)
    assert (intent.claim_token, intent.due_time) == (None, None), "the lease fields went with the confirm"
    assert instance is not None
    assert instance.status == "running", "dispatched says registered, and nothing more"


@pytest.mark.req("req-one-snapshot", "dsp-same-round-retry")
def test_the_stored_input_reaches_the_instance_byte_for_byte(rig: OutboxRig) -> None:
    rig.accept(input={"object_id": "k", "streaming": False, "n": 7})
    stored = rig.intent().input
    rig.objects.update("k", rig.intent().fencing_token, {"n": 8, "streaming": True})

    rig.settle(rig.desk())

    instance = rig.instance()
    assert instance is not None
    assert instance.input == stored


@pytest.mark.req("dsp-crash-after-confirm")
def test_a_dispatched_object_is_never_touched_again(rig: OutboxRig) -> None:
    rig.accept()
    rig.settle(rig.desk())
    before = rig.objects.get("k")

    other = rig.desk()
    rig.index.add(SOURCE, [due_now(rig)])
    for _ in range(3):
        rig.pass_time(SCAN_MS)
        rig.settle()

    assert rig.objects.get("k") == before
    assert other.source.of("claim") == []


def due_now(rig: OutboxRig, object_id: str = "k") -> Any:
    return DueIntent(object_id, rig.objects.now_ms())


# --- the lease --------------------------------------------------------------------------------------


@pytest.mark.req("dsp-lease-take")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_eight_dispatchers_that_race_for_one_object_one_wins(kind: str, tmp_path: Path) -> None:
    clock = SystemClock()
    store = objects_on(kind, tmp_path, clock)
    rig = OutboxRig(store, clock=clock, runner=ThreadRunner(clock))
    rig.index.down = True  # everybody scans, and everybody finds it
    rig.accept()
    desks = [rig.desk() for _ in range(8)]
    barrier = threading.Barrier(8)
    read = threading.Barrier(8)
    for desk in desks:
        desk.source.before = lambda name, args: read.wait(30) if name == "claim" else None  # type: ignore[misc]

    def work(desk: Desk) -> None:
        barrier.wait(30)
        desk.round()

    threads = [threading.Thread(target=work, args=(desk,)) for desk in desks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    winners = [desk for desk in desks if desk.source.of("claim")[0][1] is not None]
    assert len(winners) == 1
    assert [len(desk.source.of("confirm")) for desk in desks] == [int(desk is winners[0]) for desk in desks]
    held: Intent = winners[0].source.of("claim")[0][1]
    assert held.claim_token == winners[0].source.of("claim")[0][0][2], "the row bore the winner's token"
    assert rig.intent().status == "dispatched"
    store.close()


@pytest.mark.req("dsp-lease-renew", "dsp-lease-respect", "dsp-shape")
def test_a_registration_of_five_leases_keeps_its_lease_and_nobody_else_comes(rig: OutboxRig) -> None:
    rig.accept()
    first, second = rig.desk(), rig.desk()
    seen: list[Intent] = []

    def watch(write: Any) -> None:
        if "create" not in write.names:
            return
        for _ in range(5 * LEASE_MS // 500):
            rig.pass_time(500)
            seen.append(rig.intent())
            rig.settle(second)

    first.store.fault_of = watch  # type: ignore[assignment]
    rig.settle(first)

    assert {intent.status for intent in seen} == {"processing"}
    assert len({intent.claim_token for intent in seen}) == 1
    ends = [intent.due_time or 0 for intent in seen]
    assert ends == sorted(ends)
    assert ends[-1] - ends[0] >= 4 * LEASE_MS, "the end of the lease kept moving"
    assert second.source.of("claim") == []
    assert second.store.writes == []
    assert rig.intent().status == "dispatched"


@pytest.mark.req("dsp-takeover", "dsp-cancel-ctx", "dsp-release-fenced", "dsp-crash-holder")
def test_a_dispatcher_that_was_stopped_past_its_lease_changes_nothing_when_it_comes_back(rig: OutboxRig) -> None:
    token = rig.accept(announce=True)
    first, second = rig.desk(), rig.desk()
    tokens: list[str | None] = []

    def stopped(write: Any) -> None:
        if "create" in write.names:
            tokens.append(rig.intent().claim_token)
            rig.stop_time(LEASE_MS + SCAN_MS + 1)
            second.source.after = lambda name, args, answer: (
                tokens.append(rig.intent().claim_token) if name == "claim" else None
            )
            rig.settle(second)
            assert rig.intent().status == "dispatched"

    first.store.fault_of = stopped  # type: ignore[assignment]
    first.round()
    rig.runner.run_all()
    after = rig.objects.get("k")

    d1, d2 = tokens
    assert d1 and d2 and d1 != d2
    assert first.counters["lost"] == 1
    assert first.source.of("confirm") == first.source.of("release") == []
    assert first.source.confirm("k", token, d1) is False
    assert first.source.release("k", token, d1, 5, "late") is None
    assert first.source.renew("k", token, d1, LEASE_MS) is False
    assert rig.objects.get("k") == after
    instance = rig.instance()
    assert instance is not None
    assert instance.retry_count == 0


@pytest.mark.req("dsp-cancel-ctx")
def test_a_registration_whose_lease_was_taken_sees_it_before_its_next_write(rig: OutboxRig) -> None:
    """Nor is anything written after the fence, although no other has come yet."""
    rig.accept(announce=True)
    first, second = rig.desk(), rig.desk()

    def taken(name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "claim":
            rig.stop_time(LEASE_MS - LEASE_MS // 6)  # the fence: the lease itself is not over yet

    first.source.after = taken
    first.round()

    assert first.store.writes == [], "not even the first write was sent"
    assert (first.counters["lost"], rig.intent().status) == (1, "processing")
    rig.pass_time(LEASE_MS + SCAN_MS)
    rig.settle(second)
    assert rig.intent().status == "dispatched"


@pytest.mark.req("dsp-lease-renew")
def test_a_renewal_that_fails_is_tried_again_within_the_lease(rig: OutboxRig) -> None:
    rig.accept()
    desk = rig.desk()
    slow(desk, 4 * LEASE_MS)
    failures = iter([True, False] * 50)

    def sometimes(name: str, args: tuple[Any, ...]) -> None:
        if name == "renew" and next(failures):
            raise StoreUnavailable("renewals fail")

    desk.source.before = sometimes
    rig.settle(desk)

    assert rig.intent().status == "dispatched"
    assert desk.counters["lost"] == 0


def test_a_holder_whose_renewals_all_fail_confirms_nothing(rig: OutboxRig) -> None:
    rig.accept(announce=True)
    desk = rig.desk()
    slow(desk, LEASE_MS)

    def never(name: str, args: tuple[Any, ...]) -> None:
        if name == "renew":
            raise StoreUnavailable("renewals fail")

    desk.source.before = never
    desk.round()

    assert (desk.counters["lost"], desk.source.of("confirm")) == (1, [])
    rig.pass_time(LEASE_MS + SCAN_MS)
    rig.settle(rig.desk())
    assert rig.intent().status == "dispatched", "registered by the first, confirmed by the second"


def test_a_lease_that_was_fenced_is_not_renewed_although_nobody_has_taken_it(rig: OutboxRig) -> None:
    rig.accept(announce=True)
    desk = rig.desk()

    def stopped(write: Any) -> None:
        if "create" in write.names:
            rig.stop_time(LEASE_MS - LEASE_MS // 6)
            rig.pass_time(100)

    desk.store.fault_of = stopped  # type: ignore[assignment]
    desk.round()

    assert desk.source.of("renew") == desk.source.of("confirm") == []
    assert (desk.counters["lost"], rig.intent().status) == (1, "processing")


# --- a try that fails -------------------------------------------------------------------------------


@pytest.mark.req("dsp-release", "dsp-same-round-retry", "dsp-due-only", "dsp-redis-identity-only", "req-two-failures")
def test_three_failed_tries_keep_the_round_and_the_input_and_come_back_later_each_time(rig: OutboxRig) -> None:
    token = rig.accept()
    stored = rig.intent().input
    desk = rig.desk()
    inputs: list[bytes] = []
    insert = desk.store.insert

    def failing(asked: Any) -> Any:
        inputs.append(asked.document["input"])
        if len(inputs) <= 3:
            raise StoreUnavailable("asked to fail")
        return insert(asked)

    desk.store.insert = failing  # type: ignore[method-assign]
    delays = []
    for tries in (1, 2, 3):
        rig.settle(desk)
        intent = rig.intent()
        assert (intent.status, intent.fencing_token, intent.tries) == ("pending", token, tries)
        assert intent.claim_token is None
        assert intent.error is not None and "asked to fail" in intent.error
        assert rig.index.of().due == {"k": intent.due_time}, "the candidate has the due time of the row"
        delays.append((intent.due_time or 0) - rig.objects.now_ms())
        rig.pass_time(delays[-1] - 1)
        rig.settle(desk)
        assert len(inputs) == tries, "not before its time"
        rig.pass_time(1)
    rig.settle(desk)

    assert delays[0] < delays[1] < delays[2]
    assert [800 <= delays[0] <= 1_000, delays[2] <= 4_000] == [True, True]
    assert inputs == [stored] * 4
    assert (rig.intent().status, rig.intent().fencing_token) == ("dispatched", token)


def test_the_delay_grows_up_to_its_limit(rig: OutboxRig) -> None:
    rig.accept()
    desk = rig.desk(dispatch_delay_max_ms=5_000)
    desk.store.fault_of = lambda write: "unavailable" if "create" in write.names else None
    for _ in range(12):
        rig.settle(desk)
        rig.pass_time(max(0, (rig.intent().due_time or 0) - rig.objects.now_ms()))

    rig.settle(desk)

    assert rig.intent().tries == 13
    assert 4_000 <= (rig.intent().due_time or 0) - rig.objects.now_ms() <= 5_000


@pytest.mark.req("dsp-redis-first")
def test_the_next_round_is_wanted_when_the_next_intent_is_due(rig: OutboxRig) -> None:
    rig.accept()
    desk = rig.desk()
    desk.store.fault_of = lambda write: "unavailable" if "create" in write.names else None

    rig.settle(desk)
    wait_ms = desk.round()

    left_ms = (rig.intent().due_time or 0) - rig.objects.now_ms()
    assert left_ms < wait_ms <= left_ms + 1


@pytest.mark.req("dsp-redis-first", "dsp-candidate-add")
def test_an_announced_object_is_picked_long_before_the_next_scan(rig: OutboxRig) -> None:
    desk = rig.desk()
    rig.settle(desk)
    scans = desk.counters["scans"]
    rig.accept(announce=True)

    desk.round()

    assert rig.intent().status == "dispatched"
    assert desk.counters["scans"] == scans
    assert desk.source.of("due") != [] and desk.round() > 0


@pytest.mark.req("dsp-candidate-add")
def test_without_its_candidate_an_object_only_waits_for_the_scan(rig: OutboxRig) -> None:
    desk = rig.desk()
    rig.settle(desk)
    rig.accept()

    rig.settle(desk)
    assert rig.intent().status == "pending"
    rig.pass_time(SCAN_MS)
    rig.settle(desk)

    assert rig.intent().status == "dispatched"


def test_hints_to_what_is_not_there_cost_one_look_each(rig: OutboxRig) -> None:
    desk = rig.desk()
    rig.index.add(SOURCE, [due_now(rig, "gone"), due_now(rig, "gone too")])

    rig.settle(desk)

    assert rig.index.of().due == {}
    assert [args for args, _ in desk.source.of("read")] == [("gone",), ("gone too",)]
    assert desk.source.of("claim") == []


@pytest.mark.req("dsp-due-only")
def test_a_hint_that_comes_too_early_costs_one_look_and_gets_the_true_time(rig: OutboxRig) -> None:
    rig.accept()
    token = rig.intent().fencing_token
    assert rig.objects.claim("k", rig.intent(), "d0", LEASE_MS)
    due_ms = rig.objects.release("k", token, "d0", 5_000, "before")
    assert due_ms is not None
    desk = rig.desk()
    rig.settle(desk)
    rig.index.add(SOURCE, [due_now(rig)])

    rig.settle(desk)

    assert rig.index.of().due == {"k": due_ms}
    assert desk.source.of("claim") == []


def test_an_object_that_never_can_be_claimed_is_looked_at_ever_more_seldom(rig: OutboxRig) -> None:
    """A claim that misses leaves a hint for later; it must not become a loop."""
    rig.accept(announce=True)
    desk = rig.desk(dispatch_scan_ms=3_600_000)
    real = rig.objects.claim
    rig.objects.claim = lambda *args: None  # type: ignore[method-assign,assignment,return-value]
    for _ in range(40):
        rig.settle(desk)
        rig.pass_time(1_000)
    assert 5 <= len(desk.source.of("claim")) <= 8, "after 1, 2, 4, 8, 16 … seconds"

    rig.objects.claim = real  # type: ignore[method-assign]
    rig.pass_time(60_000)
    rig.settle(desk)
    assert rig.intent().status == "dispatched"


def test_a_drain_gives_back_what_was_only_taken_from_redis(rig: OutboxRig) -> None:
    for number in range(5):
        rig.accept(f"k{number}", announce=True)
    desk = rig.desk()
    desk.source.after = lambda name, args, answer: desk.outbox.stop.set() if name == "confirm" else None

    desk.round()

    assert rig.statuses() == {"dispatched": 1, "pending": 4}
    assert set(rig.index.of().due) == {"k1", "k2", "k3", "k4"}


def test_a_source_that_is_away_is_asked_again_after_a_second_and_another_goes_on(rig: OutboxRig) -> None:
    rig.accept()

    class Away:
        name = "away"

        def now_ms(self) -> int:
            return rig.objects.now_ms()

        def due(self, **_options: Any) -> Any:
            raise StoreUnavailable("the other database is down")

    desk = rig.desk(Away(), rig.objects)  # type: ignore[arg-type]

    assert desk.round() == 0
    assert desk.round() == 1_000
    assert desk.outbox.away == ["away"]
    assert rig.intent().status == "dispatched"


@pytest.mark.req("dsp-lease-take")
def test_a_live_dispatcher_wakes_for_an_announced_object_and_ends_when_told(tmp_path: Path) -> None:
    clock = SystemClock()
    rig = OutboxRig(objects_on("sqlite", tmp_path, clock), clock=clock, runner=ThreadRunner(clock))
    desk = rig.desk(poll_ms=3_600_000, dispatch_scan_ms=3_600_000, dispatch_slots=4)
    loop = desk.loop()
    rig.index.listeners.append(loop.wake)
    loop.start()
    wait_until(lambda: desk.counters["scans"] == 1, "the first scan")

    for number in range(20):
        rig.accept(f"k{number}", announce=True)

    wait_until(lambda: rig.statuses() == {"dispatched": 20}, "all are dispatched although the next poll is in an hour")
    # A row says so a moment before its dispatcher has counted it.
    counted: Any = lambda: [loop.status()["counters"][name] for name in ("intents_dispatched", "commits")]  # noqa: E731
    wait_until(lambda: counted() == [20, 20], "the last one is counted")
    status: Any = loop.status()
    assert status["loops"].keys() == {"sweeps", "outbox.jobs"}
    takes = len(desk.index.of("take"))
    stays(lambda: len(desk.index.of("take")) <= takes + 2, "it sleeps when there is nothing to do", 0.5)
    loop.drain()
    assert loop.done.wait(20)
    assert counted() == [20, 20]
    decoded = decode(rig.intent("k3").input, dict[str, Any], "input")
    assert decoded["fencing_token"] == rig.intent("k3").fencing_token
    rig.objects_store.close()
