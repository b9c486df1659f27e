"""All stores give the same answers: random lives of instances, and random words of the vocabulary.

Memory and SQLite run on one clock and must agree to the millisecond. MongoDB decides by its own clock: there the
times that a walk uses are an hour apart, and those that a store gave are compared in steps of ten minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernel.clock import ManualClock, SystemClock
from kernel.errors import CorruptRecord, InvalidTransition
from kernel.ids import RandomIds
from kernel.records import Document
from kernel.store.conditional import (
    Add,
    Append,
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
    LowerTo,
    Missing,
    OneOf,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Transition,
)
from kernel.store.protocol import Query, Store
from kernel.store.tables import Index, Table
from tests.conformance.conftest import MakeStore
from tests.conformance.walks import STEPS_OF_A_WALK, VERBS, Step, Walk, random_steps
from tests.support.stores import HOUR_MS, memory_store

GRAIN_MS = 600_000
THINGS = Table(
    "things",
    "id",
    ("id", "a", "b", "number", "unique_name"),
    (Index("things_number", ("number", "id"), present="number"), Index("things_name", ("unique_name",), unique=True)),
)
F = TypeVar("F", bound=Callable[..., None])


def same_every_run(examples: int) -> Callable[[F], F]:
    """Hypothesis draws the same examples in every run; a failure prints how to get it again."""

    def decorated(function: F) -> F:
        found: F = settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )(function)
        return found

    return decorated


def fresh() -> str:
    return RandomIds().token()[:12]


# --- lives --------------------------------------------------------------------------------------------


def test_memory_and_sqlite_agree_on_every_life(make_store: MakeStore, clock: ManualClock) -> None:
    stores = [make_store("memory"), make_store("sqlite")]

    @same_every_run(60)
    @given(steps=STEPS_OF_A_WALK, ticks=st.lists(st.integers(0, 3 * HOUR_MS), min_size=1, max_size=5))
    def live(steps: list[Step], ticks: list[int]) -> None:
        walk = Walk(stores, fresh())
        for number, step in enumerate(steps):
            walk.take(step)
            clock.advance(ticks[number % len(ticks)] if number % 7 == 6 else number % 3)
        walk.check_pages()

    live()


def test_memory_and_sqlite_agree_on_lives_in_which_every_transition_happens(
    make_store: MakeStore, clock: ManualClock
) -> None:
    stores = [make_store("memory"), make_store("sqlite")]
    hits: Counter[str] = Counter()

    for seed in range(160):
        walk = Walk(stores, f"life-{seed}")
        for step in random_steps(seed, 60):
            walk.take(step)
            clock.advance(step.variant * 60_000)
        walk.check_pages()
        hits.update(walk.hits)

    assert set(VERBS) == set(hits), f"never hit, so never compared: {set(VERBS) - set(hits)}"


def grained(base_ms: int) -> Callable[[Any], Any]:
    """Times near `base_ms` in steps of ten minutes, everything else as it is."""

    def grain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: grain(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [grain(item) for item in value]
        is_near = type(value) is int and abs(value - base_ms) < 100 * HOUR_MS
        return f"base + {round((value - base_ms) / GRAIN_MS)}" if is_near else value

    return grain


def test_mongo_agrees_with_memory_on_every_life(make_store: MakeStore) -> None:
    base_ms = SystemClock().wall_ms()
    stores = [memory_store(ManualClock(wall_ms=base_ms)), make_store("mongo")]

    for seed in range(15):
        walk = Walk(stores, f"life-{seed}", grained(base_ms))
        for step in random_steps(seed, 60):
            walk.take(step)
        walk.check_pages()


# --- words --------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, -3, 2.5, 1.0, 2**53, -(2**63), 2**63 - 1])
TEXTS = st.sampled_from(["", "1", "a", "$a", "a.b", "é\u2028", "nul\0", "running"])
SCALARS = st.one_of(NUMBERS, TEXTS, st.booleans(), st.sampled_from([b"", b"\x00$", b"1"]), st.none())
TIMES = st.sampled_from([-1, 0, 1, ManualClock().wall_ms(), ManualClock().wall_ms() + 1])
VALUES = st.one_of(
    SCALARS, TIMES, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from("xyz"), SCALARS, max_size=2)
)
STEPS = st.dictionaries(st.sampled_from(["status", "attempt", "wait"]), VALUES, max_size=3)
FIELDS = ("a", "b", "number", "c", "c.x", "a.y", "steps.0", "steps.0.status", "steps.1.wait.x", "steps.2.attempt", "at")
FIELD = st.sampled_from(FIELDS)
TOP = st.sampled_from(("a", "b", "number", "c", "at"))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "a": VALUES,
        "b": VALUES,
        "c": VALUES,
        "at": VALUES,
        "number": NUMBERS,
        "steps": st.lists(STEPS, max_size=3),
    },
)
GUARDS: st.SearchStrategy[Guard] = st.one_of(
    *(st.builds(kind, FIELD, VALUES) for kind in (Equals, Differs)),
    st.builds(OneOf, FIELD, st.lists(VALUES, max_size=3).map(tuple)),
    *(st.builds(kind, FIELD, NUMBERS) for kind in (AtMost, AtLeast)),
    *(st.builds(kind, FIELD) for kind in (Exists, Missing, Due)),
)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Put, FIELD, VALUES),
    *(st.builds(kind, FIELD) for kind in (Clear, PutNow)),
    *(st.builds(kind, FIELD, st.integers(-3, 3)) for kind in (Add, RaiseTo, LowerTo)),
    st.builds(PutNowPlus, st.one_of(TOP, st.sampled_from(["c.x", "a.y"])), st.sampled_from([0, 5, -5])),
    st.builds(Append, FIELD, VALUES, st.integers(1, 3)),
)


@st.composite
def transitions(draw: st.DrawFn) -> Transition:
    guards = tuple(draw(st.lists(GUARDS, max_size=2)))
    changes = tuple(draw(st.lists(CHANGES, min_size=1, max_size=3)))
    try:
        return Transition("drawn", THINGS.name, "", guards, changes, draw(st.sampled_from([None, "mark"])))
    except InvalidTransition:
        assume(False)
        raise


def told(store: Store, transition: Transition) -> object:
    """The answer, or that the row and the transition do not fit each other."""
    try:
        return store.apply(transition)
    except (CorruptRecord, TypeError, AttributeError, LookupError):
        return "does not fit"


def test_memory_and_sqlite_agree_on_every_word(make_store: MakeStore, clock: ManualClock) -> None:
    """Also on rows of shapes that the kernel never makes."""
    memory, sqlite = (make_store(kind, {THINGS.name: THINGS}) for kind in ("memory", "sqlite"))

    @same_every_run(800)
    @given(row=ROWS, drawn=st.lists(transitions(), min_size=1, max_size=3))
    def try_words(row: Document, drawn: list[Transition]) -> None:
        key = fresh()
        insert = Insert("create", THINGS.name, key, {**row, "id": key, "unique_name": key})
        assert sqlite.insert(insert) == memory.insert(insert)
        for each in drawn:
            clock.advance(1)
            transition = Transition(each.name, each.table, key, each.guards, each.changes, each.commit_id)
            assert told(sqlite, transition) == told(memory, transition), transition
            assert exact(sqlite, key) == exact(memory, key), transition

    try_words()


def exact(store: Store, key: str) -> str:
    """The row with its types: true is not 1, and 1 is not 1.0."""
    return repr(store.get(THINGS.name, key))


@pytest.mark.parametrize("order", ["number", "id"])
def test_memory_and_sqlite_agree_on_every_page(order: str, make_store: MakeStore) -> None:
    columns = ("id", "a", "number")

    @same_every_run(80)
    @given(
        rows=st.lists(ROWS, max_size=6),
        guards=st.lists(
            st.one_of(
                *(st.builds(kind, st.sampled_from(["a", "b"]), SCALARS) for kind in (Equals, Differs)),
                st.builds(OneOf, st.sampled_from(["a", "b"]), st.lists(SCALARS, max_size=3).map(tuple)),
                st.builds(AtMost, st.sampled_from(["a", "number"]), NUMBERS),
                *(st.builds(kind, st.sampled_from(["a", "b", "number"])) for kind in (Exists, Missing)),
            ),
            max_size=2,
        ),
        limit=st.integers(1, 4),
    )
    def try_pages(rows: list[Document], guards: list[Any], limit: int) -> None:
        memory, sqlite = pair
        prefix = fresh()
        for number, row in enumerate(rows):
            key = f"{prefix}-{number}"
            insert = Insert("create", THINGS.name, key, {**row, "id": key, "unique_name": key})
            assert sqlite.insert(insert) == memory.insert(insert)
        after = None
        for _ in range(200):
            query = Query(THINGS.name, tuple(guards), order, (*columns, order), limit, after)
            page = sqlite.scan(query)
            assert repr(page) == repr(memory.scan(query)), query
            if len(page) < limit:
                return
            after = (page[-1][3], page[-1][0])

    pair = [make_store(kind, {THINGS.name: THINGS}) for kind in ("memory", "sqlite")]
    try_pages()
