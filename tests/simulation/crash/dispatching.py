"""Boundaries 11–17: dispatchers take accepted objects to their instances, and die or lose an answer on the way."""

from __future__ import annotations

from collections.abc import Sequence

from kernel import transitions
from kernel.definition import Definition, Step
from kernel.dispatch import DISPATCHED, PENDING, PROCESSING, REFUSED, DueIntent, Intent
from kernel.ids import workflow_id_for
from kernel.states import RUNNING
from tests.simulation.crash.publishing import JOB_1, failed_job, one_instance, second_round
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import AGAIN_MS, INTENT_MS, SETTINGS, WORK_MS, Stage
from tests.simulation.jobs import JOBS
from tests.simulation.roles import ApiProcess, EngineProcess

MANY = 100


def accept(s: Stage, object_ids: Sequence[str] = ("one",), *, announce: bool = True) -> None:
    """Objects whose publisher has stored them and was never seen again."""

    def call(api: ApiProcess) -> None:
        for object_id in object_ids:
            api.objects.accept(
                object_id, type_=s.job.type, biz_key=f"job:{object_id}", input={"object_id": object_id}, priority=0
            )

    s.answered(call)
    if announce:
        due = [DueIntent(object_id, s.hub.now_ms) for object_id in object_ids]
        s.redis.index.add(JOBS.name, due)


def staff(s: Stage, *, workers: int = 2, dispatchers: int = 2) -> None:
    s.staff(workers=workers, dispatchers=dispatchers)
    s.rest(1_000)


def open_intent(s: Stage) -> Intent:
    intent = s.intent("one")
    assert intent.status in (PENDING, PROCESSING)
    return intent


@scene("11", "index.take")
def a_batch_of_candidates_is_taken(s: Stage) -> None:
    s.job = Definition(type="job", steps=[Step("begin", s.entered("begin"))])
    s.staff(workers=1, dispatchers=2)
    s.rest(1_000)
    names = [f"many-{number}" for number in range(MANY)]
    accept(s, names, announce=False)
    s.rest(JOBS.grace_ms)
    index = s.redis.index
    s.arm("index.take", by="dispatcher", when=lambda call: len(index.of(JOBS.name).due) >= MANY)
    index.add(JOBS.name, [DueIntent(name, s.hub.now_ms) for name in names])
    victim = s.fired()
    assert len(index.of(JOBS.name).due) == s.pick(MANY, 0, 0)
    claimed = s.plant.hits_of[victim, "claim_dispatch"]

    def all_dispatched() -> bool:
        return all(row["workflow_dispatch"]["status"] == DISPATCHED for _, row in s.rows(JOBS.place))

    s.until(all_dispatched, "all are found again by the scan", INTENT_MS)
    if s.killed:
        assert s.plant.hits_of[victim, "claim_dispatch"] == claimed == 0, "the dead process holds none of them"
    assert s.plant.hits["create"] == MANY


@scene("12", "claim_dispatch")
def an_object_is_claimed(s: Stage) -> None:
    staff(s)
    accept(s)
    s.arm("claim_dispatch", by="dispatcher", key="one")
    victim = s.fired()
    d1 = open_intent(s)
    assert d1.status == s.pick(PENDING, PROCESSING, PROCESSING)
    if s.point != "a":
        assert abs((d1.due_time or 0) - s.hub.now_ms - SETTINGS.dispatch_lease_ms) <= 10
    one_instance(s)
    if s.point == "c":
        assert d1.claim_token is not None
        assert s.plant.hits["claim_dispatch"] == 2, "its lease ran out, and another took over"
        late = transitions.confirm_dispatch(JOBS.place, "one", d1.fencing_token, d1.claim_token)
        assert s.misses(late)
    elif s.point == "b":
        assert s.plant.hits_of[victim, "claim_dispatch"] == s.plant.hits["claim_dispatch"] == 1, "it finds its token"


@scene("13", "renew_dispatch")
def the_lease_of_an_object_is_renewed(s: Stage) -> None:
    """Registering takes long. b: no renewal of it is ever answered, so that it must give up before its lease ends."""
    staff(s)
    s.plant.slow["create", "dispatcher"] = SETTINGS.dispatch_lease_ms - 1_000 if s.point == "b" else 7_000
    s.arm("renew_dispatch", by="dispatcher", key="one", times=None if s.point == "b" else 1)
    accept(s)
    victim = s.fired()
    token = open_intent(s).claim_token
    one_instance(s)
    assert (s.plant.hits["claim_dispatch"], s.plant.hits["confirm_dispatch"]) == (2, 1), "not under its first lease"
    if s.point == "b":
        assert s.engine_of(victim).outbox.counters["lost"] == 1
        assert s.plant.hits_of[victim, "renew_dispatch"] >= 1
    round_ = s.intent("one").fencing_token
    assert s.misses(transitions.renew_dispatch(JOBS.place, "one", round_, str(token), SETTINGS.dispatch_lease_ms))
    assert s.misses(transitions.confirm_dispatch(JOBS.place, "one", round_, str(token)))


@scene("14", "create")
def a_dispatcher_registers(s: Stage) -> None:
    staff(s)
    s.arm("create", by="dispatcher", key=JOB_1)
    accept(s)
    s.fired()
    assert (s.row(JOB_1) is None) == (s.point == "a")
    assert open_intent(s).status == PROCESSING
    one_instance(s)
    assert s.plant.hits["create"] == 1


@scene("14", "replay_failed")
def a_dispatcher_replays(s: Stage) -> None:
    failed_job(s)
    first = s.intent("one").fencing_token
    s.arm("replay_failed", by="dispatcher", key=JOB_1)
    s.answered(
        lambda api: api.objects.new_round(
            "one", first, type_="job", biz_key="job:one", input={"object_id": "one"}, priority=0
        )
    )
    s.fired()
    assert s.status(JOB_1) == s.pick("failed", RUNNING, RUNNING)
    second_round(s)


@scene("15", "confirm_dispatch")
def a_dispatcher_confirms(s: Stage) -> None:
    staff(s)
    s.arm("confirm_dispatch", by="dispatcher", key="one")
    accept(s)
    victim = s.fired()
    intent = s.intent("one")
    assert intent.status == s.pick(PROCESSING, DISPATCHED, DISPATCHED)
    if s.point != "a":
        assert (intent.claim_token, intent.due_time) == (None, None), "held by nobody, due for nobody"
    one_instance(s)
    if s.point == "b":
        assert s.engine_of(victim).outbox.counters["dispatched"] == 1, "it reads that it has confirmed"
    assert s.misses(transitions.confirm_dispatch(JOBS.place, "one", s.intent("one").fencing_token, "another"))


def of_another_release(s: Stage) -> None:
    """Dispatchers that do not know the type of the job; one worker and the web processes do."""
    s.at_last.append(lambda: retire_strangers(s))
    s.start_engine(s.app(*s.definitions))
    stranger = s.flow(s.work("a"), type_="stranger")
    for _ in range(2):
        s.start_engine(s.app(stranger), dispatches=True)
        s.start_api()
    s.rest(1_000)


def retire_strangers(s: Stage) -> None:
    """The release that does not know the type is taken away, with those that were just to be started again."""
    s.rest(2 * AGAIN_MS)
    for process in s.living(EngineProcess):
        if process.dispatches and s.job.plan.key not in process.definition_keys:
            s.retire(process)


def rolled_out(s: Stage) -> None:
    """The release of the strangers is replaced by one that knows the type."""
    retire_strangers(s)
    s.start_engine(s.app(*s.definitions), dispatches=True)
    one_instance(s)


@scene("16", "release_dispatch")
def an_object_is_given_back(s: Stage) -> None:
    of_another_release(s)
    s.arm("release_dispatch", by="dispatcher", key="one")
    accept(s)
    s.fired()
    intent = open_intent(s)
    assert (intent.status, intent.tries) == s.pick((PROCESSING, 0), (PENDING, 1), (PENDING, 1))
    if s.point != "a":
        assert intent.claim_token is None and intent.error
        assert s.hub.now_ms < (intent.due_time or 0) <= s.hub.now_ms + SETTINGS.dispatch_delay_ms
    if s.point == "c":
        late = transitions.release_dispatch(JOBS.place, "one", intent.fencing_token, "another", 1_000, "late")
        assert s.misses(late), "only the holder of the token gives back"
    rolled_out(s)


@scene("16", "index.add")
def the_next_try_is_told_to_redis(s: Stage) -> None:
    of_another_release(s)
    s.arm("index.add", by="dispatcher", when=lambda call: s.plant.hits["release_dispatch"] > 0)
    accept(s)
    s.fired()
    assert open_intent(s).tries >= 1
    rolled_out(s)


@scene("16", "refuse_dispatch")
def an_object_is_refused(s: Stage) -> None:
    """The instance of its key has ended in another round: it can never be registered."""
    s.job = Definition(type="job", steps=[Step("begin", s.entered("begin"))])
    staff(s)
    s.start(s.job, "job:one", input={"object_id": "one", "fencing_token": "f7-another"})
    assert s.ended(JOB_1).status == "completed"
    s.arm("refuse_dispatch", by="dispatcher", key="one")
    accept(s)
    victim = s.fired()
    intent = s.settled_intent("one")
    assert (intent.status, intent.claim_token, intent.due_time) == (REFUSED, None, None) and intent.error
    assert (s.object("one") or {})["status"] == JOBS.closed, "its user sees it in the same write"
    assert s.plant.hits["refuse_dispatch"] == 1
    assert s.plant.hits_of[victim, "refuse_dispatch"] == s.pick(0, 1, 1)
    assert s.instance(JOB_1).workflow_run == 1


def scanned(s: Stage) -> None:
    """Objects of which Redis has heard nothing are found by a scan, once each."""
    names = ["one", "two", "three"]
    for name in names:
        assert s.settled_intent(name, 2 * SETTINGS.dispatch_scan_ms + INTENT_MS).status == DISPATCHED
    s.until(lambda: all(s.status(workflow_id_for(f"job:{name}")) == "completed" for name in names), "all ran", 60_000)
    assert s.plant.hits["create"] == len(names)


@scene("17", "index.hold_scan")
def a_turn_to_scan_is_taken(s: Stage) -> None:
    """c: the holder of the mutex is dead, which is free after its time."""
    s.staff(workers=1, dispatchers=0)
    accept(s, ("one", "two", "three"), announce=False)
    s.rest(JOBS.grace_ms)
    s.arm("index.hold_scan", by="dispatcher")
    for _ in range(2):
        s.start_engine(s.app(*s.definitions), dispatches=True)
    s.fired()
    scanned(s)


@scene("17", f"scan {JOBS.place} by workflow_dispatch.due_time")
def a_scan_goes_on_while_redis_forgets_the_mutex(s: Stage) -> None:
    """Two scans at once are harmless."""
    s.staff(workers=1, dispatchers=0)
    accept(s, ("one", "two", "three"), announce=False)
    s.rest(JOBS.grace_ms)
    s.arm(f"scan {JOBS.place} by workflow_dispatch.due_time", by="dispatcher")
    for _ in range(3):
        s.start_engine(s.app(*s.definitions), dispatches=True)
    s.until(lambda: s.plant.made_in["index.hold_scan"] > 0, "one has the turn")
    s.redis.wipe()
    s.fired()
    scanned(s)


@scene("17", "index.free_scan")
def a_turn_is_given_back(s: Stage) -> None:
    """The source did not answer in the middle of a scan."""
    s.staff(workers=1, dispatchers=0)
    accept(s, ("one", "two", "three"), announce=False)
    s.rest(JOBS.grace_ms)
    s.arm(f"scan {JOBS.place} by workflow_dispatch.due_time", by="dispatcher", point="b")
    s.arm("index.free_scan", by="dispatcher")
    for _ in range(2):
        s.start_engine(s.app(*s.definitions), dispatches=True)
    s.fired()
    scanned(s)
    s.until(lambda: bool(s.rows()), "it goes on", WORK_MS)
