"""Boundaries 26–32: a step on its way: entered, done, tried again, skipped, failed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep
from kernel.states import TERMINAL
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.flows import Item

ENDS_MS = TAKEOVER_MS + WORK_MS


def begun(s: Stage, flow: Definition) -> str:
    """Workers, and one workflow of that kind; its id."""
    s.staff()
    s.rest(1_000)  # the first sweeps find nothing: what is queued is queued by whoever the scene is about
    return s.start(flow)


def three(s: Stage) -> str:
    return begun(s, s.flow(s.work("a"), s.work("b"), s.work("c")))


def checked(
    s: Stage, workflow_id: str, status: str, entries: dict[str, int], attempts: tuple[int, ...], failures: int = 0
) -> None:
    """The workflow ends like this, after so many entries into business code; S4: nothing is run again that is done."""
    end = s.ended(workflow_id, ENDS_MS)
    assert end.status == status
    assert s.entries(workflow_id, *entries) == tuple(entries.values())
    assert s.attempts(workflow_id) == attempts
    assert end.steps[0].failures == failures
    assert (end.claim_token, end.parked) == (None, None)


@scene("26", "begin_step")
def a_step_is_entered(s: Stage) -> None:
    """Committed before the entry: attempts count entries, also one that nobody has lived to make."""
    s.arm("begin_step", "worker")
    workflow_id = three(s)
    s.fired()
    step = s.instance(workflow_id).steps[0]
    assert (step.status, step.attempt) == s.pick(("pending", 0), ("running", 1), ("running", 1))
    checked(s, workflow_id, "completed", {"a": 1, "b": 1, "c": 1}, (s.pick(1, 1, 2), 1, 1))
    assert s.instance(workflow_id).steps[0].takeovers == s.pick(0, 0, 1)


@scene("27", "asr.submit")
def a_task_is_handed_to_somebody_outside(s: Stage) -> None:
    """Its number is in no checkpoint yet: the one admitted window for a duplicate, under the same idempotency key."""

    def hand_over(ctx: Context) -> object:
        entry = s.ledger.enter(ctx, "a")
        if ctx.checkpoint() is not None:
            return {"step": "a", "run": ctx.workflow_run}
        key = ctx.effect_key
        s.outside().call("asr.submit", lambda: s.submitted.append(key))
        s.submit(entry, 0)
        return Sleep(timedelta(seconds=2), checkpoint=1)

    s.arm("asr.submit", "worker")
    workflow_id = begun(s, s.flow(Step("a", hand_over, max_retry=1), s.work("b")))
    s.fired()
    assert s.instance(workflow_id).steps[0].checkpoint is None
    assert s.ended(workflow_id, ENDS_MS).status == "completed"
    assert len(s.submitted) == s.pick(1, 2, 2), "at most one extra submit for each kill"
    assert len(set(s.submitted)) == 1, "the same key"
    assert s.entries(workflow_id, "a", "b") == (3, 1)


@scene("28", "complete_step")
def a_step_is_completed(s: Stage) -> None:
    """Status and output in one write, and with it the next step is entered."""
    s.arm("complete_step", "worker")
    workflow_id = three(s)
    s.fired()
    row = s.instance(workflow_id)
    assert (row.steps[0].status == "completed") == ("a" in row.outputs) == (s.point != "a")
    checked(s, workflow_id, "completed", {"a": s.pick(2, 1, 1), "b": 1, "c": 1}, s.pick((2, 1, 1), (1,) * 3, (1, 2, 1)))


@scene("28", "complete_step")
def a_step_of_several_is_completed(s: Stage) -> None:
    """Side by side: each commits its own, and none overwrites another's."""
    s.arm("complete_step", "worker")
    wide = s.flow(s.work("a", depends_on=()), s.work("b", 900, depends_on=()), s.work("c", depends_on=("a", "b")))
    workflow_id = begun(s, wide)
    s.fired()
    assert (s.instance(workflow_id).steps[0].status == "completed") == (s.point != "a")
    twice = int(s.killed) + 1
    entries = {"a": s.pick(2, 1, 1), "b": twice, "c": 1}
    checked(s, workflow_id, "completed", entries, (s.pick(2, 1, 1), twice, 1))


@scene("29", "retry_step")
def a_step_is_to_be_tried_again(s: Stage) -> None:
    """The budget is exact: 1 + max_retry entries, and one more for a crash."""
    s.arm("retry_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("fails", 9), max_retry=1)))
    s.fired()
    row = s.instance(workflow_id)
    if s.point != "a":
        assert (row.steps[0].status, row.steps[0].failures, row.claim_token) == ("pending", 1, None), "one write"
    entries = s.pick(3, 2, 2)
    checked(s, workflow_id, "failed", {"a": entries}, (entries,), failures=2)


@scene("29", "retry_step")
def a_step_that_had_a_checkpoint_is_to_be_tried_again(s: Stage) -> None:
    """From its beginning: what an attempt that failed has left is not trusted."""
    s.arm("retry_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("yield"), Item("fails", 1), max_retry=1)))
    s.fired()
    step = s.instance(workflow_id).steps[0]
    if s.point != "a":
        assert step.error is not None and len(step.errors) == 1
        assert (step.checkpoint, step.resume, step.failed_time is None) == (None, None, False)
    # Killed before the write, the attempt goes on from its checkpoint; it fails but once.
    checked(s, workflow_id, "completed", {"a": s.pick(3, 4, 4)}, (2,), failures=s.pick(0, 1, 1))


@scene("29", "mark_stuck")
def a_step_is_deaf(s: Stage) -> None:
    """It ignores its timeout; the mark makes the next claim count that, instead of entering it again and again."""
    deaf = s.script("a", Item("ignores", 90_000), timeout=timedelta(seconds=10), max_retry=1)
    s.arm("mark_stuck", "worker")
    workflow_id = begun(s, s.flow(deaf))
    s.fired()
    entries = s.pick(3, 2, 2)
    end = s.ended(workflow_id, 6 * ENDS_MS)
    assert (end.status, s.entries(workflow_id, "a")[0]) == ("failed", entries)
    assert end.steps[0].failures == 2


@scene("30", "lanes.push")
def a_step_to_be_tried_again_is_queued(s: Stage) -> None:
    s.arm("lanes.push", "worker", when=lambda call: s.plant.hits["retry_step"] == 1)
    workflow_id = begun(s, s.flow(s.script("a", Item("fails", 9), max_retry=1)))
    s.fired()
    s.until(lambda: s.status(workflow_id) in TERMINAL, "the scan finds it", INDEX_MS + WORK_MS)
    checked(s, workflow_id, "failed", {"a": 2}, (2,), failures=2)


@scene("30", "lanes.push")
def a_step_that_yielded_is_queued(s: Stage) -> None:
    s.arm("lanes.push", "worker", when=lambda call: s.plant.hits["yield_step"] == 1)
    workflow_id = begun(s, s.flow(s.script("a", Item("yield"), Item("work", 5))))
    s.fired()
    s.until(lambda: s.status(workflow_id) in TERMINAL, "the scan finds it", INDEX_MS + WORK_MS)
    checked(s, workflow_id, "completed", {"a": 2}, (1,))


@scene("30", "release")
def a_claim_is_given_back(s: Stage) -> None:
    """A step of several is to be tried again: the claim ends when the others have ended."""
    s.arm("release", "worker")
    flow = s.flow(s.script("a", Item("fails", 1), max_retry=1, depends_on=()), s.work("b", depends_on=()))
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.instance(workflow_id).claim_token is None) == (s.point != "a")
    checked(s, workflow_id, "completed", {"a": 2, "b": 1}, (2, 1), failures=1)


@scene("31", "skip_step")
def a_step_is_skipped(s: Stage) -> None:
    """Terminal for that step: never entered again, and what follows goes on."""
    s.arm("skip_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("fails", 9), on_failed="skip"), s.work("b")))
    s.fired()
    assert (s.instance(workflow_id).steps[0].status == "skipped") == (s.point != "a")
    entries = s.pick(2, 1, 1)
    checked(s, workflow_id, "completed", {"a": entries, "b": 1}, (entries, 1), failures=1)
    step = s.instance(workflow_id).steps[0]
    assert step.status == "skipped" and step.error is not None and len(step.errors) == 1, "not silently"


def finalizer(s: Stage, what: str) -> Callable[[Context], None]:
    """A finalizer that only says that it was here."""

    def finalize(ctx: Context) -> None:
        s.ledger.enter(ctx, what)

    return finalize


@scene("32", "fail_step")
def a_step_fails_for_good(s: Stage) -> None:
    """The next owner runs the finalizer, never the failed step."""
    s.arm("fail_step", "worker")
    flow = s.flow(s.script("a", Item("fails", 9)), s.work("b"), failure_finalizer=finalizer(s, "failure"))
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.status(workflow_id) == "failing") == (s.point != "a")
    entries = s.pick(2, 1, 1)
    checked(s, workflow_id, "failed", {"a": entries, "b": 0, "failure": 1}, (entries, 0), failures=1)
    end = s.instance(workflow_id)
    assert end.error is not None and end.error == end.steps[0].error and len(end.steps[0].errors) == 1


@scene("32", "enter_failing")
def a_workflow_begins_to_fail(s: Stage) -> None:
    """A step of several has failed: the others have ended first."""
    s.arm("enter_failing", "worker")
    flow = s.flow(
        s.script("a", Item("fails", 9), depends_on=()),
        s.work("b", depends_on=()),
        s.work("c", depends_on=("a", "b")),
        failure_finalizer=finalizer(s, "failure"),
    )
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.status(workflow_id) == "failing") == (s.point != "a")
    checked(s, workflow_id, "failed", {"a": 1, "b": 1, "c": 0, "failure": 1}, (1, 1, 0), failures=1)
    end = s.instance(workflow_id)
    assert end.error is not None and end.error == end.steps[0].error


@scene("32", "fail_step")
def a_step_of_several_fails(s: Stage) -> None:
    s.arm("fail_step", "worker")
    flow = s.flow(
        s.script("a", Item("fails", 9), depends_on=()),
        s.work("b", 900, depends_on=()),
        failure_finalizer=finalizer(s, "failure"),
    )
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.instance(workflow_id).steps[0].status == "failed") == (s.point != "a")
    end = s.ended(workflow_id, ENDS_MS)
    assert (end.status, s.entries(workflow_id, "a", "failure")) == ("failed", (s.pick(2, 1, 1), 1))
