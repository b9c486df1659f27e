"""Rows that end: one conditional removal, on every store (retention of signals rests on it)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel.errors import OutcomeUnknown
from kernel.store.conditional import (
    MISSED,
    REMOVED,
    AtLeast,
    AtMost,
    Differs,
    Due,
    Duplicate,
    Equals,
    Exists,
    Guard,
    Insert,
    Inserted,
    Missing,
    OneOf,
    Put,
    Remove,
    Transition,
)
from kernel.store.protocol import Query, Store
from kernel.store.tables import SIGNALS, Index, Table
from tests.support.lossy_store import LossyStore
from tests.support.stores import HOUR_MS, STORES

SEATS = Table(
    name="seats", key="seat_id", columns=("seat_id", "guest"), indexes=(Index("guest", ("guest",), unique=True),)
)


def stored(store: Store, key: str, **fields: object) -> str:
    """A row of the inbox that was matched an hour ago."""
    document = {"signal_id": key, "status": "matched", "generation": 4, "match_time": store.now_ms() - HOUR_MS}
    assert isinstance(store.insert(Insert("new", SIGNALS, key, document | fields)), Inserted)
    return key


def removal(key: str, *guards: Guard) -> Remove:
    return Remove("forget", SIGNALS, key, guards)


GUARDS: list[tuple[str, Callable[[int], Guard], Callable[[int], Guard]]] = [
    ("equals", lambda now: Equals("status", "matched"), lambda now: Equals("status", "pending")),
    ("differs", lambda now: Differs("status", "pending"), lambda now: Differs("status", "matched")),
    ("one of", lambda now: OneOf("status", ("a", "matched")), lambda now: OneOf("status", ("a", "b"))),
    ("at most", lambda now: AtMost("generation", 4), lambda now: AtMost("generation", 3)),
    ("at least", lambda now: AtLeast("generation", 4), lambda now: AtLeast("generation", 5)),
    ("exists", lambda now: Exists("status"), lambda now: Exists("pending_time")),
    ("missing", lambda now: Missing("pending_time"), lambda now: Missing("status")),
    ("due", lambda now: Due("match_time"), lambda now: Due("pending_time")),
    ("time", lambda now: AtMost("match_time", now), lambda now: AtMost("match_time", now - 2 * HOUR_MS)),
]


@pytest.mark.req("sig-retention")
@pytest.mark.parametrize(("right", "wrong"), [g[1:] for g in GUARDS], ids=[g[0] for g in GUARDS])
def test_a_row_goes_when_its_guards_hold_and_stays_when_one_does_not(
    right: Callable[[int], Guard], wrong: Callable[[int], Guard], store: Store
) -> None:
    key, now_ms = stored(store, "s"), store.now_ms()
    before = store.get(SIGNALS, key)

    assert store.remove(removal(key, right(now_ms), wrong(now_ms))) == MISSED
    assert store.get(SIGNALS, key) == before

    assert store.remove(removal(key, right(now_ms))) == REMOVED
    assert store.get(SIGNALS, key) is None
    assert store.scan(Query(SIGNALS, (), "match_time", ("signal_id",), 10)) == []


def test_a_removal_takes_no_other_row_and_misses_what_is_not_there(store: Store) -> None:
    one, other = stored(store, "one"), stored(store, "one$")

    assert store.remove(removal("nobody")) == MISSED
    assert store.remove(removal(one)) == REMOVED
    assert store.remove(removal(one)) == MISSED
    assert store.get(SIGNALS, other) is not None
    assert store.apply(Transition("late", SIGNALS, one, (), (Put("status", "x"),))) == MISSED


def test_each_of_many_removals_has_its_own_answer(store: Store) -> None:
    keys = [stored(store, f"s{n:03}", status="matched" if n % 3 else "pending") for n in range(300)]

    answers = store.remove_all([removal(key, Equals("status", "matched")) for key in [*keys, "nobody"]])

    assert answers == [REMOVED if n % 3 else MISSED for n in range(300)] + [MISSED]
    left = store.scan(Query(SIGNALS, (), "match_time", ("signal_id",), 1_000))
    assert len(left) == 100
    assert store.remove_all([]) == []


def test_a_removed_row_may_be_made_again_key_and_unique_column_alike(make_store: Callable[..., Store]) -> None:
    for kind in STORES:
        store = make_store(kind, {"seats": SEATS})
        row = {"seat_id": "1a", "guest": "ada"}
        assert isinstance(store.insert(Insert("sit", "seats", "1a", row)), Inserted)
        assert store.insert(Insert("sit", "seats", "2b", {"seat_id": "2b", "guest": "ada"})) == Duplicate("guest")

        assert store.remove(Remove("rise", "seats", "1a", ())) == REMOVED

        assert isinstance(store.insert(Insert("sit", "seats", "2b", {"seat_id": "2b", "guest": "ada"})), Inserted)
        assert isinstance(store.insert(Insert("sit", "seats", "1a", {"seat_id": "1a", "guest": "bob"})), Inserted)


@pytest.mark.case("A52")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_removal_whose_answer_was_lost_is_just_sent_again(lost: str, store: Store) -> None:
    key = stored(store, "s")
    lossy = LossyStore(store)
    getattr(lossy, f"lose_{lost}")()

    with pytest.raises(OutcomeUnknown):
        lossy.remove(removal(key))

    assert lossy.remove(removal(key)) == (MISSED if lost == "reply" else REMOVED)
    assert store.get(SIGNALS, key) is None


def test_of_many_that_remove_or_change_one_row_the_guards_decide(store: Store) -> None:
    """Twenty times: four want to remove it while it is matched, four to make it pending. One side wins, once."""
    with ThreadPoolExecutor(8) as pool:
        for n in range(20):
            key = stored(store, f"s{n}")
            barrier = threading.Barrier(8)

            def act(racer: int, key: str = key, barrier: threading.Barrier = barrier) -> bool:
                barrier.wait(30)
                if racer % 2:
                    return store.remove(removal(key, Equals("status", "matched"))) == REMOVED
                write = Transition("keep", SIGNALS, key, (Equals("status", "matched"),), (Put("status", "pending"),))
                return store.apply(write) != MISSED

            won = [racer for racer, hit in enumerate(pool.map(act, range(8))) if hit]

            assert len(won) == 1
            assert (store.get(SIGNALS, key) is None) == bool(won[0] % 2)
