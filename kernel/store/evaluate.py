"""The meaning of the write vocabulary, on plain documents: what `memory` and `sqlite` run, and `mongo` must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kernel.errors import CorruptRecord
from kernel.records import COMMIT_IDS_KEPT, Document, bears_mark
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
    LowerTo,
    Missing,
    OneOf,
    Path,
    Put,
    PutNow,
    PutNowPlus,
    RaiseTo,
    Remove,
    Transition,
    parse,
)


class _Absent:
    __slots__ = ()


ABSENT = _Absent()


def changed(document: Document, transition: Transition, now_ms: int) -> Document | None:
    """The row after `transition`, or None when a guard does not hold. Changes `document` in place.

    Raises CorruptRecord when the row does not have the shape that the transition needs.
    """
    try:
        if not holds(document, transition.guards, now_ms) or bears_mark(document, transition.commit_id):
            return None
        change_all(document, transition.changes, now_ms)
        if transition.commit_id is not None:
            change_all(document, (commit_mark(transition.commit_id),), now_ms)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # The row does not have the shape that the change needs: text that is added to, a map that is no list.
        raise CorruptRecord(f"{transition.table} {transition.key!r}: {transition.name}: {error}") from None
    return document


def removable(document: Document, remove: Remove, now_ms: int) -> bool:
    """Whether the row may go. Raises CorruptRecord when it does not have the shape that the guards need."""
    try:
        return holds(document, remove.guards, now_ms)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise CorruptRecord(f"{remove.table} {remove.key!r}: {remove.name}: {error}") from None


def commit_mark(commit_id: str) -> Append:
    """The change that leaves the writer's mark in the row."""
    return Append("commit_ids", commit_id, COMMIT_IDS_KEPT)


def lookup(document: Document, path: Path) -> Any:
    """The value at `path`, or ABSENT."""
    value: Any = document
    for part in path:
        if type(part) is int:
            if type(value) is not list or part >= len(value):
                return ABSENT
        elif type(value) is not dict or part not in value:
            return ABSENT
        value = value[part]
    return value


def column_of(document: Document, column: str) -> Any:
    """The value of a column, as a scan answers it: None for an absent one."""
    value = lookup(document, parse(column))
    return None if value is ABSENT else value


def holds(document: Document, guards: Iterable[Guard], now_ms: int) -> bool:
    """Whether all guards hold on `document` at the store's `now_ms`."""
    for guard in guards:
        path: tuple[Any, ...] = parse(guard.field)
        value = document.get(path[0], ABSENT) if len(path) == 1 else lookup(document, path)
        if not _HOLDS[type(guard)](value, guard, now_ms):
            return False
    return True


# By the kind of word, because a write has about twenty of them and every write of every process comes through here.
_HOLDS: dict[type, Callable[[Any, Any, int], bool]] = {
    Equals: lambda value, guard, now_ms: same(value, guard.value),
    OneOf: lambda value, guard, now_ms: any(same(value, wanted) for wanted in guard.values),
    Differs: lambda value, guard, now_ms: not same(value, guard.value),
    Missing: lambda value, guard, now_ms: value is ABSENT,
    Exists: lambda value, guard, now_ms: value is not ABSENT,
    AtMost: lambda value, guard, now_ms: is_number(value) and value <= guard.value,
    AtLeast: lambda value, guard, now_ms: is_number(value) and value >= guard.value,
    Due: lambda value, guard, now_ms: is_number(value) and value <= now_ms,
}


def same(value: Any, wanted: Any) -> bool:
    """Equality as MongoDB sees it: true and 1 are different things."""
    return value is not ABSENT and (type(value) is bool) is (type(wanted) is bool) and bool(value == wanted)


_NUMBERS = (int, float)


def is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def change_all(document: Document, changes: Iterable[Change], now_ms: int) -> None:
    """Apply all changes to `document` in place. The caller owns the document: nobody else may hold it."""
    for change in changes:
        path: tuple[Any, ...] = parse(change.field)
        kind = type(change)
        if kind is Clear:
            _clear(document, path)
            continue
        parent: Any = document if len(path) == 1 else _parent(document, path)
        last = path[-1]
        if kind is Put:
            parent[last] = change.value  # type: ignore[union-attr]  # a Put has one
            continue
        before = parent.get(last, ABSENT) if type(parent) is dict else parent[last]
        parent[last] = _AFTER[kind](before, change, now_ms)


_AFTER: dict[type, Callable[[Any, Any, int], Any]] = {
    Add: lambda before, change, now_ms: change.value if before is ABSENT else before + change.value,
    RaiseTo: lambda before, change, now_ms: change.value if before is ABSENT else max(before, change.value),
    LowerTo: lambda before, change, now_ms: change.value if before is ABSENT else min(before, change.value),
    PutNow: lambda before, change, now_ms: now_ms,
    PutNowPlus: lambda before, change, now_ms: now_ms + change.ms,
    Append: lambda before, change, now_ms: [*([] if before is ABSENT else before), change.value][-change.keep :],
}


def _parent(document: Document, path: Path) -> Any:
    """What holds the last part of `path`; maps that lack on the way are made."""
    value: Any = document
    for part in path[:-1]:
        value = value[part] if type(part) is int else value.setdefault(part, {})
    return value


def _clear(document: Document, path: tuple[Any, ...]) -> None:
    parent = document if len(path) == 1 else lookup(document, path[:-1])
    if type(parent) is dict:
        parent.pop(path[-1], None)
