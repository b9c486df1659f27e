"""Boundaries 33–37: how a run ends, and that it ends once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fanout import FanOutEvent, start_fan_out
from fanout.event import fan_out_key
from kernel.context import Context
from kernel.ids import workflow_id_for
from kernel.stream_events import TERMINAL as TERMINAL_EVENT
from tests.simulation.crash.fault import Call
from tests.simulation.crash.outside import Fixed
from tests.simulation.crash.publishing import JOB_1
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import TAKEOVER_MS, Stage
from tests.simulation.crash.working import ENDS_MS, begun, checked, finalizer
from tests.simulation.flows import SIGNAL, Item
from tests.simulation.job_flow import draw_job
from tests.simulation.jobs import JOBS
from tests.simulation.roles import ApiProcess


def job(s: Stage, fails_after: int, *items: tuple[str, int]) -> None:
    """A job with its finalizers, requested; `fails_after`: so often its failure finalizer raises behind its write."""
    s.job = draw_job(s, Fixed(fails_after, items))  # type: ignore[arg-type]
    s.staff()
    s.answered(s.request("one"))


def while_(s: Stage, status: str) -> Any:
    """Only calls that are made while the job is so."""
    return lambda call: s.status(JOB_1) == status


@scene("33", "update_object")
def the_failure_is_told_to_the_object(s: Stage) -> None:
    """Idempotent; may run twice."""
    s.arm("update_object", "worker", when=while_(s, "failing"))
    job(s, 0, ("fails", 9))
    s.fired()
    row = s.object("one")
    assert row is not None and (row["status"] == JOBS.failed) == (s.point != "a")
    checked(s, JOB_1, "failed", {"begin": 1, "work": 1, "failure": s.pick(2, 1, 2)}, (1, 1))
    row = s.object("one")
    assert row is not None and row["error"] == {"round": row["workflow_dispatch"]["fencing_token"]}


@scene("33", "defer_finalizer")
def a_finalizer_that_failed_is_tried_again(s: Stage) -> None:
    """After a delay, in the same status; its object is failed already, and the user sees it."""
    s.arm("defer_finalizer", "worker")
    job(s, 1, ("fails", 9))
    s.fired()
    assert (s.instance(JOB_1).finalizer is not None) == (s.point != "a")
    assert s.status(JOB_1) == "failing"
    checked(s, JOB_1, "failed", {"work": 1, "failure": 2}, (1, 1))


@scene("34", "finish_failed")
def a_failed_run_ends(s: Stage) -> None:
    """From here on it may be replayed at once, and no finalizer of this run comes after."""
    flow = s.flow(s.script("a", Item("fails", 1)), failure_finalizer=finalizer(s, "failure"))
    s.arm("finish_failed", "worker")
    workflow_id = begun(s, flow)
    s.fired()
    if s.point == "a":
        checked(s, workflow_id, "failed", {"a": 1, "failure": 2}, (1,), failures=1)
    handle = s.answered(s.starting(flow, "one"))
    assert (handle.branch, handle.instance.workflow_run) == ("replayed", 2)
    end = s.ended(workflow_id, ENDS_MS)
    assert (end.status, s.entries(workflow_id, "a", "failure")) == ("completed", (2, s.pick(2, 1, 1)))


@scene("35", "update_object")
def the_success_is_told_to_the_object(s: Stage) -> None:
    """b, c: the object is completed, and telling it so once more is no fault."""
    s.arm("update_object", "worker", when=lambda call: s.entries(JOB_1, "success") == (1,))
    job(s, 0, ("work", 5))
    s.fired()
    row = s.object("one")
    assert row is not None and (row["status"] == JOBS.completed) == (s.point != "a")
    checked(s, JOB_1, "completed", {"begin": 1, "work": 1, "success": s.pick(2, 1, 2)}, (1, 1))
    assert (s.object("one") or {})["result"] == {"round": s.intent("one").fencing_token}


@scene("35", "create")
def the_success_starts_a_fan_out(s: Stage) -> None:
    """Under a key of its own event: started twice it is one."""
    event = FanOutEvent(event_id="event-0", signal_type=SIGNAL, wait_key="everybody", identities={"list": "event-0"})
    s.audience["event-0"] = []
    fan_id = workflow_id_for(fan_out_key(s.fan_out.type, event))

    def succeed(ctx: Context) -> None:
        s.ledger.enter(ctx, "success")
        start_fan_out(ctx, s.fan_out, event)

    s.arm("create", "worker", fan_id)
    workflow_id = begun(s, s.flow(s.work("a"), success_finalizer=succeed))
    s.fired()
    assert (s.row(fan_id) is None) == (s.point == "a")
    checked(s, workflow_id, "completed", {"a": 1, "success": s.pick(2, 1, 2)}, (1,))
    assert s.ended(fan_id).status == "completed"
    assert s.plant.hits["create"] == 2


@scene("35", "defer_finalizer")
def a_success_finalizer_that_failed_is_tried_again(s: Stage) -> None:
    def succeed(ctx: Context) -> None:
        entry = s.ledger.enter(ctx, "success")
        if s.ledger.counts[entry.key] == 1:
            raise RuntimeError("not yet")

    s.arm("defer_finalizer", "worker")
    workflow_id = begun(s, s.flow(s.work("a"), success_finalizer=succeed))
    s.fired()
    assert s.status(workflow_id) == "running"
    checked(s, workflow_id, "completed", {"a": 1, "success": 2}, (1,))


@scene("36", "finish_completed")
def a_run_ends_well(s: Stage) -> None:
    s.arm("finish_completed", "worker")
    workflow_id = begun(s, s.flow(s.work("a"), success_finalizer=finalizer(s, "success")))
    s.fired()
    assert (s.status(workflow_id) == "completed") == (s.point != "a")
    checked(s, workflow_id, "completed", {"a": 1, "success": s.pick(2, 1, 1)}, (1,))
    end = s.row(workflow_id)
    s.rest(TAKEOVER_MS)
    assert s.row(workflow_id) == end, "completed is completed: nothing reruns"


def is_last(call: Call) -> bool:
    return any(change.field == "finish_time" for write in call.said for change in write.changes)


@scene("36", "complete_step")
def a_run_ends_with_its_last_step(s: Stage) -> None:
    """Without a finalizer the last completion is the end of the workflow, in one write."""
    s.arm("complete_step", "worker", when=is_last)
    workflow_id = begun(s, s.flow(s.work("a"), s.work("b")))
    s.fired()
    assert (s.status(workflow_id) == "completed") == (s.point != "a")
    entries = s.pick(2, 1, 1)
    checked(s, workflow_id, "completed", {"a": 1, "b": entries}, (1, entries))
    end = s.row(workflow_id)
    s.rest(TAKEOVER_MS)
    assert s.row(workflow_id) == end


def last_word(s: Stage, workflow_id: str) -> Any:
    """Follow the stream of a workflow from its beginning to its end, as one who comes back does."""

    def call(api: ApiProcess) -> Any:
        reader = api.client.progress.reader(workflow_id, None)
        pause = api.event()
        while True:
            for event in reader.poll():
                if event.event == TERMINAL_EVENT:
                    return event.frame.data
            pause.wait(max(0.05, reader.wait_ms() / 1000))

    return s.answered(call)


@scene("37", "streams.finish")
def the_end_is_shown(s: Stage) -> None:
    """Best effort: who comes back gets the final object also without it."""
    flow = s.flow(s.script("a", Item("work", 300), timeout=timedelta(seconds=60), streams=True))
    s.arm("streams.finish", "worker")
    workflow_id = begun(s, flow)
    s.fired()
    checked(s, workflow_id, "completed", {"a": 1}, (1,))
    told = last_word(s, workflow_id)
    assert (told["status"], told["result"]) == ("completed", {"step": "a", "run": 1})
