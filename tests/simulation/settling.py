"""The end of a run: no more faults, and everything that can be done must get done in bounded time (L1, L2, L5, L6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel.codec import decode
from kernel.config import Limit
from kernel.dispatch import DISPATCHED, REFUSED
from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.store.tables import LIMITS, SIGNALS
from tests.simulation.jobs import JOBS, object_faults
from tests.simulation.lines import Lines
from tests.simulation.roles import ApiProcess, EngineProcess
from tests.simulation.rules import deliver, set_limit, tell_everybody, unpark
from tests.simulation.wipes import wipe

if TYPE_CHECKING:
    from tests.simulation.world import World

STUCK_MS = 130_000
"""Lease, scan, poll, and the time for which a worker may be busy with others. Nobody may stand still for longer."""
ROUNDS_MAX = 1_000
MOVES_A_ROUND = 40
UNNOTED = ("added", "tell_subscribers")
"""Steps whose activities are not of the simulation, and enter nothing into its ledger."""


def settle(world: World) -> None:
    """Stop the faults, start what died, and let everything come to its rest. Raises Violation."""
    calm(world)
    lines = Lines(world)
    for _ in range(ROUNDS_MAX):
        _lift_limits(world)
        lines.check()
        left = unsettled(world)
        if not left and not _busy(world):
            return
        _check_moving(world, left)
        for _ in range(MOVES_A_ROUND):
            world.step()
    world.violation("liveness", f"still busy after {ROUNDS_MAX} rounds: {_described(world, unsettled(world))}")
    world.step()


def calm(world: World) -> None:
    """No fault from here on. A worker and a dispatcher that know everything; half of what is waited for happens."""
    world.calm = True
    world.trace.add(world.hub.now_ms, "RULE", "calm")
    world.redis.queue.deaf = world.observer_fails = False
    for process in list(world.processes):
        if not process.dead and process.paused:
            process.go_on()
    whole = world.app(*world.definitions)
    world.start_engine(world.app(*world.next_definitions))
    world.start_engine(whole)
    world.start_engine(whole, dispatches=True)
    if not world.living(ApiProcess):
        world.start_api()
    if world.rng.random() < 0.5:
        world.later(world.rng.choice((1_000, 20_000)), lambda: wipe(world))
    if world.rng.random() < 0.7:
        unpark(world)
    for told in list(world.unsent.values()):
        deliver(world, told.workflow_id, told.wait_key, told.generation, told.signal_id)
    for event_id in sorted(world.untold):
        tell_everybody(world, event_id)
    for workflow_id, key, generation in sorted(world.asked):
        if (key, generation) not in world.facts and world.rng.random() < 0.5:
            world.facts.add((key, generation))
            deliver(world, workflow_id, key, generation, f"{key}/{generation}/late")
    world.calm_ms = world.hub.now_ms


def _lift_limits(world: World) -> None:
    """The limits are those of the beginning again: what an operator has set before, or sets at last, may be a stop."""
    for resource, row in world.rows(LIMITS):
        limit = world.limits[resource]
        found = (row.get(field, getattr(limit, field)) for field in limit.__struct_fields__)
        if Limit(*found) != limit:
            set_limit(world, resource, limit)


def _busy(world: World) -> bool:
    """Whether somebody outside still waits for an answer, or a process for its end."""
    return bool(world.unsent or world.untold) or any(process.loop.draining for process in world.living(EngineProcess))


def unsettled(world: World) -> dict[str, Document]:
    """The workflows and objects for which something is still to happen."""
    left = {}
    for key in sorted(world.watch.open):
        row = world.row(key)
        if row is not None and "parked" not in row and not _rests(world, row):
            left[key] = row
    jobs = world.rows(JOBS.place)
    undispatched = [job for job in jobs if job[1]["workflow_dispatch"]["status"] not in (DISPATCHED, REFUSED)]
    left.update(job for job in undispatched if not _is_parked(world, job[1]))
    return left


def _is_parked(world: World, row: Document) -> bool:
    """Whether the instance of an object is parked in an earlier round: an operator must act first (DECISIONS 2)."""
    instance = world.row(workflow_id_for(row["workflow_dispatch"]["biz_key"]))
    return instance is not None and "parked" in instance


def _rests(world: World, row: Document) -> bool:
    """Waiting for something that truly has not happened, and for nothing else."""
    if row["status"] != "waiting" or "claimable_time" in row:
        return False
    return all(
        (wait["wait_key"], wait["generation"]) not in world.facts
        for wait in (step["wait"] for step in row["steps"] if "wait" in step)
    )


def _check_moving(world: World, left: dict[str, Document]) -> None:
    """Somebody must move as long as something is due (the time of waits that lie ahead does not count)."""
    now_ms = world.hub.now_ms
    last_ms = max([world.calm_ms, *(life.moved_ms for life in world.watch.lives.values())])
    since_ms = max(last_ms, min(map(_due_ms, left.values()), default=last_ms))
    if now_ms - since_ms > STUCK_MS:
        world.violation("liveness", f"nothing has moved for {now_ms - since_ms} ms: {_described(world, left)}")


def _due_ms(row: Document) -> int:
    at_ms = row.get("claimable_time")
    return at_ms if isinstance(at_ms, int) and "claim_token" not in row else 0


def _described(world: World, left: dict[str, Document]) -> list[str]:
    """For people: what stands still, and how."""
    return [
        f"{key} {row.get('status')} {[step['status'] for step in row.get('steps', ())]} "
        f"due in {row.get('claimable_time', 0) - world.hub.now_ms} ms, claim of {row.get('worker')}, "
        f"{row.get('deaths')} deaths, waits for {row.get('permit_wait')}, {row.get('workflow_dispatch')}"
        for key, row in left.items()
    ]


def check_end(world: World) -> None:
    """What must hold when everything rests (S1, S2, S7, S9, extra entries)."""
    rows = dict(world.rows())
    keys = [row["biz_key"] for row in rows.values()]
    if len(keys) != len(set(keys)):
        world.violation("S2", f"two instances for one key: {sorted(keys)}")
    for workflow_id in sorted(world.promised):
        if workflow_id not in rows:
            world.violation("S1", f"{workflow_id} was registered and is gone")
    for object_id, row in world.rows(JOBS.place):
        _check_object(world, object_id, row, keys)
    for _, row in world.rows(SIGNALS):
        _check_signal(world, row, rows)
    for key, row in rows.items():
        for step in row["steps"]:
            if step["status"] == "completed" and step["name"] not in UNNOTED:
                _check_ran(world, key, row, step["name"])
    world.ledger.check_extra()


def _check_object(world: World, object_id: str, row: Document, keys: list[str]) -> None:
    for fault in object_faults(row):
        world.violation("S7", f"{object_id}: {fault}")
    intent = row["workflow_dispatch"]
    if intent["status"] != REFUSED and keys.count(intent["biz_key"]) != 1:
        world.violation("S1", f"{object_id} was accepted and has no instance")
    elif intent["status"] == DISPATCHED and not world.watch.intents.registered(row):
        world.violation("S1", f"{object_id} is dispatched, and nobody serves round {intent['fencing_token']}")


def _check_signal(world: World, signal: Document, rows: dict[str, Document]) -> None:
    """No signal is pending for a wait that it matches (L6)."""
    row = rows.get(signal["workflow_id"])
    if signal["status"] != "pending" or row is None or row["status"] != "waiting":
        return
    identity = ("signal_type", "wait_key", "generation")
    for step in row["steps"]:
        if "wait" in step and all(step["wait"].get(field) == signal[field] for field in identity):
            world.violation("S9", f"{signal['signal_id']} is pending, and {row['workflow_id']} waits for it")


def _check_ran(world: World, key: str, row: Document, step: str) -> None:
    """A completed step was entered, in this run or in one before it, and left its own output."""
    runs = range(1, row["workflow_run"] + 1)
    output = decode(row["outputs"][step], Any, "output")
    if isinstance(output, dict) and (output["step"] != step or output["run"] not in runs):
        world.violation("S4", f"{step} of {key} has the output {output}")
    if not any(world.ledger.counts[key, run, step] for run in runs):
        world.violation("S4", f"{step} of {key} is completed and was never entered")
