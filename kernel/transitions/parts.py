"""What several transitions share: the holder's guards, the release of a claim, and where a claim comes to rest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import msgspec

from kernel.records import ERRORS_KEPT, ErrorRecord, Wait, to_document
from kernel.states import RUNNING, InstanceStatus
from kernel.store.conditional import Add, Append, Change, Clear, Equals, Guard, Put, PutNow, Transition
from kernel.store.tables import INSTANCES


class Held(msgspec.Struct, frozen=True):
    """The right to execute one instance: its id and the token of the current claim."""

    workflow_id: str
    claim_token: str


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance rests when its claim ends: status, when somebody may act, and the wait to show.

    `claimable_time` None with status `waiting` means that nothing timed wakes it; `now` makes it claimable at once.
    """

    status: Literal["running", "waiting"]
    claimable_time: int | None = None
    now: bool = False
    wait: Wait | None = None


UNCLAIM: tuple[Change, ...] = (Clear("claim_token"), Clear("claim_time"), Clear("worker_id"), Clear("worker"))
"""Every release clears the whole claim in the same write (clm-release-clears)."""

PROGRESS: tuple[Change, ...] = (Put("deaths", 0),)
"""A committed step of progress forgives the deaths before it (DECISIONS detail 4)."""
NOTHING_MORE: tuple[Change, ...] = (Clear("wait"), Clear("permit_wait"), Clear("finalizer"))
"""What a workflow waits for no longer when it begins to fail: no step of it is entered any more."""


def transition(
    name: str,
    workflow_id: str,
    guards: Iterable[Guard],
    changes: Iterable[Change],
    commit_id: str | None,
    *,
    revise: bool = True,
) -> Transition:
    """A transition of an instance. All but claim and renewal raise the revision in the same write (B-19)."""
    counted = (Add("revision", 1),) if revise else ()
    return Transition(name, INSTANCES, workflow_id, tuple(guards), (*changes, *counted), commit_id)


def held(claim: Held, status: InstanceStatus = RUNNING) -> tuple[Guard, ...]:
    """The guards of every write that a claim's holder makes (clm-every-write, cmp-status-guard)."""
    return (Equals("claim_token", claim.claim_token), Equals("status", status))


def resting(rest: Rest | None) -> tuple[Change, ...]:
    """The changes that end a claim at `rest`; none when the claim goes on."""
    if rest is None:
        return ()
    if rest.now:
        due: Change = PutNow("claimable_time")
    elif rest.claimable_time is None:
        due = Clear("claimable_time")
    else:
        due = Put("claimable_time", rest.claimable_time)
    wait: Change = Clear("wait") if rest.wait is None else Put("wait", to_document(rest.wait))
    return (Put("status", rest.status), due, wait, *UNCLAIM)


@lru_cache(maxsize=4096)
def step_field(index: int, field: str) -> str:
    """The path of a step's field; always the same text, whose hash is known."""
    return f"steps.{index}.{field}"


def executed(index: int, elapsed_ms: int) -> tuple[Change, ...]:
    """One invocation has ended after `elapsed_ms`: of its attempt, and of the run. An attempt that waits or yields has
    several; `begin_step` sets the attempt's figure to 0 when it enters another attempt."""
    return (Add(step_field(index, "elapsed_ms"), elapsed_ms), Add(step_field(index, "executed_ms"), elapsed_ms))


def step_error(index: int, error: ErrorRecord) -> tuple[Change, ...]:
    """A returned failure: counted, kept as the last error and in the bounded list (DECISIONS details 15 and 3).

    The checkpoint goes with it, so that a failed task or cursor is never used again (stp-checkpoint-cleared-on-error).
    """
    document = to_document(error)
    return (
        Add(step_field(index, "failures"), 1),
        Put(step_field(index, "error"), document),
        Append(step_field(index, "errors"), document, ERRORS_KEPT),
        Clear(step_field(index, "checkpoint")),
        Clear(step_field(index, "resume")),
    )


def put_or_clear(field: str, value: Any) -> Change:
    return Clear(field) if value is None else Put(field, value)
