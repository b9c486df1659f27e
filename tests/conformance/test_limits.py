"""The table of limits on every store: set by operators, declared by workers, read by all."""

from __future__ import annotations

import pytest

from kernel import transitions
from kernel.clock import ManualClock
from kernel.config import Limit
from kernel.limits import Limits, change_limit, list_limits, read_limit, remove_limit
from kernel.store.conditional import MISSED, Duplicate
from kernel.store.protocol import Store


@pytest.mark.req("prm-config-each", "prm-lower", "prm-raise")
def test_each_setting_changes_its_own_fields_and_is_read_back(store: Store) -> None:
    change_limit(store, "printer", max_concurrency=8, max_starts_per_second=2)
    change_limit(store, "printer", max_concurrency=1)
    record = change_limit(store, "printer", paused=True)

    assert read_limit(store, "printer") == record
    assert (record.max_concurrency, record.max_starts_per_second, record.paused) == (1, 2, True)
    assert record.revision == 3
    assert record.set_time is not None and abs(record.set_time - store.now_ms()) < 60_000


@pytest.mark.req("prm-config-each")
def test_a_process_sees_what_another_one_set(store: Store) -> None:
    here = Limits(store, ManualClock(), {"printer": Limit(max_concurrency=8)}, cache_ms=0)
    assert here.of("printer") == Limit(max_concurrency=8)

    change_limit(store, "printer", max_concurrency=0, paused=True)

    assert here.of("printer") == Limit(paused=True)


def test_a_resource_has_one_row_whoever_comes_first(store: Store) -> None:
    assert store.apply(transitions.set_limit("printer", paused=True)) == MISSED
    store.insert(transitions.first_limit("printer"))

    assert store.insert(transitions.first_limit("printer")) == Duplicate("resource")
    change_limit(store, "printer", paused=False)
    Limits(store, ManualClock(), {"printer": Limit(3, 1)}).announce()

    record = read_limit(store, "printer")
    assert record is not None
    assert (record.paused, record.declared) == (False, Limit(3, 1))


@pytest.mark.req("prm-config-each")
def test_what_operators_set_can_be_taken_back_and_what_is_declared_stays(store: Store) -> None:
    here = Limits(store, ManualClock(), {"printer": Limit(max_concurrency=8)}, cache_ms=0)
    here.announce()
    change_limit(store, "printer", max_concurrency=2, max_starts_per_second=1, paused=True)
    change_limit(store, "pritner", paused=False)

    left = remove_limit(store, "printer")
    gone = remove_limit(store, "pritner")

    assert left is not None and gone is not None
    assert (left.is_set, left.set_time, left.declared) == (False, None, Limit(max_concurrency=8))
    assert here.of("printer") == Limit(max_concurrency=8)
    assert [record.resource for record in list_limits(store)] == ["printer"]
    assert [remove_limit(store, name) for name in ("printer", "pritner", "nobody")] == [None, None, None]
    change_limit(store, "pritner", max_concurrency=1)
    assert [record.resource for record in list_limits(store)] == ["printer", "pritner"]


def test_all_rows_are_listed_in_the_order_of_their_names(store: Store) -> None:
    for resource in ("scanner", "printer", "tenant_work:ü", "tenant_work"):
        change_limit(store, resource, max_concurrency=1)

    found = [record.resource for record in list_limits(store)]

    assert found == ["printer", "scanner", "tenant_work", "tenant_work:ü"]
