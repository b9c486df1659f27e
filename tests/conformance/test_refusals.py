"""What the vocabulary refuses when a transition is built: anything that one of the stores could not run exactly."""

from __future__ import annotations

import msgspec
import pytest

from kernel.errors import InvalidTransition
from kernel.store.conditional import (
    Add,
    Append,
    AtLeast,
    AtMost,
    Change,
    Clear,
    Differs,
    Equals,
    Exists,
    Guard,
    LowerTo,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Transition,
)
from kernel.store.tables import INSTANCES


def build(*changes: Change, guards: tuple[Guard, ...] = ()) -> Transition:
    return Transition("built", INSTANCES, "key", guards, changes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Put("status", "a"), Put("status", "b")),
        (Put("wait", {}), Clear("wait.kind")),
        (Clear("wait.kind"), Put("wait", {})),
        (Put("steps", []), Add("steps.0.attempt", 1)),
        (Put("steps.1", {}), PutNow("steps.1.started_time")),
        (Put("steps.1.wait", {}), Clear("steps.1.wait.poll_time")),
        (Add("revision", 1), Add("revision", 1)),
        (RaiseTo("deaths", 1), LowerTo("deaths", 2)),
    ],
)
def test_two_changes_of_one_field_or_of_something_in_it_are_refused(first: Change, second: Change) -> None:
    with pytest.raises(InvalidTransition, match="two changes touch"):
        build(first, second)


@pytest.mark.parametrize(
    "changes",
    [
        (Put("steps.1.status", "pending"), Put("steps.1.attempt", 1)),
        (Put("steps.1", {}), Put("steps.10", {})),
        (Put("wait.kind", "a"), Put("waited", 1)),
        (PutNowPlus("claimable_time", 5), PutNow("claim_time"), Clear("wait.kind"), Append("runs", {}, 3)),
    ],
)
def test_changes_of_different_fields_stand_together(changes: tuple[Change, ...]) -> None:
    assert build(*changes).changes == changes


@pytest.mark.parametrize("field", ["steps.0.due_time", "steps.0.wait.poll_time"])
def test_now_plus_is_never_in_a_step(field: str) -> None:
    with pytest.raises(InvalidTransition, match="under steps"):
        build(PutNowPlus(field, 5), guards=(Exists(field),))


@pytest.mark.parametrize("guards", [(), (Exists("wait"),), (Exists("waited.kind"),), (Differs("wait.kind", "x"),)])
def test_now_plus_in_a_map_needs_a_guard_that_proves_the_map(guards: tuple[Guard, ...]) -> None:
    """A pipeline would put a map in the place of anything else; the reference would call the row corrupt."""
    with pytest.raises(InvalidTransition, match="a guard on a field of that map"):
        build(PutNowPlus("wait.poll_time", 5), guards=guards)


@pytest.mark.parametrize("guard", [Equals("wait.kind", "timer"), Exists("wait.step"), AtMost("wait.generation", 3)])
def test_a_guard_on_a_field_of_the_map_proves_it(guard: Guard) -> None:
    assert build(PutNowPlus("wait.poll_time", 5), guards=(guard,)).guards == (guard,)


@pytest.mark.parametrize("field", ["steps.first", "Status", "a.Part", "a.b.c"])
def test_a_path_is_a_name_or_a_name_in_a_map(field: str) -> None:
    with pytest.raises(InvalidTransition, match="not in the vocabulary"):
        build(Put(field, 1))


@pytest.mark.parametrize("change", [Put("steps.0.status", "a"), Clear("steps.0.wait.kind"), Put("steps", [])])
def test_now_plus_and_a_change_of_a_step_are_refused_together(change: Change) -> None:
    """A store needs a pipeline for the first, and in a pipeline a number is no position (DECISIONS detail 10)."""
    with pytest.raises(InvalidTransition, match="steps"):
        build(change, PutNowPlus("claimable_time", 5))


@pytest.mark.case("A76")
@pytest.mark.parametrize(
    "field",
    [
        *(
            "",
            ".",
            "$where",
            "$set",
            "a.$b",
            "steps.$",
            "steps.$[]",
            "steps.-1.status",
            "steps.01.status",
            "a..b",
            "a.b.",
        ),
        *("steps.1.", "Status", "status ", "status\0", "a.b.c", "steps.0.wait.kind.deep", "steps.99999.status", "é"),
        *("steps.0.0", "wait.0", "outputs.A", "outputs.a-b", "\n", "status\n", "__proto__"),
    ],
)
def test_what_is_no_path_of_checked_names_is_refused_in_guards_and_changes(field: str) -> None:
    for guards, changes in (((), (Put(field, 1),)), ((Exists(field),), (Put("status", 1),))):
        with pytest.raises(InvalidTransition, match="not in the vocabulary"):
            build(*changes, guards=guards)


@pytest.mark.parametrize("value", [None, [], ["a"], {}, {"$gt": ""}, ()])
def test_a_guard_compares_with_one_plain_value(value: object) -> None:
    """Nothing from outside that is no scalar can become an operator of a database."""
    for guard in (Equals("status", value), Differs("status", value)):
        with pytest.raises(InvalidTransition, match="one plain value"):
            build(Put("type", "a"), guards=(guard,))


@pytest.mark.parametrize("value", ["9", True, b"9"])
def test_an_order_is_one_of_numbers(value: int) -> None:
    for guard in (AtMost("deaths", value), AtLeast("deaths", value)):
        with pytest.raises(InvalidTransition, match="compares numbers"):
            build(Put("type", "a"), guards=(guard,))


def test_the_writers_mark_is_written_by_the_store_alone() -> None:
    for change in (Append("commit_ids", "x", 3), Clear("commit_ids"), Put("commit_ids", [])):
        with pytest.raises(InvalidTransition, match="commit_ids"):
            Transition("built", INSTANCES, "key", (), (change,), "mark")
        assert build(change).changes == (change,)


def test_a_step_is_replaced_and_not_cleared() -> None:
    with pytest.raises(InvalidTransition, match="not cleared"):
        build(Clear("steps.1"))
    assert build(Put("steps.1", {}), Clear("steps.0.wait")).name == "built"


class _Foreign(msgspec.Struct, frozen=True):
    field: str


@pytest.mark.parametrize("changes", [(), (_Foreign("status"),), (Equals("status", 1),)])
def test_a_transition_without_a_change_or_with_a_word_that_is_none_is_refused(changes: tuple[Change, ...]) -> None:
    with pytest.raises(InvalidTransition):
        build(*changes)


@pytest.mark.parametrize("guard", [_Foreign("status"), Put("status", 1)])
def test_a_guard_that_is_none_is_refused(guard: Guard) -> None:
    with pytest.raises(InvalidTransition):
        build(Put("type", "a"), guards=(guard,))
