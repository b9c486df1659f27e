"""Client streams through the engine: what a client sees of runs, failures, takeovers and ends (group 23)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep
from kernel.errors import InvalidId, UnknownStream, UnknownWorkflow
from kernel.frames import COMPACT_VERSION, Frame, Terminal, encode_text
from kernel.records import Instance
from kernel.requests import StreamIdentity
from kernel.stream_events import StreamEvent
from kernel.stream_words import Position, StreamId
from kernel.streams import TAILS_MAX
from tests.engine.flows import fails_first, flow, raises, step
from tests.support.engine_rig import SteppedRig
from tests.support.stream_port import MemoryStreams

WORDS = ["Ein ", "Text, ", "der ", "wächst."]
TEXT = "".join(WORDS)


@pytest.fixture
def port(rig: SteppedRig) -> MemoryStreams:
    """The rig's workers and client have streams, in memory."""
    rig.streams = made = MemoryStreams(rig.clock.wall_ms)
    rig.client = rig.make_client(rig.client_store)
    return made


def writes(*words: str, then: Callable[[Context], Any] = lambda ctx: TEXT) -> Callable[[Context], Any]:
    """An activity that shows `words` and comes to what `then` comes to."""

    def activity(ctx: Context) -> Any:
        for word in words or WORDS:
            ctx.stream.write(word)
        return then(ctx)

    return activity


def compose(rig: SteppedRig, activity: Callable[[Context], Any] | None = None, **options: Any) -> Step:
    return step(rig, "compose", activity or writes(), streams=True, **options)


def stream_of(rig: SteppedRig, workflow_id: str) -> StreamId:
    return StreamId.of(rig.instance(workflow_id))


def events_of(rig: SteppedRig, workflow_id: str, last: str | None = None) -> list[StreamEvent]:
    """Everything that a reader who comes now gets without waiting."""
    reader = rig.client.progress.reader(workflow_id, last)
    events = reader.poll()
    while not reader.ended and reader.wait_ms() == 0:
        events += reader.poll()
    return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.frame.data for event in events if event.event == "frame" and event.frame.msg_type == "text")


# --- writing and the end -----------------------------------------------------------------------------------


@pytest.mark.req("sse-sink", "act-runtime-inputs", "sse-terminal-after-mongo", "fin-after-terminal")
def test_a_streaming_step_shows_its_text_and_the_end_comes_after_the_commit(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    status_at_finish: list[str] = []

    def look(name: str) -> None:
        if name == "finish":
            status_at_finish.append(rig.status(workflow_id))

    port.before = look
    definition = flow(rig, "first", compose(rig), "last")
    workflow_id = rig.start(definition)
    rig.worker(definition)
    rig.finish(workflow_id)
    rig.base_runner.run_all()

    frames = port.frames(stream_of(rig, workflow_id))
    assert frames[-1] == Terminal("completed", 1, rig.row(workflow_id)["revision"])
    assert port.text(stream_of(rig, workflow_id)) == TEXT
    assert status_at_finish == ["completed"]
    assert port.calls.count("finish") == 1, "one operation"


@pytest.mark.req("sse-finished-direct", "sse-reconnect")
def test_a_reader_after_the_end_gets_the_result_as_its_first_event(rig: SteppedRig, port: MemoryStreams) -> None:
    workflow_id = rig.drive(flow(rig, compose(rig)))

    for last in (None, "1-1"):
        events = events_of(rig, workflow_id, last)
        assert [event.event for event in events] == ["terminal"]
        assert events[0].frame.data["result"] == TEXT


@pytest.mark.req("sse-list", "sse-disconnect", "sse-follow")
def test_readers_come_and_go_while_the_work_goes_on(rig: SteppedRig, port: MemoryStreams) -> None:
    seen: list[str] = []

    def activity(ctx: Context) -> str:
        vanished = ctx.ports.follow(ctx.workflow_id)
        for word in WORDS:
            ctx.stream.write(word)
            ctx.stream.flush()
            rig.base_runner.run_all()
            seen.append(text_of(events_of(rig, ctx.workflow_id)))
        next(vanished)
        vanished.close()
        return TEXT

    definition = flow(rig, compose(rig, activity))
    rig.worker(definition, ports=rig.client)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert seen == [TEXT[: len("".join(WORDS[: n + 1]))] for n in range(4)], "each reader gets all from the head"
    assert rig.output(workflow_id) == TEXT


@pytest.mark.req("sse-sink")
def test_other_steps_and_finalizers_show_nothing_and_do_not_notice(rig: SteppedRig, port: MemoryStreams) -> None:
    definition = flow(rig, step(rig, "quiet", writes("hush")), success_finalizer=writes("hush"))

    workflow_id = rig.drive(definition)

    assert rig.status(workflow_id) == "completed"
    assert port.calls == [], "a workflow without a stream costs no call"


@pytest.mark.req("sse-sink")
def test_without_redis_a_streaming_step_runs_as_any_other(rig: SteppedRig) -> None:
    workflow_id = rig.drive(flow(rig, compose(rig)))

    assert rig.output(workflow_id) == TEXT


@pytest.mark.req("sse-redis-failure", "sse-reset-best-effort", "sse-loss-harmless", "sor-enqueue-failure")
@pytest.mark.parametrize("outage", ["from the start", "before the step", "before the end"])
def test_an_outage_of_redis_changes_no_result(rig: SteppedRig, port: MemoryStreams, outage: str) -> None:
    def falls(ctx: Context) -> str:
        rig.base_runner.run_all()
        port.down = True
        return TEXT

    activity = writes(then=falls) if outage == "before the end" else writes()
    definition = flow(rig, compose(rig, activity))
    port.down = outage == "from the start"
    workflow_id = rig.start(definition)
    port.down = outage != "before the end"
    rig.worker(definition)
    rig.finish(workflow_id)
    rig.base_runner.run_all()

    row = rig.row(workflow_id)
    assert (row["status"], row["steps"][0]["attempt"], row["deaths"]) == ("completed", 1, 0)
    assert rig.output(workflow_id) == TEXT
    events = events_of(rig, workflow_id)
    assert [event.event for event in events] == ["terminal"], "the reader ends by the store"
    assert events[0].frame.data["result"] == TEXT


@pytest.mark.req("sse-redis-failure", "core-side-paths-do-not-decide")
def test_a_redis_that_is_down_costs_the_step_no_time(rig: SteppedRig, port: MemoryStreams) -> None:
    began: list[int] = []

    def timed(ctx: Context) -> str:
        start = rig.clock.boot_ms()
        for _ in range(1_000):
            ctx.stream.write("x" * 500)
        began.append(rig.clock.boot_ms() - start)
        return TEXT

    port.down = True
    workflow_id = rig.drive(flow(rig, compose(rig, timed)))

    assert began == [0]
    assert rig.row(workflow_id)["steps"][0]["elapsed_ms"] == 0


# --- generations -------------------------------------------------------------------------------------------


def generation(rig: SteppedRig, port: MemoryStreams, workflow_id: str) -> int:
    return port.of(stream_of(rig, workflow_id)).generation or 0


@pytest.mark.req("sse-reset", "sse-stale-writer", "id-stream-generation")
def test_a_takeover_begins_a_new_generation_and_the_late_worker_is_not_heard(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    entered: list[Context] = []

    def activity(ctx: Context) -> str:
        entered.append(ctx)
        ctx.stream.write(f"from {ctx.worker_id} ")
        ctx.stream.flush()
        rig.base_runner.run_all()
        if len(entered) == 1:
            rig.workers[0].kill()
            return "never committed"
        return TEXT

    definition = flow(rig, compose(rig, activity))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    round_before = stream_of(rig, workflow_id)
    rig.pass_once(first)
    before = generation(rig, port, workflow_id)
    assert port.text(round_before) == "from w1 "
    reader = rig.client.progress.reader(workflow_id)
    assert text_of(reader.poll()) == "from w1 "
    rig.run(lambda: rig.ended(workflow_id), "the end", second)
    rig.base_runner.run_all()

    assert generation(rig, port, workflow_id) == before + 1
    assert stream_of(rig, workflow_id) == round_before, "the business round is another counter"
    assert port.text(round_before) == "from w2 "
    kinds = [event.event for event in reader.poll() + reader.poll()]
    assert kinds == ["reset", "frame", "terminal"]


@pytest.mark.req("sse-stale-writer", "act-detach-lease-loss")
def test_a_sink_in_the_hands_of_a_worker_that_lost_its_claim_writes_nothing(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    sinks: list[Any] = []

    def activity(ctx: Context) -> str:
        sinks.append(ctx.stream)
        ctx.stream.write(f"from {ctx.worker_id} ")
        ctx.stream.flush()
        rig.base_runner.run_all()
        if len(sinks) == 1:
            rig.client.supersede(ctx.workflow_id)
            rig.advance(rig.settings.renew_ms + 100)
            sinks[0].write("late")
            sinks[0].flush()
            rig.base_runner.run_all()
        return TEXT

    definition = flow(rig, compose(rig, activity))
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)
    rig.base_runner.run_all()

    assert rig.status(workflow_id) == "canceled"
    assert port.frames(stream_of(rig, workflow_id)) == [
        Frame(data="from w1 "), Terminal("canceled", 1, rig.row(workflow_id)["revision"]),
    ]  # fmt: skip
    assert sinks[0].dropped == 1


@pytest.mark.req("sse-reset", "sse-generation-key")
def test_an_attempt_after_a_failure_begins_anew(rig: SteppedRig, port: MemoryStreams) -> None:
    definition = flow(rig, compose(rig, writes(then=fails_first(2, TEXT)), max_retry=2))
    workflow_id = rig.start(definition)
    activated = generation(rig, port, workflow_id)
    rig.worker(definition)
    rig.finish(workflow_id)
    rig.base_runner.run_all()

    assert port.text(stream_of(rig, workflow_id)) == TEXT, "and not three times"
    assert generation(rig, port, workflow_id) == activated + 3, "one for each entry"


@pytest.mark.req("sse-reset")
def test_a_step_that_paused_of_its_own_goes_on_where_it_was(rig: SteppedRig, port: MemoryStreams) -> None:
    def activity(ctx: Context) -> Any:
        page = ctx.checkpoint(int) or 0
        ctx.stream.write(WORDS[page])
        return Sleep(timedelta(seconds=5), checkpoint=page + 1) if page < 3 else TEXT

    workflow_id = rig.drive(flow(rig, compose(rig, activity)))
    rig.base_runner.run_all()

    assert port.text(stream_of(rig, workflow_id)) == TEXT


@pytest.mark.req("sse-reset")
def test_a_step_that_dies_after_a_pause_of_its_own_begins_anew_all_the_same(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    entries: list[int] = []

    def activity(ctx: Context) -> Any:
        page = ctx.checkpoint(int) or 0
        entries.append(page)
        ctx.stream.write(f"{page} ")
        ctx.stream.flush()
        rig.base_runner.run_all()
        if entries == [0, 1]:
            rig.workers[0].kill()
        return Sleep(timedelta(seconds=1), checkpoint=page + 1) if page < 2 else TEXT

    definition = flow(rig, compose(rig, activity))
    first, second = rig.worker(definition), rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: first.dead, "the death", first)
    rig.run(lambda: rig.ended(workflow_id), "the end", second)
    rig.base_runner.run_all()

    assert entries == [0, 1, 1, 2]
    assert port.text(stream_of(rig, workflow_id)) == "1 2 ", "what the dead one wrote is not shown twice"


@pytest.mark.req("sse-reset")
def test_a_second_attempt_of_a_later_step_begins_anew(rig: SteppedRig, port: MemoryStreams) -> None:
    draft = step(rig, "draft", writes("draft "), streams=True)
    polish = step(rig, "polish", writes("polish", then=fails_first(1)), streams=True, max_retry=1)

    workflow_id = rig.drive(flow(rig, draft, polish))
    rig.base_runner.run_all()

    assert port.text(stream_of(rig, workflow_id)) == "polish"


@pytest.mark.req("sse-reset")
def test_a_later_streaming_step_writes_on(rig: SteppedRig, port: MemoryStreams) -> None:
    first = step(rig, "draft", writes("draft "), streams=True)
    second = step(rig, "polish", writes("polish"), streams=True)

    workflow_id = rig.drive(flow(rig, first, "between", second))
    rig.base_runner.run_all()

    assert port.text(stream_of(rig, workflow_id)) == "draft polish"


def test_steps_of_a_wave_share_one_stream(rig: SteppedRig, port: MemoryStreams) -> None:
    left = step(rig, "left", writes("left "), streams=True, depends_on=[])
    right = step(rig, "right", writes("right "), streams=True, depends_on=[])

    workflow_id = rig.drive(flow(rig, left, right))
    rig.base_runner.run_all()

    texts = [f.data for f in port.frames(stream_of(rig, workflow_id)) if isinstance(f, Frame)]
    assert sorted(texts) == ["left ", "right "]


# --- activation --------------------------------------------------------------------------------------------


@pytest.mark.req("sor-stream-reset", "sse-round-isolation")
def test_a_replay_resets_the_stream_and_a_repeated_start_does_not(rig: SteppedRig, port: MemoryStreams) -> None:
    """Both rounds bear the same token, so only the generation keeps them apart."""
    broken = [True]

    def maybe(ctx: Context) -> str:
        if broken[0]:
            raise ValueError("no")
        return TEXT

    input_ = {"object_id": "object-42", "fencing_token": "f1"}
    definition = flow(rig, compose(rig, writes("old", then=maybe)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, input=input_)
    rig.finish(workflow_id)
    rig.base_runner.run_all()
    stream = stream_of(rig, workflow_id)
    assert stream == StreamId("object-42", workflow_id, "f1")
    before = generation(rig, port, workflow_id)
    assert port.text(stream) == "old"

    handle = rig.client.start_or_resume(definition.plan, biz_key="job-1", input=input_)

    assert handle.execution_activated
    assert (port.of(stream).frames, port.of(stream).terminal) == ([], None)
    assert generation(rig, port, workflow_id) == before + 1
    broken[0] = False
    calls = port.calls.count("reset")
    rig.pass_once(worker)
    rig.client.start_or_resume(definition.plan, biz_key="job-1", input=input_)
    assert port.calls.count("reset") == calls + 1, "the engine's own and none of the repeated start"
    assert rig.output(workflow_id) == TEXT


@pytest.mark.req("sor-reset-before-enqueue", "sor-stream-reset")
@pytest.mark.crash("08")
@pytest.mark.parametrize("many", [False, True])
def test_the_reset_comes_before_the_queue_hears_of_it(rig: SteppedRig, port: MemoryStreams, many: bool) -> None:
    order: list[str] = []
    port.before = order.append
    push = rig.queue.push
    rig.queue.push = lambda *args, **named: (order.append("push"), push(*args, **named))[1]  # type: ignore
    definition = flow(rig, compose(rig))

    if many:
        rig.client.start_many(definition.plan, [("a", None), ("b", None)])
    else:
        rig.client.start_or_resume(definition.plan, biz_key="a")

    assert order == ["reset"] * (1 + many) + ["push"]


@pytest.mark.req("sor-enqueue-failure", "sse-reset-best-effort")
def test_a_reset_that_fails_holds_up_no_start_and_is_tried_once_for_many(rig: SteppedRig, port: MemoryStreams) -> None:
    port.down = True
    definition = flow(rig, compose(rig))
    handles = rig.client.start_many(definition.plan, [(f"k{n}", None) for n in range(20)])

    assert [handle.branch for handle in handles] == ["created"] * 20
    assert port.calls == ["reset"]


@pytest.mark.req("sor-reset-before-enqueue")
def test_a_publisher_whose_reset_comes_late_wipes_nothing(rig: SteppedRig, port: MemoryStreams) -> None:
    """A worker found the row by a scan while the publisher stood still between its write and its reset."""
    definition = flow(rig, compose(rig))
    worker = rig.worker(definition)
    once: list[bool] = []

    def race(name: str) -> None:
        if name == "reset" and not once:
            once.append(True)
            worker.sweep()
            rig.run(lambda: bool(rig.recorder.of("workflow.completed")), "the end", worker)
            rig.base_runner.run_all()

    port.before = race
    workflow_id = rig.start(definition)

    assert rig.status(workflow_id) == "completed" and once
    assert port.text(stream_of(rig, workflow_id)) == TEXT
    assert isinstance(port.frames(stream_of(rig, workflow_id))[-1], Terminal)


@pytest.mark.req("sse-round-isolation", "id-stream-identity")
def test_a_reader_of_one_round_never_sees_the_next(rig: SteppedRig, port: MemoryStreams) -> None:
    class Job(msgspec.Struct):
        object_id: str
        fencing_token: str

    definition = flow(
        rig, compose(rig, lambda ctx: (ctx.stream.write(ctx.input.fencing_token), fails_if_f1(ctx))[1]), input=Job
    )

    def fails_if_f1(ctx: Context) -> str:
        if ctx.input.fencing_token == "f1":
            raise ValueError("no")
        return TEXT

    rig.worker(definition)
    workflow_id = rig.start(definition, input=Job("object-42", "f1"))
    of_f1 = rig.client.progress.reader(workflow_id, object_id="object-42", fencing_token="f1")
    rig.finish(workflow_id)
    rig.base_runner.run_all()
    rig.start(definition, input=Job("object-42", "f2"))
    rig.finish(workflow_id)
    rig.base_runner.run_all()

    assert port.text(StreamId("object-42", workflow_id, "f1")) == "f1"
    assert port.text(StreamId("object-42", workflow_id, "f2")) == "f2"
    events = of_f1.poll()
    assert "f2" not in text_of(events)
    assert events[-1].frame.data["status"] == "replaced", "its round is over, however it ended"
    with pytest.raises(UnknownStream):
        rig.client.progress.reader(workflow_id, fencing_token="f1")


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.req("sse-terminal-after-mongo")
def test_a_failed_workflow_ends_its_stream_after_its_finalizer(rig: SteppedRig, port: MemoryStreams) -> None:
    definition = flow(
        rig,
        compose(rig, writes(then=raises(ValueError("the model is gone")))),
        failure_finalizer=lambda ctx: port.calls.append("finalizer"),
    )

    workflow_id = rig.drive(definition)
    rig.base_runner.run_all()

    end = port.frames(stream_of(rig, workflow_id))[-1]
    assert isinstance(end, Terminal)
    assert (end.status, end.message) == ("failed", "the model is gone")
    assert port.calls.index("finalizer") < port.calls.index("finish")
    data = events_of(rig, workflow_id)[-1].frame.data
    assert data["status"] == "failed" and data["error"]["message"] == "the model is gone" and "result" not in data


@pytest.mark.req("sse-terminal-canceled")
def test_superseding_ends_the_reader_with_canceled(rig: SteppedRig, port: MemoryStreams) -> None:
    seen: list[StreamEvent] = []

    def activity(ctx: Context) -> str:
        ctx.stream.write("x" * 2_000)
        rig.base_runner.run_all()
        reader = rig.client.progress.reader(ctx.workflow_id)
        seen.extend(reader.poll())
        rig.client.supersede(ctx.workflow_id)
        seen.extend(reader.poll())
        return TEXT

    definition = flow(rig, compose(rig, activity))
    workflow_id = rig.start(definition)
    rig.worker(definition)
    rig.finish(workflow_id)

    assert [event.event for event in seen] == ["frame", "terminal"]
    assert seen[-1].frame.data["status"] == "canceled"


@pytest.mark.req("sse-terminal-canceled")
def test_superseding_a_workflow_that_never_streamed_leaves_no_key(rig: SteppedRig, port: MemoryStreams) -> None:
    workflow_id = rig.start(flow(rig, "only"))

    assert rig.client.supersede(workflow_id).changed

    assert all(model.generation is None for model in port.models.values())


@pytest.mark.req("sse-redis-failure", "core-side-paths-do-not-decide")
def test_many_ends_under_a_dead_redis_leave_a_bounded_number_of_threads_behind(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    definition = flow(rig, compose(rig))
    streams = rig.worker(definition).engine.services.streams
    instances = [rig.instance(rig.start(definition, f"job-{n}")) for n in range(200)]
    port.down = True

    for instance in instances:
        streams.finish(instance)

    waiting = len(rig.base_runner._bodies)
    assert waiting <= TAILS_MAX
    rig.base_runner.run_all()
    port.down = False
    streams.finish(instances[-1])
    rig.base_runner.run_all()
    assert isinstance(port.frames(StreamId.of(instances[-1]))[-1], Terminal), "and their places are free again"


# --- who may read ------------------------------------------------------------------------------------------


@pytest.mark.req("sse-identity", "id-stream-identity")
def test_a_reader_needs_the_workflow_and_may_not_name_another_object_or_round(
    rig: SteppedRig, port: MemoryStreams
) -> None:
    input_ = {"object_id": "object-42", "fencing_token": "f1"}
    workflow_id = rig.drive(flow(rig, compose(rig)), input=input_)

    ok = rig.client.follow(workflow_id, object_id="object-42", fencing_token="f1")
    assert [event.event for event in ok] == ["terminal"]
    for asked in ({"object_id": "object-43"}, {"fencing_token": "f2"}, {"object_id": "", "fencing_token": "f1"}):
        with pytest.raises(UnknownStream):
            rig.client.follow(workflow_id, **asked)
    for unknown in ("object-42", "wf-unknown"):
        with pytest.raises(UnknownWorkflow):
            rig.client.follow(unknown)
    for garbage in ("", "x" * 300, "a\nb"):
        with pytest.raises(InvalidId):
            rig.client.follow(garbage)
    for garbage in ("x", "1-1-1", "-1-2", "1-1\n", "9" * 400):
        with pytest.raises(InvalidId, match="last_event_id"):
            rig.client.follow(workflow_id, garbage)
    assert "read" not in port.calls[port.calls.index("finish") + 2 :], "nothing was read for any of them"


def test_without_an_object_each_run_is_a_round_of_its_own(rig: SteppedRig, port: MemoryStreams) -> None:
    odd = ({"fencing_token": 5, "object_id": ["x"]}, {"object_id": "a\nb", "fencing_token": ""})
    for input_ in (None, 7, "text", *odd):
        workflow_id = rig.start(flow(rig, compose(rig)), f"job-{input_!r}"[:60], input=input_)
        instance = rig.instance(workflow_id)
        assert StreamId.of(instance) == StreamId(instance.biz_key, workflow_id, "run-1")


@pytest.mark.req("sse-identity", "req-status-branches")
def test_the_identity_that_a_request_answers_with_finds_the_stream(rig: SteppedRig, port: MemoryStreams) -> None:
    """Also when the input does not name the object: then the biz_key does, as its last part."""
    workflow_id = rig.start(flow(rig, compose(rig)), "job:tenant-7:object-42", input={"fencing_token": "f1"})
    identity = StreamIdentity("object-42", workflow_id, "f1")

    for object_id in (identity.object_id, "tenant-7:object-42", "job:tenant-7:object-42"):
        reader = rig.client.progress.reader(workflow_id, object_id=object_id, fencing_token=identity.fencing_token)
        assert reader.stream == StreamId("job:tenant-7:object-42", workflow_id, "f1")
    for object_id in ("42", "object-43", "", "7:object-42", "tenant-7"):
        with pytest.raises(UnknownStream):
            rig.client.progress.reader(workflow_id, object_id=object_id)


@pytest.mark.req("sse-reconnect", "layer-business-answers")
def test_the_application_says_what_the_final_result_is(rig: SteppedRig, port: MemoryStreams) -> None:
    """The business object, say; what JSON can not say is left out and does not break the end."""
    workflow_id = rig.drive(flow(rig, compose(rig)))

    def final(instance: Instance) -> Any:
        return {"summary": instance.workflow_id}

    events = list(rig.client.follow(workflow_id, final=final))
    assert events[-1].frame.data["result"] == {"summary": workflow_id}
    events = list(rig.client.follow(workflow_id, final=lambda instance: object()))
    assert "result" not in events[-1].frame.data


def test_a_handle_follows_its_workflow(rig: SteppedRig, port: MemoryStreams) -> None:
    definition = flow(rig, compose(rig))
    handle = rig.client.start_or_resume(definition.plan, biz_key="a")
    rig.worker(definition)
    rig.finish(handle.workflow_id)

    assert [event.event for event in handle.stream()] == ["terminal"]
    assert [event.event for event in handle.stream(str(Position(1, 1)))] == ["terminal"]


@pytest.mark.req("fpr-two-versions")
def test_a_plan_knows_whether_it_streams_and_its_fingerprint_does_not() -> None:
    def made(streams: bool) -> Definition:
        return Definition(type="job", steps=[Step("only", lambda ctx: None, streams=streams)])

    assert [made(streams).plan.streams for streams in (False, True)] == [False, True]
    assert made(False).plan.fingerprint == made(True).plan.fingerprint, "what is shown is no part of the version"
    assert encode_text("x")[0] >> 4 == COMPACT_VERSION, "and the version of records is none of the workflow's"
