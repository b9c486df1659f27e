"""Scenes: what is played at a boundary, and how one scene is played at one point."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from tests.simulation.campaign import quiet_logs
from tests.simulation.crash.fault import POINTS, Fired, Point, Stalker
from tests.simulation.crash.stage import TAKEOVER_MS, Enough, Stage
from tests.simulation.fibers import fiber_locks
from tests.simulation.settling import check_end, settle
from tests.simulation.world import EngineFaults

SEEDS = range(20_260, 20_263)
"""Of the interleavings with which each scene is played."""
Play = Callable[[Stage], None]


class Scene(msgspec.Struct, frozen=True):
    """One way to come to a boundary: `call` is where the fault is planted, `play` drives there and checks what the
    table says of it."""

    boundary: str
    call: str
    play: Play
    points: tuple[Point, ...] = POINTS

    @property
    def name(self) -> str:
        return self.play.__name__


SCENES: list[Scene] = []


def scene(boundary: str, call: str, points: str = "abc") -> Callable[[Play], Play]:
    """The function is a scene of that boundary, with the fault at `call`: the name of a write, or `port.method`."""

    def add(play: Play) -> Play:
        SCENES.append(Scene(boundary, call, play, tuple(point for point in POINTS if point in points)))
        return play

    return add


@contextmanager
def staged(seed: int, point: Point, *, enough: bool = False) -> Iterator[Stage]:
    """A stage on simulated time. What the engine catches and logs as a fault of its own ends it, too."""
    with fiber_locks(sys.modules), quiet_logs() as root:
        stage = Stage(seed, point, enough=enough)
        faults, tree = EngineFaults(stage), logging.getLogger("supervisor")
        told = tree.propagate
        root.addHandler(faults)
        tree.addHandler(faults)
        tree.propagate = False
        try:
            yield stage
        finally:
            stage.close()
            root.removeHandler(faults)
            tree.removeHandler(faults)
            tree.propagate = told


class Played(msgspec.Struct, frozen=True):
    """Where the fault has fired, and the moves of the whole play."""

    fired: Fired
    moves: int
    hash: int


def play(one: Scene, point: Point, seed: int = SEEDS[0]) -> Played:
    """One scene at one point: the fault, what the table says of it, and S1–S15 to the end. Raises AssertionError."""
    with staged(seed, point) as stage:
        try:
            one.play(stage)
            assert stage.main is not None and stage.main.fired, f"the fault at {one.call} has not fired"
            assert stage.main.name == one.call
            _end(stage)
        except AssertionError as error:
            raise AssertionError(_told(one, point, stage, error)) from error
        return Played(stage.main.fired[0], stage.trace.steps, stage.trace.hash)


def play_twice(one: Scene, point: Point, after: int, second: Point, seed: int) -> bool:
    """A scene up to its fault; then whoever goes on with it is hit at its `after`-th call. Whether anybody was."""
    with staged(seed, point, enough=True) as stage:
        try:
            try:
                one.play(stage)
            except Enough:
                pass
            stalker = stage.plant.stalker = Stalker(stage.victim, after, second)
            stage.rest(TAKEOVER_MS, unless=lambda: stalker.fired)
            stage.plant.stalker = None
            _end(stage)
        except AssertionError as error:
            raise AssertionError(_told(one, point, stage, error)) from error
        return stalker.fired


def _end(stage: Stage) -> None:
    stage.conclude()
    settle(stage)
    check_end(stage)
    stage.step()


def _told(one: Scene, point: Point, stage: Stage, error: AssertionError) -> str:
    lines = "\n".join(stage.trace.lines(stage.start_ms)[-100:])
    return f"{one.boundary}{point} {one.name}: {error}\n{lines}"
