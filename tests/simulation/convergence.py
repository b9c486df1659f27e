"""Many workflows under faults for a minute, then what the ledger has is what each Definition says (RELIABILITY §6.5).

Unlike a run of the campaign nothing depends on luck here: what a step does is decided by what is durable, so that every
schedule of moves, deaths and lost answers must lead to the same sums.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from kernel.codec import decode
from kernel.context import Context
from kernel.definition import Definition, RetryPolicy, Step
from kernel.directives import WaitForSignal
from kernel.ids import workflow_id_for
from kernel.store.tables import INSTANCES
from tests.simulation.campaign import quiet_logs
from tests.simulation.entries import Entry
from tests.simulation.fibers import fiber_locks
from tests.simulation.flows import RESOURCES, SIGNAL, Failed, Item, Script, finalizer, wait_key
from tests.simulation.interpreter import Expected, expected
from tests.simulation.roles import ApiProcess
from tests.simulation.rules import NEMESIS, ask, deliver
from tests.simulation.settling import calm, check_end, settle
from tests.simulation.world import EngineFaults, World

FAULTS_MS = 60_000
NEMESIS_EVERY_MS = 4_000


def differences(seed: int, definitions: int, instances: int) -> list[str]:
    """Play one world and compare. Raises Violation when a promise is broken on the way."""
    with fiber_locks(sys.modules), quiet_logs() as root:
        case = Convergence(seed, definitions, instances)
        faults = EngineFaults(case.world)
        root.addHandler(faults)
        try:
            case.play()
        finally:
            root.removeHandler(faults)
            case.world.close()
    return list(case.differences())


class ExactScript(Script):
    """A script of which every invocation is foreseeable."""

    def _told(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> WaitForSignal:
        """The place behind the wait is in the checkpoint: whoever is woken has been told."""
        return WaitForSignal(SIGNAL, wait_key(ctx.biz_key, self.step, item), item.generation, None, place + 1)

    def _fails(self, ctx: Context, entry: Entry, item: Item, place: int, first: bool) -> None:
        """By what is committed: a failure that nobody has heard of does not count."""
        row = self._world.row(ctx.workflow_id)
        assert row is not None
        failures = next(step["failures"] for step in row["steps"] if step["name"] == self.step)
        if failures < item.number:
            raise Failed(f"as drawn, {failures + 1} of {item.number}")


class Convergence:
    """One world with its Definitions, instances and signals."""

    def __init__(self, seed: int, definitions: int, instances: int) -> None:
        self.world = world = World(seed)
        self._rng = random.Random(f"convergence {seed}")
        world.flows = [self._definition(f"exact{number}") for number in range(definitions)]
        world.next_flows = []
        self._keys = [(f"case:{number}", world.flows[number % definitions]) for number in range(instances)]

    def play(self) -> None:
        """Everything is asked for during the minute of faults; then they stop, and all comes to its end."""
        world = self.world
        world.populate()
        for biz_key, definition in self._keys:
            world.later(self._rng.randrange(FAULTS_MS * 2 // 3), lambda k=biz_key, d=definition: self._start(k, d))
            for step in definition.steps:
                for item in step.activity.items:  # type: ignore[attr-defined]
                    if item.kind == "told":
                        self._tell(biz_key, step.name, item)
        for at_ms in range(NEMESIS_EVERY_MS, FAULTS_MS, NEMESIS_EVERY_MS):
            world.later(at_ms, self._strike)
        while world.hub.now_ms < world.start_ms + FAULTS_MS:
            world.step()
        calm(world)
        for biz_key, definition in self._keys:
            self._start(biz_key, definition)
        while any("parked" in row for _, row in world.rows()):
            self._unpark()
            world.step()
        settle(world)
        check_end(world)
        world.step()

    def differences(self) -> Iterator[str]:
        """Where the ledger is not what the Definitions say, one line each."""
        entries: Counter[tuple[str, str]] = Counter()
        for entry in self.world.ledger.entries:
            entries[entry.key[0], entry.key[2]] += entry.settled
        for biz_key, definition in self._keys:
            key = workflow_id_for(biz_key)
            for fault in self._faults(key, expected(definition), entries):
                yield f"seed {self.world.seed}, {biz_key} of {definition.type}: {fault}"

    def _faults(self, key: str, wanted: Expected, entries: Counter[tuple[str, str]]) -> Iterator[str]:
        row = self.world.store.get(INSTANCES, key)
        if row is None:
            yield "it does not exist"
            return
        if row["status"] != wanted.status:
            yield f"{row['status']}, not {wanted.status}"
        outputs = {name: decode(value, Any, "output") for name, value in row["outputs"].items()}
        if outputs != wanted.outputs:
            yield f"outputs {outputs}, not {wanted.outputs}"
        for step in row["steps"]:
            name = step["name"]
            sums = {how: n for (k, s, how), n in self.world.ledger.sums.items() if (k, s) == (key, name)}
            sums.pop("unbegin", None)
            if sums != dict(wanted.outcomes.get(name, {})):
                yield f"step {name}: {sums}, not {dict(wanted.outcomes.get(name, {}))}"
            if entries[key, name] != sum(sums.values()):
                yield f"step {name}: {entries[key, name]} entries for {sums}"
        for what, times in wanted.finalizers.items():
            if entries[key, what] != times:
                yield f"{what} finalizer: {entries[key, what]}, not {times}"

    # --- what happens ----------------------------------------------------------------------------------------

    def _start(self, biz_key: str, definition: Definition) -> None:
        def call(api: ApiProcess) -> None:
            if self.world.row(workflow_id_for(biz_key)) is not None:
                return  # of a failed one that would be another run
            found = api.client.start_or_resume(definition.plan, biz_key=biz_key, priority=self._rng.randrange(4))
            self.world.promised.add(found.workflow_id)

        ask(self.world, "start", call)

    def _tell(self, biz_key: str, step: str, item: Item) -> None:
        """Early or late, and sometimes twice: a signal id wakes once."""
        world, key = self.world, wait_key(biz_key, step, item)
        world.facts.add((key, item.generation))
        to, signal_id = workflow_id_for(biz_key), f"{key}/{item.generation}"
        for _ in range(self._rng.choice((1, 1, 2))):
            at_ms = self._rng.randrange(FAULTS_MS - 1_000)
            world.later(at_ms, lambda: deliver(world, to, key, item.generation, signal_id))

    def _strike(self) -> None:
        world = self.world
        if not world.calm:
            rule = world.rng.choices(NEMESIS, [rule.weight for rule in NEMESIS])[0]
            rule.apply(world)

    def _unpark(self) -> None:
        for key, row in self.world.rows():
            if "parked" in row and self.world.rng.random() < 0.05:
                ask(self.world, "unpark", lambda api, key=key: api.client.unpark(key))

    # --- Definitions -----------------------------------------------------------------------------------------

    def _definition(self, type_: str) -> Definition:
        """One to twelve steps. A step that may fail the whole stands between all before it and all after it, so that
        what is entered does not depend on who was faster."""
        rng, names = self._rng, [f"s{number}" for number in range(self._rng.randint(1, 12))]
        steps: list[Step] = []
        barrier: list[str] = []
        for index, name in enumerate(names):
            step = self._step(name)
            fatal = step.on_failed == "stop" and any(
                item.kind == "fails" and item.number >= step.attempts_max
                for item in step.activity.items  # type: ignore[attr-defined]
            )
            depends_on = names[:index] if fatal else [*barrier, *(n for n in names[:index] if rng.random() < 0.3)]
            steps.append(_depending(step, tuple(dict.fromkeys(depends_on))))
            if fatal:
                barrier = [name]
        return Definition(
            type=type_,
            steps=steps,
            success_finalizer=finalizer(self.world, "success", 0) if rng.random() < 0.4 else None,
            failure_finalizer=finalizer(self.world, "failure", 0) if rng.random() < 0.6 else None,
        )

    def _step(self, name: str) -> Step:
        rng = self._rng
        attempts = rng.choice((1, 1, 2, 3))
        policy = attempts > 1 and rng.random() < 0.5
        resource = rng.choice(RESOURCES) if rng.random() < 0.03 else None
        return Step(
            name,
            ExactScript(self.world, name, tuple(self._items()), streams=False, resource=resource),
            timeout=timedelta(hours=3),
            max_retry=0 if policy else attempts - 1,
            retry=RetryPolicy(max_attempts=attempts, initial_interval=timedelta(seconds=1)) if policy else None,
            resource=resource,
            on_failed="skip" if rng.random() < 0.5 else "stop",
            depends_on=(),
        )

    def _items(self) -> Iterator[Item]:
        """Failures come before signals: what is begun anew after a failure would wait for a signal that was used."""
        rng = self._rng
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            kind = rng.choice(("work", "sleep", "yield", "submits"))
            yield Item(kind, rng.choice((0, 5, 300, 2_000)) if kind != "sleep" else rng.choice((1, 500, 5_000, 30_000)))
        if rng.random() < 0.25:
            yield Item("fails", rng.choice((1, 1, 2, 3)))
        for generation in range(rng.choice((0, 0, 0, 1, 2))):
            yield Item("told", 0, generation)


def _depending(step: Step, depends_on: tuple[str, ...]) -> Step:
    named = {field: getattr(step, field) for field in step.__struct_fields__}
    return Step(**{**named, "depends_on": depends_on})
