"""The traces of what the engine does: one a run, with the ids of the record, through deaths and waits."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kernel.directives import Sleep
from kernel.observe.spans import ChosenIds, SpanObserver
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.support.engine_rig import SteppedRig


@pytest.fixture
def exported(rig: SteppedRig) -> InMemorySpanExporter:
    """What processes of the rig, each with a provider of its own, would send."""
    exporter, told = InMemorySpanExporter(), rig.recorder.note

    def observer() -> SpanObserver:
        ids = ChosenIds()
        provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return SpanObserver(provider, ids, rig.clock, rig.base_runner)

    processes = {"first": observer()}

    def note(event: str, **fields: Any) -> None:
        told(event, **fields)
        processes["first"].note(event, **fields)
        if event == "step.lost":  # whoever goes on has a memory of its own
            processes["first"] = observer()

    rig.recorder.note = note  # type: ignore[method-assign]
    return exporter


def spans(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


@pytest.mark.req("stp-trace")
def test_a_run_is_one_trace_under_the_records_own_id(rig: SteppedRig, exported: InMemorySpanExporter) -> None:
    definition = flow(rig, "a", step(rig, "shaky", fails_first(1), max_retry=2))
    workflow_id = rig.drive(definition)

    (whole,) = spans(exported, "workflow job")
    everything = exported.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in everything} == {rig.instance(workflow_id).trace_id}
    assert whole.parent is None
    assert {span.parent.span_id for span in everything if span.parent} == {whole.context.span_id}
    assert len({span.context.span_id for span in everything}) == len(everything) == 4
    first, second = spans(exported, "step shaky")
    assert [first.attributes["kernel.step.attempt"], second.attributes["kernel.step.attempt"]] == [1, 2]
    assert not first.status.is_ok and second.status.status_code.name == "UNSET"
    wanted = {"kernel.workflow.id": workflow_id, "kernel.lane": "P1", "kernel.round": 1}
    for span in everything:
        assert wanted.items() <= dict(span.attributes).items()
        assert span.start_time <= span.end_time
    assert second.attributes["kernel.claim"]


def test_what_goes_on_after_a_wait_has_a_link_and_is_not_inside(
    rig: SteppedRig, exported: InMemorySpanExporter
) -> None:
    nap = step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(30)))
    rig.drive(flow(rig, nap))

    before, after = spans(exported, "step nap")
    assert before.attributes["kernel.step.outcome"] == "suspended" and not before.links
    assert after.attributes["kernel.step.resumed_by"] == "timer"
    assert [link.context.span_id for link in after.links] == [before.context.span_id]
    assert before.end_time <= after.start_time, "the wait belongs to neither"
    assert before.parent == after.parent


def test_an_attempt_whose_worker_died_is_told_by_whoever_goes_on(
    rig: SteppedRig, exported: InMemorySpanExporter
) -> None:
    definition = flow(rig, "a")
    dying = rig.worker(definition)
    dying.store.fail_once("complete_step", "kill_before")
    workflow_id = rig.start(definition)
    rig.run(lambda: dying.dead, "the death in its step", dying)
    rig.worker(definition)
    rig.finish(workflow_id)

    lost, done = spans(exported, "step a")
    assert [lost.attributes["kernel.step.outcome"], done.attributes["kernel.step.outcome"]] == ["lost", "completed"]
    assert lost.context.trace_id == done.context.trace_id
    assert lost.parent == done.parent


def test_a_span_says_the_code_of_an_error_and_never_its_text(rig: SteppedRig, exported: InMemorySpanExporter) -> None:
    rig.drive(flow(rig, step(rig, "a", raises(ValueError("the customer's secret")))))
    (whole,) = spans(exported, "workflow job")
    assert not whole.status.is_ok
    assert "secret" not in "".join(span.to_json() for span in exported.get_finished_spans())
