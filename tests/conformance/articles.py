"""Business objects for tests: articles that a user's own programs could have made, on any store."""

from __future__ import annotations

from typing import Any

from kernel.business_objects import BusinessObject, BusinessObjects
from kernel.dispatch import INTENT_FIELD, Intent
from kernel.ids import RandomIds
from kernel.objects import Objects
from kernel.records import Document
from kernel.store.conditional import Remove
from kernel.store.protocol import Store

HOUR_MS = 3_600_000
ARTICLES = Objects(
    name="articles",
    key="article_id",
    client_id="request_id",
    columns=("showId", "seat.row"),
    indexes=(("showId",), ("showId", "seat.row")),
    round_fields=("error", "result.text"),
    grace_ms=0,
)
TABLES = {ARTICLES.place: ARTICLES.table}


class Articles(BusinessObjects):
    """The objects, with the store that they are in and a shorter `accept`."""

    def __init__(self, store: Store, declaration: Objects = ARTICLES) -> None:
        super().__init__(declaration, store, RandomIds())
        self.store = store

    def add(self, article_id: str = "a1", **fields: Any) -> Intent:
        """Accept an article that is due at once; its intent."""
        made = self.accept(
            article_id,
            type_="summary",
            biz_key=f"summary:t1:{article_id}",
            input={"article_id": article_id, "stream": True},
            priority=0,
            fields=fields,
        )
        assert made.created
        return intent_of(made.object)

    def row(self, article_id: str = "a1") -> Document:
        document = self.store.get(self.declaration.place, article_id)
        assert document is not None
        return document

    def intent(self, article_id: str = "a1") -> Document:
        found: Document = self.row(article_id)[INTENT_FIELD]
        return found

    def taken(self, token: str, article_id: str = "a1", lease_ms: int = HOUR_MS) -> Intent | None:
        """Claim what is there now."""
        seen = self.read(article_id)
        assert seen is not None
        return self.claim(article_id, seen, token, lease_ms)

    def delete(self, article_id: str = "a1") -> None:
        """As the user's own program might, at any moment."""
        self.store.remove(Remove("delete", self.declaration.place, article_id, ()))

    def next(self, article_id: str, previous: str) -> str | None:
        return self.new_round(
            article_id,
            previous,
            type_="summary",
            biz_key=f"summary:t1:{article_id}",
            input={"article_id": article_id, "stream": False},
            priority=1,
        )


def intent_of(found: BusinessObject) -> Intent:
    assert found.intent is not None
    return found.intent
