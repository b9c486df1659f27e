"""What a row and the log tell of each attempt, its heartbeat included (groups 10, 12 and 13)."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from kernel.context import Context
from kernel.directives import Sleep
from kernel.engine.damaged import DamagedRows
from kernel.errors import CorruptRecord
from kernel.ids import trace_id_for
from kernel.observe.events import LogObserver
from tests.engine.flows import fails_first, flow, gives, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


class Order(msgspec.Struct, frozen=True):
    number: int


class Cursor(msgspec.Struct, frozen=True):
    page: int


class Ports:
    """What an application hands to its activities."""


@pytest.mark.req("act-runtime-inputs")
def test_an_activity_gets_all_that_it_may_need(rig: SteppedRig) -> None:
    """Its input, what came before, its own past, who it is, its stop sign, the ports; typed where declared."""
    seen: list[dict[str, Any]] = []

    def look(ctx: Context) -> Any:
        seen.append(
            {
                "input": ctx.input,
                "outputs": (ctx.output("a"), ctx.output("b", dict)),
                "checkpoint": ctx.checkpoint(),
                "resume": None if ctx.resume is None else ctx.resume.kind,
                "attempt": ctx.attempt,
                "identity": (ctx.workflow_id, ctx.biz_key, ctx.type, ctx.workflow_run, ctx.step, ctx.worker_id),
                "cancel": (ctx.cancelled, ctx.cancel.fired, ctx.cancel.reason),
                "remaining": 0 < ctx.remaining_s() <= 60,
                "ports": ctx.ports,
                "prepared": ctx.prepared,
                "key": ctx.effect_key,
            }
        )
        if ctx.resume is None:
            return Sleep(seconds(1), Cursor(7))
        if ctx.attempt == 1:
            raise ValueError("the second entry")
        return "done"

    definition = flow(
        rig,
        step(rig, "a", gives(41)),
        step(rig, "b", gives({"x": 1})),
        step(rig, "c", look, checkpoint=Cursor, timeout=seconds(60), max_retry=1),
        input=Order,
        prepare=lambda ctx: f"prepared for {ctx.biz_key}",
    )
    ports = Ports()
    rig.worker(definition, worker_id="w7", ports=ports)
    workflow_id = rig.start(definition, "order-1", Order(5))
    rig.run(lambda: len(seen) >= 2, "it was woken")

    first, second = seen
    assert first == {
        "input": Order(5),
        "outputs": (41, {"x": 1}),
        "checkpoint": None,
        "resume": None,
        "attempt": 1,
        "identity": (workflow_id, "order-1", "job", 1, "c", "w7"),
        "cancel": (False, False, None),
        "remaining": True,
        "ports": ports,
        "prepared": "prepared for order-1",
        "key": f"{workflow_id}:1:c",
    }
    assert second == first | {"checkpoint": Cursor(7), "resume": "timer"}


@pytest.mark.req("stp-error-recorded", "rec-steps-fields")
def test_a_failed_attempt_is_in_the_row_with_its_error_its_times_and_its_number(durable_rig: SteppedRig) -> None:
    rig = durable_rig

    def slow_failure(ctx: Context) -> None:
        rig.advance(700)
        raise LookupError(f"attempt {ctx.attempt}: nothing is there")

    definition = flow(rig, "a", step(rig, "b", slow_failure, max_retry=1))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    record = rig.row(workflow_id)["steps"][1]
    assert record["error"]["type"].endswith("LookupError")
    assert record["error"]["message"] == "attempt 1: nothing is there"
    assert record["error"]["attempt"] == 1
    assert {name: record[name] for name in ("attempt", "failures", "elapsed_ms")} == {
        "attempt": 1, "failures": 1, "elapsed_ms": 700,
    }  # fmt: skip
    assert (record["traffic_wait_ms"], record["traffic_wait_count"]) == (0, 0), "it asked for no permit"
    rig.finish(workflow_id)
    assert rig.row(workflow_id)["steps"][1]["error"]["message"].endswith("attempt 2: nothing is there")


@pytest.mark.req("stp-trace")
def test_attempts_on_two_workers_have_one_trace_which_the_log_lines_bear(
    durable_rig: SteppedRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = durable_rig
    caplog.set_level(logging.DEBUG, "kernel.events")
    definition = flow(rig, step(rig, "a", fails_first(2), max_retry=2))
    first, second = (rig.worker(definition) for _ in range(2))
    for worker in (first, second):
        worker.engine.services.observer = LogObserver()
    workflow_id = rig.start(definition)
    for worker in (first, second, first):
        rig.pass_once(worker)

    row = rig.instance(workflow_id)
    assert [error.worker_id for error in row.steps[0].errors] == ["w1", "w2"]
    assert row.trace_id == trace_id_for(workflow_id, 1)
    lines = {
        (record.attempt, record.worker_id, record.trace_id)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.message.startswith("step.")
    }
    assert lines == {(1, "w1", row.trace_id), (2, "w2", row.trace_id), (3, "w1", row.trace_id)}
    assert {r.trace_id for r in caplog.records if r.message == "claim.taken"} == {row.trace_id}  # type: ignore[attr-defined]


def test_every_run_has_a_trace_of_its_own() -> None:
    traces = {trace_id_for(key, run) for key in ("wf-1", "wf-11", "wf-2") for run in (1, 2, 11)}

    assert len(traces) == 9
    assert all(len(trace) == 32 and int(trace, 16) for trace in traces)


@pytest.mark.req("clm-renew-context", "clm-renew-detached")
def test_the_heartbeat_bears_the_workflows_ids_and_neither_its_stop_sign_nor_its_deadline(
    rig: SteppedRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The step's timeout is 1 s; the activity stays for four leases after it, and its claim is renewed all the time."""
    caplog.set_level(logging.DEBUG, "kernel.lease")
    fired_at: list[int] = []

    def overstays(ctx: Context) -> str:
        began_ms = rig.clock.boot_ms()
        while rig.clock.boot_ms() - began_ms < 6_000:
            rig.advance(100)
            if ctx.cancelled and not fired_at:
                fired_at.append(len(worker.store.renewed_at))
        return "late"

    definition = flow(rig, step(rig, "a", overstays, timeout=seconds(1)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert fired_at and len(worker.store.renewed_at) >= fired_at[0] + 8, "renewed after the stop sign, too"
    assert rig.recorder.of("claim.lost") == []
    renewals = [record for record in caplog.records if record.message == "claim renewed"]
    assert len(renewals) == len(worker.store.renewed_at)
    assert {(r.workflow_id, r.trace_id) for r in renewals} == {(workflow_id, trace_id_for(workflow_id, 1))}  # type: ignore[attr-defined]


def test_a_heartbeat_that_fails_names_the_workflow(rig: SteppedRig, caplog: pytest.LogCaptureFixture) -> None:
    def long(ctx: Context) -> str:
        worker.store.renewals_fail = "unavailable"
        rig.advance(2_000)
        return "late"

    definition = flow(rig, step(rig, "a", long))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    told = [record for record in caplog.records if record.name == "kernel.lease"]
    assert {record.event for record in told} == {"claim.not_renewed", "claim.fenced"}  # type: ignore[attr-defined]
    assert {record.workflow_id for record in told} == {workflow_id}  # type: ignore[attr-defined]


@pytest.mark.case("A45")
def test_a_row_that_does_not_decode_is_told_once_by_a_process_however_often_it_is_met(
    rig: SteppedRig, caplog: pytest.LogCaptureFixture
) -> None:
    definition = flow(rig, "a")
    workers = [rig.worker(definition) for _ in range(2)]
    workflow_id = rig.start(definition)
    set_fields(rig, workflow_id, steps="rubbish")
    for _ in range(5):
        for worker in workers:
            worker.sweep()
            rig.pass_once(worker)
        rig.advance(1_000)

    told = [record for record in caplog.records if "does not decode" in record.message]
    assert len(told) == len(workers)
    assert {record.workflow_id for record in told} == {workflow_id}  # type: ignore[attr-defined]


def test_what_was_told_is_remembered_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    damaged = DamagedRows(told_max=3)
    for key in ("a", "b", "c", "a", "d", "b", "a"):
        damaged.tell(key, CorruptRecord(f"instance {key!r}: steps"))

    assert [record.workflow_id for record in caplog.records] == ["a", "b", "c", "d", "a"]  # type: ignore[attr-defined]
    damaged.tell("a", CorruptRecord("instance 'a': outputs"))
    assert "outputs" in caplog.records[-1].message, "another fault of the same row"
