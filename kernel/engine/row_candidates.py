"""Candidates from columns of rows, which a scan gives as they are: one damaged row must not cost its page the queue.

A queue refuses a whole batch for one entry that can not be one, so what a hand or a disk has spoilt is mended here or
left out. Nothing is decided by that: whoever claims the row decodes it, and says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

from kernel.candidates import Candidate
from kernel.errors import InvalidId
from kernel.ids import check_id
from kernel.states import LANES


def candidate_of(workflow_id: Any, lane: Any, at_ms: Any) -> Candidate | None:
    """The hint that a row gives: in the last lane when its own can not be read, due at once when its time is no whole
    number of milliseconds from 0. None for an id that no key of a queue may be."""
    try:
        check_id(workflow_id, "workflow_id")
    except InvalidId:
        return None
    known = type(lane) is int and 0 <= lane < LANES
    return Candidate(workflow_id, lane if known else LANES - 1, at_ms if type(at_ms) is int and at_ms >= 0 else 0)
