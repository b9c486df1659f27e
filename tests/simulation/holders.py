"""Who holds what: what a worker may take beside what it has, and when somebody may take a claim from it (S3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernel.records import Document
from kernel.store.conditional import Transition
from kernel.transitions.claims import SUSPECT_DEATHS
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

BEFORE_ITS_TIME = ("claim_handed_over",)
"""Takes what is not due: a place was handed over to it (DECISIONS detail 7)."""


def faults_of_taking(
    world: World, process: Process, transition: Transition, before: Document, after: Document
) -> Iterator[str]:
    """What is wrong with a claim that `process` has just taken."""
    at_ms = before.get("claimable_time")
    if "claim_token" in before and at_ms > world.hub.now_ms:
        yield "although its lease lasts"
    elif transition.name not in BEFORE_ITS_TIME and (at_ms is None or at_ms > world.hub.now_ms):
        yield f"although it is due at {at_ms}"
    if "parked" in before:
        yield "which is parked"
    others = [row for key, row in world.rows() if key != transition.key and _is_held(world, process, row)]
    suspects = [row["workflow_id"] for row in others if row["deaths"] >= SUSPECT_DEATHS]
    if suspects or (others and after["deaths"] >= SUSPECT_DEATHS):
        yield f"a suspect runs alone, and it holds {[row['workflow_id'] for row in others]}"


def _is_held(world: World, process: Process, row: Document) -> bool:
    """Whether the process holds that row, as far as it can know: nothing has befallen it since it took it."""
    holder, troubles = world.ledger.claims.get(row.get("claim_token", ""), (None, 0))
    undisturbed = holder is process and process.troubles.count + world.jumps == troubles
    return undisturbed and _keeps(process, row["claim_token"])


def faults_of_freeing(world: World, transition: Transition, before: Document, after: Document) -> Iterator[str]:
    """What is wrong with a claim that was given back in the name of its holder: it is dead, or has given it up."""
    token = before.get("claim_token", "")
    holder: Any = world.ledger.claims.get(token, (None, 0))[0]
    if holder is None:
        yield "nobody holds it"
    elif transition.name == "park":
        if before["claimable_time"] > world.hub.now_ms:
            yield f"the lease of {holder.name} lasts"
    elif not holder.dead and _keeps(holder, token):
        yield f"{holder.name} lives and keeps it"
    deaths = before["deaths"]
    parks = transition.name in ("park", "park_dead")
    if parks and deaths < SUSPECT_DEATHS:
        yield f"after {deaths} deaths"
    if not parks and after["deaths"] > SUSPECT_DEATHS:
        yield f"after {after['deaths']} deaths it is parked, not freed"


def _keeps(holder: Any, token: str) -> bool:
    claim = holder.engine.services.renewals._claims.get(token)
    if claim is None or claim.lost is not None or claim.ended:
        return False
    return bool(holder.clock.boot_ms() < claim.fenced_at_ms)
