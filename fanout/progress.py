"""How far a fan-out is: the checkpoint between two pages, and the output at the end. Both have a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fanout.pages import Cursor
from kernel import Refused

PROGRESS_VERSION = 1
SAMPLES_KEPT = 10
_TEXT_MAX = 200


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts. Each subscriber of a page that is done stands in exactly one of told … malformed."""

    pages: int = 0
    told: int = 0
    """Their signal was stored by this reading of their page."""
    duplicates: int = 0
    """Told by an earlier try of their page, or in the list twice."""
    unknown: int = 0
    """No such workflow: not made yet, or deleted. The signal is kept, and wakes it if it is made and waits."""
    ended: int = 0
    """The workflow had completed, failed or been canceled."""
    unreadable: int = 0
    """Their signal is stored, but the workflow's row could not be read: the sweep of the inbox goes on with it."""
    malformed: int = 0
    """Could not be addressed, or could not be told whatever was tried: passed over."""
    woken: int = 0
    """Of those told: how many waits the delivery itself ended. The others were not waiting yet."""
    tries: int = 0
    """Readings of a page that led to nothing and were made again after a back-off."""

    def __add__(self, more: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(more, name) for name in self.__struct_fields__})


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One malformed or unreadable subscriber, by whatever names it, and why."""

    subscriber: str
    reason: str


class Landmark(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor that the list was at some pages ago, to see that it never comes back there.

    Cursors have no order that a program could check: a database may sort text by a collation of its own, a list may
    run from new to old, a page token may be anything. But none may come twice. The mark is moved on after 1, 2, 4, 8 …
    pages, so that it gets into a circle of any length, and the circle then runs into it.
    """

    cursor: Cursor | None = None
    pages: int = 0
    """Since it was set."""
    stays: int = 1
    """For so many pages."""

    def passed(self, cursor: Cursor) -> Landmark:
        """The landmark after one page more, which led to `cursor`. Raises Refused if the list was there before."""
        if cursor == self.cursor:
            raise Refused("Page.next_cursor: the list was at this cursor before; it would never end")
        if self.pages + 1 < self.stays:
            return Landmark(cursor=self.cursor, pages=self.pages + 1, stays=self.stays)
        return Landmark(cursor=cursor, stays=2 * self.stays)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint: where the next page begins (fan-cursor), and what is to be reported at the end."""

    v: Literal[1] = 1
    cursor: Cursor | None = None
    landmark: Landmark = Landmark()
    page_tries: int = 0
    """How often the page at `cursor` was tried in vain."""
    told_tries: int = 0
    """How often of these it was read, and somebody in it could not be told."""
    fault: str | None = None
    """Why, the last time."""
    tally: Tally = Tally()
    samples: tuple[Sample, ...] = ()
    """The first ten that were malformed or unreadable."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The output of the fan-out's step."""

    v: Literal[1] = 1
    tally: Tally = Tally()
    samples: tuple[Sample, ...] = ()


def is_of_another_version(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a stored checkpoint was made by a program that knows more, or other, than this one."""
    return checkpoint.get("v") != PROGRESS_VERSION


def line_of(value: object) -> str:
    """One bounded line, whatever text comes from outside."""
    text = " ".join(str(value).split()).encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


def text_of(error: BaseException) -> str:
    """A fault in one bounded line, with its class."""
    try:
        return line_of(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__  # a foreign exception whose text can not be made
