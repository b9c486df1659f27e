"""A dispatcher dies, or an answer gets lost, at every call it makes: the next one goes on from the facts (T-06)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kernel.dispatch import INTENT_FIELD, OPEN, PENDING, PROCESSING, Snapshot
from kernel.errors import CoordinationUnavailable, OutcomeUnknown, StoreUnavailable
from kernel.states import INSTANCE_STATUSES
from kernel.store.conditional import Add, Equals, OneOf, Put, Transition
from tests.support.engine_runner import Killed
from tests.support.outbox_rig import JOBS, Desk, OutboxRig

SCAN_MS = 30_000
Spoil = Callable[[OutboxRig], None]


def fresh(rig: OutboxRig) -> None:
    """Accepted, and nothing more: the accepting process died before start_or_resume."""
    rig.accept(announce=True)


def started(rig: OutboxRig) -> None:
    """Accepted and registered: the accepting process died before it could confirm."""
    rig.accept(announce=True)
    register(rig)


def register(rig: OutboxRig) -> None:
    rig.client.start_or_resume(rig.definitions[0].plan, biz_key="job:k", input=Snapshot(rig.intent().input))


def next_round(rig: OutboxRig) -> None:
    """Failed in its first round, and its user's retry has written the second: the instance has failed, too."""
    started(rig)
    first = rig.intent().fencing_token
    rig.objects.confirm("k", first, None)
    rig.end_instance("failed")
    rig.fail_object("k", first)
    rig.retry("k", first)


def replayed(rig: OutboxRig) -> None:
    """The same, and the replay has been done by somebody who died before confirming."""
    next_round(rig)
    desk = rig.desk()
    desk.source.before = lambda name, args: desk.kill() if name == "confirm" else None
    rig.index.down = True
    desk.round()
    rig.index.down = False
    assert desk.dead and rig.intent().status == "processing"


STARTS = {"object": fresh, "instance": started, "round": next_round, "replay": replayed}
REPLAYS = {"object": 0, "instance": 0, "round": 1, "replay": 1}

CALLS = [
    ("source", name, when, fault)
    for name in ("read", "claim", "confirm", "due")
    for when in ("before", "after")
    for fault in (Killed(), StoreUnavailable("cut off") if when == "before" else OutcomeUnknown("answer lost"))
]
STORE_FAULTS = ["kill_before", "kill_after", "lose_request", "lose_reply", "unavailable", "undecidable"]


def hurt(desk: Desk, port: str, name: str, when: str, fault: BaseException) -> None:
    """The next call of that name meets the fault, and no other."""
    watched, left = getattr(desk, port), [True]

    def meet(called: str) -> None:
        if called == name and left:
            left.pop()
            raise fault

    if when == "before":
        watched.before = lambda called, args: meet(called)
    else:
        watched.after = lambda called, args, answer: meet(called)


def converge(rig: OutboxRig) -> None:
    """Living dispatchers, and one more, until leases, delays and turns have run out three times over."""
    rig.desk()
    for _ in range(3 * SCAN_MS // 1_000):
        rig.settle()
        rig.pass_time(1_000)


def check_done(rig: OutboxRig, start: str) -> None:
    intent, instance = rig.intent(), rig.instance()
    assert intent.status == "dispatched"
    assert instance is not None
    assert instance.input == intent.input
    assert (instance.status, instance.retry_count) == ("running", REPLAYS[start]), "one registration of this round"
    assert (intent.claim_token, intent.due_time) == (None, None)


@pytest.mark.req(
    "dsp-symmetric-failures", "dsp-crash-after-object", "dsp-crash-after-start", "dsp-crash-after-round-cas",
    "dsp-crash-holder",
)  # fmt: skip
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("port", "name", "when", "fault"), CALLS)
def test_a_dispatcher_that_meets_a_fault_at_its_source_is_followed_by_another(
    start: str, port: str, name: str, when: str, fault: BaseException
) -> None:
    rig = OutboxRig()
    STARTS[start](rig)
    desk = rig.desk()
    hurt(desk, port, name, when, fault)

    rig.settle(desk)
    converge(rig)

    check_done(rig, start)


@pytest.mark.req("dsp-crash-after-start", "sor-unique-race")
@pytest.mark.crash("14")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_a_dispatcher_that_meets_a_fault_while_registering_is_followed_by_another(start: str, fault: Any) -> None:
    rig = OutboxRig()
    STARTS[start](rig)
    desk = rig.desk()
    desk.store.fail_at(0, fault)

    rig.settle(desk)
    converge(rig)

    check_done(rig, start)


@pytest.mark.req("dsp-release", "dsp-pop-crash")
@pytest.mark.parametrize("name", ["take", "add", "hold_scan"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fault", [Killed(), CoordinationUnavailable("no answer")])
def test_a_dispatcher_that_meets_a_fault_at_redis_loses_time_and_no_object(
    name: str, when: str, fault: BaseException
) -> None:
    rig = OutboxRig()
    fresh(rig)
    desk = rig.desk()
    desk.store.fail_at(0, "unavailable")
    hurt(desk, "index", name, when, fault)

    rig.settle(desk)
    converge(rig)

    check_done(rig, "object")


@pytest.mark.req("dsp-release-fenced")
@pytest.mark.crash("16")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fault", [Killed(), OutcomeUnknown("answer lost")])
def test_a_release_that_is_lost_is_an_expired_lease_at_worst(when: str, fault: BaseException) -> None:
    rig = OutboxRig()
    fresh(rig)
    desk = rig.desk()
    desk.store.fail_at(0, "unavailable")
    hurt(desk, "source", "release", when, fault)

    rig.settle(desk)
    converge(rig)

    check_done(rig, "object")


@pytest.mark.req("dsp-crash-holder")
@pytest.mark.crash("13")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dispatcher_that_dies_in_a_renewal_is_followed_by_another(when: str) -> None:
    rig = OutboxRig()
    fresh(rig)
    desk = rig.desk()
    desk.store.fault_of = lambda write: rig.pass_time(2_000) if "create" in write.names else None  # type: ignore[func-returns-value]
    hurt(desk, "source", "renew", when, Killed())

    rig.settle(desk)
    desk.kill()
    converge(rig)

    check_done(rig, "object")


@pytest.mark.req("dsp-recover-from-facts")
@pytest.mark.crash("12")
def test_dying_while_doing_the_recovery_of_one_that_died_is_no_different() -> None:
    """Second order: each of five dispatchers dies at another call of the same object."""
    rig = OutboxRig()
    fresh(rig)
    for name, when in (("claim", "after"), ("confirm", "before"), ("read", "after"), ("claim", "before")):
        desk = rig.desk()
        hurt(desk, "source", name, when, Killed())
        for _ in range(2 * SCAN_MS // 1_000):
            rig.settle(desk)
            rig.pass_time(1_000)
        assert desk.dead

    converge(rig)

    check_done(rig, "object")


# --- from any reachable pair of facts -----------------------------------------------------------------

INSTANCES = ("none", "running", "waiting", "failing", "failed", "completed", "canceled", "parked")
INTENTS = ("pending", "delayed", "processing", "expired", "dispatched", "refused")


def arrange(rig: OutboxRig, intent: str, instance: str, rounds: int, registered: int) -> None:
    """An object in its `rounds`-th round, whose intent stands so, and an instance of the `registered`-th."""
    rig.accept()
    tokens = [rig.intent().fencing_token]
    for number in range(1, rounds + 1):
        if number == registered and instance != "none":
            register(rig)
        if number < rounds:
            rig.objects.confirm("k", tokens[-1], None)
            rig.fail_object("k", tokens[-1])
            tokens.append(rig.retry("k", tokens[-1]))
    token = tokens[-1]
    if intent in ("delayed", "processing", "expired"):
        assert rig.objects.claim("k", rig.intent(), "d0", 1 if intent == "expired" else 40_000)
        if intent == "delayed":
            rig.objects.release("k", token, "d0", 45_000, "before")
        rig.stop_time(2)
    elif intent == "dispatched":
        rig.objects.confirm("k", token, None)
    elif intent == "refused":
        rig.objects.refuse("k", token, None, "before")
    if instance == "parked":
        rig.set_instance(parked={"reason": "killed its workers", "since_time": 1})
    elif instance in ("waiting", "failing", "failed", "completed", "canceled"):
        (rig.end_instance if instance != "waiting" else lambda status: rig.set_instance(status=status))(instance)


def expected(intent: str, instance: str, rounds: int, registered: int) -> str:
    """Where the intent must come to rest while no worker moves the instance."""
    if intent in ("dispatched", "refused"):
        return intent
    if instance == "failing":
        return "pending"
    if instance == "none" or rounds == registered or instance == "failed":
        return "dispatched"
    return "refused" if instance in ("completed", "canceled") else "pending"


@pytest.mark.req("dsp-recover-from-facts")
@given(
    intent=st.sampled_from(INTENTS),
    instance=st.sampled_from(INSTANCES),
    rounds=st.integers(1, 3),
    before=st.integers(0, 2),
    redis=st.booleans(),
    dispatchers=st.integers(1, 3),
)
@settings(max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_from_every_reachable_pair_of_object_and_instance_the_dispatcher_reaches_a_legal_end(
    intent: str, instance: str, rounds: int, before: int, redis: bool, dispatchers: int
) -> None:
    rig = OutboxRig()
    registered = max(1, rounds - before)
    arrange(rig, intent, instance, rounds, registered)
    rig.index.down = not redis
    token, stood = rig.intent().fencing_token, rig.instance()
    for _ in range(dispatchers):
        rig.desk()

    for _ in range(4):
        rig.settle()
        rig.pass_time(SCAN_MS)

    found, now = rig.intent(), rig.instance()
    want = expected(intent, instance, rounds, registered)
    assert (found.status, found.fencing_token) == (want, token)
    if intent in ("dispatched", "refused") or want != "dispatched" or (instance != "none" and rounds == registered):
        assert now == stood, "nothing was written to the instance"
    else:
        assert now is not None and now.input == found.input
        assert now.retry_count == (0 if instance == "none" else 1)


def test_the_pairs_above_cover_every_branch() -> None:
    """So that a new status of either can not be forgotten in the property."""
    assert set(INSTANCE_STATUSES) <= set(INSTANCES)
    assert {PENDING, PROCESSING} == set(OPEN) <= set(INTENTS)


@pytest.mark.req("req-round-race", "dsp-confirm-miss-round")
def test_a_round_that_changes_while_it_is_dispatched_is_neither_confirmed_nor_touched() -> None:
    """Its lease went with the old intent: the new one is another's to dispatch."""
    rig = OutboxRig()
    first = rig.accept(announce=True)
    desk = rig.desk()

    def another_round(name: str, args: tuple[Any, ...]) -> None:
        if name == "confirm":
            force_round(rig, first)

    desk.source.before = another_round
    desk.round()

    assert (rig.intent().status, rig.intent().fencing_token) == ("pending", "f2")
    assert desk.source.of("confirm")[0][1] is False


def force_round(rig: OutboxRig, first: str) -> None:
    """The next round, as a program that does not wait for `failed` might write it."""
    move = Transition(
        "force",
        JOBS.place,
        "k",
        (Equals(f"{INTENT_FIELD}.fencing_token", first), OneOf(f"{INTENT_FIELD}.status", ("processing",))),
        (Put(f"{INTENT_FIELD}.fencing_token", "f2"), Put(f"{INTENT_FIELD}.status", "pending"),
         Add(f"{INTENT_FIELD}.tries", 0)),
    )  # fmt: skip
    rig.objects_store.apply(move)
