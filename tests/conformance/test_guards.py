"""What each guard says of each kind of value, as a table, at every depth that a path can have.

The values stand in one row under names that tell them; a guard is tried on each of them by a transition that
changes something else. What must hold is written down here, not computed.
"""

from __future__ import annotations

from typing import Any

import pytest

from kernel.records import Document
from kernel.store.conditional import (
    MISSED,
    Applied,
    AtLeast,
    AtMost,
    Differs,
    Due,
    Equals,
    Exists,
    Guard,
    Insert,
    Missing,
    OneOf,
    Put,
    Transition,
)
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.support.stores import HOUR_MS

VALUES: Document = {
    "null": None,
    "false": False,
    "true": True,
    "minus": -1,
    "zero": 0,
    "one": 1,
    "one_float": 1.0,
    "half": 0.5,
    "big": 2**53,
    "empty": "",
    "text_one": "1",
    "dollar": "$one",
    "dotted": "a.b",
    "nul_free": "é \u2028 {}",
    "no_bytes": b"",
    "bytes_one": b"1",
    "empty_list": [],
    "list_one": [1],
    "list_of_text": ["", "1"],
    "list_of_maps": [{"one": 1}],
    "empty_map": {},
    "map": {"one": 1},
}
PRESENT = frozenset(VALUES)
NUMBERS = frozenset({"minus", "zero", "one", "one_float", "half", "big"})
PREFIXES = ("", "wait.", "steps.1.", "steps.0.wait.")

# (guard on a field, names of the values on which it holds; ABSENT stands for a field that is not there)
ABSENT = "absent"
EVERY = PRESENT | {ABSENT}
TABLE: tuple[tuple[Any, frozenset[str]], ...] = (
    (lambda field: Equals(field, 1), frozenset({"one", "one_float"})),
    (lambda field: Equals(field, 1.0), frozenset({"one", "one_float"})),
    (lambda field: Equals(field, 0), frozenset({"zero"})),
    (lambda field: Equals(field, True), frozenset({"true"})),
    (lambda field: Equals(field, False), frozenset({"false"})),
    (lambda field: Equals(field, ""), frozenset({"empty"})),
    (lambda field: Equals(field, "1"), frozenset({"text_one"})),
    (lambda field: Equals(field, "$one"), frozenset({"dollar"})),
    (lambda field: Equals(field, b"1"), frozenset({"bytes_one"})),
    (lambda field: Equals(field, b""), frozenset({"no_bytes"})),
    (lambda field: Equals(field, "nothing like it"), frozenset()),
    (lambda field: Differs(field, 1), EVERY - {"one", "one_float"}),
    (lambda field: Differs(field, True), EVERY - {"true"}),
    (lambda field: Differs(field, "1"), EVERY - {"text_one"}),
    (lambda field: OneOf(field, ("1", 0, b"1")), frozenset({"text_one", "zero", "bytes_one"})),
    (lambda field: OneOf(field, (False, "")), frozenset({"false", "empty"})),
    (lambda field: OneOf(field, ()), frozenset()),
    (lambda field: AtMost(field, 0), frozenset({"minus", "zero"})),
    (lambda field: AtMost(field, 1), NUMBERS - {"big"}),
    (lambda field: AtMost(field, 2**60), NUMBERS),
    (lambda field: AtLeast(field, 1), frozenset({"one", "one_float", "big"})),
    (lambda field: AtLeast(field, -(2**60)), NUMBERS),
    (Exists, PRESENT),
    (Missing, frozenset({ABSENT})),
)


def guarded(key: str, guard: Guard) -> Transition:
    return Transition("guarded", INSTANCES, key, (guard,), (Put("touched", "yes"),))


def hit(store: Store, guard: Guard) -> bool:
    return isinstance(store.apply(guarded("row", guard)), Applied)


def insert_values(store: Store) -> None:
    document: Document = {
        "workflow_id": "row",
        "biz_key": "row",
        **VALUES,
        "wait": dict(VALUES),
        "steps": [{"name": "first", "wait": dict(VALUES)}, dict(VALUES)],
    }
    store.insert(Insert("create", INSTANCES, "row", document))


@pytest.mark.parametrize("prefix", PREFIXES, ids=["top", "nested", "step", "step-nested"])
def test_a_guard_holds_exactly_on_the_values_that_it_names(prefix: str, store: Store) -> None:
    insert_values(store)

    for make, expected in TABLE:
        held = {name for name in EVERY if hit(store, make(f"{prefix}{name}"))}
        assert held == expected, make(f"{prefix}field")


@pytest.mark.parametrize(
    "field",
    [
        *("wait.nothing", "steps.7.one", "steps.1.map.none", "steps.0.name.part", "one.part", "list_one.one"),
        "list_of_maps.one",
    ],
)
def test_a_path_that_leads_nowhere_is_an_absent_field(field: str, store: Store) -> None:
    """A field of a number, of a text, of a list, a step that is not there: absent, and no error."""
    insert_values(store)

    assert hit(store, Missing(field))
    assert hit(store, Differs(field, 1))
    for guard in (Exists(field), Equals(field, 1), OneOf(field, (1, "")), AtMost(field, 9), AtLeast(field, -9)):
        assert not hit(store, guard), guard


@pytest.mark.req("clm-not-before")
@pytest.mark.parametrize("prefix", PREFIXES, ids=["top", "nested", "step", "step-nested"])
def test_due_means_a_time_that_the_stores_clock_has_reached(prefix: str, store: Store) -> None:
    """Absent, null, text, boolean and lists are never due, however a database orders its types."""
    now_ms = store.now_ms()
    times: Document = {
        "past_time": now_ms - HOUR_MS,
        "epoch_time": 0,
        "future_time": now_ms + HOUR_MS,
        "text_time": "0",
        "null_time": None,
        "true_time": True,
        "false_time": False,
        "list_time": [0],
        "map_time": {},
    }
    document: Document = {"workflow_id": "row", "biz_key": "row", **times, "wait": dict(times)}
    document["steps"] = [{"wait": dict(times)}, dict(times)]
    store.insert(Insert("create", INSTANCES, "row", document))

    due = {name for name in {*times, "absent_time"} if hit(store, Due(f"{prefix}{name}"))}

    assert due == {"past_time", "epoch_time"}


def test_all_guards_must_hold(store: Store) -> None:
    insert_values(store)
    true, false = Equals("one", 1), Equals("zero", 1)

    for guards, expected in (((), True), ((true, true), True), ((true, false), False), ((false, true), False)):
        changed = Transition("guarded", INSTANCES, "row", guards, (Put("touched", "yes"),))
        assert (store.apply(changed) != MISSED) is expected, guards
