"""A fault at every single write of a signal's way: of the producer's, and of the worker's whose step waits.

Each schedule is run once without a fault to count its writes, and then once for every write and every fault. The end
must be the same: every signal wakes exactly one wait, whatever was lost on the way (S9, RELIABILITY §3).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel.clock import ManualClock
from kernel.codec import decode
from kernel.definition import Definition
from kernel.errors import OutcomeUnknown, StoreUnavailable
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow, step
from tests.engine.signals import asks, made, matched, pending
from tests.support.engine_rig import SteppedRig
from tests.support.engine_runner import Killed
from tests.support.engine_store import Fault, FaultyStore

FAULTS: tuple[Fault, ...] = ("lose_request", "lose_reply", "undecidable", "unavailable", "kill_before", "kill_after")
IDS = ["s1", "s2", "s3"]


def rings(rig: SteppedRig) -> Definition:
    """Waits three times for the same identity, with a step before and after."""
    return flow(rig, "before", step(rig, "ask", asks(3)), "after")


class Play:
    """One schedule: signals come early, while the step waits, and one after the other."""

    def __init__(self, hurt: Callable[[FaultyStore, FaultyStore], None]) -> None:
        clock = ManualClock()
        self.rig = SteppedRig(MemoryStore(clock), clock, lease_ms=3_000, renew_ms=1_000, fence_ms=2_500)
        self.producer = FaultyStore(self.rig.store)
        self.worker = self.rig.worker(rings(self.rig))
        hurt(self.producer, self.worker.store)

    def tell(self, signal_id: str) -> None:
        """A durable producer: it repeats with the same id until it is told that the signal is stored."""
        for _ in range(10):
            try:
                self.rig.make_client(self.producer).deliver_signals([made(self.workflow_id, signal_id)])
                return
            except (StoreUnavailable, OutcomeUnknown):
                continue
            except Killed:
                self.producer = FaultyStore(self.rig.store)
        raise AssertionError(f"{signal_id} could not be delivered")

    def run(self, patient: bool) -> None:
        """The first signal is early. A patient producer lets the step wait again before it goes on; the other sends the
        second and the third as soon as the step has been entered."""
        rig = self.rig
        self.workflow_id = rig.start(rings(rig))
        self.tell("s1")
        spare = rig.worker(rings(rig), worker_id="spare")
        for entries, signal_id in ((2, "s2"), (3, "s3")):
            rig.run(lambda n=entries: self.ready(patient, n), "the right moment", self.worker, spare)  # type: ignore[misc]
            self.tell(signal_id)
        rig.run(lambda: rig.ended(self.workflow_id), "the end", self.worker, spare)
        rig.run(lambda: pending(rig) == [], "the marks", self.worker, spare)

    def ready(self, patient: bool, entries: int) -> bool:
        if not patient:
            return self.rig.ledger.count("ask") >= 1
        return self.rig.ledger.count("ask") >= entries and self.rig.status(self.workflow_id) == "waiting"

    def check(self) -> None:
        rig = self.rig
        woken = rig.client.get(self.workflow_id)
        assert woken is not None and woken.status == "completed"
        assert sorted(decode(woken.outputs["ask"], list, "output")) == IDS
        assert matched(rig) == IDS
        assert woken.steps[1].failures == 0


def counted(patient: bool) -> tuple[int, int]:
    """The writes of the producer and of the worker without a fault."""
    play = Play(lambda producer, worker: None)
    play.run(patient)
    play.check()
    return len(play.producer.writes), len(play.worker.store.writes)


@pytest.mark.req("core-unique-outcome", "sig-dup-once", "sig-crash-between", "sig-inbox-fail", "sig-crash-insert", "s9")
@pytest.mark.case("A46", "A52")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("patient", [False, True])
def test_a_fault_at_each_write_of_the_producer(fault: Fault, patient: bool) -> None:
    writes, _ = counted(patient)
    assert writes >= (7 if patient else 5)
    for number in range(writes):
        play = Play(lambda producer, worker, number=number: producer.fail_at(number, fault))  # type: ignore[misc]
        play.run(patient)
        play.check()


@pytest.mark.req("core-unique-outcome", "sig-dup-once", "sig-mark-before-unset", "s9", "core-worker-replaceable")
@pytest.mark.case("A46", "A52")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("patient", [False, True])
def test_a_fault_at_each_write_of_the_worker(fault: Fault, patient: bool) -> None:
    _, writes = counted(patient)
    assert writes >= 12
    for number in range(writes):
        play = Play(lambda producer, worker, number=number: worker.fail_at(number, fault))  # type: ignore[misc]
        play.run(patient)
        play.check()
