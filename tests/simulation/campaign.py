"""Runs: one from its seed, or many, over as many operating system processes as wanted."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from tests.simulation.counters import Sometimes
from tests.simulation.fibers import fiber_locks
from tests.simulation.rules import NEMESIS, RULES
from tests.simulation.settling import check_end, settle
from tests.simulation.world import EngineFaults, Violation, World

RULES_A_RUN = (20, 50, 100)
MOVES_A_RULE = 40


class Result(msgspec.Struct, frozen=True):
    """What became of one seed."""

    seed: int
    steps: int
    hash: int
    sometimes: dict[str, int]
    violation: str | None = None
    trace: list[str] = []


def run(seed: int) -> Result:
    """One run, from the first move to the last check. The same seed gives the same result, anywhere."""
    with fiber_locks(sys.modules), quiet_logs() as root:
        world = World(seed)
        faults = EngineFaults(world)
        root.addHandler(faults)
        violation = None
        try:
            _play(world)
        except Violation as found:
            violation = str(found)
        except Exception:
            # A fault of the simulation itself is one seed's, too, and must not hide what the others find.
            violation = f"simulation: {traceback.format_exc()}"
        finally:
            root.removeHandler(faults)
            world.close()
    return Result(
        seed,
        world.trace.steps,
        world.trace.hash,
        dict(world.sometimes.counts),
        violation,
        world.trace.lines(world.start_ms) if violation else [],
    )


def _play(world: World) -> None:
    world.populate()
    for _ in range(world.rng.choice(RULES_A_RUN)):
        rules = NEMESIS if world.rng.random() < world.profile.nemesis else RULES
        rule = world.rng.choices(rules, [rule.weight for rule in rules])[0]
        world.trace.add(world.hub.now_ms, "RULE", rule.apply.__name__)
        rule.apply(world)
        for _ in range(world.rng.randrange(MOVES_A_RULE)):
            world.step()
    settle(world)
    check_end(world)
    world.step()


@contextmanager
def quiet_logs() -> Iterator[logging.Logger]:
    """The kernel's log at ERROR and nowhere else: thousands of runs would write a book of warnings."""
    kernel, fanout = logging.getLogger("kernel"), logging.getLogger("fanout")
    before = [(log, log.level, log.propagate) for log in (kernel, fanout)]
    for log in (kernel, fanout):
        log.setLevel(logging.ERROR if log is kernel else logging.CRITICAL)
        log.propagate = False
    try:
        yield kernel
    finally:
        for log, level, propagate in before:
            log.setLevel(level)
            log.propagate = propagate


def run_many(seeds: Iterable[int], processes: int) -> Iterator[Result]:
    """The results of all seeds, in their order."""
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(run, seeds, chunksize=8)


def summary(results: Iterable[Result]) -> tuple[str, Sometimes, int]:
    """The closing line, the counts, and the number of violations."""
    done = list(results)
    total = Sometimes.sum(result.sometimes for result in done)
    violations = sum(result.violation is not None for result in done)
    line = (
        f"simulation: seeds={len(done)} steps={sum(result.steps for result in done)} violations={violations} "
        f"counters_at_zero={len(total.zeros())}"
    )
    return line, total, violations
