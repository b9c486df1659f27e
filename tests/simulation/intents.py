"""The eye on business objects: each round is installed once, dispatched by who may, and ended once (S1, S7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel.dispatch import DISPATCHED, OPEN, PENDING, PROCESSING, REFUSED, rounds_of
from kernel.ids import workflow_id_for
from kernel.records import Document, to_instance
from kernel.store.conditional import Transition
from tests.simulation.jobs import JOBS, object_faults
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

HOLDERS = ("renew_dispatch", "release_dispatch")
"""Only by the dispatcher that holds the lease."""
ENDS = ("confirm_dispatch", "refuse_dispatch", "withdraw_dispatch")
LIVE = (JOBS.initial, JOBS.processing)


class Intents:
    """Checks writes on objects, and keeps who holds the lease of each intent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holders: dict[str, Process] = {}

    def applied(self, process: Process, transition: Transition, before: Document, after: Document) -> None:
        key, name = transition.key, transition.name
        for fault in (*object_faults(after), *self._faults(process, transition, before, after)):
            self._world.violation("S7", f"{key} after {name} by {process.name}: {fault}")
        if name == "claim_dispatch":
            self._holders[key] = process
        elif after["workflow_dispatch"]["status"] != PROCESSING:
            self._holders.pop(key, None)

    def _faults(self, process: Process, transition: Transition, before: Document, after: Document) -> Iterator[str]:
        name = transition.name
        if name == "embed_intent":
            if "workflow_dispatch" in before:
                yield "it had an intent already"
            return
        old, new = before["workflow_dispatch"], after["workflow_dispatch"]
        holds = self._holders.get(transition.key) is process
        if name == "new_round":
            yield from self._new_round(before, old["fencing_token"], new["fencing_token"])
            return
        if old["fencing_token"] != new["fencing_token"]:
            yield f"round {old['fencing_token']} became {new['fencing_token']}"
        if name == "update_object" and before["status"] not in (*LIVE, after["status"]):
            yield f"it was {before['status']} before"
        if name == "claim_dispatch" and (old["status"] not in OPEN or old["due_time"] > self._world.hub.now_ms):
            yield f"taken although it is {old['status']} until {old.get('due_time')}"
        if name in HOLDERS and not holds:
            yield f"by one who does not hold it: {old['status']}"
        if name in ENDS:
            yield from self._ended(name, old["status"], holds=holds)
        if name == "confirm_dispatch" and not self.registered(after):
            yield "confirmed, and no instance serves that round"

    @staticmethod
    def _ended(name: str, status: str, *, holds: bool) -> Iterator[str]:
        if status in (DISPATCHED, REFUSED):
            yield f"it is {status} already"
        elif status != PENDING and not holds and name != "withdraw_dispatch":
            yield "somebody else holds it"

    @staticmethod
    def _new_round(before: Document, old: str, new: str) -> Iterator[str]:
        if before["status"] != JOBS.failed:
            yield f"another round of one that is {before['status']}"
        if _number(new) != _number(old) + 1:
            yield f"round {new} after {old}"

    def registered(self, row: Document) -> bool:
        """Whether the instance of the object serves, or has served, the round that the object is in."""
        intent = row["workflow_dispatch"]
        found = self._world.row(workflow_id_for(intent["biz_key"]))
        return found is not None and intent["fencing_token"] in rounds_of(to_instance(found))


def _number(round_: str) -> int:
    """Of `f3-…`."""
    return int(round_.partition("-")[0][1:])
