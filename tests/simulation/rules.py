"""What the outside does to a run: one function a rule, drawn by weight. See README.md for how to add one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fanout import FanOutEvent, start_fan_out
from kernel.candidates import Candidate
from kernel.config import Limit
from kernel.definition import Definition
from kernel.errors import KernelError, Refused, Unavailable
from kernel.ids import workflow_id_for
from kernel.limits import change_limit
from kernel.signals import Signal
from kernel.store.tables import INSTANCES
from tests.simulation.flows import RESOURCES, SIGNAL, TENANT, wait_key
from tests.simulation.jobs import JOBS
from tests.simulation.reader import follow
from tests.simulation.roles import ApiProcess
from tests.simulation.wipes import wipe

if TYPE_CHECKING:
    from tests.simulation.world import World


class Rule(NamedTuple):
    """`apply` does it, or nothing where there is nothing to do it to."""

    weight: float
    apply: Callable[[World], None]


# --- requests ------------------------------------------------------------------------------------------------


def start(world: World) -> None:
    """Start a workflow, or find it, or replay it: with whatever input and priority, and a few at once."""
    definition = world.rng.choice(world.flows)
    key = _key(world, definition, fresh=world.rng.random() < 0.5)
    for _ in range(world.rng.choice((1, 1, 1, 2))):
        _start(world, definition, key, world.rng.randrange(4))


def _key(world: World, definition: Definition, *, fresh: bool) -> str:
    """One of the newest business keys of this type, or with `fresh` the next one."""
    newest = world.newest[definition.type] = world.newest.get(definition.type, 0) + fresh
    return f"{definition.type}:{max(0, newest - world.rng.randrange(world.keys))}"


def _start(world: World, definition: Definition, key: str, priority: int) -> None:
    delay = timedelta(seconds=world.rng.choice((0, 0, 0, 0, 7)))
    number = world.rng.randrange(100)
    # A publisher of the next release may come first, or after one of this: as the workflow is then, it stays.
    release = world.next_flows[world.flows.index(definition)] if world.rng.random() < 0.12 else definition

    def call(api: ApiProcess) -> None:
        handle = api.client.start_or_resume(
            release.plan, biz_key=key, input={"n": number}, priority=priority, start_delay=delay
        )
        world.promised.add(handle.workflow_id)

    ask(world, "start", call)


def request(world: World) -> None:
    """A user's request for a job, by its object id: new, repeated with the same input or another, or another round of a
    failed one."""
    failed = [key for key, row in world.rows(JOBS.place) if row["status"] == JOBS.failed]
    if failed and world.rng.random() < 0.7:
        object_id = world.rng.choice(failed)
    else:
        world.newest["job"] = world.newest.get("job", 0) + (world.rng.random() < 0.3)
        object_id = f"job-{max(0, world.newest['job'] - world.rng.randrange(world.keys))}"

    def call(api: ApiProcess, number: int) -> None:
        api.desk.request({"object_id": object_id, "n": number}, object_id=object_id)

    for _ in range(world.rng.choice((1, 1, 2))):
        ask(world, "request", partial(call, number=world.rng.randrange(2)))


def withdraw(world: World) -> None:
    """The owner of an object wants nothing of it any more."""
    rows = world.rows(JOBS.place)
    if not rows:
        return
    object_id, row = world.rng.choice(rows)
    round_ = row["workflow_dispatch"]["fencing_token"]
    ask(world, "withdraw", lambda api: api.objects.withdraw(object_id, round_, "as drawn"))


def supersede(world: World) -> None:
    """Somebody ends a live workflow; never a fan-out, whose subscribers would wait for ever."""
    workflow_id = _some_instance(world, ("running", "waiting", "failing"))
    if workflow_id is not None:
        ask(world, "supersede", lambda api: api.client.supersede(workflow_id))


def unpark(world: World) -> None:
    """An operator brings a parked workflow back."""
    parked = [key for key, row in world.rows() if "parked" in row]
    if parked:
        key = world.rng.choice(parked)
        ask(world, "unpark", lambda api: api.client.unpark(key))


def ask(world: World, name: str, call: Callable[[Any], object]) -> None:
    """In one of the web processes. What the kernel refuses or can not do is an answer; the user may ask again."""
    apis = world.living(ApiProcess)
    if not apis:
        return
    api = world.rng.choice(apis)

    def body() -> None:
        try:
            call(api)
        except (Unavailable, Refused, KernelError):
            return

    world.trace.add(world.hub.now_ms, "RULE", f"{name} by {api.name}")
    api.spawn(name, body)


# --- signals -------------------------------------------------------------------------------------------------


def signal(world: World) -> None:
    """A fact becomes true and somebody is told: at the right time, early, twice, or with the wrong generation."""
    target = _wished(world)
    if target is None:
        return
    workflow_id, key, generation = target
    world.facts.add((key, generation))
    number = world.rng.choice((0, 0, 0, 1, 2))
    deliver(world, workflow_id, key, generation, f"{key}/{generation}/{number}")
    if world.rng.random() < 0.2:
        deliver(world, workflow_id, key, generation + 7, f"{key}/{generation}/wrong")


def signal_to_nobody(world: World) -> None:
    """A signal for a workflow that does not exist."""
    deliver(world, workflow_id_for("nobody"), "nobody", 0, f"nobody/{world.rng.randrange(3)}")


def deliver(world: World, workflow_id: str, key: str, generation: int, signal_id: str) -> None:
    """Until the inbox has it: a producer repeats with the same id (sig-inbox-fail)."""
    told = Signal(signal_id=signal_id, workflow_id=workflow_id, signal_type=SIGNAL, wait_key=key, generation=generation)
    world.unsent[signal_id] = told

    def call(api: Any) -> None:
        pause = api.event()
        while True:
            try:
                api.client.deliver_signals([told])
            except Unavailable:
                pause.wait(1)
                continue
            world.unsent.pop(signal_id, None)
            return

    ask(world, "signal", call)


def _wished(world: World) -> tuple[str, str, int] | None:
    """Somebody's wait: one that is known, or one that a script will come to later."""
    asked = sorted(wait for wait in world.asked if wait[1:] not in world.facts)
    if asked and world.rng.random() < 0.7:
        return world.rng.choice(asked)
    definition = world.rng.choice(world.flows)
    places = [
        (step.name, item)
        for step in definition.steps
        for item in getattr(step.activity, "items", ())
        if item.kind == "told"
    ]
    if not places:
        return None
    step, item = world.rng.choice(places)
    biz_key = _key(world, definition, fresh=False)
    return workflow_id_for(biz_key), wait_key(biz_key, step, item), item.generation


def fan_out(world: World) -> None:
    """One event for everybody who has asked for something so far."""
    asked = sorted(world.asked)[:5]
    if not asked:
        return
    event_id = f"event-{world.rng.randrange(2)}"
    world.audience.setdefault(event_id, asked)
    world.facts.update((key, generation) for _, key, generation in world.audience[event_id])
    tell_everybody(world, event_id)


def tell_everybody(world: World, event_id: str) -> None:
    """Start the fan-out of the event, or find it; who starts it repeats until it is there (fan-start-idempotent)."""
    event = FanOutEvent(event_id=event_id, signal_type=SIGNAL, wait_key="everybody", identities={"list": event_id})
    world.untold.add(event_id)

    def call(api: Any) -> None:
        start_fan_out(api.client, world.fan_out, event)
        world.untold.discard(event_id)

    ask(world, "fan-out", call)


# --- operators -----------------------------------------------------------------------------------------------


def limits(world: World) -> None:
    """Other limits for a resource: fewer, more, none, or a stop."""
    resource = world.rng.choice((*RESOURCES, TENANT))
    limit = Limit(world.rng.choice((0, 1, 1, 2, 3)), world.rng.choice((0, 0, 1, 2, 5)), world.rng.random() < 0.15)
    set_limit(world, resource, limit)


def set_limit(world: World, resource: str, limit: Limit) -> None:
    """As an operator does."""

    def call(api: Any) -> None:
        change_limit(
            api.store,
            resource,
            max_concurrency=limit.max_concurrency,
            max_starts_per_second=limit.max_starts_per_second,
            paused=limit.paused,
        )

    ask(world, "limits", call)


def deploy(world: World) -> None:
    """A worker of another release joins: one type less, or some of another shape."""
    if len(world.workers()) > 3:
        return
    if world.rng.random() < 0.5:
        world.start_engine(world.app(*world.next_definitions))
        return
    left = world.rng.choice(world.flows)
    world.start_engine(world.app(*(definition for definition in world.definitions if definition is not left)))


def drain(world: World) -> None:
    """A worker is told to end; its supervisor waits a while for it, and starts another."""
    workers = world.workers()
    if workers:
        world.recycle(world.rng.choice(workers))


def read_stream(world: World) -> None:
    """Somebody follows the stream of a workflow, or comes back to it."""
    keys = [key for key, _ in world.rows()]
    if keys:
        workflow_id = world.rng.choice(keys)
        ask(world, "read", lambda api: follow(world, api, workflow_id))


# --- damage --------------------------------------------------------------------------------------------------


def corrupt_checkpoint(world: World) -> None:
    """The checkpoint of a resting step turns into something that does not decode."""
    for key, row in world.rows():
        if "claim_token" in row or row["status"] not in ("running", "waiting") or row["type"] == world.fan_out.type:
            continue
        found = [index for index, step in enumerate(row["steps"]) if "checkpoint" in step]
        if found:
            damaged = copy.deepcopy(row)
            damaged["steps"][world.rng.choice(found)]["checkpoint"] = b"\xc1damaged"
            world.store._rows[INSTANCES][key] = msgspec.msgpack.encode(damaged)
            world.trace.add(world.hub.now_ms, "RULE", f"corrupt checkpoint of {key}")
            return


def corrupt_index(world: World) -> None:
    """The lanes hold what should not be there: an unknown id, and a known one in another lane."""
    model = world.redis.queue.model
    model.push("wf-of-another-world", world.rng.randrange(4), world.redis.wall_ms())
    for key, _ in world.rows()[:1]:
        found = Candidate(key, world.rng.randrange(4), world.redis.wall_ms())
        model.push(found.workflow_id, found.lane, found.at_ms)


# --- nemesis -------------------------------------------------------------------------------------------------

PAUSES_MS = (100, 3_000, 12_000, 27_000, 40_000, 120_000)


def crash(world: World) -> None:
    """Any process ends."""
    alive = [process for process in world.processes if not process.dead]
    if alive:
        world.crash(world.rng.choice(alive))


def pause(world: World) -> None:
    """Any process stands still."""
    running = [process for process in world.processes if not process.dead and not process.paused]
    if running:
        world.rng.choice(running).pause(world.rng.choice(PAUSES_MS))


def resume(world: World) -> None:
    """A process that stands still goes on."""
    still = [process for process in world.processes if not process.dead and process.paused]
    if still:
        world.rng.choice(still).go_on()


def redis_outage(world: World) -> None:
    """Redis refuses for a while, or does not answer: a call may wait for a second in all (RELIABILITY 2.2)."""
    world.redis_down_until_ms = world.hub.now_ms + world.rng.choice((500, 20_000, 90_000))
    world.redis_hangs_ms = world.rng.choice((0, 0, 1_000))


def store_outage(world: World) -> None:
    """The store refuses for a while, or does not answer: a call waits for a sixth of a lease (RELIABILITY 2.7)."""
    world.store_down_until_ms = world.hub.now_ms + world.rng.choice((100, 4_000, 40_000))
    world.store_hangs_ms = world.rng.choice((0, 0, world.settings.lease_ms // 6))


def jump(world: World) -> None:
    """Much time passes at once."""
    world.jumps += 1
    world.hub.jump(world.rng.choice((1, 1_000, 35_000, 600_000, 7_200_000)))
    world.jumped_ms = world.hub.now_ms


def skew(world: World) -> None:
    """The wall clock of a process, or of Redis, is set wrong."""
    ms = world.rng.randint(-600_000, 600_000)
    if world.rng.random() < 0.7:
        world.rng.choice(world.processes).clock.skew_ms = ms
    else:
        world.redis.skew(ms // 100)


def deaf(world: World) -> None:
    """Wakeups get lost, or are heard again (L5)."""
    world.redis.queue.deaf = not world.redis.queue.deaf


def _some_instance(world: World, statuses: tuple[str, ...]) -> str | None:
    keys = [key for key, row in world.rows() if row["status"] in statuses and row["type"] != world.fan_out.type]
    return world.rng.choice(keys) if keys else None


RULES = (
    Rule(10, start),
    Rule(7, request),
    Rule(9, signal),
    Rule(1, signal_to_nobody),
    Rule(2, fan_out),
    Rule(0.7, withdraw),
    Rule(1, supersede),
    Rule(3, unpark),
    Rule(2, limits),
    Rule(1, deploy),
    Rule(1, drain),
    Rule(4, read_stream),
    Rule(0.5, corrupt_checkpoint),
    Rule(1, corrupt_index),
)
NEMESIS = (
    Rule(4, crash),
    Rule(4, pause),
    Rule(1, resume),
    Rule(3, wipe),
    Rule(2, redis_outage),
    Rule(2, store_outage),
    Rule(2, jump),
    Rule(1, skew),
    Rule(1, deaf),
)
