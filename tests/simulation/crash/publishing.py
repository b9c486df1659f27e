"""Boundaries 01–10: a request is accepted, registered, replayed and confirmed, and its publisher dies on the way."""

from __future__ import annotations

from datetime import timedelta

from kernel import transitions
from kernel.dispatch import DISPATCHED, OPEN, PENDING
from kernel.frames import Frame, decode
from kernel.ids import workflow_id_for
from kernel.records import Instance
from kernel.store.conditional import Insert
from kernel.store.tables import INSTANCES
from kernel.stream_words import StreamId
from tests.simulation.crash.outside import Fixed
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, INTENT_MS, SETTINGS, WORK_MS, Stage
from tests.simulation.flows import Item
from tests.simulation.job_flow import draw_job
from tests.simulation.jobs import JOBS

JOB_1 = workflow_id_for("job:one")
LATER_MS = 40_000


def one_instance(stage: Stage, workflow_id: str = JOB_1) -> None:
    """The accepted object has come to one instance, which has run once (S1, S2)."""
    assert stage.settled_intent("one").status == DISPATCHED
    assert stage.ended(workflow_id).status == "completed"
    assert (stage.object("one") or {})["status"] == JOBS.completed
    assert len(stage.rows()) == 1
    assert stage.entries(workflow_id, "begin", "work", "success") == (1, 1, 1)


@scene("01", "accept_object")
def an_object_is_accepted(s: Stage) -> None:
    s.staff()
    s.arm("accept_object", by="api")
    asked = s.ask(s.request("one"))
    s.fired()
    if s.point == "a":
        assert s.object("one") is None and s.rows() == []
        s.answered(s.request("one"))
    elif s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert (asked.answer.outcome, asked.answer.created) == ("registered", True)
    else:
        assert s.intent("one").status == PENDING and s.rows() == []
    one_instance(s)
    assert s.plant.hits["accept_object"] == 1
    assert s.answered(s.request("one")).outcome == "completed", "who repeats gets what there is"


@scene("01", "embed_intent")
def an_object_of_the_users_own_is_accepted(s: Stage) -> None:
    s.staff()
    document = {JOBS.key: "one", JOBS.status: JOBS.initial}
    s.objects_store.insert(Insert("by_the_user", JOBS.place, "one", document))
    s.arm("embed_intent", by="api")
    asked = s.ask(s.request("one"))
    s.fired()
    if s.point == "a":
        assert "workflow_dispatch" not in (s.object("one") or {})
        s.answered(s.request("one"))
    elif s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.answer.outcome == "registered"
    one_instance(s)
    assert s.plant.hits["embed_intent"] == 1


@scene("01", "index.add")
def redis_is_told_of_an_object(s: Stage) -> None:
    s.staff()
    s.arm("index.add", by="api")
    s.ask(s.request("one"))
    s.fired()
    assert s.intent("one").status == PENDING, "durable first: telling Redis only saves time"
    one_instance(s)


@scene("02", "create")
def an_instance_is_registered(s: Stage) -> None:
    s.staff()
    s.arm("create", by="api", key=JOB_1)
    asked = s.ask(s.request("one"))
    s.fired()
    assert (s.row(JOB_1) is None) == (s.point == "a")
    if s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.answer.outcome == "registered", "its own row, found by its key: no error"
    else:
        assert s.intent("one").status == PENDING
    if s.point == "c":
        again = s.answered(s.request("one"))
        assert (again.outcome, again.stream.workflow_id) == ("registered", JOB_1), "never an error (A50, A52)"
    one_instance(s)
    assert s.plant.hits["create"] == 1


@scene("03", f"find {INSTANCES}")
def the_instance_that_is_there_is_read(s: Stage) -> None:
    flow = s.flow(s.work("a"))
    s.staff()
    delay = timedelta(milliseconds=LATER_MS)
    workflow_id = s.start(flow, start_delay=delay)
    before = s.row(workflow_id)
    s.arm(f"find {INSTANCES}", by="api")
    asked = s.ask(s.starting(flow, "one", start_delay=delay))
    s.fired()
    if s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.error is not None
    again = s.answered(s.starting(flow, "one", start_delay=delay))
    assert (again.workflow_id, again.branch) == (workflow_id, "running")
    assert s.row(workflow_id) == before and s.plant.hits["create"] == 1
    s.ended(workflow_id, LATER_MS + WORK_MS)
    assert s.entries(workflow_id, "a") == (1,)


def failed_job(s: Stage, *items: tuple[str, int]) -> None:
    """A job whose first round has failed."""
    s.job = draw_job(s, Fixed(0, items or (("yield", 0), ("fails", 1), ("work", 5))))  # type: ignore[arg-type]
    s.staff()
    s.answered(s.request("one"))
    assert s.ended(JOB_1).status == "failed"
    s.until(lambda: (s.object("one") or {})["status"] == JOBS.failed, "the object is failed")


def second_round(s: Stage) -> None:
    """The second round was installed once, has run once, and the first round's results were kept."""
    assert s.settled_intent("one").fencing_token.startswith("f2-")
    end = s.ended(JOB_1)
    assert (end.status, end.workflow_run) == ("completed", 2)
    row = s.object("one") or {}
    assert (row["status"], row["result"]) == (JOBS.completed, {"round": s.intent("one").fencing_token})
    assert (s.plant.hits["new_round"], s.plant.hits["replay_failed"], s.plant.hits["create"]) == (1, 1, 1)
    assert s.entries(JOB_1, "begin") == (1,), "a completed step is not run again"


@scene("04", "replay_failed")
def a_failed_run_is_replayed(s: Stage) -> None:
    failed_job(s)
    before = s.instance(JOB_1)
    s.arm("replay_failed", by="api", key=JOB_1)
    s.ask(s.request("one"))
    s.fired()
    at_once = s.instance(JOB_1)
    if s.point == "a":
        assert at_once == before
        assert s.intent("one").status == PENDING and s.intent("one").fencing_token.startswith("f2-")
    else:
        assert (at_once.status, at_once.workflow_run) == ("running", 2)
        work = at_once.steps[1]
        assert (work.status, work.attempt, work.checkpoint) == ("pending", 0, None)
        assert at_once.steps[0] == before.steps[0] and at_once.outputs == before.outputs
        assert at_once.input != before.input
        begun_anew(s, at_once, before)
    late = transitions.replay_failed(before, input_=before.input, priority=0, commit_id="late")
    second_round(s)
    assert s.misses(late), "a second replay of the same run"


def begun_anew(s: Stage, now: Instance, before: Instance) -> None:
    """Nothing of the failed run is left but its summary."""
    assert [(run.workflow_run, run.status) for run in now.runs] == [(before.workflow_run, "failed")]
    assert (now.retry_count, now.deaths, now.finalizing_ms) == (1, 0, 0)
    assert (now.error, now.finish_time, now.claim_token, now.wait, now.resume) == (None,) * 5
    assert now.run_time == now.claimable_time and abs((now.run_time or 0) - s.hub.now_ms) <= 10


@scene("04", "fresh_run")
def a_run_of_an_older_release_is_begun_anew(s: Stage) -> None:
    old = s.flow(s.work("a"), s.script("b", Item("fails", 9)))
    s.staff()
    workflow_id = s.start(old)
    assert s.ended(workflow_id).status == "failed"
    s.flows.remove(old)
    new = s.flow(s.work("a"), s.work("c"), on_changed_plan="fresh_run")
    for worker in s.workers():
        s.crash(worker)
    s.start_engine(s.app(*s.definitions))
    before = s.instance(workflow_id)
    s.arm("fresh_run", by="api", key=workflow_id)
    s.ask(s.starting(new, "one", input={"n": 2}))
    s.fired()
    now = s.instance(workflow_id)
    assert now.status == s.pick("failed", "running", "running")
    if s.point != "a":
        begun_anew(s, now, before)
        plan = (new.plan.key, new.plan.fingerprint, new.type)
        assert (now.definition_key, now.definition_fingerprint, now.type) == plan
        assert now.input != before.input and not now.outputs
    if s.point == "a":
        s.answered(s.starting(new, "one"))
    end = s.ended(workflow_id)
    assert (end.status, end.workflow_run, [step.name for step in end.steps]) == ("completed", 2, ["a", "c"])
    assert s.plant.hits["fresh_run"] == 1
    assert s.entries(workflow_id, "a", "b", "c") == (2, 1, 1)


@scene("05", "raise_priority")
def a_priority_rises(s: Stage) -> None:
    delay = timedelta(milliseconds=LATER_MS)
    flow = s.flow(s.work("a"))
    s.staff()
    workflow_id = s.start(flow, priority=3, start_delay=delay)
    s.arm("raise_priority", by="api", key=workflow_id)
    s.ask(s.starting(flow, "one", priority=0, start_delay=delay))
    s.fired()
    stored = s.instance(workflow_id).business_priority
    assert stored == s.pick(3, 0, 0)
    queue = s.redis.queue
    s.until(lambda: queue.lane_of(workflow_id) == stored, "its lane is that of the row", INDEX_MS)
    s.answered(s.starting(flow, "one", priority=2, start_delay=delay))
    assert s.instance(workflow_id).business_priority == s.pick(2, 0, 0), "only ever upwards"
    assert s.ended(workflow_id, LATER_MS + INDEX_MS).status == "completed"


@scene("06", "lanes.push")
def a_candidate_is_queued(s: Stage) -> None:
    flow = s.flow(s.work("a"))
    s.staff()
    s.arm("lanes.push", by="api")
    asked = s.ask(s.starting(flow, "one"))
    s.fired()
    if s.point == "b":
        s.until(lambda: asked.done, "an answer", 1_000)
        assert asked.error is None, "a Redis that does not answer fails no registration"
    workflow_id = workflow_id_for("one")
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it is found", INDEX_MS)
    s.ended(workflow_id)
    assert s.entries(workflow_id, "a") == (1,)


@scene("07", "lanes.wakeup")
def workers_are_woken(s: Stage) -> None:
    """The entry is in its lane and nobody was told, or only some have heard."""
    flow = s.flow(s.work("a"))
    s.staff()
    s.rest(1_000)
    s.wakeups()
    s.arm("lanes.wakeup", by="api")
    s.ask(s.starting(flow, "one"))
    s.fired()
    workflow_id = workflow_id_for("one")
    assert s.row(workflow_id) is not None
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "the poll finds it (L5)", SETTINGS.poll_ms + 1_000)
    s.ended(workflow_id)


@scene("08", "streams.reset")
def the_stream_begins_anew(s: Stage) -> None:
    """A run of the same round as the last one: their frames are in one stream."""
    flow = s.flow(s.script("a", Item("work", 300), Item("fails", 1), Item("work", 300), streams=True))
    s.staff()
    same = {"object_id": "one", "fencing_token": "f1-same"}
    workflow_id = s.start(flow, input=same)
    stream = StreamId("one", workflow_id, "f1-same")
    assert s.ended(workflow_id).status == "failed"
    s.until(lambda: bool(texts(s, stream)), "the first run has shown something")
    s.arm("streams.reset", by="api")
    asked = s.ask(s.starting(flow, "one", input=same))
    s.fired()
    if s.point == "b":
        s.until(lambda: asked.done, "an answer", 1_000)
        assert asked.error is None, "never blocks, never fails"
    assert s.ended(workflow_id).workflow_run == 2
    s.until(lambda: any(run == "2" for run in texts(s, stream)), "the second run has shown something")
    assert set(texts(s, stream)) == {"2"}, "nothing of the old run is left"


def texts(s: Stage, stream: StreamId) -> list[str]:
    """Of every line that a reader would see now, the run that it is of."""
    model = s.redis.streams
    batch = model.read(stream, 0, 0, bytes_max=100_000, count_max=1_000)
    frames = [decode(record) for record in batch.records]
    text = "".join(frame.data for frame in frames if isinstance(frame, Frame) and frame.msg_type == "text")
    return [line.split("|")[1] for line in text.splitlines()]


@scene("09", "confirm_dispatch")
def a_request_is_confirmed(s: Stage) -> None:
    s.staff()
    s.arm("confirm_dispatch", by="api", key="one")
    asked = s.ask(s.request("one"))
    s.fired()
    assert s.intent("one").status == s.pick(PENDING, DISPATCHED, DISPATCHED)
    if s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.answer.outcome == "registered"
    one_instance(s)
    first = s.intent("one").fencing_token
    assert s.answered(s.request("one")).outcome == "completed"
    assert s.misses(transitions.confirm_dispatch(JOBS.place, "one", first)), "a repeat changes nothing"
    assert s.misses(transitions.confirm_dispatch(JOBS.place, "one", "f0-older")), "nor does an older round"


@scene("10", "new_round")
def two_ask_for_another_round_at_once(s: Stage) -> None:
    failed_job(s)
    first = s.intent("one").fencing_token
    s.arm("new_round", by="api", key="one")
    s.ask(s.request("one"))
    s.ask(s.request("one"))
    s.fired()
    if s.point == "c":
        assert s.intent("one").status in OPEN and s.intent("one").fencing_token != first
    s.until(lambda: s.plant.hits["new_round"] == 1, "a round is installed", INTENT_MS)
    second_round(s)
    assert s.misses(transitions.confirm_dispatch(JOBS.place, "one", first))
