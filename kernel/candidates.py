"""What Redis may hold: hints about runnable work and about intents that are due. Redis recommends; a claim grants."""

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


class DueObjects(msgspec.Struct, frozen=True):
    """Business objects whose intents were said to be due. `next_due_ms` is when the next one is, on the source's clock;
    None when none is noted."""

    object_ids: tuple[str, ...]
    next_due_ms: int | None = None


class ScanTurn(msgspec.Struct, frozen=True):
    """Whose turn it is to scan a source: ours, under a token, or another's for that many milliseconds more."""

    token: str | None = None
    free_in_ms: int = 0
