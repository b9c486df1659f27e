"""The inbox of signals on every store: its transitions in every state, its pages, and what makes a row unique."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel import transitions
from kernel.records import Document
from kernel.signals import Signal, SignalRecord, to_signal_record
from kernel.store.conditional import MISSED, REMOVED, Applied, Duplicate, Equals, Exists, Insert, Inserted
from kernel.store.mongo_compile import write_of
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS, TABLES
from tests.conformance.transition_table import CASES, built
from tests.support.stores import HOUR_MS


def signal(signal_id: str = "s1", workflow_id: str = "wf-1", **fields: object) -> Signal:
    more = {"signal_type": "answer", "wait_key": "page-1", "generation": 2} | fields
    return Signal(signal_id=signal_id, workflow_id=workflow_id, **more)  # type: ignore[arg-type]


def receive(store: Store, made: Signal, age_ms: int = 0) -> Document:
    answer = store.insert(transitions.receive_signal(made, now_ms=store.now_ms() - age_ms))
    assert isinstance(answer, Inserted)
    return answer.document


def record(store: Store, key: str = "s1") -> SignalRecord:
    document = store.get(SIGNALS, key)
    assert document is not None
    return to_signal_record(document)


@pytest.mark.req("sig-inbox-record", "sig-no-payload")
def test_a_row_says_what_was_delivered_when_and_whether_it_was_matched(store: Store) -> None:
    now_ms = store.now_ms()
    receive(store, signal())
    before = record(store)
    assert before == SignalRecord(
        v=1, signal_id="s1", workflow_id="wf-1", signal_type="answer", wait_key="page-1", generation=2,
        status="pending", created_time=before.created_time, pending_time=before.created_time,
    )  # fmt: skip
    assert before.created_time - now_ms in range(10_000)

    assert isinstance(store.apply(transitions.mark_matched("s1")), Applied)

    after = record(store)
    assert (after.status, after.pending_time, after.created_time) == ("matched", None, before.created_time)
    assert after.match_time is not None and after.match_time >= before.created_time - 1_000
    assert store.apply(transitions.mark_matched("s1")) == MISSED
    assert record(store) == after
    assert store.apply(transitions.mark_matched("nobody")) == MISSED


@pytest.mark.req("sig-unique")
@pytest.mark.case("A50")
def test_a_signal_id_is_one_row_whatever_else_it_says(store: Store) -> None:
    first = receive(store, signal())
    others = [signal(), signal(workflow_id="wf-2"), signal(generation=3), signal(wait_key="page-2")]

    answers = store.insert_all([transitions.receive_signal(other, now_ms=1) for other in others])

    assert answers == [Duplicate("signal_id")] * 4
    assert store.get(SIGNALS, "s1") == first
    store.apply(transitions.mark_matched("s1"))
    assert store.insert(transitions.receive_signal(signal(), now_ms=1)) == Duplicate("signal_id")


@pytest.mark.req("sig-unique")
@pytest.mark.case("A50")
def test_of_many_that_deliver_one_id_at_once_one_stores_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for n in range(20):
            barrier = threading.Barrier(8)

            def deliver(racer: int, n: int = n, barrier: threading.Barrier = barrier) -> bool:
                barrier.wait(30)
                made = signal(f"s{n}", workflow_id=f"wf-{racer}")
                return isinstance(store.insert(transitions.receive_signal(made, now_ms=racer)), Inserted)

            won = [racer for racer, hit in enumerate(pool.map(deliver, range(8))) if hit]

            assert len(won) == 1
            assert record(store, f"s{n}").workflow_id == f"wf-{won[0]}"


@pytest.mark.req("sig-scan-match")
@pytest.mark.case("A45")
def test_the_pages_of_the_sweep_come_in_order_of_age_and_hold_nothing_matched(store: Store) -> None:
    for n in range(30):
        receive(store, signal(f"s{n:02}", f"wf-{n % 3}"), age_ms=HOUR_MS - (n // 10) * 1_000)
    for n in range(0, 30, 2):
        store.apply(transitions.mark_matched(f"s{n:02}"))

    found: list[str] = []
    after = None
    while True:
        rows = store.scan(Query(SIGNALS, (), "pending_time", ("signal_id", "pending_time"), 4, after))
        found.extend(row[0] for row in rows)
        if len(rows) < 4:
            break
        after = (rows[-1][1], rows[-1][0])

    assert found == [f"s{n:02}" for n in range(1, 30, 2)]


@pytest.mark.req("sig-match", "sig-type-key-text", "sig-check-after-suspend")
def test_what_is_pending_for_one_wait_is_found_by_all_parts_of_its_identity(store: Store) -> None:
    right = [signal("a"), signal("b")]
    wrong = [
        signal("c", "wf-11"), signal("d", signal_type="answe"), signal("e", wait_key="Page-1"),
        signal("f", wait_key="page-10"), signal("g", generation=1), signal("h"),
    ]  # fmt: skip
    for made in (*right, *wrong):
        receive(store, made)
    store.apply(transitions.mark_matched("h"))

    rows = store.scan(
        Query(
            table=SIGNALS,
            guards=(
                Equals("workflow_id", "wf-1"), Exists("pending_time"), Equals("signal_type", "answer"),
                Equals("wait_key", "page-1"), Equals("generation", 2),
            ),
            order="workflow_id",
            columns=("signal_id",),
            limit=10,
        )
    )  # fmt: skip

    assert [row[0] for row in rows] == ["a", "b"]


@pytest.mark.req("sig-retention")
def test_retention_removes_by_status_and_age_and_for_that_workflow_only(store: Store) -> None:
    now_ms = store.now_ms()
    for key in ("matched", "pending"):
        receive(store, signal(key), age_ms=2 * HOUR_MS)
    store.apply(transitions.mark_matched("matched"))
    early, late = now_ms - 3 * HOUR_MS, store.now_ms() + HOUR_MS

    for missed in (
        transitions.forget_matched("matched", until_ms=early),
        transitions.forget_matched("pending", until_ms=late),
        transitions.forget_pending("matched", "wf-1", until_ms=late),
        transitions.forget_pending("pending", "wf-2", until_ms=late),
        transitions.forget_pending("pending", "wf-1", until_ms=early),
    ):
        assert store.remove(missed) == MISSED

    assert store.remove(transitions.forget_matched("matched", until_ms=late)) == REMOVED
    assert store.remove(transitions.forget_pending("pending", "wf-1", until_ms=now_ms)) == REMOVED


def test_hostile_text_is_text_in_every_field_of_a_signal(store: Store) -> None:
    made = signal("$where", workflow_id="{'$gt': ''}", wait_key="$pending_time.x")
    receive(store, made)
    assert record(store, "$where").wait_key == "$pending_time.x"
    rows = store.scan(
        Query(
            table=SIGNALS,
            guards=(Equals("workflow_id", "{'$gt': ''}"), Exists("pending_time")),
            order="workflow_id",
            columns=("wait_key",),
            limit=9,
        )
    )
    assert rows == [("$pending_time.x",)]
    assert isinstance(store.apply(transitions.mark_matched("$where")), Applied)
    assert isinstance(
        store.insert(Insert("again", SIGNALS, "where", {"signal_id": "where", "workflow_id": "$where"})), Inserted
    )


@pytest.mark.req("sig-activate-atomic", "sig-match")
def test_an_activation_is_one_command_whose_filter_holds_status_and_the_whole_identity() -> None:
    case = next(case for case in CASES if case.name == "activate_signal")
    write = write_of(TABLES[INSTANCES], built(case, case.row(5_000), 5_000))

    wait = case.row(5_000)["steps"][0]["wait"]
    assert {
        field: clause["$eq"] for field, clause in write.filter.items() if isinstance(clause, dict) and "$eq" in clause
    } == {
        "workflow_id": "full",
        "status": "waiting",
        "revision": 7,
        "steps.0.status": "waiting",
        **{f"steps.0.wait.{name}": wait[name] for name in ("wait_id", "signal_type", "wait_key", "generation")},
    }
