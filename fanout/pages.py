"""A page of the subscriber list, as the author's `read_page` gives it, and what makes it acceptable.

The cursor must be a position on an immutable key of the list (an id, a subscription's number): then a page that is read
again after a crash holds whoever it held before, and a list that changes meanwhile loses nobody who was in front of the
cursor's position all the time (RELIABILITY 11.11).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from kernel import Context, Refused, check_id, workflow_id_for

PAGE_SIZE_MAX = 1_000
"""Signals in one delivery, and what one claim may have to repeat."""
CURSOR_BYTES_MAX = 1_024
"""Encoded; a cursor is a position and carries no data."""

Cursor: TypeAlias = str | int | tuple[str | int, ...]
"""Opaque to the fan-out: it is kept and handed back. Values that nobody can change by accident."""


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """One who is to be told: by the id of its workflow or by its biz_key, which also addresses a workflow that does not
    exist yet (DECISIONS detail 21). `wait_key` and `generation` are the event's, unless given.

    Nothing is checked here: a wrong row of the author's data must not spoil the page that it stands in.
    """

    workflow_id: str | None = None
    biz_key: str | None = None
    wait_key: str | None = None
    generation: int | None = None

    def target(self) -> str:
        """The workflow_id. Raises Refused or InvalidId for a subscriber that names none, two, or a wrong one."""
        if (self.workflow_id is None) == (self.biz_key is None):
            raise Refused("subscriber: give workflow_id or biz_key, exactly one of them")
        if self.biz_key is not None:
            return workflow_id_for(check_id(self.biz_key, "subscriber.biz_key"))
        return check_id(self.workflow_id, "subscriber.workflow_id")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Subscribers, and where the next page begins; `next_cursor` None says that this is the last one."""

    subscribers: Sequence[Subscriber] = ()
    next_cursor: Cursor | None = None


ReadPage: TypeAlias = Callable[[Context, Any, int], Page | Awaitable[Page]]
"""`read_page(ctx, cursor, limit)`: at most `limit` subscribers after `cursor`, the `next_cursor` of the page before
(None: from the start). May be async. It may be called again for the same cursor, and hands `ctx.remaining_s()` to what
it calls."""


def checked(page: object, cursor: Cursor | None, limit: int) -> Page:
    """`page` if it is one that moves the cursor on and keeps the limit. Raises Refused with one line."""
    if not isinstance(page, Page):
        raise Refused(f"read_page: must return a fanout.Page, returned {type(page).__name__}")
    if not isinstance(page.subscribers, list | tuple):
        raise Refused(f"Page.subscribers: must be a list or tuple, is a {type(page.subscribers).__name__}")
    if len(page.subscribers) > limit:
        raise Refused(f"Page.subscribers: at most {limit} were asked for, {len(page.subscribers)} came")
    following = page.next_cursor
    if following is None:
        return page
    if not _is_cursor(following):
        raise Refused(f"Page.next_cursor: {type(following).__name__} is neither text, int nor a tuple of them")
    if following == cursor:
        raise Refused("Page.next_cursor: is the cursor that was asked with; the list would never end")
    try:
        size = len(msgspec.msgpack.encode(following))
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise Refused(f"Page.next_cursor: can not be encoded: {error}") from None
    if size > CURSOR_BYTES_MAX:
        raise Refused(f"Page.next_cursor: {size} bytes encoded, at most {CURSOR_BYTES_MAX} are allowed")
    return page


def _is_cursor(value: object) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, str | int) and not isinstance(part, bool) for part in parts)
