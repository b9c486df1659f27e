"""What each process tells by number: lost claims, mismatches, deferrals, waits for permits, refused observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel.config import Config, Limit
from kernel.engine.threads import ThreadRunner
from kernel.observe.tee import EventCounter
from kernel.runtime.observer import Observing, open_observer
from tests.engine.flows import flow, step
from tests.engine.test_claims import set_fields
from tests.engine.test_versions import abc, axbc
from tests.support.engine_rig import SteppedRig
from tests.support.observations import record


def watched(rig: SteppedRig) -> Observing:
    """What one process would report: the rig's events are counted as its observer does."""
    counter = EventCounter()
    told = rig.recorder.note

    def note(event: str, **fields: Any) -> None:
        told(event, **fields)
        counter.note(event, **fields)

    rig.recorder.note = note  # type: ignore[method-assign]
    return Observing(counter)


def counters(seen: Observing, loop: Any) -> dict[str, int]:
    found: dict[str, int] = seen.added_to(loop.status())["counters"]
    return found


@pytest.mark.req("obs-claims-visible")
def test_a_lost_claim_is_counted(rig: SteppedRig) -> None:
    seen = watched(rig)
    worker = rig.worker(definition := flow(rig, "a", "b"))
    workflow_id = rig.start(definition)

    def another_takes_it(write: Any) -> None:
        if "complete_step" in write.names:
            set_fields(rig, workflow_id, claim_token="another's", worker_id="w9")

    worker.store.fault_of = another_takes_it
    rig.pass_once(worker)

    assert counters(seen, worker.loop)["claims_lost"] == 1
    assert counters(seen, worker.loop)["claims_mismatched"] == 0


@pytest.mark.req("obs-claims-visible")
def test_a_mismatch_and_the_deferral_that_follows_are_counted(rig: SteppedRig) -> None:
    seen = watched(rig)
    worker = rig.worker(axbc(rig))
    _process, dispatcher = rig.dispatcher(axbc(rig))
    rig.pass_once(worker)
    rig.start(abc(rig))

    rig.pass_once(worker)
    rig.advance(3 * rig.settings.scan_ms)
    dispatcher.pass_once()

    assert counters(seen, worker.loop)["claims_mismatched"] == 1
    assert counters(seen, dispatcher)["claims_deferred"] == 1
    assert counters(seen, dispatcher)["deferred"] == 1


@pytest.mark.req("obs-claims-visible")
def test_waits_for_a_permit_are_counted(rig: SteppedRig) -> None:
    seen = watched(rig)
    rig.limits["printer"] = Limit(max_concurrency=1, paused=True)
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    rig.start(definition)

    rig.pass_once(worker)
    rig.pass_once(worker)

    assert counters(seen, worker.loop)["permit_waits"] >= 1


@pytest.mark.req("obs-claims-visible", "obs-counters")
def test_refused_observations_are_counted_and_the_writer_shows_its_age(rig: SteppedRig, tmp_path: Path) -> None:
    (tmp_path / "observe.sqlite").mkdir()
    seen = open_observer(Config(observe_queue=2), tmp_path, rig.clock, ThreadRunner(rig.clock), rig.clock.wall_ms)
    worker = rig.worker(flow(rig, "a"))

    for number in range(5):
        seen.observer.note("step.started", instance=record(f"job-{number}"), step=0)

    reported = seen.added_to(worker.loop.status())
    assert (reported["counters"]["observation_dropped"], reported["counters"]["observation_queue"]) == (3, 2)
    assert reported["loops"]["observations"] >= 0
    assert {"scheduler", "scan"} <= set(reported["loops"]), "nothing that was there is lost"
    seen._close(0.0)
    assert seen.added_to(worker.loop.status())["counters"]["observation_dropped"] == 5
