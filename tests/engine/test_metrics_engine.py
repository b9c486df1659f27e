"""What the engine does, as metrics tell it: each scenario, and the counts after it."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.config import Limit
from kernel.directives import Sleep
from kernel.limits import change_limit, kind_of
from kernel.observe.metrics import MetricsObserver
from kernel.runtime.metering import SlotMetering
from tests.engine.flows import fails_first, flow, seconds, step
from tests.engine.test_claims import set_fields
from tests.engine.test_versions import abc, axbc
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.meters import KeptMeters


@pytest.fixture
def meters(rig: SteppedRig) -> KeptMeters:
    """What the rig's processes count by its events."""
    kept = KeptMeters()
    observer, told = MetricsObserver(kept, kind_of), rig.recorder.note

    def note(event: str, **fields: Any) -> None:
        told(event, **fields)
        observer.note(event, **fields)

    rig.recorder.note = note  # type: ignore[method-assign]
    return kept


def metered(rig: SteppedRig, meters: KeptMeters, *definitions: Any) -> RigWorker:
    """A worker that counts as one of a tree with metrics."""
    worker = rig.worker(*definitions)
    SlotMetering(meters).watch(worker.engine)
    return worker


def test_attempts_are_counted_by_how_they_end(rig: SteppedRig, meters: KeptMeters) -> None:
    nap = step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(2)))
    definition = flow(rig, step(rig, "shaky", fails_first(2), max_retry=3), nap, type="naps")
    metered(rig, meters, definition)
    rig.drive(definition)

    assert meters.of("kernel_step_attempts_total") == {
        ("naps", "shaky", "failed"): 2,
        ("naps", "shaky", "completed"): 1,
        ("naps", "nap", "suspended"): 1,
        ("naps", "nap", "completed"): 1,
    }
    assert meters.of("kernel_workflows_started_total") == {("naps",): 1}
    assert meters.of("kernel_workflows_finished_total") == {("naps", "completed"): 1}
    assert meters.times("kernel_step_external_wait_seconds") == {("naps", "nap"): [2.0]}
    (duration,) = meters.times("kernel_workflow_duration_seconds")["naps", "completed"]
    assert duration >= 2.0


def test_the_wait_for_a_worker_counts_from_when_the_work_was_due(rig: SteppedRig, meters: KeptMeters) -> None:
    worker = metered(rig, meters, definition := flow(rig, "a"))
    rig.start(definition, priority="realtime")
    rig.clock.advance(7_000)
    rig.pass_once(worker)

    assert meters.times("kernel_schedule_wait_seconds") == {("P0", "job"): [7.0]}
    assert meters.of("kernel_claims_total")["claimed",] == 1
    assert meters.of("kernel_takeovers_total") == {}


@pytest.mark.req("obs-claims-visible")
def test_a_lost_claim_is_counted_with_its_reason_and_as_a_refused_write(rig: SteppedRig, meters: KeptMeters) -> None:
    worker = metered(rig, meters, definition := flow(rig, "a", "b"))
    workflow_id = rig.start(definition)

    def another_takes_it(write: Any) -> None:
        if "complete_step" in write.names:
            set_fields(rig, workflow_id, claim_token="another's", worker_id="w9")

    worker.store.fault_of = another_takes_it
    rig.pass_once(worker)

    assert meters.of("kernel_claims_lost_total") == {("claim_lost",): 1}
    assert meters.of("kernel_fencing_rejected_total") == {("job",): 1}


def test_work_that_a_dead_worker_left_is_counted_when_somebody_goes_on_with_it(
    rig: SteppedRig, meters: KeptMeters
) -> None:
    definition = flow(rig, "a", "b")
    dying = metered(rig, meters, definition)
    dying.store.fail_once("complete_step", "kill_before")
    workflow_id = rig.start(definition)
    rig.run(lambda: dying.dead, "the death in its first step", dying)
    metered(rig, meters, definition)
    rig.finish(workflow_id)

    assert meters.of("kernel_takeovers_total") == {(): 1}
    (delay,) = meters.times("kernel_takeover_delay_seconds")[()]
    assert delay >= 0
    assert meters.of("kernel_step_attempts_total")["job", "a", "lost"] == 1
    assert meters.of("kernel_workflows_started_total") == {("job",): 1}, "the same run goes on"


@pytest.mark.req("obs-claims-visible")
def test_a_mismatch_and_its_deferral_are_counted(rig: SteppedRig, meters: KeptMeters) -> None:
    worker = metered(rig, meters, axbc(rig))
    _process, dispatcher = rig.dispatcher(axbc(rig))
    rig.pass_once(worker)
    rig.start(abc(rig))
    rig.pass_once(worker)
    rig.advance(3 * rig.settings.scan_ms)
    dispatcher.pass_once()

    assert meters.of("kernel_claims_total")["mismatch",] >= 1
    assert sum(meters.of("kernel_fingerprint_deferred_total").values()) == 1


@pytest.mark.req("obs-claims-visible")
def test_a_refused_permit_and_the_wait_for_it_are_counted(rig: SteppedRig, meters: KeptMeters) -> None:
    rig.limits["printer"] = Limit(max_concurrency=1, paused=True)
    metered(rig, meters, definition := flow(rig, step(rig, "a", resource="printer")))
    workflow_id = rig.start(definition)
    refused = "kernel_permit_refused_total"
    rig.run(lambda: bool(meters.of(refused)), "the refusal")
    assert set(meters.of(refused)) == {("printer", "paused")}
    assert meters.times("kernel_permit_wait_seconds") == {}

    change_limit(rig.store, "printer", paused=False)
    rig.finish(workflow_id)
    assert meters.of("kernel_permit_granted_total") == {("printer",): 1}
    (waited,) = meters.times("kernel_permit_wait_seconds")["printer",]
    assert waited > 0
