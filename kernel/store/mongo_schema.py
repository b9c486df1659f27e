"""Collections, indexes and the schema version in MongoDB: made when missing, compared when there, never dropped.

Many processes may do this at once: an index is made under its own name, which MongoDB takes as done when an equal
one exists, and afterwards what is there is compared again. An index that differs is somebody's decision; the
kernel says so and stops instead of working with weaker rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pymongo import IndexModel
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern

from kernel.errors import SchemaMismatch
from kernel.records import Document
from kernel.store.tables import Index, Table

SCHEMA_VERSION = 1
META = "kernel_meta"
META_KEY = "name"
_META_INDEX = Index("kernel_meta_name", (META_KEY,), unique=True)

_CONFLICTS = frozenset({85, 86})  # IndexOptionsConflict, IndexKeySpecsConflict
_NAMESPACE_MISSING = 26


def indexes_of(table: Table) -> tuple[Index, ...]:
    """All indexes of a table; its key has one of its own, because nothing rests on `_id` (id-workflow-id).

    A user's documents that have no key are none of ours: the index of a foreign table leaves them out.
    """
    present = table.key if table.foreign else None
    return (Index(f"{table.name}_key", (table.key,), present=present, unique=True), *table.indexes)


def prepare(database: Database[Document], tables: Iterable[Table]) -> None:
    """Make and check everything. Raises SchemaMismatch, or what the driver raises.

    The version is read first: a newer kernel's collections are not touched. It is written last: who reads it
    finds the indexes that it stands for.
    """
    _check_version(database, must_exist=False)
    _prepare_collection(database, META, (_META_INDEX,), foreign=False)
    for table in tables:
        _prepare_collection(database, table.name, indexes_of(table), foreign=table.foreign)
    try:
        database[META].insert_one({META_KEY: "schema", "version": SCHEMA_VERSION})
    except DuplicateKeyError:
        pass  # another process was first, or an earlier start
    _check_version(database, must_exist=True)


def lacking(database: Database[Document], tables: Iterable[Table]) -> tuple[str, ...]:
    """The indexes that `prepare` would make. Raises SchemaMismatch for what is there and differs."""
    _check_version(database, must_exist=False)
    wanted = [(META, (_META_INDEX,), False), *((table.name, indexes_of(table), table.foreign) for table in tables)]
    return tuple(
        f"INDEX {index.name} of {name}"
        for name, indexes, foreign in wanted
        for index in _missing(database, name, indexes, foreign=foreign)
    )


def _check_version(database: Database[Document], *, must_exist: bool) -> None:
    meta = database.get_collection(META, read_concern=ReadConcern("majority"))
    found = meta.find_one({META_KEY: {"$eq": "schema"}}, {"_id": 0, "version": 1})
    if found is None and not must_exist:
        return
    version = None if found is None else found.get("version")
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        reason = "was made by a newer kernel" if newer else "is of no known version"
        raise SchemaMismatch(
            f"database {database.name} {reason}: schema {version!r}, this kernel knows {SCHEMA_VERSION}"
        )


def _prepare_collection(database: Database[Document], name: str, wanted: tuple[Index, ...], *, foreign: bool) -> None:
    missing = _missing(database, name, wanted, foreign=foreign)
    if not missing:
        return
    # One by one, so that an error belongs to one index.
    for index in missing:
        _create(database, name, index)
    missing = _missing(database, name, wanted, foreign=foreign)
    if missing:
        names = ", ".join(index.name for index in missing)
        raise SchemaMismatch(f"collection {name}: schema differs: index {names} does not stay")


def _create(database: Database[Document], name: str, index: Index) -> None:
    options: Document = {"unique": True} if index.unique else {}
    if index.present is not None:
        options["partialFilterExpression"] = _partial(index)
    try:
        database[name].create_indexes([IndexModel(_keys(index), name=index.name, **options)])
    except DuplicateKeyError:
        columns = ", ".join(index.columns)
        raise SchemaMismatch(
            f"collection {name}: the unique index {index.name} can not be made: two rows have the same {columns}"
        ) from None
    except OperationFailure as error:
        if error.code in _CONFLICTS:
            raise SchemaMismatch(
                f"collection {name}: schema differs: another index stands where {index.name} belongs"
            ) from None
        raise


def _missing(database: Database[Document], name: str, wanted: tuple[Index, ...], *, foreign: bool) -> list[Index]:
    """The wanted indexes that are not there. Raises SchemaMismatch for one that is there and differs.

    In a user's collection an index of theirs, whatever its name, is taken for the wanted one that it can stand for.
    """
    present = _present(database, name)
    for index in wanted:
        found = present.get(index.name)
        if found is not None and not _equal(index, found):
            raise SchemaMismatch(f"collection {name}: schema differs: index {index.name} is not what this kernel needs")
    return [
        index
        for index in wanted
        if index.name not in present and not (foreign and any(_stands_for(index, found) for found in present.values()))
    ]


def _stands_for(index: Index, found: Mapping[str, Any]) -> bool:
    """Whether an index covers at least the wanted rows, in the wanted order, and is unique if that is wanted."""
    whole = Index(index.name, index.columns, unique=index.unique)
    return _equal(index, found) or _equal(whole, found)


def _present(database: Database[Document], name: str) -> dict[str, Mapping[str, Any]]:
    try:
        return {index["name"]: index for index in database[name].list_indexes()}
    except OperationFailure as error:
        if error.code == _NAMESPACE_MISSING:
            return {}
        raise


def _equal(index: Index, found: Mapping[str, Any]) -> bool:
    """Whether an index that is there does what `index` promises: keys in order, unique, and the same rows."""
    return (
        [(field, int(direction)) for field, direction in found["key"].items() if isinstance(direction, int | float)]
        == _keys(index)
        and len(found["key"]) == len(index.columns)
        and bool(found.get("unique", False)) == index.unique
        and found.get("partialFilterExpression") == (None if index.present is None else _partial(index))
        and not found.get("sparse", False)
        and "collation" not in found
        and "expireAfterSeconds" not in found
    )


def _keys(index: Index) -> list[tuple[str, int]]:
    return [(column, 1) for column in index.columns]


def _partial(index: Index) -> Document:
    return {index.present or "": {"$exists": True}}
