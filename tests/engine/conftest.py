"""The rigs: `rig` steps through time on the memory store, `durable_rig` on each embedded store, `live` has threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.store.memory import MemoryStore
from kernel.store.protocol import Store
from tests.support.engine_rig import LiveRig, SteppedRig
from tests.support.stores import sqlite_store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rig(clock: ManualClock) -> Iterator[SteppedRig]:
    made = SteppedRig(MemoryStore(clock), clock)
    yield made
    made.check_events()


@pytest.fixture(params=["memory", "sqlite"])
def durable_rig(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[SteppedRig]:
    """The same promises on both embedded stores."""
    store: Store = MemoryStore(clock) if request.param == "memory" else sqlite_store(tmp_path, clock)
    made = SteppedRig(store, clock)
    yield made
    made.check_events()
    store.close()


@pytest.fixture
def sqlite_rig(clock: ManualClock, tmp_path: Path) -> Iterator[SteppedRig]:
    store = sqlite_store(tmp_path, clock)
    yield SteppedRig(store, clock)
    store.close()


@pytest.fixture
def make_rig() -> Callable[..., SteppedRig]:
    """A fresh stepped rig on the memory store for each call: for tests that run a schedule many times."""

    def make(**changes: int) -> SteppedRig:
        clock = ManualClock()
        return SteppedRig(MemoryStore(clock), clock, **changes)

    return make


PATIENT = {"lease_ms": 30_000, "fence_ms": 25_000, "permit_lease_ms": 30_000}
"""For threads on the machine's clock: on a machine that stands still for seconds a claim of the fast profile would be
lost, and its work done twice. What is about the end of a lease sets a short one of its own."""


@pytest.fixture
def live() -> Iterator[LiveRig]:
    made = LiveRig(MemoryStore(SystemClock()), **PATIENT)
    yield made
    made.close()
    made.check_events()


@pytest.fixture
def live_sqlite(tmp_path: Path) -> Iterator[LiveRig]:
    store = sqlite_store(tmp_path, SystemClock())
    made = LiveRig(store, **PATIENT)
    yield made
    made.close()
    store.close()
