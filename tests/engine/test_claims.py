"""The claim: one conditional write grants it, its token guards every later write, its end clears it (group 10)."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel import transitions
from kernel.context import Context
from kernel.directives import Sleep
from kernel.engine.takeover import ClaimAnswer, Claimed, Mismatch, NotYet, Stale
from kernel.errors import ClaimLost
from kernel.records import ErrorRecord, PermitWaitRecord, Wait
from kernel.store.conditional import Applied, Equals, Missed, Put, Transition
from kernel.store.tables import INSTANCES
from kernel.transitions import Held, Rest
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.support.engine_rig import LiveRig, RigWorker, SteppedRig

ERROR = ErrorRecord(code="kernel_error", type="ValueError", message="no")


def set_fields(rig: Any, workflow_id: str, **fields: Any) -> None:
    """Change a row as another process would."""
    changes = tuple(Put(name.replace("__", "."), value) for name, value in fields.items())
    assert isinstance(rig.store.apply(Transition("by hand", INSTANCES, workflow_id, (), changes)), Applied)


def take(worker: RigWorker, workflow_id: str) -> ClaimAnswer:
    answer: ClaimAnswer = worker.scheduler._claimer.take_all([workflow_id], alone=True)[0]
    return answer


@pytest.mark.req("clm-atomic", "core-candidate-not-right", "id-claim-token")
@pytest.mark.parametrize("kind", ["live", "live_sqlite"])
def test_of_many_concurrent_claims_one_succeeds(request: pytest.FixtureRequest, kind: str) -> None:
    rig: LiveRig = request.getfixturevalue(kind)
    definition = flow(rig, "a")
    workers = [rig.worker(definition, run=False) for _ in range(16)]
    tokens = []
    for round_ in range(5):
        workflow_id = rig.start(definition, f"k{round_}")
        barrier = threading.Barrier(len(workers))

        def one(worker: RigWorker, workflow_id: str = workflow_id, barrier: Any = barrier) -> ClaimAnswer:
            barrier.wait(60)
            return take(worker, workflow_id)

        with ThreadPoolExecutor(len(workers)) as pool:
            answers = list(pool.map(one, workers))
        winners = [answer for answer in answers if isinstance(answer, Claimed)]
        assert len(winners) == 1
        assert all(isinstance(answer, Stale) for answer in answers if not isinstance(answer, Claimed))
        tokens.append(winners[0].claim.held.claim_token)
        assert rig.row(workflow_id)["claim_token"] == tokens[-1]
    assert len(set(tokens)) == 5


@pytest.mark.req("id-claim-token", "id-token-quality")
def test_every_claim_has_a_token_of_its_own(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", lambda ctx: Sleep(seconds(1), 1) if ctx.checkpoint() is None else "x"))
    worker = rig.worker(definition)
    rig.finish(*(rig.start(definition, f"k{k}") for k in range(100)))

    tokens = [event["claim_token"] for event in rig.recorder.of("claim.taken")]

    assert len(tokens) == worker.scheduler.claims_taken == 200
    assert len(set(tokens)) == 200
    assert all(isinstance(token, str) and len(token) == 32 for token in tokens)


@pytest.mark.parametrize("status", ["waiting", "completed", "failed", "canceled"])
@pytest.mark.req("clm-not-waiting", "dag-waiting-not-ready", "dag-failed-not-ready", "stp-failed-not-ready")
def test_a_waiting_or_ended_instance_can_not_be_claimed(rig: SteppedRig, status: str) -> None:
    activities = {
        "waiting": lambda ctx: Sleep(seconds(60)),
        "completed": lambda ctx: None,
        "failed": raises(ValueError("no")),
        "canceled": lambda ctx: rig.client.supersede(ctx.workflow_id),
    }
    definition = flow(rig, step(rig, "a", activities[status]))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.status(workflow_id) == status, status)
    before = rig.row(workflow_id)

    answer = take(worker, workflow_id)
    rig.advance(2 * rig.settings.scan_ms)
    rig.pass_once(worker)

    assert isinstance(answer, NotYet if status == "waiting" else Stale)
    assert rig.row(workflow_id) == before
    assert rig.ledger.count("a") == 1


@pytest.mark.req("clm-not-before", "rec-claimable-double")
def test_nobody_claims_before_the_claimable_time(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, start_delay=seconds(3))
    due_ms = rig.row(workflow_id)["claimable_time"]

    for _ in range(29):
        rig.advance(100)
        assert take(worker, workflow_id) == NotYet(workflow_id, 1, due_ms)
        rig.pass_once(worker)
    assert rig.ledger.entries == []
    rig.advance(100)

    assert isinstance(take(worker, workflow_id), Claimed)


@pytest.mark.req("clm-failing-claimable", "fin-failing-resume")
def test_a_failing_instance_is_claimed_and_only_its_failure_is_completed(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))), failure_finalizer=rig.ledger(lambda ctx: None))
    dead = rig.worker(definition)
    dead.store.fail_once("finish_failed", "kill_before")
    workflow_id = rig.start(definition)
    rig.pass_once(dead)
    assert (rig.status(workflow_id), dead.dead) == ("failing", True)

    rig.worker(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "failed"
    assert (rig.ledger.count("bad"), rig.ledger.count(None)) == (1, 2)


@pytest.mark.parametrize("behind_ms", [1, 5])
def test_a_candidate_popped_a_moment_too_early_is_not_dropped(rig: SteppedRig, behind_ms: int) -> None:
    """The store's clock decides, and may be a little behind this process's estimate of it: a timer must not be lost
    until the next scan because of that (DECISIONS detail 6: only stale is dropped)."""
    sleeps = step(rig, "a", lambda ctx: "rested" if ctx.resume else Sleep(seconds(10)))
    definition = flow(rig, sleeps)
    worker = rig.worker(definition)
    delayed, waiting = rig.start(definition, "k1", start_delay=seconds(10)), rig.start(definition, "k2")
    rig.pass_once(worker)
    assert [rig.status(delayed), rig.status(waiting)] == ["running", "waiting"]
    worker.store.ahead_ms = behind_ms
    rig.advance(10_000 - behind_ms)

    for workflow_id in (delayed, waiting):
        early = take(worker, workflow_id)
        assert isinstance(early, NotYet), workflow_id
        assert early.at_ms - rig.clock.wall_ms() <= 100


@pytest.mark.req("clm-every-write", "clm-complete-cond", "cmp-status-guard", "core-inv-token", "slp-lost", "s3")
def test_every_write_of_a_claims_holder_carries_its_token_and_misses_with_an_old_one(rig: SteppedRig) -> None:
    """Each transition is tried with the token of a lost claim on a row where everything else fits."""
    old = Held("", "an old token")
    for name, (status, step_status) in SCOPED.items():
        workflow_id = rig.start(flow(rig, "a", "b"), name)
        now_ms = rig.clock.wall_ms()
        set_fields(rig, workflow_id, status=status, claim_token="current", claimable_time=now_ms + 10_000)
        set_fields(rig, workflow_id, steps__0__status=step_status, steps__1__status="completed")
        set_fields(rig, workflow_id, steps__0__wait=_wait(now_ms)) if step_status == "waiting" else None
        before = rig.row(workflow_id)

        late = _build(name, Held(workflow_id, old.claim_token), rig, workflow_id)
        assert Equals("claim_token", old.claim_token) in late.guards, name
        assert isinstance(rig.store.apply(late), Missed), name
        assert rig.row(workflow_id) == before, name
        current = _build(name, Held(workflow_id, "current"), rig, workflow_id)
        assert isinstance(rig.store.apply(current), Applied), name


SCOPED = {
    "mark_stuck": ("running", "running"),
    "begin_step": ("running", "pending"),
    "unbegin": ("running", "running"),
    "complete_step": ("running", "running"),
    "yield_step": ("running", "running"),
    "retry_step": ("running", "running"),
    "skip_step": ("running", "running"),
    "fail_step": ("running", "running"),
    "defer_for_permit": ("running", "pending"),
    "suspend_step": ("running", "running"),
    "activate_own": ("running", "waiting"),
    "enter_failing": ("running", "failed"),
    "finish_completed": ("running", "completed"),
    "finish_failed": ("failing", "failed"),
    "finish_canceled": ("running", "running"),
    "defer_finalizer": ("failing", "failed"),
    "release": ("running", "pending"),
    "renew": ("running", "running"),
}
"""Every transition that the holder of a claim makes: the statuses of instance and step under which it hits."""

WITHOUT_TOKEN = {
    "create", "replay_failed", "fresh_run", "supersede", "raise_priority", "activate_timer", "activate_signal",
    "release_dead", "park_dead", "park", "unpark", "defer_for_fingerprint", "release_deferred",
    "claim", "claim_alone", "claim_handed_over", "take_over",
}  # fmt: skip
"""Those that need no claim of their own (S3); release_dead, park and take_over name the dead owner's token."""

OF_THE_INBOX = {"receive_signal", "mark_matched", "forget_matched", "forget_pending"}
"""Those that touch no instance."""

OF_OTHER_TABLES = {
    "accept_object", "claim_dispatch", "confirm_dispatch", "embed_intent", "new_round", "refuse_dispatch",
    "release_dispatch", "renew_dispatch", "update_object", "first_limit", "set_limit", "unset_limit",
    "declare_limit", "withdraw_dispatch",
}  # fmt: skip
"""Those of business objects and of limits."""


def _wait(now_ms: int) -> dict[str, Any]:
    return {"wait_id": "w", "kind": "timer", "step": "a", "step_index": 0, "poll_time": now_ms, "since_time": now_ms}


def _build(name: str, held: Held, rig: SteppedRig, workflow_id: str) -> Transition:
    """A transition of that name under `held`, with plausible values for whatever its constructor asks for."""
    wait = Wait(wait_id="w2", kind="timer", step="a", step_index=0, poll_time=1)
    known: dict[str, Any] = {
        "claim": held, "instance": rig.instance(workflow_id), "index": 0, "worker_id": "w1", "commit_id": f"c{held}",
        "rest": Rest(status="running", now=True), "output": b"\x01\xc0", "elapsed_ms": 1, "checkpoint": None,
        "error": ERROR, "due_time": 5, "failing": False, "now_ms": rig.clock.wall_ms(), "attempt": 1, "delay_ms": 1,
        "next_time": 1, "lease_ms": 1_000, "status": "failing" if name == "defer_finalizer" else "running",
        "wait": PermitWaitRecord(resource="r", step="a", since_time=1) if name == "defer_for_permit" else wait,
    }  # fmt: skip
    constructor = getattr(transitions, name)
    wanted = [p.name for p in inspect.signature(constructor).parameters.values() if p.default is p.empty]
    made: Transition = constructor(**{parameter: known[parameter] for parameter in wanted})
    return made


@pytest.mark.req("clm-lost-no-bypass", "s3")
def test_these_are_all_transitions(rig: SteppedRig) -> None:
    constructors = {name for name in transitions.__all__ if name[0].islower()}

    assert constructors == {*SCOPED, *WITHOUT_TOKEN, *OF_THE_INBOX, *OF_OTHER_TABLES}


@pytest.mark.parametrize("write", ["begin_step", "complete_step", "suspend_step", "retry_step", "finish_failed"])
@pytest.mark.req("core-miss-stops", "clm-lost-error", "clm-lost-no-bypass", "clm-late-worker", "act-old-process-commit")
def test_a_worker_whose_token_was_replaced_stops_and_writes_nothing_more(rig: SteppedRig, write: str) -> None:
    """Another worker holds the claim now; the late one learns it from its next write, whichever that is."""
    activity = {
        "suspend_step": lambda ctx: Sleep(seconds(1)),
        "retry_step": raises(ValueError("no")),
        "finish_failed": raises(ValueError("no")),
    }.get(write)
    definition = flow(rig, step(rig, "a", activity, max_retry=int(write == "retry_step")), "b")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    taken: list[Any] = []

    def another_takes_it(call: Any) -> None:
        if write in call.names and not taken:
            set_fields(rig, workflow_id, claim_token="another's", worker_id="w9")
            taken.append(rig.row(workflow_id))

    worker.store.fault_of = another_takes_it
    rig.pass_once(worker)

    assert rig.row(workflow_id) == taken[0]
    assert worker.store.names()[-1] == write
    assert worker.store.missed[-1] == write
    assert [event["code"] for event in rig.recorder.of("claim.lost")] == [ClaimLost.code]
    assert (worker.busy, worker.held) == (0, [])


@pytest.mark.req("clm-multi-steps", "core-loop")
def test_a_linear_workflow_runs_to_its_end_in_one_claim(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    definition = flow(rig, "a", "b", "c", "d")
    workflow_id = rig.drive(definition)

    assert len({entry.claim_token for entry in rig.ledger.entries}) == 1
    assert rig.recorder.names(workflow_id) == [
        *("workflow.created", "claim.taken"),
        *["step.started", "step.completed"] * 4,
        "workflow.completed",
    ]
    assert len([name for name in rig.workers[0].store.names() if name != "claim"]) == 5
    assert [s.attempt for s in rig.instance(workflow_id).steps] == [1, 1, 1, 1]


@pytest.mark.req("clm-ready-recompute")
def test_what_is_ready_is_computed_from_the_row_after_each_commit(rig: SteppedRig) -> None:
    """Between two waves another process skips a step in the row; the next wave goes by the row."""
    definition = flow(
        rig,
        step(rig, "top", depends_on=[]),
        step(rig, "left", depends_on=["top"]),
        step(rig, "right", depends_on=["top"]),
        step(rig, "bottom", depends_on=["left", "right"]),
    )
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)

    def skip_right(call: Any) -> None:
        if call.names == ("complete_step",) and rig.step(workflow_id, "top").status == "running":
            set_fields(rig, workflow_id, steps__2__status="skipped")

    worker.store.fault_of = skip_right
    rig.finish(workflow_id)

    assert rig.ledger.steps() == ["top", "left", "bottom"]
    assert rig.status(workflow_id) == "completed"


@pytest.mark.parametrize("end", ["completed", "failed", "canceled", "sleeps", "retries", "deferred", "released"])
@pytest.mark.req("clm-release-clears", "rec-finish")
def test_whatever_ends_a_claim_clears_it_in_the_same_write(rig: SteppedRig, end: str) -> None:
    activity = {
        "failed": raises(ValueError("no")),
        "sleeps": lambda ctx: Sleep(seconds(60)),
        "retries": fails_first(1),
        "canceled": lambda ctx: rig.client.supersede(ctx.workflow_id),
        "released": lambda ctx: worker.loop.drain(),
    }.get(end)
    finalizer = raises(ValueError("later")) if end == "deferred" else None
    definition = flow(rig, step(rig, "a", activity, max_retry=int(end == "retries")), "b", success_finalizer=finalizer)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.loop.pass_once()
    assert {"claim_token", "worker_id", "worker", "claim_time"} <= set(rig.row(workflow_id))

    rig.base_runner.run_all()

    row = rig.row(workflow_id)
    assert {"claim_token", "worker_id", "worker", "claim_time"} & set(row) == set()
    assert ("finish_time" in row) is (end in ("completed", "failed", "canceled"))


@pytest.mark.req("clm-token-scope", "can-no-recall", "clm-late-worker")
def test_a_late_workers_outside_call_is_seen_there_and_its_commit_is_not(rig: SteppedRig) -> None:
    calls: list[str] = []

    def call(ctx: Context) -> str:
        if not calls:
            set_fields(rig, ctx.workflow_id, claim_token="another's")
        calls.append(ctx.worker_id)
        return ctx.worker_id

    definition = flow(rig, step(rig, "a", call))
    late = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(late)
    rig.worker(definition)
    rig.advance(rig.settings.lease_ms)
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.workers[1])

    assert calls == ["w1", "w2"]
    assert rig.output(workflow_id) == "w2"


def test_a_candidate_of_another_version_is_a_mismatch_and_an_unknown_one_is_stale(rig: SteppedRig) -> None:
    worker = rig.worker(flow(rig, "a"))
    workflow_id = rig.start(flow(rig, "a", "more"))

    assert take(worker, workflow_id) == Mismatch(workflow_id, 1)
    assert take(worker, "wf-nothing") == Stale("wf-nothing", "unknown")
