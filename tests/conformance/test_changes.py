"""What each change makes of a field that is there and of one that is not, at every depth that a path can have."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.records import Document
from kernel.store.conditional import (
    Add,
    Append,
    Applied,
    Change,
    Clear,
    Equals,
    Insert,
    LowerTo,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Transition,
)
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.conformance.instances import row
from tests.support.stores import HOUR_MS

ABSENT = object()
# (change of a field, value before, value after)
TABLE: tuple[tuple[Any, Any, Any], ...] = (
    (lambda field: Put(field, "new"), ABSENT, "new"),
    (lambda field: Put(field, "new"), 3, "new"),
    (lambda field: Put(field, {"a": [1, {"b": b"\x00$"}]}), "old", {"a": [1, {"b": b"\x00$"}]}),
    (lambda field: Put(field, "$field"), "old", "$field"),
    (lambda field: Put(field, True), 1, True),
    (lambda field: Put(field, []), ABSENT, []),
    (Clear, "old", ABSENT),
    (Clear, {"deep": 1}, ABSENT),
    (Clear, ABSENT, ABSENT),
    (lambda field: Add(field, 2), ABSENT, 2),
    (lambda field: Add(field, 2), 40, 42),
    (lambda field: Add(field, -1), 0, -1),
    (lambda field: RaiseTo(field, 5), ABSENT, 5),
    (lambda field: RaiseTo(field, 5), 4, 5),
    (lambda field: RaiseTo(field, 5), 6, 6),
    (lambda field: LowerTo(field, 5), ABSENT, 5),
    (lambda field: LowerTo(field, 5), 4, 4),
    (lambda field: LowerTo(field, 5), 6, 5),
    (lambda field: Append(field, "z", 3), ABSENT, ["z"]),
    (lambda field: Append(field, "z", 3), [], ["z"]),
    (lambda field: Append(field, "z", 3), ["a", "b", "c"], ["b", "c", "z"]),
    (lambda field: Append(field, {"k": "$v"}, 1), ["a", "b"], [{"k": "$v"}]),
    (lambda field: Append(field, ["x"], 3), ["a"], ["a", ["x"]]),
)
PREFIXES = ("", "wait.", "steps.1.", "steps.0.wait.")


def document_with(prefix: str, field: str, value: Any) -> Document:
    """A row in which `field` at `prefix` has `value`, with neighbours that must stay."""
    document: Document = {
        "workflow_id": "row",
        "biz_key": "row",
        "near": 1,
        "wait": {"near": 2},
        "steps": [{"near": 3, "wait": {"near": 4}}, {"near": 5}, {"near": 6}],
    }
    if value is not ABSENT:
        place(document, prefix)[field] = value
    return document


def place(document: Document, prefix: str) -> Document:
    """The map in `document` that holds the fields at `prefix`."""
    steps = document["steps"]
    places: dict[str, Document] = {
        "": document,
        "wait.": document["wait"],
        "steps.1.": steps[1],
        "steps.0.wait.": steps[0]["wait"],
    }
    return places[prefix]


def change(store: Store, *changes: Change) -> Document:
    """Apply `changes` to the row; what the store answers and what it then holds are the same."""
    answer = store.apply(Transition("change", INSTANCES, "row", (), changes))
    assert answer == Applied(row(store, "row"))
    return row(store, "row")


@pytest.mark.parametrize("prefix", PREFIXES, ids=["top", "nested", "step", "step-nested"])
def test_a_change_makes_of_the_field_what_the_table_says_and_touches_no_other(prefix: str, store: Store) -> None:
    for number, (make, before, after) in enumerate(TABLE):
        key = f"row-{number}"
        document = {**document_with(prefix, "field", before), "workflow_id": key, "biz_key": key}
        expected = {**document_with(prefix, "field", after), "workflow_id": key, "biz_key": key}
        store.insert(Insert("create", INSTANCES, key, document))

        store.apply(Transition("change", INSTANCES, key, (), (make(f"{prefix}field"),)))

        assert row(store, key) == expected, (make("field"), before)


@pytest.mark.parametrize("make", [entry[0] for entry in TABLE if entry[1] is ABSENT])
def test_a_change_makes_the_map_around_an_absent_field(make: Any, store: Store) -> None:
    """In `outputs.first` neither need be there; clearing makes nothing."""
    store.insert(Insert("create", INSTANCES, "row", {"workflow_id": "row", "biz_key": "row", "steps": [{}]}))

    after = change(store, make("fresh.field"), make("steps.0.fresh.field"))

    value = next(entry[2] for entry in TABLE if entry[0] is make)
    made = {} if value is ABSENT else {"fresh": {"field": value}}
    assert after == {"workflow_id": "row", "biz_key": "row", "steps": [made], **made}


def test_now_is_the_stores_clock_at_every_depth(store: Store) -> None:
    """Not the caller's: whoever applies a transition hands in no time at all (ARCHITECTURE §4)."""
    store.insert(Insert("create", INSTANCES, "row", document_with("", "at_time", 5)))
    fields = [f"{prefix}at_time" for prefix in PREFIXES]

    before_ms = store.now_ms()
    after = change(store, *(PutNow(field) for field in fields))
    after_ms = store.now_ms()

    written = {place(after, prefix)["at_time"] for prefix in PREFIXES}
    assert before_ms - 50 <= min(written) <= max(written) <= after_ms + 50
    # MongoDB looks at its clock for each field that $currentDate names.
    assert len(written) == 1 or isinstance(store, MongoStore)


@pytest.mark.parametrize("ms", [0, 30_000, -HOUR_MS])
def test_now_plus_a_duration_is_counted_from_the_stores_clock(ms: int, store: Store) -> None:
    store.insert(Insert("create", INSTANCES, "row", document_with("", "lease_time", 5)))

    before_ms = store.now_ms()
    after = change(store, PutNowPlus("lease_time", ms), PutNow("claim_time"), Put("note", "$x"), Clear("near"))
    after_ms = store.now_ms()

    assert after["lease_time"] - after["claim_time"] == ms
    assert before_ms - 50 <= after["claim_time"] <= after_ms + 50
    assert after["note"] == "$x"
    assert "near" not in after


def test_every_other_change_may_stand_beside_now_plus(store: Store) -> None:
    """A store that needs another kind of update for it must give the same answers in that kind."""
    pairs: Document = {f"field_{n}": before for n, (_, before, _) in enumerate(TABLE) if before is not ABSENT}
    store.insert(Insert("create", INSTANCES, "row", {**document_with("", "x", 1), **pairs}))

    changes = [make(f"field_{n}") for n, (make, _, _) in enumerate(TABLE)]
    after = change(store, PutNowPlus("lease_time", 1), *changes)

    expected = {f"field_{n}": value for n, (_, _, value) in enumerate(TABLE) if value is not ABSENT}
    assert {name: value for name, value in after.items() if name.startswith("field_")} == expected


def test_a_step_can_be_replaced_as_a_whole(store: Store) -> None:
    store.insert(Insert("create", INSTANCES, "row", document_with("", "x", 1)))

    after = change(store, Put("steps.1", {"name": "fresh"}), Put("steps.0.near", 9))

    assert after["steps"] == [{"near": 9, "wait": {"near": 4}}, {"name": "fresh"}, {"near": 6}]


def test_a_missed_transition_changes_nothing_not_even_its_mark(store: Store) -> None:
    document = document_with("", "x", 1)
    store.insert(Insert("create", INSTANCES, "row", document))

    missed = Transition("change", INSTANCES, "row", (Equals("x", 2),), (Put("x", 3), Add("near", 1)), "mark")

    assert not isinstance(store.apply(missed), Applied)
    assert row(store, "row") == document


def test_the_mark_of_the_writer_is_in_the_row_exactly_when_its_write_landed(store: Store) -> None:
    store.insert(Insert("create", INSTANCES, "row", document_with("", "x", 1)))

    for value, mark in ((1, "landed"), (1, "missed"), (2, "landed-too")):
        store.apply(Transition("change", INSTANCES, "row", (Equals("x", value),), (Add("x", 1),), mark))

    assert row(store, "row")["commit_ids"] == ["landed", "landed-too"]


def test_what_a_caller_holds_can_not_change_what_is_stored(store: Store) -> None:
    document = document_with("", "x", [1])
    store.insert(Insert("create", INSTANCES, "row", document))
    document["x"].append(2)
    row(store, "row")["x"].append(3)
    value = {"inner": [1]}
    change(store, Put("y", value))
    value["inner"].append(2)

    assert (row(store, "row")["x"], row(store, "row")["y"]) == ([1], {"inner": [1]})
