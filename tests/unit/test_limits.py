"""kernel.limits: which limits hold, where they come from, and how soon a change binds."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.clock import ManualClock
from kernel.config import Limit
from kernel.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidId,
    InvalidName,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    UnknownVersion,
)
from kernel.limits import CACHE_MS, Limits, change_limit, list_limits, read_limit
from kernel.records import Document
from kernel.store.conditional import Insert, Transition
from kernel.store.memory import MemoryStore
from kernel.store.tables import LIMITS

DECLARED = Limit(max_concurrency=8, max_starts_per_second=2)


class CountedStore(MemoryStore):
    """A memory store that counts reads, and fails as told."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reads = 0
        self.away = False
        self.lost_answers = 0

    def get(self, table: str, key: str) -> Document | None:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("the store is away")
        return super().get(table, key)

    def apply(self, transition: Transition) -> Any:
        answer = super().apply(transition)
        if self.lost_answers:
            self.lost_answers -= 1
            raise OutcomeUnknown("the answer was lost")
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> CountedStore:
    return CountedStore(clock)


@pytest.fixture
def limits(store: CountedStore, clock: ManualClock) -> Limits:
    return Limits(store, clock, {"printer": DECLARED, "tenant_work": Limit(max_concurrency=2)})


def test_what_the_application_declares_holds_until_an_operator_says_otherwise(
    store: CountedStore, limits: Limits
) -> None:
    assert limits.of("printer") == DECLARED

    change_limit(store, "scanner", max_concurrency=1)
    assert limits.of("printer") == DECLARED


@pytest.mark.req("prm-config-each")
def test_an_operators_row_wins_field_by_field(store: CountedStore, limits: Limits) -> None:
    change_limit(store, "printer", max_concurrency=1)
    assert limits.of("printer") == Limit(max_concurrency=1, max_starts_per_second=2)

    change_limit(store, "printer", max_starts_per_second=0)
    change_limit(store, "printer", paused=True)

    record = read_limit(store, "printer")
    assert record is not None
    assert (record.max_concurrency, record.max_starts_per_second, record.paused) == (1, 0, True)
    assert record.revision == 3


def test_settings_win_over_the_application_and_rows_over_both(store: CountedStore, clock: ManualClock) -> None:
    limits = Limits(store, clock, {"printer": DECLARED}, {"printer": Limit(max_concurrency=3)})
    assert limits.of("printer") == Limit(max_concurrency=3)

    change_limit(store, "printer", max_concurrency=4)
    clock.advance(CACHE_MS)
    assert limits.of("printer") == Limit(max_concurrency=4)


@pytest.mark.req("prm-tenant")
def test_one_of_many_alike_has_the_limits_of_its_kind_and_its_own_over_them(
    store: CountedStore, clock: ManualClock, limits: Limits
) -> None:
    assert limits.of("tenant_work:acme") == Limit(max_concurrency=2)

    change_limit(store, "tenant_work:acme", max_concurrency=5)
    change_limit(store, "tenant_work", paused=True)
    clock.advance(CACHE_MS)

    assert limits.of("tenant_work:acme") == Limit(max_concurrency=5, paused=True)
    assert limits.of("tenant_work:other") == Limit(max_concurrency=2, paused=True)


def test_a_resource_that_nobody_declares_is_unlimited_and_known_to_be_so(limits: Limits) -> None:
    assert limits.of("unheard_of") == Limit()
    assert not limits.declares("unheard_of")
    assert limits.declares("printer")
    assert limits.declares("tenant_work:acme")


@pytest.mark.req("prm-config-each")
def test_a_change_binds_within_one_second_and_until_then_nothing_is_read(
    store: CountedStore, clock: ManualClock, limits: Limits
) -> None:
    limits.of("printer")
    change_limit(store, "printer", max_concurrency=1)
    reads = store.reads

    clock.advance(CACHE_MS - 1)
    assert limits.of("printer") == DECLARED
    assert store.reads == reads
    clock.advance(1)
    assert limits.of("printer").max_concurrency == 1
    assert store.reads == reads + 1


@pytest.mark.req("prm-config-each")
def test_the_cache_can_not_be_told_to_be_older_than_a_second(store: CountedStore, clock: ManualClock) -> None:
    limits = Limits(store, clock, {}, cache_ms=60_000)
    limits.of("printer")
    change_limit(store, "printer", max_concurrency=1)

    clock.advance(CACHE_MS)

    assert limits.of("printer").max_concurrency == 1


@pytest.mark.req("prm-fail-closed")
def test_a_limit_that_is_not_known_is_never_taken_for_none(
    store: CountedStore, clock: ManualClock, limits: Limits
) -> None:
    limits.of("printer")
    store.away = True

    assert limits.of("printer") == DECLARED, "for a second it is known"
    clock.advance(CACHE_MS)
    for resource in ("printer", "unheard_of"):
        with pytest.raises(StoreUnavailable):
            limits.of(resource)


@pytest.mark.parametrize("value", [-1, 1.5, 1_000_001, "4", True, float("nan")])
@pytest.mark.parametrize("field", ["max_concurrency", "max_starts_per_second"])
def test_a_limit_that_is_no_count_is_refused_before_any_write(store: CountedStore, field: str, value: Any) -> None:
    with pytest.raises(Refused, match=f"{field}: a whole number from 0"):
        change_limit(store, "printer", **{field: value})

    assert list_limits(store) == []


@pytest.mark.parametrize("limit", [Limit(max_concurrency=-1), Limit(max_starts_per_second=1.5)])  # type: ignore[arg-type]
def test_a_declared_limit_that_is_none_is_refused_at_start(
    store: CountedStore, clock: ManualClock, limit: Limit
) -> None:
    with pytest.raises(InvalidConfig, match="limits: printer: max_"):
        Limits(store, clock, {"printer": limit})


@pytest.mark.parametrize("resource", ["", "Printer", "a.b", "a b", "a:", "a:\n", "a" * 65])
def test_a_resource_outside_the_rules_is_refused_before_any_write(store: CountedStore, resource: str) -> None:
    with pytest.raises((InvalidName, InvalidId)):
        change_limit(store, resource, max_concurrency=1)

    assert list_limits(store) == []


def test_a_row_of_another_layout_is_refused_and_left_alone(store: CountedStore, limits: Limits) -> None:
    store.insert(Insert("foreign", LIMITS, "printer", {"v": 2, "resource": "printer", "revision": 1}))

    with pytest.raises(UnknownVersion, match="printer"):
        limits.of("printer")
    with pytest.raises(UnknownVersion, match="printer"):
        change_limit(store, "printer", max_concurrency=1)


@pytest.mark.parametrize("bad", [{"max_concurrency": -4}, {"max_concurrency": "x"}, {"paused": 3}, {"declared": 1}])
def test_a_row_that_does_not_decode_is_reported_and_opens_nothing(
    store: CountedStore, limits: Limits, bad: dict[str, Any]
) -> None:
    store.insert(Insert("foreign", LIMITS, "printer", {"v": 1, "resource": "printer", "revision": 1, **bad}))

    with pytest.raises(CorruptRecord, match="printer"):
        limits.of("printer")


def test_a_change_whose_answer_was_lost_is_made_again(store: CountedStore) -> None:
    change_limit(store, "printer", max_concurrency=3)
    store.lost_answers = 1

    record = change_limit(store, "printer", max_concurrency=4)

    assert record.max_concurrency == 4
    store.lost_answers = 9
    with pytest.raises(OutcomeUnknown):
        change_limit(store, "printer", max_concurrency=5)


def test_what_is_declared_is_announced_once_and_undoes_nothing_that_was_set(
    store: CountedStore, clock: ManualClock, limits: Limits
) -> None:
    change_limit(store, "printer", max_concurrency=1)

    limits.announce()
    limits.announce()

    rows = {record.resource: record for record in list_limits(store)}
    assert rows["printer"].declared == DECLARED
    assert rows["tenant_work"].declared == Limit(max_concurrency=2)
    assert [row.revision for row in rows.values()] == [2, 1]
    clock.advance(CACHE_MS)
    assert limits.of("printer").max_concurrency == 1
