"""Boundaries 38–45: a workflow waits, is woken by time, yields, is canceled or superseded."""

from __future__ import annotations

from kernel import transitions
from kernel.records import Instance
from kernel.states import TERMINAL
from kernel.store.tables import SIGNALS
from tests.simulation.crash.fault import Call, Role
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.crash.working import begun, checked, finalizer
from tests.simulation.flows import Item

NAP_MS = 8_000
KEY = "one/a"
"""What step `a` of the workflow `one` waits for."""


def in_one_write(row: Instance, *, waits: bool) -> None:
    """Wait, checkpoint and the release of the claim are there together, or none of them is (S5)."""
    step = row.steps[0]
    assert (row.wait is None) == (step.wait is None)
    seen = (row.status, step.status, step.wait is None, step.checkpoint is None, row.claim_token is None, step.attempt)
    working = ("running", "running", True, True, False, 1)
    assert seen == (("waiting", "waiting", False, False, True, 0) if waits else working)


@scene("38", "suspend_step")
def a_step_goes_to_sleep(s: Stage) -> None:
    s.arm("suspend_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("sleep", NAP_MS), Item("work", 5)), s.work("b")))
    s.fired()
    in_one_write(s.instance(workflow_id), waits=s.point != "a")
    checked(s, workflow_id, "completed", {"a": s.pick(3, 2, 2), "b": 1}, (s.pick(2, 1, 1), 1))
    assert s.plant.hits["activate_timer"] == 1


@scene("39", "suspend_step")
def a_step_waits_for_a_signal(s: Stage) -> None:
    s.arm("suspend_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("told")), s.work("b")))
    s.fired()
    in_one_write(s.instance(workflow_id), waits=s.point != "a")
    s.until(lambda: s.status(workflow_id) == "waiting", "it waits", TAKEOVER_MS)
    s.rest(TAKEOVER_MS)
    assert s.status(workflow_id) == "waiting", "for as long as nobody tells"
    receipt = s.answered(s.tell(workflow_id, KEY))
    assert receipt.matched
    checked(s, workflow_id, "completed", {"a": s.pick(3, 2, 2), "b": 1}, (s.pick(2, 1, 1), 1))


@scene("40", f"scan {SIGNALS} by workflow_id")
def the_inbox_is_looked_into_after_a_suspension(s: Stage) -> None:
    """The signal was there before: whoever was to look has not, and the sweep does (L6)."""
    flow = s.flow(s.script("a", Item("work", 2_000), Item("told")), s.work("b"))
    s.arm(f"scan {SIGNALS} by workflow_id", "worker", when=lambda call: s.plant.hits["suspend_step"] == 1)
    workflow_id = begun(s, flow)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
    s.asked.add((workflow_id, KEY, 0))
    early = s.answered(s.tell(workflow_id, KEY))
    assert not early.matched
    # A fact that is known is not waited for by whoever looks; this step looks only when it is woken.
    s.fired()
    s.until(lambda: s.plant.hits["activate_signal"] == 1, "it is woken", INDEX_MS)
    checked(s, workflow_id, "completed", {"a": 2, "b": 1}, (1, 1))


@scene("41", "yield_step")
def a_step_yields(s: Stage) -> None:
    """Cursor saved, attempt rolled back, claim free."""
    s.arm("yield_step", "worker")
    workflow_id = begun(s, s.flow(s.script("a", Item("yield"), Item("work", 5)), s.work("b")))
    s.fired()
    step, token = s.instance(workflow_id).steps[0], s.instance(workflow_id).claim_token
    yielded = (step.status, step.attempt, step.checkpoint is not None, token is None)
    assert yielded == s.pick(("running", 1, False, False), *[("pending", 0, True, True)] * 2)
    checked(s, workflow_id, "completed", {"a": s.pick(3, 2, 2), "b": 1}, (s.pick(2, 1, 1), 1))


@scene("42", "finish_canceled")
def an_activity_cancels_the_work(s: Stage) -> None:
    """The step skipped, the workflow canceled, and no finalizer."""
    flow = s.flow(
        s.script("a", Item("cancels")),
        s.work("b"),
        failure_finalizer=finalizer(s, "failure"),
        success_finalizer=finalizer(s, "success"),
    )
    s.arm("finish_canceled", "worker")
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.status(workflow_id) == "canceled") == (s.point != "a")
    entries = s.pick(2, 1, 1)
    s.ended(workflow_id)
    steps = s.instance(workflow_id).steps
    assert steps[0].error is not None and steps[0].error.kind == "canceled"
    assert (s.status(workflow_id), steps[0].status, steps[1].status) == ("canceled", "skipped", "pending")
    assert s.entries(workflow_id, "a", "b", "failure", "success") == (entries, 0, 0, 0)
    assert s.answered(s.starting(flow, "one")).branch == "canceled", "never replayed into running the rest (11.10)"


@scene("43", "supersede")
def a_waiting_workflow_is_superseded(s: Stage) -> None:
    workflow_id = begun(s, s.flow(s.script("a", Item("told")), s.work("b")))
    s.until(lambda: s.status(workflow_id) == "waiting", "it waits")
    s.arm("supersede", "api", workflow_id)
    asked = s.ask(lambda api: api.client.supersede(workflow_id))
    s.fired()
    assert s.status(workflow_id) == s.pick("waiting", "canceled", "canceled")
    if s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.answer.changed
    again = s.answered(lambda api: api.client.supersede(workflow_id))
    assert again.changed == (s.point == "a"), "a repeat changes nothing"
    ended = s.instance(workflow_id)
    assert (ended.status, ended.wait, ended.claim_token, ended.claimable_time) == ("canceled", None, None, None)
    told = s.answered(s.tell(workflow_id, KEY))
    assert not told.matched
    s.rest(TAKEOVER_MS)
    assert s.instance(workflow_id) == ended, "later signals do nothing"
    assert s.entries(workflow_id, "a", "b") == (1, 0)


@scene("43", "supersede")
def a_workflow_at_work_is_superseded(s: Stage) -> None:
    """Its holder's commits miss from then on."""
    workflow_id = begun(s, s.flow(s.work("a", 20_000), s.work("b")))
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
    s.arm("supersede", "api", workflow_id)
    s.ask(lambda api: api.client.supersede(workflow_id))
    s.fired()
    s.answered(lambda api: api.client.supersede(workflow_id))
    assert s.status(workflow_id) == "canceled"
    s.rest(TAKEOVER_MS)
    assert (s.plant.hits["complete_step"], s.entries(workflow_id, "b")) == (0, (0,))


def woken(s: Stage, workflow_id: str, kind: str, attempts: tuple[int, ...] = (1, 1)) -> None:
    """One winner; how it was woken is said once; nobody came too early (S10 is looked at with each write)."""
    assert s.ended(workflow_id).status == "completed"
    assert s.plant.hits["activate_timer"] == 1
    assert (s.entries(workflow_id, "a", "b"), s.attempts(workflow_id)) == ((2, 1), attempts)


def activated(s: Stage, call: str, by: Role, item: Item, kind: str) -> None:
    workflow_id = begun(s, s.flow(s.script("a", item, Item("work", 300)), s.work("b")))
    s.until(lambda: s.status(workflow_id) == "waiting", "it waits")
    wait = s.instance(workflow_id)
    due_ms = wait.claimable_time or 0
    s.arm(call, by, workflow_id)
    s.facts.add((KEY, 0))
    s.fired()
    assert s.hub.now_ms >= due_ms
    row = s.instance(workflow_id)
    if s.point != "a":
        assert row.resume is not None
        assert (row.status, row.steps[0].status, row.resume.kind, row.claim_token) == ("running", "pending", kind, None)
        assert row.wait is None and abs((row.claimable_time or 0) - s.hub.now_ms) <= 10
        late = transitions.activate_timer(wait, 0, now_ms=s.hub.now_ms, commit_id="late")
        assert s.misses(late)
    woken(s, workflow_id, kind)


@scene("44", "activate_timer")
def a_timer_ends(s: Stage) -> None:
    activated(s, "activate_timer", "", Item("sleep", NAP_MS), "timer")


@scene("44", "activate_timer")
def a_poll_fallback_ends(s: Stage) -> None:
    """Nobody tells; the step looks by itself."""
    activated(s, "activate_timer", "", Item("told", NAP_MS), "poll")


@scene("44", "activate_own")
def the_holder_finds_its_own_timer_due(s: Stage) -> None:
    """Another step of the workflow kept the claim busy over the time."""
    flow = s.flow(
        s.script("a", Item("sleep", 1_000), Item("work", 5), depends_on=()),
        s.work("b", 6_000, depends_on=()),
    )
    s.arm("activate_own", "worker")
    workflow_id = begun(s, flow)
    s.fired()
    assert (s.instance(workflow_id).steps[0].status == "waiting") == (s.point == "a")
    checked(s, workflow_id, "completed", {"a": 2, "b": 1}, (1, 1))
    assert s.plant.hits["activate_own"] == 1


@scene("45", "lanes.push")
def what_a_timer_has_woken_is_queued(s: Stage) -> None:
    """Whoever activates dies before, or when it queues: the next sweep does."""
    workflow_id = begun(s, s.flow(s.script("a", Item("sleep", NAP_MS), Item("work", 300)), s.work("b")))
    s.until(lambda: s.status(workflow_id) == "waiting", "it waits")
    for worker in s.workers():
        worker.pause(NAP_MS + 10_000)  # so that the dispatcher is the one

    def activated_by_it(call: Call) -> bool:
        return s.plant.hits["activate_timer"] == 1

    s.arm("lanes.push", "dispatcher", when=activated_by_it)
    s.fired()
    assert s.status(workflow_id) == "running"
    s.until(lambda: s.status(workflow_id) in TERMINAL, "it is found", INDEX_MS + WORK_MS)
    woken(s, workflow_id, "timer")
