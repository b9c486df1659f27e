"""Subscriber lists as an author's table would give them: in the order of an immutable number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fanout import FanOutEvent, Page, Subscriber


def event(event_id: str = "show-1:ended", **fields: Any) -> FanOutEvent:
    return FanOutEvent(**{"event_id": event_id, "signal_type": "show_ended", "wait_key": "show-1", **fields})


class SubscriberList:
    """Rows by number; `read_page` pages them by a cursor on that number, and notes every reading."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self.rows: dict[int, Any] = dict(enumerate(rows, start=1))
        self.reads: list[tuple[Any, int]] = []
        self.before: Callable[[Any], None] = lambda cursor: None
        """Called before each reading, with its cursor: may raise, or change the list."""

    @classmethod
    def of_keys(cls, count: int, prefix: str = "sub") -> SubscriberList:
        return cls(Subscriber(biz_key=f"{prefix}:{number}") for number in range(1, count + 1))

    def add(self, subscriber: Any, number: int | None = None) -> None:
        self.rows[max(self.rows, default=0) + 1 if number is None else number] = subscriber

    def read_page(self, ctx: Any, cursor: Any, limit: int) -> Page:
        self.reads.append((cursor, limit))
        self.before(cursor)
        found = sorted(number for number in self.rows if cursor is None or number > cursor)
        numbers = found[:limit]
        more = len(found) > limit
        return Page(subscribers=[self.rows[n] for n in numbers], next_cursor=numbers[-1] if more else None)

    async def read_page_later(self, ctx: Any, cursor: Any, limit: int) -> Page:
        return self.read_page(ctx, cursor, limit)

    @property
    def cursors(self) -> list[Any]:
        return [cursor for cursor, _ in self.reads]
