"""Who may take an instance, when, and for how long, on every store (requirement group 10)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel import transitions as make
from kernel.clock import ManualClock
from kernel.records import Document
from kernel.states import TERMINAL
from kernel.store.conditional import MISSED, Applied, Put, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from tests.conformance.instances import KEY, TOKEN, claimed, instance_document, put, read, row, step_document
from tests.conformance.transition_table import LEASE_MS
from tests.support.stores import HOUR_MS

SLACK_MS = 10_000
"""MongoDB reads its own clock, which is this machine's within this much."""


def taken(function: Callable[..., Transition] = make.claim, token: str = "new-token", **more: Any) -> Transition:
    held = Held("wf", token)
    more = {"definition_keys": ("other@key", KEY), **more}
    return function(held, worker_id="w", worker="host:2", lease_ms=LEASE_MS, commit_id=f"by-{token}", **more)


TAKE_OVER: dict[str, Any] = {"function": make.take_over, "dead_token": TOKEN, "alone": True}
HAND_OVER: dict[str, Any] = {"function": make.claim_handed_over, "resource": "printer"}
CLAIMS: dict[str, dict[str, Any]] = {
    "claim": {"function": make.claim},
    "claim_alone": {"function": make.claim_alone},
    "take_over": TAKE_OVER,
    "claim_handed_over": HAND_OVER,
}


def candidate(store: Store, kind: str, **fields: Any) -> Document:
    """A row that `kind` would take, but for what `fields` say."""
    if kind == "take_over":
        fields = {**claimed(), **fields}
    if kind == "claim_handed_over":
        fields = {"permit_wait": {"resource": "printer", "step": "step_0", "since_time": 1}, **fields}
    return put(store, instance_document("wf", store.now_ms(), **fields))


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_candidate_is_taken(kind: str, store: Store) -> None:
    """The counterpart of all refusals below."""
    candidate(store, kind)

    assert isinstance(store.apply(taken(**CLAIMS[kind])), Applied)


@pytest.mark.req("clm-not-waiting")
@pytest.mark.parametrize("status", ["waiting", *TERMINAL])
@pytest.mark.parametrize("kind", CLAIMS)
def test_a_waiting_or_ended_instance_is_never_claimed(kind: str, status: str, store: Store) -> None:
    before = candidate(store, kind, status=status)

    assert store.apply(taken(**CLAIMS[kind])) == MISSED
    assert row(store, "wf") == before


@pytest.mark.req("clm-failing-claimable")
@pytest.mark.parametrize("kind", ["claim", "claim_alone", "take_over"])
def test_a_failing_instance_is_claimed_to_complete_its_failure(kind: str, store: Store) -> None:
    candidate(store, kind, status="failing")

    answer = store.apply(taken(**CLAIMS[kind]))

    assert isinstance(answer, Applied)
    assert answer.document["status"] == "failing"


@pytest.mark.req("clm-not-before")
@pytest.mark.parametrize("kind", ["claim", "claim_alone", "take_over"])
def test_nothing_is_claimed_before_its_time_even_with_an_empty_token(kind: str, store: Store) -> None:
    before = candidate(store, kind, claimable_time=store.now_ms() + HOUR_MS)

    assert store.apply(taken(**CLAIMS[kind])) == MISSED
    assert row(store, "wf") == before


@pytest.mark.req("clm-not-before")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_instance_is_claimable_from_the_very_millisecond(
    kind: str, make_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = make_store(kind)
    put(store, instance_document("wf", store.now_ms(), claimable_time=store.now_ms() + 500))

    clock.advance(499)
    assert store.apply(taken()) == MISSED

    clock.advance(1)
    assert isinstance(store.apply(taken()), Applied)


@pytest.mark.req("flt-lease-race", "clm-crash-lease")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_eight_that_wait_for_the_end_of_a_lease_none_wins_before_and_one_at_its_very_millisecond(
    kind: str, make_store: Callable[..., Store], clock: ManualClock
) -> None:
    """The holder's own renewal at that moment misses, or every racer does: never both hit."""
    store = make_store(kind)
    ends_ms = store.now_ms() + LEASE_MS
    for number in range(20):
        put(store, instance_document(f"wf-{number}", ends_ms, **{**claimed(), "claimable_time": ends_ms}))
    names = [f"racer-{number}" for number in range(8)]

    def race(key: str) -> list[str]:
        gate = threading.Barrier(len(names) + 1)

        def take(name: str) -> bool:
            over = make.take_over(
                Held(key, name), dead_token=TOKEN, worker_id=name, worker="h", lease_ms=LEASE_MS, alone=True,
                definition_keys=(KEY,), commit_id=name,
            )  # fmt: skip
            gate.wait()
            return isinstance(store.apply(over), Applied)

        def renew() -> bool:
            gate.wait()
            return isinstance(store.apply(make.renew(Held(key, TOKEN), LEASE_MS)), Applied)

        with ThreadPoolExecutor(len(names) + 1) as pool:
            kept = pool.submit(renew)
            won = [name for name, hit in zip(names, pool.map(take, names), strict=True) if hit]
        return [*won, *(["the holder"] if kept.result() else [])]

    clock.advance(LEASE_MS - 1)
    assert {tuple(race(f"wf-{number}")) for number in range(10)} == {("the holder",)}

    clock.advance(1)
    for number in range(10, 20):
        assert len(race(f"wf-{number}")) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"parked": {"reason": "poison", "since_time": 1}},
        {"definition_key": "sample@another"},
        {"without": ("claimable_time",)},
        {"claimable_time": "0"},
    ],
    ids=["parked", "another version", "nothing timed", "malformed time"],
)
@pytest.mark.parametrize("kind", ["claim", "claim_alone", "take_over"])
def test_a_row_that_is_put_aside_of_another_version_or_without_a_time_is_not_claimed(
    kind: str, fields: dict[str, Any], store: Store
) -> None:
    before = candidate(store, kind, **fields)

    assert store.apply(taken(**CLAIMS[kind])) == MISSED
    assert row(store, "wf") == before


@pytest.mark.case("A08")
@pytest.mark.parametrize("kind", ["claim", "claim_alone", "claim_handed_over"])
def test_a_due_row_that_bears_a_token_is_taken_over_and_not_claimed(kind: str, store: Store) -> None:
    """So that a death is always counted; and of two that saw the same dead token one wins."""
    candidate(store, kind, **claimed())
    assert store.apply(taken(**CLAIMS[kind])) == MISSED

    assert isinstance(store.apply(taken(token="first", **TAKE_OVER)), Applied)
    assert store.apply(taken(token="second", **TAKE_OVER)) == MISSED
    assert (read(store, "wf").deaths, read(store, "wf").claim_token) == (1, "first")


@pytest.mark.parametrize(
    ("kind", "deaths", "expected"),
    [("claim", 1, True), ("claim", 2, False), ("claim_alone", 2, True), ("claim_handed_over", 2, False)],
)
def test_a_suspect_runs_alone(kind: str, deaths: int, expected: bool, store: Store) -> None:
    candidate(store, kind, deaths=deaths)

    assert isinstance(store.apply(taken(**CLAIMS[kind])), Applied) is expected


@pytest.mark.req("clm-atomic")
def test_a_claim_is_for_one_lease_from_the_stores_now(store: Store) -> None:
    candidate(store, "claim")

    now_ms = store.now_ms()
    answer = store.apply(taken())

    assert isinstance(answer, Applied)
    after = read(store, "wf")
    assert after.claimable_time is not None
    assert after.claim_time is not None
    assert (after.claim_token, after.worker_id, after.worker) == ("new-token", "w", "host:2")
    assert after.claimable_time - after.claim_time == LEASE_MS
    assert abs(after.claim_time - now_ms) <= SLACK_MS
    assert store.apply(taken(token="loser")) == MISSED


@pytest.mark.req("clm-renew-cond", "rec-claim-not-revision")
def test_a_renewal_starts_the_lease_anew_for_the_current_token_only(store: Store) -> None:
    put(store, instance_document("wf", store.now_ms(), **claimed(), claimable_time=store.now_ms() + 5))

    now_ms = store.now_ms()
    assert store.apply(make.renew(Held("wf", "another"), LEASE_MS)) == MISSED
    for _ in range(10):
        assert isinstance(store.apply(make.renew(Held("wf", TOKEN), LEASE_MS)), Applied)

    after = read(store, "wf")
    assert after.claimable_time is not None
    assert abs(after.claimable_time - now_ms - LEASE_MS) <= SLACK_MS
    assert (after.revision, after.commit_ids) == (7, ("commit-0",))


@pytest.mark.req("clm-complete-cond", "cmp-status-guard")
@pytest.mark.parametrize("status", ["waiting", "failing", *TERMINAL])
def test_a_step_completes_only_in_a_running_instance_and_only_for_the_token(status: str, store: Store) -> None:
    fields = {**claimed(), "steps": [step_document(0, "running", attempt=1), step_document(1)]}
    seen = put(store, instance_document("wf", store.now_ms(), **fields))
    instance = read(store, "wf")

    def complete(token: str) -> object:
        held = Held("wf", token)
        return store.apply(
            make.complete_step(held, instance, 0, output=b"o", elapsed_ms=1, worker_id="w", commit_id="c")
        )

    assert complete("an earlier token") == MISSED
    assert row(store, "wf") == seen
    store.apply(Transition("set", INSTANCES, "wf", (), (Put("status", status),)))
    held_up = row(store, "wf")
    assert complete(TOKEN) == MISSED
    assert row(store, "wf") == held_up


@pytest.mark.req("clm-release-clears")
def test_after_a_release_nothing_of_the_claim_is_left_and_the_next_worker_takes_it(store: Store) -> None:
    put(store, instance_document("wf", store.now_ms(), **claimed()))
    rest = make.Rest(status="running", now=True)

    store.apply(make.release(Held("wf", TOKEN), status="running", rest=rest, commit_id="c"))

    assert not row(store, "wf").keys() & {"claim_token", "claim_time", "worker_id", "worker"}
    assert isinstance(store.apply(taken()), Applied)


@pytest.mark.case("A09")
@pytest.mark.req("clm-late-worker")
def test_the_proved_death_of_an_old_owner_does_not_touch_the_claim_of_the_next(store: Store) -> None:
    """The clean-up of one dead worker may run twice, and late."""
    put(store, instance_document("wf", store.now_ms(), **claimed()))
    dead = make.release_dead(
        Held("wf", TOKEN), worker_id="worker-of-the-holder", counted=True, deaths_max=3, commit_id="c"
    )

    assert isinstance(store.apply(dead), Applied)
    assert isinstance(store.apply(taken()), Applied)
    before = row(store, "wf")

    assert store.apply(dead) == MISSED
    assert row(store, "wf") == before
