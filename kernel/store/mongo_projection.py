"""Projections in MongoDB: a batch of rows is one bulk write for each of its tables.

Each row is an upsert whose filter says "not newer than this one". Where a newer one stands the filter misses, the
upsert becomes an insert, and the unique index of the key keeps it out: that answer is no fault but the guard at work.
Two first writes of one key can meet there as well, so what was kept out is sent once more; then there is a row to
compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, OperationFailure

from kernel.errors import InvalidTransition, OutcomeUnknown
from kernel.records import Document
from kernel.store.mongo import BULK_ROW_S, MongoStore
from kernel.store.mongo_compile import keep_of, page_of, totals_of
from kernel.store.mongo_errors import DUPLICATE_KEY, refusal
from kernel.store.projection import Keep, Total, Totals, by_table, check_row, in_order
from kernel.store.protocol import Query
from kernel.store.tables import Table


class MongoProjection(MongoStore):
    """A `ProjectionStore` in one database, as `MongoStore`, with a client of its own."""

    def keep_all(self, kept: Sequence[Keep]) -> int:
        found = by_table(kept)
        writes = {name: [_write(self._tables[name], document) for document in found[name]] for name in found}
        return sum(self._kept(self._tables[name], writes[name], found[name]) for name in found)

    def rows(self, query: Query) -> list[Document]:
        if query.limit < 1:
            return []
        page = page_of(self._tables[query.table], query)
        collection = self._opener.connection().tables[query.table].writes
        with self._translated(f"page of {query.table}", writing=False):
            cursor = collection.find(page.filter, {"_id": 0}, sort=page.sort, limit=query.limit)
            return list(cursor.batch_size(query.limit))

    def totals(self, wanted: Totals) -> list[Total]:
        stages = totals_of(self._tables[wanted.table], wanted)
        collection = self._opener.connection().tables[wanted.table].writes
        with self._translated(f"totals of {wanted.table}", writing=False):
            found = list(collection.aggregate(stages, batchSize=wanted.limit + 1))
        groups = (
            Total(tuple(row["_id"].get(f"c{place}") for place in range(len(wanted.by))), row["count"], row["least"])
            for row in found
        )
        return in_order(groups, wanted.limit)

    def _kept(self, table: Table, writes: list[ReplaceOne[Document]], documents: list[Document]) -> int:
        places = self._sent(table, writes)
        if not places:
            return len(writes)
        again = [places[place] for place in self._sent(table, [writes[place] for place in places])]
        for place in again:
            self._check_older(table, documents[place])
        return len(writes) - len(again)

    def _sent(self, table: Table, writes: list[ReplaceOne[Document]]) -> list[int]:
        """Send one batch; the places of those that a unique index has kept out."""
        collection = self._opener.connection().tables[table.name].writes
        what = f"write of {len(writes)} rows into {table.name}"
        with self._translated(what, limit_s=self._call_s + BULK_ROW_S * len(writes)):
            try:
                collection.bulk_write(writes, ordered=False)
            except BulkWriteError as error:
                details: Mapping[str, Any] = error.details or {}
            else:
                return []
        failures = details.get("writeErrors", [])
        for failure in failures:
            if failure["code"] != DUPLICATE_KEY:
                fault = OperationFailure(str(failure.get("errmsg")), failure["code"], failure)
                raise refusal(what, self._opener.hosts, fault, writing=True)
        if details.get("writeConcernErrors"):
            raise OutcomeUnknown(f"{what}: MongoDB does not confirm all of them")
        return [failure["index"] for failure in failures]

    def _check_older(self, table: Table, document: Document) -> None:
        """What is kept out has a newer row of its own key in the way, whichever index the server names; where there is
        none, it is a row of another key."""
        if self.get(table.name, document[table.key]) is None:
            raise InvalidTransition(f"{table.name} {document[table.key]!r}: another row has the same unique columns")


def _write(table: Table, document: Document) -> ReplaceOne[Document]:
    write = keep_of(table, check_row(table, document), document)
    assert isinstance(write.update, dict)
    return ReplaceOne(write.filter, write.update, upsert=True)
