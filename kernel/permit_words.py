"""The words of permits: who owns a place, and the answers that Redis gives about it."""

from __future__ import annotations

from typing import Literal

import msgspec

from kernel.errors import InvalidId
from kernel.ids import check_id, check_name

WORKFLOW = "$workflow"
"""The step of an owner that stands for a whole workflow: the place of a tenant's task (B-26). No step has that name."""
REQUESTS = 1024
"""Requests of one claim that are told apart: `request` counts modulo that."""

Grant = Literal["new", "renewed", "handed", "unlimited"]
"""A new place, the same place once more, a place that had been reserved, or none because the resource has no limit."""
Reason = Literal["paused", "concurrency", "rate", "line"]
"""Why not: the resource is paused, as many run as may, as many started within the second as may, or others wait."""

_FIELD = "\x1f"


class Owner(msgspec.Struct, frozen=True):
    """Whose place it is. Two steps, two workflows or two claims never share one (prm-unique-owner-parts,
    prm-new-claim-new-owner): the parts are joined by a character that no part can hold."""

    workflow_id: str
    step: str
    claim_token: str

    def __post_init__(self) -> None:
        check_id(self.workflow_id, "workflow_id")
        if self.step != WORKFLOW:
            check_name(self.step, "step")
        if not check_id(self.claim_token, "claim_token").isascii():
            raise InvalidId("claim_token: must be ASCII")

    @property
    def pair(self) -> str:
        """Who stands in line: the workflow's step, whatever claim asks for it."""
        return f"{self.workflow_id}{_FIELD}{self.step}"

    @property
    def text(self) -> str:
        return f"{self.workflow_id}{_FIELD}{self.step}{_FIELD}{self.claim_token}"


class Permit(msgspec.Struct, frozen=True):
    """A place that was granted: what renewal and release need. `epoch` 0: the resource had no limit, nothing is
    recorded; any other number names the life of Redis in which it was recorded."""

    resource: str
    owner: Owner
    request: int
    epoch: int


class Granted(msgspec.Struct, frozen=True):
    """The call may be made."""

    kind: Grant
    permit: Permit


class Refused(msgspec.Struct, frozen=True):
    """The call may not be made now. The step stays pending and no attempt is used (prm-refused).

    `ask_again_ms` is the earliest time worth asking again, from now; `place` the place in line, 1 being the next. A
    place that becomes free earlier is handed over without being asked for.
    """

    reason: Reason
    ask_again_ms: int
    place: int


class Renewal(msgspec.Struct, frozen=True):
    """What became of one place, and the permit to renew next time (after `restored` it names another epoch)."""

    outcome: Literal["renewed", "restored", "lost"]
    permit: Permit


class Released(msgspec.Struct, frozen=True):
    """How many of the owners held a place, and how many places were handed to those who wait."""

    freed: int
    handed: int


class Holder(msgspec.Struct, frozen=True):
    """One place in use, and when its lease ends by the clock of Redis."""

    owner: Owner
    expiry_ms: int


class PermitStats(msgspec.Struct, frozen=True, kw_only=True):
    """One resource at one instant of the Redis clock (prm-stats).

    `held` places are in use, `reserved` ones were handed over and not yet taken. `holders` are at most as many as
    were asked for, those first whose lease ends first. The last three are of the pair that was asked about: its place
    in the line of its lane, that lane, and whether a place is reserved for it.
    """

    resource: str
    server_ms: int
    epoch: int | None
    held: int
    starts_last_second: int
    reserved: int
    waiting: int
    waiting_by_lane: tuple[int, int, int, int]
    place: int | None
    place_lane: int | None
    handed: bool
    holders: list[Holder]
