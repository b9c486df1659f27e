"""Rows that project other rows: kept while they are the newest, counted in groups, and never part of a claim.

The durable protocol is one guarded write per change, whose answer decides. A projection is many rows that may come
late, twice or in the wrong order, and of which the newest of each is wanted at the price of one write for all. So it
has verbs of its own, apart from the closed vocabulary and no part of `Store`: nothing that runs work can reach them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from kernel.errors import InvalidTransition
from kernel.records import Document
from kernel.store.protocol import Query, Store
from kernel.store.protocol import ScanGuard as ScanGuard
from kernel.store.tables import Table

REVISION = "revision"
"""The column that says which of two rows of one key is the newer."""
ROW_BYTES_MAX = 16 * 1024 * 1024
"""What MongoDB takes at most, hence every store."""


class Keep(msgspec.Struct, frozen=True):
    """A whole row, by its table's key: it is stored if there is none, or none with a higher `revision`.

    An equal one is replaced: a repeat of a write whose answer was lost changes nothing (boundaries 57, 58).
    """

    table: str
    document: Document


class Totals(msgspec.Struct, frozen=True):
    """Rows of a table in groups: how many have the same values in the columns `by`, and the least of `least` in each.

    The largest groups come first, at most `limit` of them.
    """

    table: str
    guards: tuple[ScanGuard, ...]
    by: tuple[str, ...]
    least: str
    limit: int


class Total(msgspec.Struct, frozen=True):
    """One group: its values in the order of `by`, its size, its least. None: absent in all rows of the group."""

    values: tuple[Any, ...]
    count: int
    least: int | None


class ProjectionStore(Store, Protocol):
    """A store of projections. Errors are those of `Store`; what can not be stored is refused with TooLarge,
    InvalidTransition or InvalidId, and then nothing is promised of the rows beside it: keep them again without it."""

    def keep_all(self, kept: Sequence[Keep]) -> int:
        """Keep each row that is not older than the one that is there; how many that were."""
        ...

    def rows(self, query: Query) -> list[Document]:
        """Whole rows of a page; the query's `columns` are not asked for."""
        ...

    def totals(self, wanted: Totals) -> list[Total]:
        """The groups of all rows for which the guards hold."""
        ...


def check_row(table: Table, document: Document) -> str:
    """The key of a row that is to be kept. Raises InvalidTransition when key or revision are none."""
    key, revision = document.get(table.key), document.get(REVISION)
    if not isinstance(key, str):
        raise InvalidTransition(f"{table.name}: {table.key} of a row must be text, is {type(key).__name__}")
    if not isinstance(revision, int) or isinstance(revision, bool):
        raise InvalidTransition(f"{table.name} {key!r}: {REVISION} must be a number, is {type(revision).__name__}")
    return key


def by_table(kept: Iterable[Keep]) -> dict[str, list[Document]]:
    """The documents of each table in their order, the tables in the order in which they are named first."""
    found: dict[str, list[Document]] = {}
    for keep in kept:
        found.setdefault(keep.table, []).append(keep.document)
    return found


def in_order(totals: Iterable[Total], limit: int) -> list[Total]:
    """The largest first; equal ones in the order of their values, so that every store answers alike."""
    return sorted(totals, key=lambda total: (-total.count, repr(total.values)))[:limit]
