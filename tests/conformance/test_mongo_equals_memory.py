"""The Mongo interpreter gives the reference's answers: random rows, transitions and pages run on both and compared.

Times are whole hours from a base near now, so that the two stores' clocks may differ by minutes without a
difference in what is due; in answers they are compared in steps of ten minutes.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernel.clock import ManualClock, SystemClock
from kernel.errors import CorruptRecord, InvalidTransition
from kernel.ids import RandomIds
from kernel.records import Document
from kernel.store.conditional import (
    Add,
    Answer,
    Append,
    Applied,
    AtLeast,
    AtMost,
    Change,
    Clear,
    Differs,
    Due,
    Equals,
    Exists,
    Guard,
    Insert,
    Inserted,
    LowerTo,
    Missing,
    OneOf,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Transition,
)
from kernel.store.memory import MemoryStore
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES
from tests.support.mongo_server import MongoStores

HOUR_MS = 3_600_000
BASE_MS = SystemClock().wall_ms()
GRAIN_MS = HOUR_MS
"""All times here are whole hours apart. MongoDB's own clock may have left BASE_MS behind by up to half of one: in a run
of everything this module is imported long before its turn comes."""

TIMES = st.sampled_from([BASE_MS - HOUR_MS, BASE_MS + HOUR_MS, BASE_MS + 5 * HOUR_MS])
TEXTS = st.sampled_from(["running", "waiting", "", "$status", "a.b", "$$NOW", "{}", "é"])
NUMBERS = st.sampled_from([0, 1, 2, -3, 2**40, 2.5, 1.0])
SCALARS = st.one_of(TEXTS, NUMBERS, st.booleans(), st.sampled_from([b"", b"\x00$x"]))
WAITS = st.fixed_dictionaries({}, optional={"kind": SCALARS, "wait_id": TEXTS, "poll_time": TIMES})
LISTS = st.lists(st.one_of(TEXTS, NUMBERS, WAITS), max_size=3)
STEPS = st.fixed_dictionaries(
    {"name": TEXTS, "due_time": TIMES},
    optional={"worker_id": SCALARS, "attempt": NUMBERS, "wait": WAITS, "errors": LISTS},
)
ROWS = st.fixed_dictionaries(
    {
        "steps": st.lists(STEPS, min_size=1, max_size=3),
        "type": st.one_of(SCALARS, LISTS),
        "claimable_time": st.one_of(TIMES, TIMES, TEXTS),
    },
    optional={
        "retry_count": NUMBERS,
        "claim_token": st.one_of(SCALARS, LISTS),
        "finish_time": TIMES,
        "wait": WAITS,
        "outputs": st.fixed_dictionaries({}, optional={"first": st.binary(max_size=3)}),
        "commit_ids": st.lists(TEXTS, max_size=3),
    },
)

# Places by what stands there, once outside and once inside the steps, where a pipeline can not reach.
SCALAR_AT = ["type", "claim_token", "wait.kind", "outputs.first", "outputs.second"]
STEP_SCALAR_AT = ["steps.0.worker_id", "steps.1.worker_id", "steps.0.wait.wait_id", "steps.1.wait.wait_id"]
NUMBER_AT = ["retry_count", "deaths", "wait.generation"]
STEP_NUMBER_AT = ["steps.0.attempt", "steps.1.attempt", "steps.2.attempt"]
TIME_AT = ["claimable_time", "finish_time", "wait.poll_time"]
STEP_TIME_AT = ["steps.0.due_time", "steps.1.due_time", "steps.1.wait.poll_time"]
LIST_AT = ["commit_ids", "runs"]
STEP_LIST_AT = ["steps.0.errors", "steps.1.errors"]
MAP_AT = ["wait"]
STEP_MAP_AT = ["steps.0", "steps.0.wait"]

ANY_AT = [*SCALAR_AT, *STEP_SCALAR_AT, *NUMBER_AT, *STEP_NUMBER_AT, *LIST_AT, *STEP_LIST_AT, *MAP_AT, *STEP_MAP_AT]
ANY_TIME_AT = [*TIME_AT, *STEP_TIME_AT]


def _at(places: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(places)


GUARDS: st.SearchStrategy[Guard] = st.one_of(
    st.builds(Equals, _at(ANY_AT), SCALARS),
    st.builds(Differs, _at(ANY_AT), SCALARS),
    st.builds(OneOf, _at(ANY_AT), st.lists(SCALARS, max_size=6).map(tuple)),
    st.builds(AtMost, _at(ANY_AT), NUMBERS),
    st.builds(AtLeast, _at(ANY_AT), NUMBERS),
    st.builds(Exists, _at([*ANY_AT, *ANY_TIME_AT])),
    st.builds(Missing, _at([*ANY_AT, *ANY_TIME_AT])),
    st.builds(Equals, _at(ANY_TIME_AT), TIMES),
    st.builds(Differs, _at(ANY_TIME_AT), TIMES),
    st.builds(AtMost, _at(ANY_TIME_AT), TIMES),
    st.builds(AtLeast, _at(ANY_TIME_AT), TIMES),
    *(st.builds(Due, _at(places)) for places in (ANY_TIME_AT, ["claimable_time"], ["steps.0.due_time"])),
)


def _changes(
    scalars: list[str], numbers: list[str], times: list[str], lists: list[str], maps: list[str]
) -> st.SearchStrategy[Change]:
    everywhere = _at([*scalars, *numbers, *times, *lists, *maps])
    return st.one_of(
        st.builds(Put, _at(scalars), SCALARS),
        st.builds(Put, _at(times), TIMES),
        st.builds(Put, _at(lists), LISTS),
        st.builds(Put, _at(maps), WAITS),
        st.builds(Clear, everywhere),
        st.builds(Add, _at(numbers), st.integers(-3, 3)),
        st.builds(RaiseTo, _at(numbers), NUMBERS),
        st.builds(LowerTo, _at(numbers), NUMBERS),
        st.builds(RaiseTo, _at(times), TIMES),
        st.builds(LowerTo, _at(times), TIMES),
        st.builds(PutNow, _at(times)),
        st.builds(Append, _at(lists), st.one_of(TEXTS, WAITS), st.integers(1, 4)),
    )


TOP_CHANGES = _changes(SCALAR_AT, NUMBER_AT, TIME_AT, LIST_AT, MAP_AT)
STEP_CHANGES = _changes(STEP_SCALAR_AT, STEP_NUMBER_AT, STEP_TIME_AT, STEP_LIST_AT, STEP_MAP_AT)
LEASES = st.builds(
    PutNowPlus, _at(["claimable_time", "created_time", "wait.poll_time"]), st.sampled_from([0, HOUR_MS, -HOUR_MS])
)


@st.composite
def transitions(draw: st.DrawFn) -> Transition:
    """A transition of the vocabulary on the row `key`; what the vocabulary refuses is drawn again."""
    guards = draw(st.lists(GUARDS, max_size=2).map(tuple))
    if draw(st.booleans()):
        lease = draw(LEASES)
        changes = (lease, *draw(st.lists(TOP_CHANGES, max_size=4)))
        if lease.field.startswith("wait."):
            guards = (*guards, draw(st.sampled_from([Exists("wait.kind"), Equals("wait.kind", "signal")])))
    else:
        changes = tuple(draw(st.lists(st.one_of(TOP_CHANGES, STEP_CHANGES), min_size=1, max_size=5)))
    commit_id = draw(st.one_of(st.none(), st.sampled_from(["c1", "$c2"])))
    assume(commit_id is None or all(change.field != "commit_ids" for change in changes))
    try:
        return Transition("drawn", INSTANCES, "key", guards, changes, commit_id)
    except InvalidTransition:
        assume(False)
        raise


class Pair:
    """The reference and the Mongo store, each with the same rows."""

    def __init__(self, mongo: MongoStore) -> None:
        self.mongo = mongo
        self.memory = MemoryStore(ManualClock(wall_ms=BASE_MS))

    def insert(self, row: Document) -> str:
        """Insert `row` under a fresh key into both."""
        key = f"wf-{RandomIds().token()}"
        document = {**row, "workflow_id": key, "biz_key": f"of {key}"}
        inserted = Inserted(document)
        assert self.memory.insert(Insert("create", INSTANCES, key, document)) == inserted
        assert self.mongo.insert(Insert("create", INSTANCES, key, document)) == inserted
        return key


@pytest.fixture
def pair(mongo_store: MongoStores) -> Pair:
    return Pair(mongo_store())


def _grained(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _grained(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_grained(item) for item in value]
    is_near = isinstance(value, int) and abs(value - BASE_MS) < 100 * HOUR_MS
    return f"base + {round((value - BASE_MS) / GRAIN_MS)}" if is_near else (type(value).__name__, value)


def _comparable(answer: Answer) -> Any:
    return _grained(answer.document) if isinstance(answer, Applied) else answer


@pytest.mark.req("clm-atomic", "dc-mongo-required")
@pytest.mark.timeout(300)  # 300 examples: most of a minute where others want the processors as well
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(row=ROWS, drawn=st.lists(transitions(), min_size=1, max_size=3))
def test_each_transition_gives_the_answer_and_the_row_of_the_reference(
    pair: Pair, row: Document, drawn: list[Transition]
) -> None:
    key = pair.insert(row)
    for each in drawn:
        transition = Transition(each.name, each.table, key, each.guards, each.changes, each.commit_id)
        try:
            expected = pair.memory.apply(transition)
        except CorruptRecord:
            # Arithmetic on text, a field of a number: no row of the kernel has such a shape.
            return
        assert _comparable(pair.mongo.apply(transition)) == _comparable(expected), transition
        stored = pair.memory.get(INSTANCES, key)
        assert _grained(pair.mongo.get(INSTANCES, key)) == _grained(stored), transition


COLUMN_ROWS = st.fixed_dictionaries(
    {"steps": st.just([])},
    optional={
        "type": st.one_of(TEXTS, LISTS),
        "claimable_time": TIMES,
        "deaths": NUMBERS,
        "worker_id": TEXTS,
        "parked": WAITS,
        "deferred": WAITS,
        "definition_key": TEXTS,
        "created_time": TIMES,
    },
)
SCAN_GUARDS = st.one_of(
    st.builds(OneOf, _at(["type", "definition_key"]), st.lists(TEXTS, max_size=4).map(tuple)),
    st.builds(Equals, _at(["type", "worker_id"]), TEXTS),
    st.builds(Differs, _at(["type", "worker_id"]), TEXTS),
    st.builds(AtMost, _at(["claimable_time"]), TIMES),
    st.builds(AtMost, _at(["deaths", "type"]), NUMBERS),
    st.builds(Missing, _at(["parked", "claimable_time", "worker_id"])),
    st.builds(Exists, _at(["deferred", "deaths"])),
)
# An order, and the guard without which the partial index behind it may not serve.
ORDERS = st.sampled_from(
    [
        ("claimable_time", ()),
        ("worker_id", ()),
        ("definition_key", (Exists("deferred"),)),
        ("created_time", (Exists("parked"),)),
        ("biz_key", ()),
        ("workflow_id", ()),
    ]
)


@pytest.mark.req("rec-indexes")
@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    rows=st.lists(COLUMN_ROWS, max_size=12),
    order=ORDERS,
    drawn=st.lists(SCAN_GUARDS, max_size=2),
    limit=st.integers(0, 4),
)
def test_each_page_of_a_scan_is_that_of_the_reference(
    mongo_store: MongoStores, rows: list[Document], order: tuple[str, tuple[Guard, ...]], drawn: list[Any], limit: int
) -> None:
    pair = Pair(mongo_store())
    for row in rows:
        pair.insert(row)
    column, needed = order
    columns = (column, "workflow_id", "type", "claimable_time", "parked")
    after = None
    while True:
        query = Query(INSTANCES, (*needed, *drawn), column, columns, limit, after)
        page = pair.memory.scan(query)
        assert pair.mongo.scan(query) == page
        if not page:
            return
        after = (page[-1][0], page[-1][1])
