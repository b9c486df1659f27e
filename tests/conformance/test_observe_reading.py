"""What operators ask of observations, on every store: one snapshot, lists in pages, attempts of a step, counts."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pymongo.monitoring import CommandListener, CommandStartedEvent

from kernel.errors import InvalidId, Refused, SchemaMismatch, UnknownVersion
from kernel.observe.reading import Line, Observations, Page, Wanted
from kernel.observe.tables import ATTEMPTS, OBSERVE_TABLES, SNAPSHOTS
from kernel.observe.views import Snapshot
from kernel.records import ErrorRecord, StepRecord
from kernel.store import mongo_schema
from kernel.store.mongo_projection import MongoProjection
from kernel.store.projection import Keep, ProjectionStore
from kernel.store.tables import INSTANCES
from tests.support.mongo_server import MongoStores
from tests.support.observations import CREATED_MS, attempt, ended, record, snapshot


@pytest.fixture
def read(projection: ProjectionStore) -> Observations:
    """Nine workflows: six that run, one a second, then one that failed, one of another type and one that sleeps."""
    broken = ErrorRecord(code="broken", type="ValueError", message="it broke")
    sleeping = StepRecord(name="rest", status="pending", due_time=CREATED_MS + 60_000)
    rows = [record(f"job-{n}", created_time=CREATED_MS + 1_000 * n, business_priority=n % 2) for n in range(6)]
    rows.append(ended("job-6", status="failed", created_time=CREATED_MS + 6_000, error=broken))
    rows.append(ended("mail-7", type="mail", created_time=CREATED_MS + 7_000))
    rows.append(record("job-8", steps=(sleeping,), created_time=CREATED_MS + 8_000, claim_token=None, claim_time=None))
    projection.keep_all([snapshot(row) for row in rows])
    return Observations(projection)


def keys(page: Page[Line]) -> list[str]:
    return [line.biz_key for line in page.rows]


def test_one_workflow_is_found_by_either_of_its_names(read: Observations) -> None:
    found = read.get("job-6")

    assert isinstance(found, Snapshot)
    assert (found.status, found.error_code, found.round, found.revision) == ("failed", "broken", "round-1", 9)
    assert [step.name for step in found.steps] == ["work"]
    assert read.of_workflow(found.workflow_id) == found
    assert (read.get("nobody"), read.of_workflow("nobody")) == (None, None)
    with pytest.raises(InvalidId):
        read.get("")


@pytest.mark.req("ops-aggregate")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), "87 6543210"),
        (Wanted(type="report"), "8 6543210"),
        (Wanted(statuses=("failed", "completed")), "7 6"),
        (Wanted(waiting="step"), "543210"),
        (Wanted(waiting="step", waiting_on="work", lane=0), "420"),
        (Wanted(step="work", created_before_ms=CREATED_MS + 1_000), "10"),
        (Wanted(created_after_ms=CREATED_MS + 7_000), "87"),
        (Wanted(created_after_ms=CREATED_MS + 3_000, created_before_ms=CREATED_MS + 4_000), "43"),
        (Wanted(error_code="broken"), "6"),
        (Wanted(error_code="other"), ""),
    ],
)
def test_a_list_holds_what_is_wanted_the_newest_first(read: Observations, wanted: Wanted, expected: str) -> None:
    assert [key[-1] for key in keys(read.page(wanted))] == list(expected.replace(" ", ""))


def test_pages_follow_each_other_without_gap_or_repeat_while_new_rows_come(
    read: Observations, projection: ProjectionStore
) -> None:
    wanted, seen, token = Wanted(type="report"), list[str](), None
    for turn in range(10):
        page = read.page(wanted, after=token, limit=3)
        seen += keys(page)
        projection.keep_all([snapshot(record(f"new-{turn}", created_time=CREATED_MS + 90_000))])
        token = page.next
        if token is None:
            break

    assert seen == ["job-8", "job-6", "job-5", "job-4", "job-3", "job-2", "job-1", "job-0"]
    assert read.page(wanted, limit=11).next is None, "a page that holds everything names no other"


def test_a_line_tells_what_a_list_shows(read: Observations) -> None:
    (line,) = read.page(Wanted(error_code="broken")).rows

    assert (line.type, line.status, line.revision, line.business_priority) == ("report", "failed", 9, 1)
    assert (line.created_time, line.finish_time) == (CREATED_MS + 6_000, CREATED_MS + 1_000)
    assert (line.waiting, line.waiting_since) == (None, None)


def test_a_page_token_that_was_changed_or_is_of_another_list_is_refused_in_one_line(read: Observations) -> None:
    token = read.page(Wanted(), limit=2).next
    assert token is not None
    data = bytearray(base64.urlsafe_b64decode(token + "=="))
    data[-1] ^= 1
    forged = base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")

    for bad in (forged, token[:-3], "", "ä", "a" * 500, token + "!"):
        with pytest.raises(Refused, match=r"^after: no page token of this list; begin again without it$"):
            read.page(Wanted(), after=bad, limit=2)
    with pytest.raises(Refused):
        read.page(Wanted(type="report"), after=token, limit=2)
    assert len(keys(read.page(Wanted(), after=token, limit=5))) == 5, "the size of a page may change"


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda read: read.page(Wanted(), limit=0), "limit: must lie between 1 and 1000, is 0"),
        (lambda read: read.page(Wanted(statuses=("gone",))), "statuses: 'gone' is none of"),
        (lambda read: read.page(Wanted(waiting="luck")), "waiting: 'luck' is none of"),
        (lambda read: read.page(Wanted(lane=4)), "lane: 4 is none of 0, 1, 2, 3"),
        (lambda read: read.counts(Wanted(), by=()), "by: nothing: snapshots are counted by"),
        (lambda read: read.counts(Wanted(), by=("split",)), "by: split: snapshots are counted by"),
    ],
    ids=["limit", "status", "waiting", "lane", "by nothing", "by no column"],
)
def test_a_question_that_can_not_be_one_is_refused(read: Observations, ask: Any, text: str) -> None:
    with pytest.raises(Refused, match=f"^{text}"):
        ask(read)


@pytest.mark.req("ops-aggregate")
def test_counts_tell_how_many_wait_for_what_and_the_longest_wait(read: Observations) -> None:
    found = {(count.type, count.status, count.waiting, count.waiting_on): count for count in read.counts(Wanted())}

    assert {group: count.n for group, count in found.items()} == {
        ("report", "running", "step", "work"): 6,
        ("report", "failed", None, None): 1,
        ("mail", "completed", None, None): 1,
        ("report", "running", "timer", None): 1,
    }
    assert found["report", "running", "step", "work"].oldest_waiting_since == CREATED_MS
    assert found["report", "failed", None, None].oldest_waiting_since is None
    (failed,) = read.counts(Wanted(statuses=("failed",)), by=("error_code", "current_step"))
    assert (failed.n, failed.error_code, failed.status) == (1, "broken", None)


def test_attempts_come_in_pages_the_oldest_first_and_of_one_step_if_asked(
    read: Observations, projection: ProjectionStore
) -> None:
    for number in range(1, 6):
        event = record("job-0", number, attempt=number, step="pending")
        projection.keep_all([attempt("step.retried", event, CREATED_MS + number)])
    projection.keep_all([attempt("step.started", record("job-1"))])

    first = read.attempts("job-0", limit=3)
    rest = read.attempts("job-0", after=first.next, limit=3)

    assert [row.attempt for row in (*first.rows, *rest.rows)] == [1, 2, 3, 4, 5]
    assert {row.outcome for row in first.rows} == {"failed"} and rest.next is None
    assert len(read.attempts("job-0", step="work").rows) == 5
    assert read.attempts("job-0", step="other").rows == ()
    with pytest.raises(Refused):
        read.attempts("job-1", after=first.next)


@pytest.mark.parametrize("version", [2, 0, None, "1"])
def test_a_row_of_an_unknown_layout_is_refused_in_one_line(
    read: Observations, projection: ProjectionStore, version: object
) -> None:
    newer = {**snapshot(record("job-0", 99)).document, "v": version}
    later = {**attempt("step.started", record("job-1", 99)).document, "v": version}
    projection.keep_all([Keep(SNAPSHOTS, newer), Keep(ATTEMPTS, later)])

    with pytest.raises(UnknownVersion, match=r"^snapshot of 'job-0': layout version .*, this kernel knows 1$"):
        read.get("job-0")
    with pytest.raises(UnknownVersion, match=r"^attempt 'wf-.*': layout version .*, this kernel knows 1$"):
        read.attempts("job-1")
    assert read.get("job-2") is not None


class Reads(CommandListener):
    """Which collections were read."""

    def __init__(self) -> None:
        self.collections: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in ("find", "aggregate", "count", "distinct", "getMore"):
            self.collections.append(str(event.command[event.command_name]))

    def succeeded(self, event: Any) -> None:
        """Only what is asked counts."""

    def failed(self, event: Any) -> None:
        """Only what is asked counts."""


@pytest.mark.req("obs-snapshot-use", "obs-never-instances", "ops-readonly")
def test_lists_and_totals_read_snapshots_alone_and_only_a_steps_diagnosis_reads_attempts(
    mongo_store: MongoStores,
) -> None:
    said = Reads()
    store = mongo_store(tables=OBSERVE_TABLES, kind=MongoProjection, listeners=[said])
    assert isinstance(store, MongoProjection)
    store.keep_all([snapshot(record("job")), attempt("step.started", record("job"))])
    read = Observations(store)

    def collections(ask: Any) -> set[str]:
        said.collections.clear()
        ask()
        return set(said.collections)

    assert collections(lambda: read.page(Wanted(type="report"))) == {SNAPSHOTS}
    assert collections(lambda: read.counts(Wanted())) == {SNAPSHOTS}
    assert collections(lambda: (read.get("job"), read.of_workflow("nobody"))) == {SNAPSHOTS}
    assert collections(lambda: read.attempts("job")) == {ATTEMPTS}
    with pytest.raises(KeyError):
        store.get(INSTANCES, "job")


def test_a_store_that_a_newer_kernel_made_is_refused(projection: ProjectionStore, request: Any) -> None:
    if isinstance(projection, MongoProjection):
        meta = request.getfixturevalue("mongo_store").raw()[mongo_schema.META]
        meta.update_one({mongo_schema.META_KEY: "schema"}, {"$set": {"version": mongo_schema.SCHEMA_VERSION + 1}})
        with pytest.raises(SchemaMismatch, match="newer kernel"):
            projection.prepare()
    elif hasattr(projection, "path"):
        projection._alone(lambda connection: connection.execute("PRAGMA user_version = 99"))  # type: ignore[attr-defined]
        with pytest.raises(SchemaMismatch, match="schema version 99 is newer"):
            projection.prepare()
    else:
        projection.prepare()  # memory has no past
        assert projection.get(SNAPSHOTS, "job") is None
