"""From the write vocabulary to MongoDB's words: pure functions that talk to nobody.

    guards   → one filter; `Due` is `$expr` against `$$NOW`, the server's clock
    changes  → classic update operators, or a pipeline when a change is `PutNowPlus`
    a query  → filter, projection and order of one bounded page

The meaning is fixed by `kernel.store.evaluate`; where MongoDB's words mean more, the surplus is cut off here:

- a filter looks into lists, the vocabulary does not: every comparison adds "and is no list", and a path into a map
  that the map is none (steps are the one list that a path enters, by position);
- `$ne` is "no item equals", so `Differs` is the negation of the whole `Equals` clause instead;
- `null` matches an absent field; a record never holds null (kernel.records), so comparing with it is refused;
- a position beyond the end of a list would be filled up with nulls, so a change below `steps.<i>` demands `steps.<i>`;
- a number in an aggregation path is a field name, so `Due` below `steps` takes the element by `$arrayElemAt`;
- in a pipeline text that starts with `$` is a path, so every value stands under `$literal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kernel.errors import InvalidTransition
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
from kernel.store.evaluate import commit_mark
from kernel.store.mongo_codec import is_time, stored, text
from kernel.store.projection import REVISION, Totals
from kernel.store.protocol import Query
from kernel.store.tables import Table

_NO_LIST = {"$type": "array"}  # used under $not
_MERGEABLE = frozenset({"$exists", "$not", "$type"})  # operators whose operand is a constant of this module

Update = Document | list[Document]


class Write(NamedTuple):
    """One conditional update: for `find_one_and_update`."""

    filter: Document
    update: Update


class Page(NamedTuple):
    """One bounded read: for `find`."""

    filter: Document
    projection: Document
    sort: list[tuple[str, int]]


# --- filters -------------------------------------------------------------------------------------------


class _Filter:
    """Clauses that must all hold. Operators on one field are joined where none of them occurs twice."""

    def __init__(self) -> None:
        self.fields: dict[str, Document] = {}
        self._again: list[Document] = []
        self._never: list[Document] = []
        self._due: list[Document] = []

    def all_of(self, field: str, operators: Document) -> None:
        present = self.fields.setdefault(field, {})
        twice = present.keys() & operators.keys()
        if twice <= _MERGEABLE and all(present[name] == operators[name] for name in twice):
            present.update(operators)
        else:
            self._again.append({field: operators})

    def guard(self, field: str, operators: Document) -> None:
        """The value at `field`, which is there, is so."""
        self.all_of(field, operators)
        around = _map_around(field)
        if around is not None:
            self.all_of(around, {"$not": _NO_LIST})

    def never(self, field: str, operators: Document) -> None:
        """The value at `field` is not so, or not there."""
        around = _map_around(field)
        self._never.append({field: operators} | ({} if around is None else {around: {"$not": _NO_LIST}}))

    def missing(self, field: str) -> None:
        if _map_around(field) is None:
            self.all_of(field, {"$exists": False})
        else:
            self.never(field, {"$exists": True})

    def due(self, field: str) -> None:
        # `$expr` puts absent fields and lists below every date: the type is asked for apart.
        self.guard(field, {"$type": "date", "$not": _NO_LIST})
        self._due.append({"$lte": [_expression(parse(field)), "$$NOW"]})

    def document(self) -> Document:
        """The filter, field clauses first: they are what an index can serve."""
        document: Document = dict(self.fields)
        if self._again:
            document["$and"] = self._again
        if self._never:
            document["$nor"] = self._never
        if self._due:
            document["$expr"] = self._due[0] if len(self._due) == 1 else {"$and": self._due}
        return document


def _map_around(field: str) -> str | None:
    """The field that must hold a map for `field` to be there; None where nothing but a map can be."""
    path = parse(field)
    inside_step = path[0] == "steps" and len(path) > 1
    return field.rpartition(".")[0] if len(path) == (4 if inside_step else 2) else None


def _expression(path: Path) -> Any:
    """The value at `path` in an aggregation expression."""
    if path[0] == "steps" and len(path) > 1:
        step = {"$arrayElemAt": ["$steps", path[1]]}
        return {"$let": {"vars": {"step": step}, "in": ".".join(["$$step", *map(str, path[2:])])}}
    return "$" + ".".join(map(str, path))


def _add_guard(found: _Filter, guard: Guard) -> None:
    field = guard.field
    match guard:
        case Equals():
            found.guard(field, _equal(field, guard.value))
        case Differs():
            found.never(field, _equal(field, guard.value))
        case OneOf():
            found.guard(field, _one_of(field, guard.values))
        case AtMost():
            found.guard(field, {"$lte": _number(field, guard.value), "$not": _NO_LIST})
        case AtLeast():
            found.guard(field, {"$gte": _number(field, guard.value), "$not": _NO_LIST})
        case Exists():
            found.guard(field, {"$exists": True})
        case Missing():
            found.missing(field)
        case Due():
            found.due(_time_field(field))


def _equal(field: str, value: Any) -> Document:
    return {"$eq": _scalar(field, value), "$not": _NO_LIST}


def _one_of(field: str, values: Iterable[Any]) -> Document:
    return {"$in": [_scalar(field, value) for value in values], "$not": _NO_LIST}


def _scalar(field: str, value: Any) -> Any:
    """What a guard may compare with. Lists and maps are not: MongoDB compares the order of their fields too."""
    if not isinstance(value, str | int | float | bytes) or value != value:
        raise InvalidTransition(f"{field}: a guard compares text, bytes and numbers, not {type(value).__name__}")
    return stored(field.rpartition(".")[2], value)


def _number(field: str, value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidTransition(f"{field}: an order guard compares with numbers, not {type(value).__name__}")
    return _scalar(field, value)


def _time_field(field: str) -> str:
    if not is_time(field):
        raise InvalidTransition(f"{field}: only a field that ends in _time can be due or be set to now")
    return field


# --- updates -------------------------------------------------------------------------------------------


def write_of(table: Table, transition: Transition) -> Write:
    """The filter and the update of a transition. Raises InvalidTransition or InvalidId before anything is sent."""
    found = _Filter()
    found.all_of(table.key, {"$eq": text(table.key, transition.key)})
    for guard in transition.guards:
        _add_guard(found, guard)
    changes = transition.changes
    if transition.commit_id is not None:
        mark = commit_mark(text("commit_id", transition.commit_id))
        changes = (*changes, mark)
        found.never(mark.field, {"$eq": mark.value})  # of a list: no item is it
    _refuse(table, changes)
    for field in _steps_to_demand(transition.guards, changes):
        found.all_of(field, {"$exists": True})
    update: Update
    if any(isinstance(change, PutNowPlus) for change in changes):
        update = _pipeline(changes)
    else:
        # Nothing left to change: the operators may not be empty, so the key becomes what it is.
        update = _operators(changes) or {"$set": {table.key: transition.key}}
    return Write(found.document(), update)


def removal_of(table: Table, remove: Remove) -> Document:
    """The filter of a removal. Raises InvalidTransition or InvalidId before anything is sent."""
    found = _Filter()
    found.all_of(table.key, {"$eq": text(table.key, remove.key)})
    for guard in remove.guards:
        _add_guard(found, guard)
    return found.document()


def keep_of(table: Table, key: str, document: Document) -> Write:
    """The filter and the whole new row of a projection. The row that is there and newer makes it miss: then the upsert
    runs into the unique index of the key, which is the server's way to say "not that one"."""
    found = _Filter()
    found.all_of(table.key, {"$eq": text(table.key, key)})
    found.guard(REVISION, {"$lte": _number(REVISION, document[REVISION])})
    return Write(found.document(), stored("", document))


def _refuse(table: Table, changes: tuple[Change, ...]) -> None:
    """Refuse what MongoDB would answer otherwise than the reference."""
    permanent = {table.key, *(column for index in table.unique for column in index.columns)}
    for change in changes:
        field = change.field
        first = parse(field)[0]
        if first in permanent:
            raise InvalidTransition(f"{field}: the key and unique columns of a row are permanent")
        if isinstance(change, PutNow | PutNowPlus):
            _time_field(field)
        elif isinstance(change, Add) and is_time(field):
            raise InvalidTransition(f"{field}: a time can not be added to; put the new time or raise it")


def _steps_to_demand(guards: tuple[Guard, ...], changes: tuple[Change, ...]) -> list[str]:
    """`steps.<i>` that are changed and that no guard proves to exist."""
    positive = {_step_of(guard.field) for guard in guards if not isinstance(guard, Differs | Missing)}
    changed = {_step_of(change.field) for change in changes if not isinstance(change, Clear)}
    return [f"steps.{index}" for index in sorted(changed - positive) if index >= 0]


def _step_of(field: str) -> int:
    path = parse(field)
    return path[1] if len(path) > 1 and isinstance(path[1], int) else -1


def _operators(changes: tuple[Change, ...]) -> Document:
    update: Document = {}
    for change in changes:
        operator, operand = _operator(change)
        update.setdefault(operator, {})[change.field] = operand
    return update


def _operator(change: Change) -> tuple[str, Any]:
    name = change.field.rpartition(".")[2]
    match change:
        case Put():
            return "$set", stored(name, change.value)
        case Clear():
            return "$unset", ""
        case Add():
            return "$inc", change.value
        case RaiseTo():
            return "$max", stored(name, change.value)
        case LowerTo():
            return "$min", stored(name, change.value)
        case PutNow():
            return "$currentDate", {"$type": "date"}
        case Append():
            return "$push", {"$each": [stored("", change.value)], "$slice": -change.keep}
        case PutNowPlus():
            raise AssertionError("now + n needs a pipeline")


def _pipeline(changes: tuple[Change, ...]) -> list[Document]:
    """`$set`, then `$unset`: setting a field to $$REMOVE would make the map around an absent field."""
    assigned = {change.field: _assignment(change) for change in changes if not isinstance(change, Clear)}
    cleared = [change.field for change in changes if isinstance(change, Clear)]
    return [{"$set": assigned}, *([{"$unset": cleared}] if cleared else [])]


def _assignment(change: Change) -> Any:
    field = change.field
    before = "$" + field
    name = field.rpartition(".")[2]
    match change:
        case Put():
            return {"$literal": stored(name, change.value)}
        case Add():
            return {"$add": [{"$ifNull": [before, {"$literal": 0}]}, {"$literal": change.value}]}
        case RaiseTo():
            return {"$max": [before, {"$literal": stored(name, change.value)}]}
        case LowerTo():
            return {"$min": [before, {"$literal": stored(name, change.value)}]}
        case PutNow():
            return "$$NOW"
        case PutNowPlus():
            return {"$add": ["$$NOW", {"$literal": change.ms}]}
        case Append():
            items = [{"$ifNull": [before, {"$literal": []}]}, {"$literal": [stored("", change.value)]}]
            return {"$slice": [{"$concatArrays": items}, -change.keep]}
        case Clear():
            raise AssertionError("clearing is a stage of its own")


# --- reads ---------------------------------------------------------------------------------------------


def page_of(table: Table, query: Query) -> Page:
    """The read of one page. Raises InvalidTransition for a column that the table does not declare."""
    declared = {table.key, *table.columns}
    for column in (query.order, *query.columns, *(guard.field for guard in query.guards)):
        if column not in declared:
            raise InvalidTransition(f"{table.name}: {column!r} is no declared column")
    found = _Filter()
    found.guard(query.order, {"$exists": True})  # said in so many words, a partial index may serve it
    if table.foreign:
        # A document of the user's own whose key is missing or no text: no row, or a short page would hide the rest.
        found.all_of(table.key, {"$type": "string", "$not": _NO_LIST})
    for guard in query.guards:
        _add_guard(found, guard)
    beyond = None if query.after is None else _beyond(found, table.key, query.order, query.after)
    document = found.document()
    if beyond is not None:
        document["$or"] = beyond
    sort = [(query.order, 1), (table.key, 1)] if query.order != table.key else [(table.key, 1)]
    return Page(document, {"_id": 0, table.key: 1} | dict.fromkeys(query.columns, 1), sort)


def totals_of(table: Table, wanted: Totals) -> list[Document]:
    """The groups of a table's rows as stages. Raises InvalidTransition for a column that the table does not declare."""
    for column in (*wanted.by, wanted.least, *(guard.field for guard in wanted.guards)):
        if column not in {table.key, *table.columns}:
            raise InvalidTransition(f"{table.name}: {column!r} is no declared column")
    found = _Filter()
    for guard in wanted.guards:
        _add_guard(found, guard)
    group = {"_id": {f"c{place}": f"${column}" for place, column in enumerate(wanted.by)}}
    sizes = {"count": {"$sum": 1}, "least": {"$min": f"${wanted.least}"}}
    return [
        {"$match": found.document()},
        {"$group": group | sizes},
        {"$sort": {"count": -1, "_id": 1}},
        {"$limit": wanted.limit},
    ]


def _beyond(found: _Filter, key: str, order: str, after: tuple[Any, str]) -> list[Document] | None:
    """Limit `found` to rows after a position; the alternatives that remain to be asked for, if any."""
    at, last_key = _scalar(order, after[0]), text(key, after[1])
    if order == key:
        found.all_of(key, {"$gt": last_key})
        return None
    found.all_of(order, {"$gte": at})  # implied by the alternatives, but this is what an index can start from
    return [{order: {"$gt": at}}, {order: {"$eq": at}, key: {"$gt": last_key}}]
