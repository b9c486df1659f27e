"""What a ready queue holds: hints about runnable work, on the store's clock. Redis recommends; a claim grants."""

from __future__ import annotations

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A hint that `workflow_id` may be runnable: its lane, and when, in milliseconds of the store's clock."""

    workflow_id: str
    lane: int
    at_ms: int


class Popped(msgspec.Struct, frozen=True):
    """The answer of a pop. `next_in_ms` is the time until the next entry is due, None when nothing is queued.

    `wiped` says that the queue lost its memory since this process last looked: a rebuild is needed at once.
    """

    candidates: tuple[Candidate, ...]
    next_in_ms: int | None = None
    wiped: bool = False
