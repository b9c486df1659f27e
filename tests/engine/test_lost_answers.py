"""A fault at every single write of a workflow: the answer lost, the request lost, the store away, the process dead.

Each schedule is run once without a fault to count its writes, and then once for every write and every fault. The end
must be the same, and the ledger tells exactly what ran again: nothing when the writer could find out what became of
its write, and at most the step that was under way when it could not (RELIABILITY §3, "allowed and bounded").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kernel.clock import ManualClock
from kernel.context import Context
from kernel.definition import Definition, RetryPolicy
from kernel.directives import Sleep, WaitForSignal, Yield
from kernel.errors import KernelError, WorkflowCanceled
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow, raises, seconds, step
from tests.support.engine_rig import Rig, SteppedRig
from tests.support.engine_store import Fault


def _sleeps(ctx: Context) -> Any:
    polls = ctx.checkpoint() or 0
    return Sleep(seconds(2), polls + 1) if polls < 2 else polls


def _yields(ctx: Context) -> Any:
    cursor = ctx.checkpoint() or 0
    return Yield(cursor + 1) if cursor < 2 else cursor


def _asks(ctx: Context) -> Any:
    return "polled" if ctx.resume else WaitForSignal("answer", "key-1", poll_fallback=seconds(1))


def _fails_while(first: Callable[[Context], bool]) -> Callable[[Context], str]:
    """An activity that raises while `first` holds. It asks the record and not its own memory: a call whose failure was
    never committed is followed by one that fails again."""

    def activity(ctx: Context) -> str:
        if first(ctx):
            raise ValueError("the first time")
        return "done"

    return activity


def _first_failure(rig: Rig) -> Callable[[Context], str]:
    return _fails_while(lambda ctx: rig.step(ctx.workflow_id, str(ctx.step)).failures == 0)


def _first_finalizer(rig: Rig) -> Callable[[Context], str]:
    return rig.ledger(_fails_while(lambda ctx: rig.instance(ctx.workflow_id).finalizer is None))


def linear(rig: Rig) -> Definition:
    """Every kind of outcome of a step that runs alone, and finalizers that fail once."""
    return flow(
        rig,
        "plain",
        step(rig, "retries", _first_failure(rig), retry=RetryPolicy(max_attempts=3)),
        step(rig, "again", _first_failure(rig), max_retry=1),
        step(rig, "sleeps", _sleeps),
        step(rig, "asks", _asks),
        step(rig, "yields", _yields),
        step(rig, "left_out", raises(ValueError("never mind")), on_failed="skip"),
        "last",
        success_finalizer=_first_finalizer(rig),
    )


def wave(rig: Rig) -> Definition:
    """Steps side by side: one is done at once, one retries, two wait for different times, one yields."""
    return flow(
        rig,
        step(rig, "done", depends_on=[]),
        step(rig, "retries", _first_failure(rig), max_retry=1, depends_on=[]),
        step(rig, "sleeps", _sleeps, depends_on=[]),
        step(rig, "asks", _asks, depends_on=[]),
        step(rig, "yields", _yields, depends_on=[]),
        step(rig, "joined", depends_on=["done", "retries", "sleeps", "asks", "yields"]),
    )


def failing(rig: Rig) -> Definition:
    """A failure, alone and beside a sibling, and a FailureFinalizer that fails once."""
    return flow(
        rig,
        "plain",
        step(rig, "bad", raises(ValueError("no")), max_retry=1),
        "never",
        failure_finalizer=_first_finalizer(rig),
    )


def failing_wave(rig: Rig) -> Definition:
    return flow(
        rig,
        step(rig, "good", depends_on=[]),
        step(rig, "bad", raises(ValueError("no")), depends_on=[]),
        step(rig, "never", depends_on=["good", "bad"]),
        failure_finalizer=_first_finalizer(rig),
    )


def canceling(rig: Rig) -> Definition:
    return flow(rig, "plain", step(rig, "cancels", raises(WorkflowCanceled("gone"))), "never")


def both_due(rig: Rig) -> Definition:
    """Two steps whose waits come due together: the claim goes on with the second one itself."""
    return flow(
        rig,
        step(rig, "one", _sleeps, depends_on=[]),
        step(rig, "two", _sleeps, depends_on=[]),
        step(rig, "joined", depends_on=["one", "two"]),
    )


FLOWS: tuple[Callable[[Rig], Definition], ...] = (linear, wave, both_due, failing, failing_wave, canceling)


COMMITS_OF_ENTRIES = {
    "complete_step", "suspend_step", "yield_step", "retry_step", "skip_step", "fail_step", "finish_canceled",
    "finish_completed", "finish_failed", "defer_finalizer",
}  # fmt: skip
"""Writes before which business code has just been run (in these flows both finishes follow a finalizer)."""


class Run(NamedTuple):
    """What is left of one run: the end, what was executed, and the writes of the worker that met the fault."""

    status: str
    steps: dict[str, str]
    outputs: tuple[str, ...]
    entries: Counter[str]
    writes: list[str]
    rig: SteppedRig


def run(flow_of: Callable[[Rig], Definition], number: int | None = None, fault: Fault | None = None) -> Run:
    """The whole life of one workflow in two workers; the write with `number` of the first one meets `fault`."""
    clock = ManualClock()
    rig = SteppedRig(MemoryStore(clock), clock)
    definition = flow_of(rig)
    worker = rig.worker(definition)
    if number is not None and fault is not None:
        worker.store.fail_at(number, fault)
    rig.worker(definition, worker_id="successor")
    workflow_id = rig.start(definition)
    # The second worker only takes part when the first one is dead or has given up: every write then has one author.
    rig.run(lambda: rig.ended(workflow_id) or worker.dead, "the end or the death", worker, limit_ms=600_000)
    rig.finish(workflow_id, limit_ms=600_000)
    rig.check_events()
    instance = rig.instance(workflow_id)
    assert rig.ledger.overlaps() == []
    assert instance.parked is None
    return Run(
        instance.status,
        {s.name: s.status for s in instance.steps},
        tuple(sorted(instance.outputs)),
        Counter(str(entry.step) for entry in rig.ledger.entries),
        worker.store.names(),
        rig,
    )


def same_end(faulty: Run, plain: Run) -> bool:
    return (faulty.status, faulty.steps, faulty.outputs) == (plain.status, plain.steps, plain.outputs)


def test_these_schedules_make_every_write_of_a_workers_ordinary_life() -> None:
    met = {name for flow_of in FLOWS for name in run(flow_of).writes}

    assert met == COMMITS_OF_ENTRIES | {
        "claim", "begin_step", "activate_timer", "activate_own", "enter_failing", "release"
    }  # fmt: skip


@pytest.mark.parametrize("flow_of", FLOWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
@pytest.mark.req("clm-uncertain", "core-unique-outcome", "cmp-skip-on-recover", "s4")
def test_a_lost_answer_at_any_write_changes_neither_the_end_nor_what_is_executed(
    flow_of: Callable[[Rig], Definition], fault: Fault
) -> None:
    """The writer reads what became of its write, and goes on or sends the same one again: nothing runs twice."""
    plain = run(flow_of)
    assert len(plain.writes) > 3
    for number in range(len(plain.writes)):
        faulty = run(flow_of, number, fault)

        what = f"write {number} ({plain.writes[number]})"
        assert same_end(faulty, plain), what
        assert faulty.entries == plain.entries, what
        assert not any(event["taken_over"] for event in faulty.rig.recorder.of("claim.taken")), what


@pytest.mark.parametrize("flow_of", FLOWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", ["undecidable", "kill_before", "kill_after"])
@pytest.mark.req(
    "clm-uncertain", "core-unique-outcome", "stp-attempt-crash", "cmp-window", "core-return-is-not-complete"
)
@pytest.mark.case("A13")
def test_a_claim_that_ends_at_any_write_is_continued_and_only_an_uncommitted_entry_is_repeated(
    flow_of: Callable[[Rig], Definition], fault: Fault
) -> None:
    """The process dies, or can not find out what became of its write: the lease runs out and another goes on.

    Exactly the effects whose commit did not land are repeated: one entry, and none when the write was applied.
    """
    plain = run(flow_of)
    for number in range(len(plain.writes)):
        faulty = run(flow_of, number, fault)

        what = f"write {number} ({plain.writes[number]})"
        assert same_end(faulty, plain), what
        assert not plain.entries - faulty.entries, what
        extra = faulty.entries - plain.entries
        repeats = fault == "kill_before" and plain.writes[number] in COMMITS_OF_ENTRIES
        assert sum(extra.values()) == int(repeats), f"{what}: {extra}"


@pytest.mark.parametrize("flow_of", FLOWS, ids=lambda f: f.__name__)
@pytest.mark.req("core-unique-outcome", "cmp-skip-on-recover")
@pytest.mark.case("A53")
def test_a_store_that_is_away_for_a_second_at_any_write_costs_time_and_nothing_else(
    flow_of: Callable[[Rig], Definition],
) -> None:
    """A finished activity's result is kept while the claim lives; nothing is executed again for an outage."""
    plain = run(flow_of)
    for number in range(len(plain.writes)):
        clock = ManualClock()
        rig = SteppedRig(MemoryStore(clock), clock)
        definition = flow_of(rig)
        worker = rig.worker(definition)
        back_ms: list[int] = []

        def away(write: Any, number: int = number, rig: SteppedRig = rig, back_ms: list[int] = back_ms) -> Fault | None:
            if write.number == number and not back_ms:
                back_ms.append(rig.clock.boot_ms() + 1_000)
            return "unavailable" if back_ms and rig.clock.boot_ms() < back_ms[0] else None

        worker.store.fault_of = away
        worker.store.down = lambda rig=rig, back_ms=back_ms: bool(back_ms) and rig.clock.boot_ms() < back_ms[0]
        workflow_id = rig.start(definition)
        rig.finish(workflow_id, limit_ms=600_000)

        what = f"write {number} ({plain.writes[number]})"
        instance = rig.instance(workflow_id)
        assert back_ms, what
        assert (instance.status, {s.name: s.status for s in instance.steps}) == (plain.status, plain.steps), what
        assert Counter(str(entry.step) for entry in rig.ledger.entries) == plain.entries, what
        assert worker.busy == 0, what


@pytest.mark.req("clm-uncertain", "clm-lost-no-bypass")
def test_after_an_undecidable_write_the_claim_writes_nothing_more(rig: SteppedRig) -> None:
    definition = flow(rig, "a", "b")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.store.fail_once("complete_step", "undecidable")

    rig.pass_once(worker)

    assert worker.store.names()[-1] == "complete_step"
    assert worker.held == []
    assert rig.recorder.names(workflow_id)[-1] == "claim.lost"
    row = rig.row(workflow_id)
    assert (row["steps"][0]["status"], row["claim_token"] != "") == ("completed", True)
    rig.advance(1_000)
    assert worker.store.renewed_at == []


@pytest.mark.req("clm-uncertain")
def test_a_write_that_did_not_land_is_sent_again_and_never_another_one(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    worker.store.fail_once("complete_step", "lose_request")

    rig.finish(workflow_id)

    assert [name for name in worker.store.names() if name == "complete_step"] == ["complete_step"] * 2
    assert len(rig.instance(workflow_id).commit_ids) == 4
    assert rig.ledger.count("a") == 1


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "unavailable"])
@pytest.mark.parametrize("call", ["supersede", "unpark"])
def test_a_control_call_whose_answer_is_lost_is_still_carried_out(rig: SteppedRig, call: str, fault: Fault) -> None:
    """Or says that it may be repeated; never that there was nothing to do."""
    workflow_id = rig.start(flow(rig, "a"))
    if call == "unpark":
        rig.store.apply(_park(workflow_id))
    rig.client_store.fail_once(call, fault)
    answers: list[Any] = []
    for _ in range(2):
        try:
            answer = getattr(rig.client, call)(workflow_id)
            answers.append(answer if call == "unpark" else answer.changed)
        except KernelError as error:
            answers.append(error.code)

    assert answers[0] in (True, "store_unavailable", "outcome_unknown")
    assert answers[1] is (answers[0] is not True)
    assert rig.status(workflow_id) == ("canceled" if call == "supersede" else "running")


def _park(workflow_id: str) -> Any:
    from kernel.store.conditional import Clear, Put, Transition
    from kernel.store.tables import INSTANCES

    parked = {"reason": "it kills", "since_time": 1}
    return Transition("park", INSTANCES, workflow_id, (), (Put("parked", parked), Clear("claimable_time")))
