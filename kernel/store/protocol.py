"""What a durable store is: nine verbs, three interpreters (core-roles-swappable).

Every answer that is part of the protocol is a value (`Applied`, `Missed`, `Inserted`, `Duplicate`, `Removed`); only the
infrastructure raises, and only with classes of `kernel.errors`:

- `StoreUnavailable`: nothing was written; the same call may be made again;
- `OutcomeUnknown`: the write may or may not have landed; `kernel.engine.commit` decides by `commit_id`;
- `WrongProcess`: the store was opened before a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from kernel.records import Document
from kernel.store.conditional import (
    Answer,
    AtMost,
    Differs,
    Equals,
    Exists,
    Insert,
    InsertAnswer,
    Missing,
    OneOf,
    Remove,
    RemoveAnswer,
)
from kernel.store.conditional import Transition as Transition

ScanGuard: TypeAlias = Equals | OneOf | AtMost | Exists | Missing | Differs
"""What a page may ask of its columns."""


class Query(msgspec.Struct, frozen=True):
    """A bounded page of a table: declared columns only, ordered by (`order`, key), after a position.

    Rows without the `order` column are not part of the answer. `after` is the (order value, key) of the last
    row of the page before, so that a page of rows that must be left alone never hides those behind it (A45).
    """

    table: str
    guards: tuple[ScanGuard, ...]
    order: str
    columns: tuple[str, ...]
    limit: int
    after: tuple[Any, str] | None = None


class Store(Protocol):
    """The durable store. Safe for use by many threads of the process that opened it, and by no other process."""

    def prepare(self) -> None:
        """Create what is missing, check schema version and indexes. Raises SchemaMismatch (idempotent, racy-safe)."""
        ...

    def now_ms(self) -> int:
        """An estimate of the store's clock: proposes scan bounds and absolute timer targets, decides nothing."""
        ...

    def insert(self, insert: Insert) -> InsertAnswer: ...

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        """Many inserts at the price of few commits; each has its own answer."""
        ...

    def apply(self, transition: Transition) -> Answer: ...

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        """Independent transitions, each atomic by itself, at the price of few commits where the store can."""
        ...

    def remove(self, remove: Remove) -> RemoveAnswer:
        """End one row if its guards hold. After OutcomeUnknown the same call may be made again: then it misses."""
        ...

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        """Independent removals, each atomic by itself, at the price of few commits where the store can."""
        ...

    def get(self, table: str, key: str) -> Document | None:
        """The row as the last acknowledged write left it (majority read)."""
        ...

    def find(self, table: str, column: str, value: str) -> Document | None:
        """The row whose unique `column` equals `value`."""
        ...

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        """The requested columns of a page; an absent column is None."""
        ...

    def close(self) -> None: ...
