"""Boundaries 18–21: from a candidate to a claim, how it is kept, and what nobody may claim."""

from __future__ import annotations

from datetime import timedelta

from kernel import transitions
from kernel.records import Document, Instance
from kernel.store.conditional import Equals
from kernel.transitions import Held
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, SETTINGS, TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.processes import Process
from tests.simulation.roles import EngineProcess

ONCE = (1, 1)
LONG_MS = 45_000


@scene("18", "lanes.pop")
def a_candidate_is_taken(s: Stage) -> None:
    """b, c: the id is gone from its lane, and nobody has it."""
    flow = s.flow(s.work("a"), s.work("b"))
    s.staff()
    s.rest(1_000)
    queue = s.redis.queue
    s.arm("lanes.pop", by="worker", when=lambda call: bool(queue.ids()))
    workflow_id = s.start(flow)
    s.fired()
    assert (workflow_id in queue.ids()) == (s.point == "a")
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it is found again", INDEX_MS)
    end = s.ended(workflow_id)
    assert (end.status, end.deaths, s.attempts(workflow_id)) == ("completed", 0, ONCE), "never marked failed"
    assert [step.failures for step in end.steps] == [0, 0]


def holds(s: Stage, workflow_id: str, victim: Process) -> None:
    """The claim says whose it is, under a token of its own, since when and until when."""
    row, taken = s.instance(workflow_id), s.holder(workflow_id)
    assert taken is victim and row.worker_id == taken.worker_id and row.worker
    assert row.claim_time is not None and abs(row.claim_time - s.hub.now_ms) <= 10
    assert row.claimable_time == row.claim_time + SETTINGS.lease_ms


def taken_over(s: Stage, workflow_id: str, *, deaths: int, victim: Process, entries: tuple[int, ...] = ONCE) -> None:
    """Another claim has brought it to its end, and nobody was in business code twice."""
    end = s.ended(workflow_id, TAKEOVER_MS + WORK_MS)
    assert end.status == "completed"
    assert s.plant.hits["take_over"] == deaths
    assert (s.attempts(workflow_id), s.entries(workflow_id, "a", "b")) == (entries, entries)
    if deaths:
        assert s.plant.hits_of[victim, "complete_step"] == 0


@scene("19", "claim")
def a_claim_of_which_nobody_knows(s: Stage) -> None:
    """b: the answer is lost, and the store does not say a word to this worker any more."""
    flow = s.flow(s.work("a"), s.work("b"))
    s.staff()
    s.rest(1_000)
    s.arm("claim", by="worker", silent_ms=2 * TAKEOVER_MS)
    workflow_id = s.start(flow)
    victim = s.fired()
    held = s.instance(workflow_id)
    assert (held.claim_token is None) == (s.point == "a")
    assert (held.revision, s.attempts(workflow_id)) == (1, (0, 0)), "the attempt is not increased"
    if s.point != "a":
        holds(s, workflow_id, victim)
        s.until(lambda: s.instance(workflow_id).claim_token != held.claim_token, "t2", TAKEOVER_MS)
        assert s.hub.now_ms >= (held.claim_time or 0) + SETTINGS.lease_ms, "it waits out the lease"
    taken_over(s, workflow_id, deaths=s.pick(0, 1, 1), victim=victim)


@scene("19", "claim", "b")
def a_claim_whose_answer_is_lost(s: Stage) -> None:
    """The row tells the worker that it has it."""
    flow = s.flow(s.work("a"), s.work("b"))
    s.staff()
    s.rest(1_000)
    s.arm("claim", by="worker")
    workflow_id = s.start(flow)
    victim = s.fired()
    token = s.instance(workflow_id).claim_token
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it is entered at once", WORK_MS)
    assert s.instance(workflow_id).claim_token == token
    taken_over(s, workflow_id, deaths=0, victim=victim)
    assert s.plant.hits_of[victim, "complete_step"] == 2


@scene("19", "take_over")
def a_takeover(s: Stage) -> None:
    """The first holder is dead, and the second dies or hears nothing when it takes over."""
    flow = s.flow(s.work("a", 20_000), s.work("b"))
    s.staff()
    workflow_id = s.start(flow)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "the first one works")
    first = s.instance(workflow_id)
    s.crash(s.holder(workflow_id))
    s.arm("take_over", by="worker", key=workflow_id)
    victim = s.fired()
    assert s.instance(workflow_id).deaths == s.pick(0, 1, 1)
    if s.point != "a":
        assert s.instance(workflow_id).claim_token != first.claim_token
        holds(s, workflow_id, victim)
        late = transitions.begin_step(first_claim(first), first, 1, worker_id="dead", commit_id="late")
        assert s.misses(late), "the first holder's commits miss"
    end = s.ended(workflow_id, 2 * TAKEOVER_MS + 40_000)
    assert (end.status, end.deaths) == ("completed", 0), "progress forgets deaths"
    assert s.plant.hits["take_over"] == s.pick(1, 1, 2)
    assert s.entries(workflow_id, "a", "b") == (2, 1)
    assert s.attempts(workflow_id) == (2, 1), "attempts count entries, not claims"
    assert s.misses(transitions.renew(first_claim(first), SETTINGS.lease_ms)), "a stale token changes nothing"


def first_claim(first: Instance) -> Held:
    """The claim that the row bore then."""
    return Held(first.workflow_id, str(first.claim_token))


def suspect(s: Stage, *, deaths: int = 2) -> str:
    """A workflow that has killed two workers already, waiting to be claimed."""
    flow = s.flow(s.work("a", 3_000), s.work("b"))
    s.staff()
    delay = timedelta(seconds=3)
    workflow_id = s.start(flow, start_delay=delay)
    s.alter(workflow_id, deaths=deaths)
    return workflow_id


@scene("19", "claim_alone")
def a_suspect_is_claimed_alone(s: Stage) -> None:
    """One more worker that dies with it is one too many: parked, with its reason (11.2)."""
    workflow_id = suspect(s)
    s.arm("claim_alone", by="worker", key=workflow_id)
    victim = s.fired()
    if s.point != "a":
        holds(s, workflow_id, victim)
    if s.point == "c":
        parked(s, workflow_id)
    assert s.ended(workflow_id).status == "completed"
    assert s.entries(workflow_id, "a", "b") == ONCE


def parked(s: Stage, workflow_id: str, within_ms: int = TAKEOVER_MS) -> None:
    """It is put aside and stays so, until an operator has looked at it."""
    s.until(lambda: s.instance(workflow_id).parked is not None, "it is parked", within_ms)
    row = s.instance(workflow_id)
    assert row.parked is not None and row.parked.reason
    assert (row.claim_token, row.claimable_time, row.deaths) == (None, None, 3)
    s.rest(TAKEOVER_MS)
    assert s.instance(workflow_id) == row
    assert s.answered(lambda api: api.client.unpark(workflow_id)) is True


@scene("19", "park")
def a_suspect_is_parked(s: Stage) -> None:
    """By whoever finds that the lease of a suspect has run out."""
    workflow_id = suspect(s)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it is alone in a worker")
    s.crash(s.holder(workflow_id))
    s.arm("park", by="worker", key=workflow_id)
    s.fired()
    assert (s.instance(workflow_id).parked is None) == (s.point == "a")
    parked(s, workflow_id)
    assert s.plant.hits["park"] == 1
    assert s.ended(workflow_id).status == "completed"


@scene("19", "unpark")
def a_parked_workflow_is_brought_back(s: Stage) -> None:
    workflow_id = suspect(s)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it is alone in a worker")
    s.crash(s.holder(workflow_id))
    s.until(lambda: s.instance(workflow_id).parked is not None, "it is parked", TAKEOVER_MS)
    s.arm("unpark", by="api", key=workflow_id)
    asked = s.ask(lambda api: api.client.unpark(workflow_id))
    s.fired()
    if s.point == "a":
        assert s.answered(lambda api: api.client.unpark(workflow_id)) is True
    elif s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert asked.answer is True
    else:
        assert (s.instance(workflow_id).deaths, s.instance(workflow_id).parked) == (0, None)
    end = s.ended(workflow_id)
    assert (end.status, end.deaths) == ("completed", 0), "its deaths are forgotten"


def proved_dead(s: Stage, workflow_id: str) -> EngineProcess:
    """The holder of that claim is dead, and a supervisor says so."""
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "somebody works")
    holder = s.holder(workflow_id)
    s.crash(holder)
    s.prove(holder)
    return holder


@scene("19", "release_dead")
def the_claim_of_a_dead_worker_is_released(s: Stage) -> None:
    """On proof, before the lease ends. Who is told dies: the next one is told, and the death counts once."""
    flow = s.flow(s.work("a", 3_000), s.work("b"))
    s.staff(workers=2, dispatchers=2)
    workflow_id = s.start(flow)
    s.arm("release_dead", key=workflow_id)
    holder = proved_dead(s, workflow_id)
    s.fired()
    row = s.instance(workflow_id)
    assert (row.deaths, row.claim_token is None) == s.pick((0, False), (1, True), (1, True)), "a death counts"
    end = s.ended(workflow_id, SETTINGS.lease_ms - 5_000)
    assert (end.status, end.deaths, s.plant.hits["release_dead"]) == ("completed", 0, 1), "progress forgets deaths"
    assert s.entries(workflow_id, "a", "b") == (2, 1)
    late = transitions.release_dead(
        Held(workflow_id, "stale"), worker_id=holder.worker_id, counted=True, deaths_max=3, commit_id="late"
    )
    assert s.misses(late)


@scene("19", "park_dead")
def a_dead_workers_suspect_is_parked(s: Stage) -> None:
    workflow_id = suspect(s)
    s.arm("park_dead", key=workflow_id)
    proved_dead(s, workflow_id)
    s.fired()
    parked(s, workflow_id, SETTINGS.lease_ms - 5_000)
    assert s.plant.hits["park_dead"] == 1
    assert s.ended(workflow_id).status == "completed"


def unserved(s: Stage) -> str:
    """A workflow of a version that no living worker has, once dispatchers may say so; its id."""
    old = s.flow(s.work("a"), s.work("b"))
    s.start_api()
    s.start_api()
    workflow_id = s.start(old)
    s.flows.remove(old)
    s.flow(s.work("a"), s.work("c"))
    s.staff(workers=1, dispatchers=2, apis=0)
    s.flows[:] = [old]
    return workflow_id


PATIENCE_MS = 4 * SETTINGS.scan_ms + INDEX_MS
"""A dispatcher that has begun defers only after three scan periods: before that, silence proves nothing."""


def without(row: Document | None, *fields: str) -> Document:
    assert row is not None
    return {name: value for name, value in row.items() if name not in fields}


@scene("20", "defer_for_fingerprint")
def a_version_that_nobody_has_is_deferred(s: Stage) -> None:
    workflow_id = unserved(s)
    s.arm("defer_for_fingerprint", by="dispatcher", key=workflow_id)
    before = s.row(workflow_id)
    s.fired(PATIENCE_MS)
    s.until(lambda: s.instance(workflow_id).deferred is not None, "it is deferred", PATIENCE_MS)
    changed = ("claimable_time", "deferred", "revision", "commit_ids")
    assert without(s.row(workflow_id), *changed) == without(before, *changed), "no failure, no attempt, no claim"
    assert s.instance(workflow_id).claimable_time >= s.hub.now_ms + SETTINGS.mismatch_deferral_ms - INDEX_MS  # type: ignore[operator]
    assert s.plant.hits["defer_for_fingerprint"] == 1
    s.start_engine(s.app(*s.definitions))
    end = s.ended(workflow_id, 2 * INDEX_MS)
    assert (end.status, s.attempts(workflow_id), end.deaths) == ("completed", ONCE, 0)


@scene("20", "release_deferred")
def a_version_that_somebody_has_again_is_released(s: Stage) -> None:
    workflow_id = unserved(s)
    s.until(lambda: s.instance(workflow_id).deferred is not None, "it is deferred", PATIENCE_MS)
    s.arm("release_deferred", key=workflow_id)
    s.start_engine(s.app(*s.definitions))
    s.fired()
    assert (s.instance(workflow_id).deferred is None) == (s.point != "a")
    end = s.ended(workflow_id, 2 * INDEX_MS)
    assert (end.status, s.plant.hits["release_deferred"], s.attempts(workflow_id)) == ("completed", 1, ONCE)


def announced(s: Stage, call: str) -> None:
    """A worker that starts says which versions it has; what it could not say it says at its next scan."""
    workflow_id = unserved(s)
    s.until(lambda: s.instance(workflow_id).deferred is not None, "it is deferred", PATIENCE_MS)
    (flow,) = s.flows
    s.arm(call, by="worker", key=flow.plan.key)
    s.start_engine(s.app(*s.definitions))
    s.fired()
    end = s.ended(workflow_id, 2 * INDEX_MS + PATIENCE_MS)
    assert (end.status, s.attempts(workflow_id)) == ("completed", ONCE)


@scene("20", "first_definition")
def a_version_is_announced(s: Stage) -> None:
    announced(s, "first_definition")


@scene("20", "touch_definition")
def a_version_is_said_to_be_alive(s: Stage) -> None:
    announced(s, "touch_definition")


@scene("21", "renew")
def a_claim_is_renewed(s: Stage) -> None:
    """b: no renewal is ever answered. The row says that the lease goes on, and the worker stops all the same."""
    flow = s.flow(s.work("a", LONG_MS), s.work("b"))
    s.staff()
    workflow_id = s.start(flow)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
    first = s.instance(workflow_id)
    under = Equals("claim_token", first.claim_token)
    s.arm(
        *("renew", "worker", workflow_id),
        when=lambda call: any(under in write.guards for write in call.said),
        times=None if s.point == "b" else 1,
    )
    victim = s.fired()
    until_ms = s.instance(workflow_id).claimable_time or 0
    assert (until_ms > (first.claimable_time or 0)) == (s.point != "a")
    if s.point == "b":
        s.until(lambda: not s.engine_of(victim).services.renewals.held(), "it gives up", SETTINGS.fence_ms)
        at_ms = s.hub.now_ms - (first.claim_time or 0)
        assert -100 <= at_ms - SETTINGS.fence_ms <= 200, "unknown is not renewed"
        assert (s.instance(workflow_id).claimable_time or 0) > s.hub.now_ms, "although it was"
    s.until(lambda: s.entries(workflow_id, "a") == (2,), "another begins", TAKEOVER_MS + SETTINGS.renew_ms)
    assert s.instance(workflow_id).claim_token != first.claim_token
    assert s.plant.hits_of[victim, "complete_step"] == 0
    assert s.ended(workflow_id, LONG_MS + WORK_MS).status == "completed"
    assert s.entries(workflow_id, "a", "b") == (2, 1)


@scene("21", "renew", "b")
def one_renewal_is_not_answered(s: Stage) -> None:
    """The next one is: nobody else comes in."""
    flow = s.flow(s.work("a", LONG_MS), s.work("b"))
    s.staff()
    workflow_id = s.start(flow)
    s.arm("renew", by="worker", key=workflow_id)
    s.fired()
    assert s.ended(workflow_id, LONG_MS + WORK_MS).status == "completed"
    assert s.entries(workflow_id, "a", "b") == ONCE
