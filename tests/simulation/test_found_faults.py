"""What the simulation has found in the kernel, as plain tests. Each says which seed met it first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kernel.clock import ManualClock
from kernel.definition import Definition, Step
from kernel.engine.claims import ActiveClaim
from kernel.engine.lease import Renewals
from kernel.engine.settings import Settings
from kernel.store.conditional import Applied, Transition
from kernel.store.memory import MemoryStore
from kernel.transitions import Held
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


def test_a_suspect_beside_other_work_does_not_keep_its_worker_asking_the_store() -> None:
    """Seed 20051. The last sweep was not complete, so the store is asked beside the queue; what is found there can not
    run here now and is pushed back, which wakes this worker, which asks the store: at full speed, until the next sweep.
    """
    clock = ManualClock()
    rig = SteppedRig(MemoryStore(clock), clock)
    fine, suspect = (Definition(type=name, steps=[Step("only", lambda ctx: None)]) for name in ("fine", "suspect"))
    worker = rig.worker(fine, suspect, slots=2)
    rig.pass_once(worker)
    rig.start(fine, "first")
    worker.loop.pass_once()
    set_fields(rig, rig.start(suspect, "second"), deaths=2)
    worker.scheduler.scan_failed = True
    before = worker.store.names().count("claim")

    for _ in range(50):
        worker.loop.pass_once()

    assert worker.busy == 1
    assert worker.store.names().count("claim") - before <= 2


class _Event:
    """One that does what a test says while it is waited for."""

    def __init__(self) -> None:
        self.flag = False
        self.meanwhile: list[Callable[[], None]] = []

    def set(self) -> None:
        self.flag = True

    def clear(self) -> None:
        self.flag = False

    def is_set(self) -> bool:
        return self.flag

    def wait(self, timeout: float | None = None) -> bool:
        self.meanwhile.pop(0)()
        return self.flag


class _Runner:
    def __init__(self) -> None:
        self.events: list[_Event] = []

    def event(self) -> _Event:
        self.events.append(_Event())
        return self.events[-1]

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)


class _Renewals:
    """Renewals on such events, and what their store was told."""

    def __init__(self) -> None:
        self.clock, self.runner = ManualClock(), _Runner()
        self.renewed: list[str] = []
        store: Any = SimpleNamespace(apply_all=self._apply_all)
        self.renewals = Renewals(store, self.clock, self.runner, Settings())  # type: ignore[arg-type]

    def _apply_all(self, transitions: list[Transition]) -> list[Applied]:
        self.renewed.extend(transition.key for transition in transitions)
        return [Applied({}) for _ in transitions]

    def run(self, *meanwhile: Callable[[], None]) -> None:
        """The renewals' thread; during each of its waits one thing happens, during the last its end."""
        for event in self.runner.events:
            event.meanwhile = [*meanwhile, self.renewals.stop]
        self.renewals.run()

    def claim(self, age_ms: int) -> ActiveClaim:
        """One whose write was sent so long ago."""
        instance: Any = SimpleNamespace(workflow_id="wf-1", trace_id="t")
        sent_at_ms = self.clock.boot_ms() - age_ms
        return ActiveClaim(Held("wf-1", "token"), instance, self.clock, sent_at_ms=sent_at_ms, fence_ms=25_000)

    @property
    def woken(self) -> bool:
        return any(event.is_set() for event in self.runner.events)


def test_a_claim_whose_write_took_long_is_renewed_before_its_fence() -> None:
    """Seed 385. Its time counts from before the write; the renewals had just looked and would look again after a whole
    period, behind the fence: a claim that nothing was wrong with was lost, and its step run once more."""
    rig = _Renewals()
    woken: list[bool] = []

    def kept() -> None:
        rig.renewals.keep(rig.claim(20_000))
        woken.append(rig.woken)

    rig.run(kept)

    assert woken == [True]
    assert rig.renewed == ["wf-1"]


def test_ordinary_claims_do_not_wake_the_renewals() -> None:
    """Writes that were on their way during a pass have begun before it: each would end the next wait at once."""
    rig = _Renewals()
    woken: list[bool] = []

    def second() -> None:
        for number in range(700):
            claim = rig.claim(number % 100)
            rig.renewals.keep(claim)
            woken.append(rig.woken)
            rig.renewals.drop(claim)

    rig.run(second)

    assert woken == [False] * 700
    assert rig.renewals.passes == 2  # the one before that second, and the one after it
