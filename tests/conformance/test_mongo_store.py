"""What only the Mongo store has to prove: its server's clock, its commands, `_id`, hostile content and sizes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.errors import CorruptRecord, InvalidId, InvalidTransition, OutcomeUnknown, StoreUnavailable, TooLarge
from kernel.store import mongo
from kernel.store.conditional import (
    MISSED,
    Add,
    Append,
    Applied,
    Clear,
    Due,
    Duplicate,
    Equals,
    Insert,
    Inserted,
    Put,
    PutNow,
    Transition,
)
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document
from tests.conformance.mongo_rows import claim, created
from tests.support.mongo_server import MongoStores

HOUR_MS = 3_600_000
SLACK_MS = 10_000


@pytest.mark.req("clm-atomic")
def test_a_transition_is_one_command_whether_it_hits_or_not(mongo_store: MongoStores) -> None:
    store = mongo_store()
    store.insert(created("wf", store.now_ms()))
    said = mongo_store.allow_list.said
    said.clear()
    assert isinstance(store.apply(claim("wf")), Applied)
    assert store.apply(claim("wf")) is MISSED
    assert store.apply(claim("nobody")) is MISSED
    assert said == ["findAndModify"] * 3


@pytest.mark.req("clm-atomic")
def test_of_many_that_claim_one_row_exactly_one_hits(mongo_store: MongoStores) -> None:
    store = mongo_store()
    keys = [f"wf-{number}" for number in range(12)]
    store.insert_all([created(key, store.now_ms()) for key in keys])
    start = threading.Barrier(6)

    def race(worker: int) -> list[str]:
        start.wait()
        return [key for key in keys if isinstance(store.apply(claim(key, f"worker {worker}")), Applied)]

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(race, range(6)))
    assert sorted(key for own in won for key in own) == sorted(keys)
    for worker, own in enumerate(won):
        for key in own:
            row = store.get(INSTANCES, key)
            assert row is not None
            assert row["claim_token"] == f"worker {worker}"
            assert row["commit_ids"] == ["commit-0", f"commit of worker {worker}"]


@pytest.mark.req("slp-clock")
@pytest.mark.case("A89", "A90")
@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS, 120_000])
def test_a_worker_with_a_wrong_clock_neither_steals_a_lease_nor_takes_a_longer_one(
    mongo_store: MongoStores, wrong_ms: int
) -> None:
    true = SystemClock()
    store = mongo_store(clock=ManualClock(wall_ms=true.wall_ms() + wrong_ms, boot_ms=true.boot_ms()))
    server_now_ms = store.now_ms()
    assert abs(server_now_ms - true.wall_ms()) < SLACK_MS
    store.insert(created("held", server_now_ms, claimable_time=server_now_ms + 20_000))
    store.insert(created("free", server_now_ms, claimable_time=server_now_ms - 1))
    assert store.apply(claim("held")) is MISSED
    answer = store.apply(claim("free", lease_ms=30_000))
    assert isinstance(answer, Applied)
    assert abs(answer.document["claimable_time"] - (true.wall_ms() + 30_000)) < SLACK_MS
    assert abs(answer.document["claim_time"] - true.wall_ms()) < SLACK_MS


@pytest.mark.parametrize("at", [None, "soon", [1, 2], {"a": 1}, True])
def test_an_absent_or_malformed_time_is_never_due(mongo_store: MongoStores, at: Any) -> None:
    store = mongo_store()
    fields = {"without": ("claimable_time",)} if at is None else {"claimable_time": at}
    store.insert(created("wf", store.now_ms(), **fields))
    assert store.apply(claim("wf")) is MISSED


def test_due_inside_a_step_is_decided_for_that_step(mongo_store: MongoStores) -> None:
    store = mongo_store()
    now_ms = store.now_ms()
    waiting = {"name": "a", "status": "waiting", "wait": {"poll_time": now_ms + HOUR_MS}}
    due = {"name": "b", "status": "waiting", "wait": {"poll_time": now_ms - 1}}
    store.insert(created("wf", now_ms, steps=[waiting, due]))

    def activate(index: int) -> Transition:
        place = f"steps.{index}"
        return Transition(
            "activate", INSTANCES, "wf", (Due(f"{place}.wait.poll_time"),), (Put(f"{place}.status", "pending"),)
        )

    assert store.apply(activate(0)) is MISSED
    assert store.apply(activate(2)) is MISSED
    answer = store.apply(activate(1))
    assert isinstance(answer, Applied)
    assert [step["status"] for step in answer.document["steps"]] == ["waiting", "pending"]


def test_a_step_that_does_not_exist_is_missed_and_not_made(mongo_store: MongoStores) -> None:
    store = mongo_store()
    document = instance_document("wf", store.now_ms())
    store.insert(Insert("create", INSTANCES, "wf", document))
    for changes in ((Put("steps.7.status", "running"),), (Add("steps.2.attempt", 1), Clear("wait"))):
        assert store.apply(Transition("begin", INSTANCES, "wf", (), changes, commit_id="c")) is MISSED
    assert store.get(INSTANCES, "wf") == document


@pytest.mark.req("id-workflow-id")
def test_nothing_rests_on_the_id_that_the_driver_gave_a_row(mongo_store: MongoStores) -> None:
    store = mongo_store()
    first, second = (created(key, store.now_ms()) for key in ("wf-1", "wf-2"))
    store.insert(first)
    rows = mongo_store.raw()[INSTANCES]
    row = rows.find_one({"workflow_id": "wf-1"})
    assert row is not None
    rows.delete_one({"workflow_id": "wf-1"})
    rows.insert_one({**row, "_id": "rewritten by a restore"})
    assert store.get(INSTANCES, "wf-1") == first.document
    assert store.find(INSTANCES, "biz_key", "biz:wf-1") == first.document
    assert store.insert(first) == Duplicate("workflow_id")
    assert store.insert_all([first, second]) == [Duplicate("workflow_id"), Inserted(second.document)]
    answer = store.apply(claim("wf-1"))
    assert isinstance(answer, Applied)
    assert "_id" not in answer.document
    query = Query(INSTANCES, (), "claimable_time", ("workflow_id",), 10)
    assert store.scan(query) == [("wf-2",), ("wf-1",)]


@pytest.mark.req("id-biz-key", "sor-unique-race")
@pytest.mark.case("A50", "A51")
def test_of_many_that_create_one_biz_key_one_inserts_and_the_others_are_told(mongo_store: MongoStores) -> None:
    store = mongo_store()
    now_ms = store.now_ms()
    inserts = [created(f"wf-{number}", now_ms, biz_key="the one") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(store.insert, inserts))
    assert sum(isinstance(answer, Inserted) for answer in answers) == 1
    assert answers.count(Duplicate("biz_key")) == 7
    found = store.find(INSTANCES, "biz_key", "the one")
    winner = next(answer for answer in answers if isinstance(answer, Inserted))
    assert found == winner.document


def test_each_row_of_a_bulk_insert_has_its_own_answer(mongo_store: MongoStores) -> None:
    store = mongo_store()
    now_ms = store.now_ms()
    old, a, b = (created(key, now_ms) for key in ("old", "a", "b"))
    other = created("other", now_ms, biz_key="biz:a")
    store.insert(old)
    assert store.insert_all([a, old, other, b, a]) == [
        Inserted(a.document),
        Duplicate("workflow_id"),
        Duplicate("biz_key"),
        Inserted(b.document),
        Duplicate("workflow_id"),
    ]
    assert store.insert_all([]) == []
    assert mongo_store.raw()[INSTANCES].count_documents({}) == 3


@pytest.mark.parametrize(("batch_rows", "batch_bytes"), [(2, 10**9), (10**9, 1_500), (10**9, 1)])
def test_a_bulk_insert_of_several_batches_answers_in_the_callers_order(
    mongo_store: MongoStores, monkeypatch: pytest.MonkeyPatch, batch_rows: int, batch_bytes: int
) -> None:
    monkeypatch.setattr(mongo, "BATCH_ROWS", batch_rows)
    monkeypatch.setattr(mongo, "BATCH_BYTES", batch_bytes)
    store = mongo_store()
    inserts = [created(f"wf-{number}", store.now_ms()) for number in range(5)]
    store.insert(inserts[3])
    mongo_store.allow_list.said.clear()
    expected: list[Any] = [Inserted(insert.document) for insert in inserts]
    expected[3] = Duplicate("workflow_id")
    assert store.insert_all(inserts) == expected
    assert mongo_store.allow_list.said.count("insert") > 1


@pytest.mark.req("clm-uncertain")
def test_a_bulk_insert_that_loses_its_server_between_two_batches_is_unknown(
    mongo_store: MongoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch was certainly not sent, but "nothing was written" is not true of the call."""
    monkeypatch.setattr(mongo, "BATCH_ROWS", 2)
    store = mongo_store()
    inserts = [created(f"wf-{number}", store.now_ms()) for number in range(3)]
    one_batch = store._insert_many

    def server_gone(table: Any, rows: Any) -> Any:
        raise StoreUnavailable("gone")

    def only_once(table: Any, rows: Any) -> Any:
        monkeypatch.setattr(store, "_insert_many", server_gone)
        return one_batch(table, rows)

    monkeypatch.setattr(store, "_insert_many", only_once)
    with pytest.raises(OutcomeUnknown, match="gone"):
        store.insert_all(inserts)
    with pytest.raises(StoreUnavailable, match="gone"):
        store.insert_all(inserts)
    assert store.get(INSTANCES, "wf-1") is not None


HOSTILE = ["$where", "$gt", '{"$gt": ""}', "a.b", "$$NOW", "$status", "é\u2028'\"", "x" * 200, "../..", "0"]


@pytest.mark.case("A76")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_as_id_as_value_and_in_a_pipeline(mongo_store: MongoStores, text: str) -> None:
    store = mongo_store()
    store.insert_all([created(text, store.now_ms(), biz_key=text), created("bystander", store.now_ms())])
    bystander = store.get(INSTANCES, "bystander")
    answer = store.apply(claim(text, token=text))
    assert isinstance(answer, Applied)
    assert answer.document["claim_token"] == text
    changes = (Put("worker", text), Put("error", {"message": text, "$set": text, "a.b": text}), Append("runs", text, 3))
    guards = (Equals("claim_token", text), Equals("commit_ids", text))
    assert store.apply(Transition("never", INSTANCES, text, guards, changes)) is MISSED
    answer = store.apply(Transition("put", INSTANCES, text, guards[:1], changes, commit_id=text))
    assert isinstance(answer, Applied)
    assert answer.document["error"] == {"message": text, "$set": text, "a.b": text}
    assert store.get(INSTANCES, text) == store.find(INSTANCES, "biz_key", text) == answer.document
    assert store.get(INSTANCES, "bystander") == bystander


@pytest.mark.case("A76")
@pytest.mark.parametrize("value", [{"$gt": ""}, {"$ne": None}, ["bystander"], None, 5])
def test_a_map_that_came_from_outside_is_never_a_filter(mongo_store: MongoStores, value: Any) -> None:
    store = mongo_store()
    store.insert(created("bystander", store.now_ms()))
    before = store.get(INSTANCES, "bystander")
    calls: list[Any] = [
        lambda: store.get(INSTANCES, value),
        lambda: store.find(INSTANCES, "biz_key", value),
        lambda: store.apply(Transition("t", INSTANCES, value, (), (Put("status", "failed"),))),
        lambda: store.insert(Insert("create", INSTANCES, value, {"workflow_id": value, "biz_key": "b"})),
        lambda: store.insert(Insert("create", INSTANCES, "x", {"workflow_id": "x", "biz_key": value})),
        lambda: store.scan(Query(INSTANCES, (), "claimable_time", ("workflow_id",), 5, after=(0, value))),
    ]
    for call in calls:
        with pytest.raises(InvalidId):
            call()
    guard = Equals("status", {"$gt": ""})
    with pytest.raises(InvalidTransition, match="not with a dict"):
        store.apply(Transition("t", INSTANCES, "bystander", (guard,), (Put("status", "failed"),)))
    assert store.get(INSTANCES, "bystander") == before
    assert mongo_store.raw()[INSTANCES].count_documents({}) == 1


def test_bytes_come_back_as_they_were(mongo_store: MongoStores) -> None:
    store = mongo_store()
    data = bytes(range(256)) * 4
    store.insert(created("wf", store.now_ms(), input=data, outputs={"first": b""}))
    answer = store.apply(
        Transition("put", INSTANCES, "wf", (Equals("input", data),), (Put("outputs.second", b"\x00$where\xff"),))
    )
    assert isinstance(answer, Applied)
    assert answer.document["outputs"] == {"first": b"", "second": b"\x00$where\xff"}
    assert type(answer.document["input"]) is bytes


def test_times_are_dates_in_the_database_at_every_depth(mongo_store: MongoStores) -> None:
    store = mongo_store()
    at_ms = 1_800_000_000_123
    store.insert(created("wf", at_ms, claimable_time=at_ms))
    changes = (Put("wait", {"poll_time": at_ms}), Put("steps.0.wait", {"poll_time": at_ms}), PutNow("finish_time"))
    store.apply(Transition("suspend", INSTANCES, "wf", (), changes))
    row = mongo_store.raw()[INSTANCES].find_one({"workflow_id": "wf"})
    assert row is not None
    moment = datetime(2027, 1, 15, 8, 0, 0, 123_000, tzinfo=UTC)
    assert row["claimable_time"] == row["wait"]["poll_time"] == row["steps"][0]["wait"]["poll_time"] == moment
    assert isinstance(row["finish_time"], datetime)


@pytest.mark.case("A73")
def test_rows_up_to_the_kernels_limit_are_stored_and_beyond_mongodbs_refused(mongo_store: MongoStores) -> None:
    store = mongo_store()
    mebibyte = bytes(1024 * 1024)
    large = created("large", store.now_ms(), input=mebibyte)
    assert store.insert(large) == Inserted(large.document)
    huge = created("huge", store.now_ms(), input=mebibyte * 16)
    for write in (lambda: store.insert(huge), lambda: store.insert_all([created("small", store.now_ms()), huge])):
        with pytest.raises(TooLarge, match=r"^create of workflow_instances 'huge': the row has"):
            write()
    assert store.get(INSTANCES, "small") is None, "a bulk insert is refused before any of it is sent"
    grow = Transition("grow", INSTANCES, "large", (), (Put("outputs.first", mebibyte * 17),), commit_id="c")
    with pytest.raises(TooLarge, match=r"^grow of .* larger than MongoDB takes"):
        store.apply(grow)
    assert store.get(INSTANCES, "large") == large.document


@pytest.mark.parametrize("value", [2**63, {"a\0": 1}, "\ud800", object()])
def test_a_value_that_bson_can_not_hold_is_refused_and_not_shown(mongo_store: MongoStores, value: Any) -> None:
    store = mongo_store()
    store.insert(created("wf", store.now_ms()))
    with pytest.raises(InvalidTransition, match="can not store"):
        store.apply(Transition("t", INSTANCES, "wf", (), (Put("error", {"detail": value}),)))
    with pytest.raises(InvalidTransition, match="can not store"):
        store.insert(created("other", store.now_ms(), error={"detail": value}))


def test_arithmetic_on_a_row_of_another_shape_leaves_it_alone(mongo_store: MongoStores) -> None:
    store = mongo_store()
    broken = created("wf", store.now_ms(), revision="seven", commit_ids="none")
    store.insert(broken)
    for change in (Add("revision", 1), Append("commit_ids", "c", 3), Put("revision.part", 1)):
        with pytest.raises(CorruptRecord, match="does not have the shape"):
            store.apply(Transition("t", INSTANCES, "wf", (), (change,)))
    assert store.get(INSTANCES, "wf") == broken.document


def test_a_row_without_its_key_or_a_unique_column_is_refused(mongo_store: MongoStores) -> None:
    store = mongo_store()
    with pytest.raises(InvalidTransition, match="differs from the key"):
        store.insert(Insert("create", INSTANCES, "a", instance_document("b", 0)))
    with pytest.raises(InvalidId, match=r"^biz_key"):
        store.insert(Insert("create", INSTANCES, "a", instance_document("a", 0, without=("biz_key",))))
    with pytest.raises(InvalidTransition, match="no unique column"):
        store.find(INSTANCES, "status", "running")
