"""What the kernel may say to MongoDB: every command of a store under test is walked against this list.

It turns the known gaps between SecantusDB and MongoDB (design STORE §7, §8) into failures that need no mongod: a word
that only the stand-in understands, or understands otherwise, fails the test that used it. Refused are

- commands, options, operators and stages that are not listed;
- a number in a path inside a pipeline or an expression (in MongoDB it is a field name there);
- a value in a pipeline without `$literal`, `$expr` together with an upsert;
- a write without `w: "majority"` and `j: true`, and a read of one row that may show what a fail-over takes back;
- a filter that no index of `kernel.store.tables` can serve, and an update that does not name its row by the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from kernel.observe.tables import OBSERVE_TABLES
from kernel.store import mongo_schema
from kernel.store.tables import TABLES, Index, Table

_ENVELOPE = {"lsid", "txnNumber", "$db", "$clusterTime", "$readPreference", "maxTimeMS"}
_OPTIONS = {
    "findAndModify": {"findAndModify", "query", "update", "new", "fields", "upsert", "writeConcern"},
    "find": {"find", "filter", "projection", "sort", "limit", "batchSize", "singleBatch", "readConcern"},
    "insert": {"insert", "documents", "ordered", "writeConcern"},
    "delete": {"delete", "deletes", "ordered", "writeConcern"},
    "update": {"update", "updates", "ordered", "writeConcern"},
    "aggregate": {"aggregate", "pipeline", "cursor", "readConcern"},
    "createIndexes": {"createIndexes", "indexes", "writeConcern"},
    "listIndexes": {"listIndexes", "cursor"},
    "hello": {"hello"},
    "endSessions": {"endSessions"},
    "saslStart": set[str](),
    "saslContinue": set[str](),
}
_WRITES = {"findAndModify", "insert", "delete", "update", "createIndexes"}
_OF_PROJECTIONS = {"update", "aggregate"}
"""Said of observations alone: a durable row changes one by one, and its change decides."""
_PROMISED = {"w": "majority", "j": True}
_INDEX_OPTIONS = {"key", "name", "unique", "partialFilterExpression"}

_COMPARISONS = {"$eq", "$in", "$gt", "$gte", "$lte"}
_FIELD_WORDS = {*_COMPARISONS, "$exists", "$not", "$type"}
_EXPRESSION_WORDS = {
    *("$literal", "$lte", "$and", "$let", "$arrayElemAt", "$add", "$ifNull", "$max", "$min", "$slice", "$concatArrays")
}
_UPDATE_WORDS = {"$set", "$unset", "$inc", "$max", "$min", "$push", "$currentDate"}
_STAGES = {"$set", "$unset"}


class AllowList(CommandListener):
    """A listener for a store: collects what was said and what of it is not allowed."""

    def __init__(self, tables: Iterable[Table] = tuple(TABLES.values())) -> None:
        self.said: list[str] = []
        self.refused: list[str] = []
        self._indexes = indexes_by_collection(tables)

    def know(self, tables: Iterable[Table]) -> None:
        """Also allow what the indexes of these tables can serve."""
        self._indexes |= indexes_by_collection(tables)

    def started(self, event: CommandStartedEvent) -> None:
        self.said.append(event.command_name)
        # Walked at once: the driver may go on using the document. A fault here must not vanish in the driver's log.
        try:
            self.refused.extend(refusals(event.command_name, event.command, self._indexes))
        except Exception as error:
            self.refused.append(f"{event.command_name}: the allow-list itself failed: {error!r}")

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """The answer is the test's business."""

    def failed(self, event: CommandFailedEvent) -> None:
        """The answer is the test's business."""


def indexes_by_collection(tables: Iterable[Table]) -> dict[str, tuple[Index, ...]]:
    """All indexes that the store makes, by collection."""
    meta = Index("meta", (mongo_schema.META_KEY,), unique=True)
    return {mongo_schema.META: (meta,)} | {table.name: mongo_schema.indexes_of(table) for table in tables}


def refusals(name: str, command: Mapping[str, Any], indexes: Mapping[str, tuple[Index, ...]]) -> Iterator[str]:
    """What in a command is not allowed, each in one line."""
    if name not in _OPTIONS or (name in _OF_PROJECTIONS and command[name] not in OBSERVE_TABLES):
        yield f"command {name}"
        return
    if name.startswith("sasl"):
        return
    yield from (f"{name}: option {option}" for option in command.keys() - _OPTIONS[name] - _ENVELOPE)
    if name in _WRITES and command.get("writeConcern") != _PROMISED:
        yield f"{name}: write concern {command.get('writeConcern')!r}"
    own = indexes.get(str(command[name]), ())
    if name == "findAndModify":
        yield from _find_and_modify(command, own)
    elif name == "delete":
        for removal in command["deletes"]:
            yield from _delete(removal, own)
    elif name == "update":
        for replacement in command["updates"]:
            yield from _replaced(replacement, own)
    elif name == "aggregate":
        yield from _groups(command["pipeline"])
    elif name == "find":
        yield from _filter(command["filter"])
        # A page is a proposal and has an order; a row that is read alone decides something.
        if "sort" not in command and command.get("readConcern", {}).get("level") != "majority":
            yield f"find: read concern {command.get('readConcern')!r} for one row"
        if not any(_serves(index, command["filter"]) for index in own):
            yield f"find: no index for {dict(command['filter'])!r}"
    elif name == "createIndexes":
        yield from _created(command["indexes"])


def _find_and_modify(command: Mapping[str, Any], own: tuple[Index, ...]) -> Iterator[str]:
    query, update = command["query"], command["update"]
    yield from _filter(query)
    if command.get("upsert"):
        yield "findAndModify: upsert" + (" with $expr" if "$expr" in query else "")
    if not _names_one_row(query, own):
        yield f"findAndModify: the filter does not name one row: {dict(query)!r}"
    yield from _pipeline(update) if isinstance(update, list) else _operators(update)


def _delete(removal: Mapping[str, Any], own: tuple[Index, ...]) -> Iterator[str]:
    yield from (f"delete: option {option}" for option in removal.keys() - {"q", "limit"})
    yield from _filter(removal["q"])
    if removal["limit"] != 1 or not _names_one_row(removal["q"], own):
        yield f"delete: the filter does not name one row: {dict(removal['q'])!r}"


def _replaced(replacement: Mapping[str, Any], own: tuple[Index, ...]) -> Iterator[str]:
    """The one update that is sent in bulk: a whole row, unless a newer one is there (kernel.store.mongo_projection)."""
    query, row = replacement["q"], replacement["u"]
    yield from (f"update: option {option}" for option in replacement.keys() - {"q", "u", "upsert", "multi"})
    yield from _filter(query)
    if replacement.get("multi") or not _names_one_row(query, own):
        yield f"update: the filter does not name one row: {dict(query)!r}"
    if not isinstance(row, Mapping) or any(field.startswith("$") for field in row):
        yield "update: something else than a whole row"
    elif any(row.get(field) != clause["$eq"] for field, clause in query.items() if "$eq" in clause):
        yield "update: the row is not the one that the filter names"


def _groups(stages: list[Mapping[str, Any]]) -> Iterator[str]:
    """Rows in groups, by columns alone: the words of one reading, in their order."""
    if [list(stage) for stage in stages] != [["$match"], ["$group"], ["$sort"], ["$limit"]]:
        yield f"aggregate: stages {[list(stage) for stage in stages]}"
        return
    yield from _filter(stages[0]["$match"])
    group = stages[1]["$group"]
    paths = [*group["_id"].values(), group["least"]["$min"]]
    yield from (f"aggregate: {path!r} is no path" for path in paths if not str(path).startswith("$"))
    if group.keys() != {"_id", "count", "least"} or group["count"] != {"$sum": 1}:
        yield f"aggregate: $group with {sorted(group)}"


def _names_one_row(query: Mapping[str, Any], own: tuple[Index, ...]) -> bool:
    keys = [index.columns[0] for index in own if index.unique and len(index.columns) == 1]
    return any(isinstance(query.get(key), Mapping) and isinstance(query[key].get("$eq"), str) for key in keys)


def _filter(wanted: Mapping[str, Any]) -> Iterator[str]:
    for field, clause in wanted.items():
        if field in {"$and", "$or", "$nor"}:
            for part in clause:
                yield from _filter(part)
        elif field == "$expr":
            yield from _expression(clause)
        elif field.startswith("$"):
            yield f"filter: operator {field}"
        else:
            yield from _clause(field, clause)


def _clause(field: str, clause: Any) -> Iterator[str]:
    if not isinstance(clause, Mapping):
        yield f"filter: {field} is compared without an operator"
        return
    for word, operand in clause.items():
        if word not in _FIELD_WORDS:
            yield f"filter: operator {word} on {field}"
        elif word == "$not":
            yield from _clause(field, operand)
        elif isinstance(operand, Mapping) or (isinstance(operand, list) and word != "$in"):
            yield f"filter: {field} is compared with {type(operand).__name__}"


def _serves(index: Index, wanted: Mapping[str, Any]) -> bool:
    """Whether an index can bound what the filter asks for: its first column, and its rows if it is partial."""
    first = wanted.get(index.columns[0], {})
    bounded = isinstance(first, Mapping) and (bool(first.keys() & _COMPARISONS) or first.get("$exists") is True)
    if index.present is None:
        return bounded
    present = wanted.get(index.present, {})
    return bounded and (present.get("$exists") is True or bool(present.keys() & _COMPARISONS))


def _expression(value: Any) -> Iterator[str]:
    """An aggregation expression: listed operators, paths without numbers, constants only where they are operands."""
    if isinstance(value, str):
        yield from _path(value)
    elif isinstance(value, list):
        for item in value:
            yield from _expression(item)
    elif isinstance(value, Mapping):
        for word, operand in value.items():
            if word not in _EXPRESSION_WORDS:
                yield f"expression: {word}"
            elif word == "$let":
                yield from _expression(list(operand["vars"].values()))
                yield from _expression(operand["in"])
            elif word in {"$arrayElemAt", "$slice"}:
                # Their last operand is a plain number.
                yield from _expression(operand[:-1])
            elif word != "$literal":
                yield from _expression(operand)
    else:
        yield f"expression: {value!r} without $literal"


def _path(path: str) -> Iterator[str]:
    if not path.startswith("$"):
        yield f"expression: {path!r} without $literal"
    elif path.startswith("$$") and path != "$$NOW" and not path.startswith("$$step."):
        yield f"expression: variable {path}"
    elif any(part.isdigit() for part in path.split(".")):
        yield f"expression: the number in {path} is a field name to MongoDB"


def _operators(update: Mapping[str, Any]) -> Iterator[str]:
    if not update or not all(update.values()):
        yield "update: without a change"
    for word, fields in update.items():
        if word not in _UPDATE_WORDS:
            yield f"update: operator {word}"
        for field, operand in fields.items():
            if "$" in field:
                yield f"update: {word} on {field}"
            if word == "$push" and operand.keys() != {"$each", "$slice"}:
                yield f"update: $push with {sorted(operand)}"
            if word == "$currentDate" and operand != {"$type": "date"}:
                yield f"update: $currentDate with {operand!r}"


def _pipeline(stages: list[Mapping[str, Any]]) -> Iterator[str]:
    for stage in stages:
        for word, operand in stage.items():
            if word not in _STAGES:
                yield f"pipeline: stage {word}"
                continue
            for field in operand:
                if any(part.isdigit() or part.startswith("$") for part in field.split(".")):
                    yield f"pipeline: the number in {field} is a field name to MongoDB"
            if word == "$set":
                yield from _expression(list(operand.values()))


def _created(specifications: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for specification in specifications:
        yield from (f"createIndexes: option {option}" for option in specification.keys() - _INDEX_OPTIONS)
        for field, clause in specification.get("partialFilterExpression", {}).items():
            if clause != {"$exists": True}:
                yield f"createIndexes: partial filter {field}: {clause!r}"
