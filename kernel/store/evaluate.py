"""The meaning of the write vocabulary, on plain documents: what `memory` and `sqlite` run, and `mongo` must equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel.errors import CorruptRecord
from kernel.records import COMMIT_IDS_KEPT, Document
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
        if not holds(document, transition.guards, now_ms):
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
        if isinstance(part, int):
            if not isinstance(value, list) or part >= len(value):
                return ABSENT
            value = value[part]
        else:
            if not isinstance(value, dict) or part not in value:
                return ABSENT
            value = value[part]
    return value


def column_of(document: Document, column: str) -> Any:
    """The value of a column, as a scan answers it: None for an absent one."""
    value = lookup(document, parse(column))
    return None if value is ABSENT else value


def holds(document: Document, guards: Iterable[Guard], now_ms: int) -> bool:
    """Whether all guards hold on `document` at the store's `now_ms`."""
    return all(_holds(lookup(document, parse(guard.field)), guard, now_ms) for guard in guards)


def _holds(value: Any, guard: Guard, now_ms: int) -> bool:
    match guard:
        case Equals():
            return same(value, guard.value)
        case OneOf():
            return any(same(value, wanted) for wanted in guard.values)
        case Differs():
            return not same(value, guard.value)
        case Missing():
            return value is ABSENT
        case Exists():
            return value is not ABSENT
        case AtMost():
            return is_number(value) and value <= guard.value
        case AtLeast():
            return is_number(value) and value >= guard.value
        case Due():
            return is_number(value) and value <= now_ms


def same(value: Any, wanted: Any) -> bool:
    """Equality as MongoDB sees it: true and 1 are different things."""
    return value is not ABSENT and isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def change_all(document: Document, changes: Iterable[Change], now_ms: int) -> None:
    """Apply all changes to `document` in place. The caller owns the document: nobody else may hold it."""
    for change in changes:
        _change(document, change, now_ms)


def _change(document: Document, change: Change, now_ms: int) -> None:
    path = parse(change.field)
    if isinstance(change, Clear):
        _clear(document, path)
        return
    parent, last = _parent(document, path)
    before = parent.get(last, ABSENT) if isinstance(parent, dict) else parent[last]
    match change:
        case Put():
            after = change.value
        case Add():
            after = change.value if before is ABSENT else before + change.value
        case RaiseTo():
            after = change.value if before is ABSENT else max(before, change.value)
        case LowerTo():
            after = change.value if before is ABSENT else min(before, change.value)
        case PutNow():
            after = now_ms
        case PutNowPlus():
            after = now_ms + change.ms
        case Append():
            after = [*([] if before is ABSENT else before), change.value][-change.keep :]
    parent[last] = after


def _parent(document: Document, path: Path) -> tuple[Any, Any]:
    value: Any = document
    for part in path[:-1]:
        value = value[part] if isinstance(part, int) else value.setdefault(part, {})
    return value, path[-1]


def _clear(document: Document, path: Path) -> None:
    parent = lookup(document, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
