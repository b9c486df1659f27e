"""A declaration of business objects with an embedded dispatch intent: which collection, which fields, which statuses.

    subscriptions = Objects(
        name="subscriptions",
        key="subscription_id",
        columns=("show_id",),
        indexes=(("show_id",),),
    )

It opens nothing; `kernel.business_objects` is what a process works with. On MongoDB it names a collection of the
user's, with whatever documents are there already; embedded it is a table in the file `objects.sqlite`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kernel.dispatch import INTENT_FIELD
from kernel.errors import InvalidDefinition, InvalidObject
from kernel.fields import checked_path
from kernel.ids import check_name
from kernel.store.tables import TABLES, Index, Table
from kernel.transitions.dispatch import DUE

INPUT_BYTES_MAX = 8 * 1024
_RESERVED = frozenset({*TABLES, "kernel_meta", "kernel_clock"})
_COLLECTION_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

Status = str | int


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of business object. `name` names the source in Redis and in commands, and the collection or table
    unless `collection` does.

    `status` is the field of the business status, the next five its values; `round_fields` belong to one round, and a
    new one clears them (req-round-change-cas). `client_id` is the field of the client's idempotency id, when there is
    one (id-client-idem). `columns` may be asked for by pages, each `indexes` entry says by which together.
    `legacy_input` builds the input of an object whose intent has none, from the document's stable fields and with
    conservative decisions, never from today's configuration (req-legacy-input). `database` is that of MongoDB, when
    it is not the kernel's. `grace_ms` is how long a dispatcher leaves a fresh intent to the request that wrote it.
    """

    name: str
    key: str = "object_id"
    status: str = "status"
    initial: Status = "initial"
    processing: Status = "processing"
    completed: Status = "completed"
    failed: Status = "failed"
    closed: Status = "closed"
    round_fields: Sequence[str] = ("error", "result")
    client_id: str | None = None
    columns: Sequence[str] = ()
    indexes: Sequence[Sequence[str]] = ()
    legacy_input: Callable[[Mapping[str, Any]], Any] | None = None
    collection: str | None = None
    database: str | None = None
    input_bytes_max: int = INPUT_BYTES_MAX
    grace_ms: int = 2_000

    def __post_init__(self) -> None:
        check_name(self.name, "Objects.name")
        where = f"objects {self.name!r}"
        self._check_places(where)
        self._check_fields(where)
        self._check_statuses(where)
        if self.legacy_input is not None and not callable(self.legacy_input):
            raise InvalidDefinition(f"{where}: legacy_input is not callable")
        if not _whole(self.input_bytes_max) or not 64 <= self.input_bytes_max <= 256 * 1024:
            raise InvalidDefinition(f"{where}: input_bytes_max must lie between 64 and 262144")
        if not _whole(self.grace_ms) or not 0 <= self.grace_ms <= 3_600_000:
            raise InvalidDefinition(f"{where}: grace_ms must lie between 0 and 3600000")

    @property
    def place(self) -> str:
        """The name of the collection or table."""
        return self.collection or self.name

    @property
    def table(self) -> Table:
        """The declaration in the store's words."""
        indexes = [Index(f"{self.name}_dispatch_due", (DUE, self.key), present=DUE)]
        if self.client_id is not None:
            indexes.append(Index(f"{self.name}_client", (self.client_id,), present=self.client_id, unique=True))
        indexes += [
            Index(f"{self.name}_by_{'_'.join(columns)}", (*columns, self.key), present=self.key)
            for columns in self.indexes
        ]
        return Table(self.place, self.key, (self.key, *self._asked, DUE), tuple(indexes), foreign=True)

    @property
    def _asked(self) -> tuple[str, ...]:
        extra = () if self.client_id is None else (self.client_id,)
        return tuple(dict.fromkeys((self.status, *extra, *self.columns)))

    def _check_places(self, where: str) -> None:
        for field, value in (("collection", self.collection), ("database", self.database)):
            if value is not None and not (isinstance(value, str) and _names_a_place(value)):
                raise InvalidDefinition(f"{where}: {field} must be 1–63 letters, digits, _ and -")
        if self.place in _RESERVED or self.place.startswith("sqlite_"):
            raise InvalidDefinition(f"{where}: {self.place!r} is a name of the kernel's own")

    def _check_fields(self, where: str) -> None:
        for field in ("round_fields", "columns", "indexes"):
            if isinstance(getattr(self, field), str):
                raise InvalidDefinition(f"{where}: {field} must be a list of names, not one text")
        named = {"key": self.key, "status": self.status}
        if self.client_id is not None:
            named["client_id"] = self.client_id
        for field, name in named.items():
            if "." in _path(name, f"{where}: {field}"):
                raise InvalidDefinition(f"{where}: {field} must be a field of the document itself, not {name!r}")
            if name.endswith("_time"):
                raise InvalidDefinition(f"{where}: {field} can not be {name!r}: that is the name of a point in time")
        for name in (*self.columns, *self.round_fields):
            _path(name, f"{where}: column or field of a round")
        taken = [*named.values(), INTENT_FIELD]
        if len({name.lower() for name in taken}) < len(taken):
            raise InvalidDefinition(f"{where}: key, status, client_id and {INTENT_FIELD} must be different fields")
        for name in self.round_fields:
            if name.partition(".")[0] in taken:
                raise InvalidDefinition(f"{where}: round_fields: {name!r} is no field that a new round may clear")
        names = [self.key, *self._asked]
        if len({name.lower() for name in names}) < len(names) or any(n.startswith(INTENT_FIELD) for n in names):
            raise InvalidDefinition(f"{where}: columns: a name occurs twice, or is the kernel's")
        for columns in self.indexes:
            if isinstance(columns, str) or not columns or not set(columns) <= set(self._asked):
                raise InvalidDefinition(f"{where}: indexes: each is a list of declared columns, not {columns!r}")

    def _check_statuses(self, where: str) -> None:
        statuses = (self.initial, self.processing, self.completed, self.failed, self.closed)
        for value in statuses:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise InvalidDefinition(f"{where}: a status is text or a whole number, not {value!r}")
        if len(set(statuses)) < len(statuses):
            raise InvalidDefinition(f"{where}: initial, processing, completed, failed and closed must differ")


def _path(name: object, where: str) -> str:
    try:
        return checked_path(name, where)
    except InvalidObject as error:
        raise InvalidDefinition(str(error)) from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names_a_place(value: str) -> bool:
    return 1 <= len(value) <= 63 and set(value) <= _COLLECTION_CHARACTERS
