"""One key, one biz_key, one row: for ever, whoever comes second, and as a normal answer (sor-unique-race)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel import transitions as make
from kernel.errors import InvalidTransition
from kernel.store.conditional import Applied, Duplicate, Insert, Inserted
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from tests.conformance.instances import TOKEN, claimed, instance_document, put, read, row


def insert(key: str, biz_key: str, revision: int = 1) -> Insert:
    return Insert("create", INSTANCES, key, instance_document(key, 1_000_000, biz_key=biz_key, revision=revision))


@pytest.mark.req("id-biz-key")
@pytest.mark.case("A51")
def test_a_second_row_is_a_duplicate_that_names_the_field_and_changes_nothing(store: Store) -> None:
    first = insert("wf-1", "order-1")
    assert store.insert(first) == Inserted(first.document)

    assert store.insert(insert("wf-2", "order-1", 9)) == Duplicate("biz_key")
    assert store.insert(insert("wf-1", "order-2", 9)) == Duplicate("workflow_id")
    assert store.insert(insert("wf-1", "order-1", 9)) == Duplicate("workflow_id")

    assert row(store, "wf-1") == first.document
    assert store.get(INSTANCES, "wf-2") is None
    assert store.find(INSTANCES, "biz_key", "order-2") is None


@pytest.mark.req("core-inv-one-instance")
def test_an_instance_keeps_its_biz_key_after_its_end(store: Store) -> None:
    put(store, instance_document("wf-1", store.now_ms(), biz_key="order-1", status="failing", **claimed()))
    assert isinstance(store.apply(make.finish_failed(Held("wf-1", TOKEN), commit_id="c")), Applied)
    assert store.insert(insert("wf-2", "order-1")) == Duplicate("biz_key")

    failed = read(store, "wf-1")
    assert isinstance(store.apply(make.replay_failed(failed, input_=b"", priority=1, commit_id="r")), Applied)
    assert store.insert(insert("wf-2", "order-1")) == Duplicate("biz_key")

    assert store.find(INSTANCES, "biz_key", "order-1") == row(store, "wf-1")


def test_many_inserts_have_an_answer_each(store: Store) -> None:
    store.insert(insert("wf-1", "order-1"))

    answers = store.insert_all([insert(f"wf-{n}", f"order-{n % 4}") for n in range(6)])

    assert [type(answer) for answer in answers] == [Inserted, Duplicate, Inserted, Inserted, Duplicate, Duplicate]
    assert answers[1] == Duplicate("workflow_id")
    assert answers[4] == answers[5] == Duplicate("biz_key")
    assert {key for key in (f"wf-{n}" for n in range(6)) if store.get(INSTANCES, key)} == {f"wf-{n}" for n in range(4)}


def test_nothing_at_all_can_be_inserted_and_applied(store: Store) -> None:
    assert (store.insert_all([]), store.apply_all([])) == ([], [])


def test_more_rows_than_fit_one_transaction_are_stored(store: Store) -> None:
    answers = store.insert_all([insert(f"wf-{n}", f"order-{n}") for n in range(700)])

    assert all(isinstance(answer, Inserted) for answer in answers)
    assert row(store, "wf-699")["biz_key"] == "order-699"


def test_many_transitions_have_an_answer_each_in_their_order(store: Store) -> None:
    for n in range(3):
        put(store, instance_document(f"wf-{n}", store.now_ms(), business_priority=3 - n))

    answers = store.apply_all([make.raise_priority(f"wf-{n}", 1) for n in (0, 1, 2, 0, 7)])

    assert [isinstance(answer, Applied) for answer in answers] == [True, True, False, False, False]
    assert [row(store, f"wf-{n}")["business_priority"] for n in range(3)] == [1, 1, 1]


def test_a_row_is_found_by_its_unique_field(store: Store) -> None:
    document = put(store, instance_document("wf-1", store.now_ms(), biz_key="order-1"))

    assert store.find(INSTANCES, "biz_key", "order-1") == document
    assert store.find(INSTANCES, "biz_key", "order-") is None


@pytest.mark.parametrize("kind", ["sqlite", "mongo"])
def test_nothing_is_looked_up_without_an_index(kind: str, make_store: Callable[..., Store]) -> None:
    with pytest.raises(InvalidTransition, match="no unique column"):
        make_store(kind).find(INSTANCES, "status", "running")


@pytest.mark.req("rec-new-claimable")
def test_a_new_instance_is_running_with_all_steps_pending_and_claimable_at_once(store: Store) -> None:
    now_ms = store.now_ms()
    created = make.create(
        workflow_id="wf-1",
        type_="sample",
        biz_key="order-1",
        fingerprint="f" * 16,
        step_names=("first", "second"),
        input_=b"\x01\xc0",
        priority=1,
        now_ms=now_ms,
        commit_id="c",
    )
    assert isinstance(store.insert(created), Inserted)

    instance = read(store, "wf-1")
    assert (instance.status, instance.claimable_time, instance.created_time) == ("running", now_ms, now_ms)
    assert [(step.name, step.status, step.attempt) for step in instance.steps] == [
        ("first", "pending", 0),
        ("second", "pending", 0),
    ]
    assert (instance.definition_fingerprint, instance.revision, instance.retry_count) == ("f" * 16, 1, 0)
    claim = make.claim(
        Held("wf-1", "t"), worker_id="w", worker="h", lease_ms=1, definition_keys=("sample@" + "f" * 16,), commit_id="d"
    )
    assert isinstance(store.apply(claim), Applied)
