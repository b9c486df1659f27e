"""A copy of a write on its way: what a dead process has sent may arrive late, and a network may deliver twice.

After each later write on the same row the conditions of the copy are looked at: they must not hold, so that it would
change nothing, at no time (S3). The write of point a has not been done yet: its copy may hit until somebody else has
gone on in its place, and is looked at from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel.store.conditional import Transition
from kernel.store.evaluate import holds
from tests.simulation.watch import HOLDERS, TAKERS

if TYPE_CHECKING:
    from tests.simulation.crash.stage import Stage

MAY_HIT = {
    "renew": "of the same claim: it lasts as long as if it had been renewed a little later",
    "renew_dispatch": "as renew",
    "raise_priority": "only ever upwards, and so to a priority that somebody has asked for",
    "mark_stuck": "of the same attempt under the same claim: the same mark again",
    "touch_definition": "says the same again",
    "update_object": "of the same round: the same values again",
    "claim": "of a row that is free again: a claim of which nobody knows, as 19b; it waits out its lease",
    "claim_alone": "as claim",
    "claim_handed_over": "as claim",
    "claim_dispatch": "as claim, for an intent that was given back",
    "defer_for_fingerprint": "of a row that is due again: whoever finds its version alive releases it again",
}
"""Writes whose late copy may change something, and why that is no harm."""
UNDER_A_CLAIM = (*HOLDERS, "confirm_dispatch", "release_dispatch", "refuse_dispatch")
GOES_ON = (*TAKERS, "release_dead", "park", "park_dead", "supersede", "claim_dispatch", "new_round")
"""Writes by which somebody goes on in the place of a holder. A write of nobody's claim may come as late as it likes,
until another one of its kind has hit."""


class Copies:
    """The copies that may still be on their way."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._waiting: list[Transition] = []
        self._late: list[Transition] = []

    def add(self, said: object, *, done: bool) -> None:
        """The writes of a call that was befallen; `done`: they were done as well."""
        for write in said if isinstance(said, list) else ():
            if isinstance(write, Transition) and write.name not in MAY_HIT:
                (self._late if done else self._waiting).append(write)

    def written(self, write: Transition) -> None:
        """Somebody's write has hit."""
        for copy in [copy for copy in self._waiting if (copy.table, copy.key) == (write.table, write.key)]:
            gone_on = copy.name in UNDER_A_CLAIM and write.name in GOES_ON
            if gone_on or write.name == copy.name:
                self._waiting.remove(copy)
                self._late.append(copy)
        for copy in self._late:
            if (copy.table, copy.key) == (write.table, write.key):
                self._check(copy, write)

    def _check(self, copy: Transition, after: Transition) -> None:
        stage = self._stage
        document = stage.store_of(copy.table).get(copy.table, copy.key)
        if document is not None and holds(document, copy.guards, stage.hub.now_ms):
            stage.violation("S3", f"a late copy of {copy.name} on {copy.key} would hit after {after.name}")
