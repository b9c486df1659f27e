"""Random Definitions: what each step does is a script that is drawn once, and its activity plays it.

The place in the script is the step's checkpoint, so that what is lost with a checkpoint is done again, and what is not
lost is not. What the outside world knows (facts, external tasks, failures so far) is kept by the world, not by the
workflow: a repeat meets the same world.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from kernel.context import Context
from kernel.definition import Definition, RetryPolicy, Step
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.errors import WorkflowCanceled
from kernel.permit_words import WORKFLOW
from tests.simulation.entries import Entry, world_process
from tests.simulation.fibers import Dead

if TYPE_CHECKING:
    from tests.simulation.world import World

SIGNAL = "told"
RESOURCE = "press"
RESOURCES = (RESOURCE, "gate")
TENANT = "tenant"
"""What limits whole workflows."""


class Item(msgspec.Struct, frozen=True):
    """One thing that a step does: `kind`, and a number whose meaning depends on it. A wait has a `generation`, and may
    be `shared`: for something that other steps of the workflow wait for under the same key."""

    kind: str
    number: int = 0
    generation: int = 0
    shared: bool = False


class Failed(Exception):
    """What an activity of the simulation raises."""


def wait_key(biz_key: str, step: str, item: Item) -> str:
    """The key under which a step waits."""
    return f"{biz_key}/{'all' if item.shared else step}"


class Script:
    """What one step of one Definition does, over all invocations."""

    def __init__(
        self, world: World, step: str, items: tuple[Item, ...], *, streams: bool, resource: str | None
    ) -> None:
        self._world = world
        self.step = step
        self.items = items
        self._streams = streams
        self._resource = resource
        self.whole: str | None = None
        """The resource of its Definition."""

    def __call__(self, ctx: Context) -> Any:
        entry = self._world.ledger.enter(ctx, self.step)
        called = [(self.whole, WORKFLOW), (self._resource, self.step)]
        for resource, name in called:
            if resource is not None:
                self._world.downstream.begin(resource, entry, name)
        try:
            return self._play(ctx, entry)
        finally:
            for resource, _ in called:
                if resource is not None:
                    self._world.downstream.end(resource, entry)

    def _play(self, ctx: Context, entry: Entry) -> Any:
        place = ctx.checkpoint() or 0
        first = place
        while place < len(self.items):
            item = self.items[place]
            if self._streams:
                ctx.stream.write(f"{ctx.workflow_id}|{ctx.workflow_run}|{self.step}|{place}\n")
            directive = getattr(self, f"_{item.kind}")(ctx, entry, item, place, place == first)
            if directive is not None:
                return directive
            place += 1
        return {"step": self.step, "run": ctx.workflow_run}

    # --- what a step may do ----------------------------------------------------------------------------------

    def _work(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        """Take that long, and stop when told to."""
        process = world_process()
        done = process.event()
        ctx.cancel.on_fire(done.set)
        done.wait(item.number / 1000)
        ctx.check()

    def _ignores(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        """Take that long, whatever anybody says: beyond its timeout and the grace it costs the worker (B-40)."""
        self._world.hub.sleep(item.number)

    def _sleep(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> Sleep | None:
        # Woken, or told by the checkpoint that this was it: the place behind the sleep is in the checkpoint.
        return Sleep(timedelta(milliseconds=item.number), place + 1)

    def _yield(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> Yield:
        return Yield(place + 1)

    def _told(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> WaitForSignal | None:
        """Wait for a fact of the business: `number` is the poll fallback in ms, 0 for none. The signal carries nothing:
        whoever is woken, or begins anew after a failure or in another run, looks at the fact first."""
        key = wait_key(ctx.biz_key, self.step, item)
        looked = (first and ctx.resume is not None) or ctx.workflow_run > 1 or ctx.attempt > 1
        if looked and (key, item.generation) in self._world.facts:
            return None
        fallback = timedelta(milliseconds=item.number) if item.number else None
        self._world.asked.add((ctx.workflow_id, key, item.generation))
        if self._world.calm and item.number:
            # Everybody who looks again finds it in the end, though nobody tells.
            self._world.facts.add((key, item.generation))
        return WaitForSignal(SIGNAL, key, item.generation, fallback, place)

    def _fails(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        """Raise that many times in the first run of a workflow."""
        key = (entry.key, place)
        if ctx.workflow_run == 1 and self._world.ledger.failures[key] < item.number:
            self._world.ledger.failures[key] += 1
            raise Failed(f"as drawn, {self._world.ledger.failures[key]} of {item.number}")

    def _cancels(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        raise WorkflowCanceled("as drawn")

    def _kills(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        """End the worker's process, that many times."""
        key = (entry.key, place)
        if not self._world.calm and self._world.ledger.failures[key] < item.number:
            self._world.ledger.failures[key] += 1
            self._world.crash(world_process())
            raise Dead

    def _submits(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> Sleep:
        """Hand a task to somebody outside; only when the checkpoint says so it will not be done again (S8)."""
        _ = ctx.effect_key
        self._world.submit(entry, place)
        world_process().world.hub.give_way()
        return Sleep(timedelta(milliseconds=item.number), place + 1)


def draw_definition(world: World, rng: random.Random, type_: str) -> Definition:
    """One to six steps, a random graph, and whatever a Definition may have."""
    names = [f"s{index}" for index in range(rng.choice((1, 2, 3, 3, 4, 6)))]
    linear = rng.random() < 0.4
    steps = []
    for index, name in enumerate(names):
        before = names[:index]
        depends_on = None if linear else tuple(n for n in before if rng.random() < 0.5)
        steps.append(_draw_step(world, rng, name, depends_on))
    if len(steps) > 1 and rng.random() < 0.3:
        steps[:2] = _twins(world, rng)
    hook = rng.random() < 0.4
    resource = TENANT if rng.random() < 0.15 else None
    for step in steps:
        step.activity.whole = resource
    return Definition(
        type=type_,
        steps=steps,
        resource=resource,
        on_changed_plan=rng.choice(("refuse", "fresh_run")),
        success_finalizer=finalizer(world, "success", rng.choice((0, 0, 1))) if hook else None,
        failure_finalizer=finalizer(world, "failure", rng.choice((0, 0, 1))) if rng.random() < 0.6 else None,
        on_poison=rng.choice(("park", "park", "fail")),
    )


def next_release(flow: Definition) -> Definition:
    """The same workflow with one step more: another version."""
    return msgspec.structs.replace(flow, steps=[*flow.steps, Step("added", lambda ctx: None)])


def _twins(world: World, rng: random.Random) -> list[Step]:
    """Two steps side by side that wait for the same thing, the one before the other or after it: a signal wakes one."""
    wait = Item("told", rng.choice((9_000, 40_000)), shared=True)
    sleep = Item("sleep", rng.choice((1, 500, 5_000)))
    first, second = (sleep, wait, sleep, wait), (wait, sleep, wait)
    if rng.random() < 0.3:
        first, second = second, first
    return [
        Step(name, Script(world, name, items, streams=False, resource=None), depends_on=())
        for name, items in (("s0", first), ("s1", second))
    ]


def _draw_step(world: World, rng: random.Random, name: str, depends_on: tuple[str, ...] | None) -> Step:
    items = tuple(_numbered([_draw_item(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))], rng))
    if rng.random() < 0.08:
        # One wait after the other, so that who comes late with the end of one meets the next.
        items = tuple(Item("sleep", rng.choice((1, 500, 2_000, 7_000))) for _ in range(6))
    streams = rng.random() < 0.2
    attempts = rng.choice((1, 1, 2, 3))
    policy = attempts > 1 and rng.random() < 0.5
    resource = rng.choice(RESOURCES) if rng.random() < 0.25 else None
    return Step(
        name,
        Script(world, name, items, streams=streams, resource=resource),
        timeout=timedelta(seconds=rng.choice((10, 300))),
        max_retry=0 if policy else attempts - 1,
        retry=RetryPolicy(max_attempts=attempts, initial_interval=timedelta(seconds=2)) if policy else None,
        resource=resource,
        on_failed="skip" if rng.random() < 0.2 else "stop",
        depends_on=depends_on,
        streams=streams,
    )


def _draw_item(rng: random.Random) -> Item:
    kind = rng.choices(
        ("work", "sleep", "told", "yield", "fails", "submits", "kills", "ignores", "cancels"),
        (8, 5, 6, 3, 3, 2, 1.5, 0.4, 0.3),
    )[0]
    numbers = {
        "work": (0, 5, 300, 4_000, 20_000, 45_000),
        "sleep": (0, 1, 500, 5_000, 60_000),
        "told": (0, 0, 3_000, 20_000),
        "yield": (0,),
        "fails": (1, 1, 2, 3),
        "submits": (1_000, 10_000),
        "kills": (1, 2, 3, 4),
        "ignores": (60_000,),
        "cancels": (0,),
    }
    return Item(kind, rng.choice(numbers[kind]))


def _numbered(items: list[Item], rng: random.Random) -> Iterator[Item]:
    """Waits get a generation each. Some are waited for twice, or by several steps: one signal wakes one of these waits,
    and their fallback the others."""
    for generation, item in enumerate(items):
        if item.kind != "told":
            yield item
            continue
        if rng.random() < 0.4:
            yield Item("told", item.number or 9_000, shared=True)
            continue
        yield Item("told", item.number, generation)
        if rng.random() < 0.3:
            yield Item("told", 3_000, generation)


def finalizer(world: World, what: str, failures: int) -> Any:
    """One that fails that many times in each run."""

    def finalize(ctx: Context) -> None:
        entry = world.ledger.enter(ctx, what)
        world.hub.give_way()
        key = (entry.key, 0)
        if world.ledger.failures[key] < failures:
            world.ledger.failures[key] += 1
            raise Failed("the finalizer fails, as drawn")

    return finalize
