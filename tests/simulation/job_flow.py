"""The Definition that serves the jobs of a run: it begins the object, works, and tells it how it ended (S7)."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.errors import NonRetryable
from tests.simulation.flows import Failed, Item, Script

if TYPE_CHECKING:
    from tests.simulation.world import World


def draw_job(world: World, rng: random.Random) -> Definition:
    """Begin the object, work, and tell it how it ended: every write names the round (fen-cas)."""

    def begin(ctx: Context) -> str:
        world.ledger.enter(ctx, "begin")
        if not ctx.ports.objects.begin(ctx.input["object_id"], ctx.input["fencing_token"]):
            raise NonRetryable("the object is in another round, or closed")
        return "begun"

    def completed(ctx: Context) -> None:
        world.ledger.enter(ctx, "success")
        round_ = ctx.input["fencing_token"]
        ctx.ports.objects.complete(ctx.input["object_id"], round_, {"result": {"round": round_}})

    fails_after = rng.choice((0, 1, 2))

    def failed(ctx: Context) -> None:
        entry = world.ledger.enter(ctx, "failure")
        round_ = ctx.input["fencing_token"]
        ctx.ports.objects.fail(ctx.input["object_id"], round_, {"error": {"round": round_}})
        world.ledger.failures[entry.key, 0] += 1
        if world.ledger.failures[entry.key, 0] <= fails_after:
            # Its user sees the failed object at once, and may be in the next round when this one comes here again.
            raise Failed("behind the write, as drawn")

    items = tuple(
        Item(kind, number)
        for kind, number in rng.choice(
            (
                (("work", 300),),
                (("sleep", 3_000), ("work", 5)),
                (("fails", 1), ("work", 5)),
                (("fails", 9),),
                (("fails", 9), ("sleep", 500)),
                (("yield", 0), ("submits", 2_000)),
            )
        )
    )
    work = Script(world, "work", items, streams=True, resource=None)
    steps = [Step("begin", begin, timeout=timedelta(seconds=60), max_retry=1), Step("work", work, streams=True)]
    return Definition(type="job", steps=steps, success_finalizer=completed, failure_finalizer=failed)
