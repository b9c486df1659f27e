"""A worker comes back late, or is cut off: it has no effect any more, changes no row, and goes on working.

Stopped with SIGSTOP past its lease, frozen between pop and claim, cut off from the store, without renewals.
"""

from __future__ import annotations

import fcntl
import random
from collections.abc import Iterator

import pytest

from kernel import Definition
from kernel.ids import workflow_id_for
from tests.faults import apps
from tests.faults.arms import Arm
from tests.faults.effects import EFFECT, LEAVE, Effect, boot_ms
from tests.faults.invariants import Watch, findings
from tests.faults.pausing import paused
from tests.faults.rig import ARMED, LIMIT_S, Tree, store_file, tree, wait_for
from tests.faults.stalls import STEADY
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

LEASE_S = STEADY["lease_s"]
OUTAGES, LONG_OUTAGE_S = 10, LEASE_S + 0.6


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("late") / "data", ARMED, slots=8, **STEADY) as running:
        yield running


def held_by(late: Tree, pid: int, definition: Definition, prefix: str, **times: float) -> str:
    """A workflow that this process executes: as many are started as that takes. The others go on undisturbed."""
    for number in range(100):
        workflow_id = late.start(definition, f"{prefix}:{number}", number, **times)
        if late.entered(workflow_id, definition.steps[0].name).pid == pid:
            return workflow_id
        late.open_gate(workflow_id)
    raise AssertionError(f"process {pid} takes nothing")


def check_works(late: Tree, pid: int) -> None:
    """That process is free again, and takes and completes work."""
    wait_until(lambda: late.children()[late.pids().index(pid)]["slots_busy"] == 0, f"the slots of {pid} are free")
    late.finish(held_by(late, pid, apps.ONE, f"works:{boot_ms()}"))


def left(late: Tree, entered: Effect) -> str:
    """With what this very invocation has ended; empty while it goes on."""
    leaves = late.effects.of(entered.workflow_id, entered.step, LEAVE)
    return next((effect.note for effect in leaves if effect.worker_id == entered.worker_id), "")


def has_told(late: Tree, pid: int, workflow_id: str) -> bool:
    """Whether that process said that it lost the claim."""
    return any((line["pid"], line["workflow_id"]) == (pid, workflow_id) for line in late.log("claim.lost"))


@pytest.mark.case("A12")
@pytest.mark.req("clm-late-worker", "flt-late-worker", "act-old-process-commit", "core-miss-stops")
def test_stopped_past_its_lease_it_changes_nothing_when_it_comes_back(late: Tree) -> None:
    """One of its activities would have an effect now, the other returns a value: no effect, not a byte of the rows."""
    pid = late.pids()[0]
    submits = held_by(late, pid, apps.SUBMIT_LATE, "stopped submit")
    returns = held_by(late, pid, apps.RETURN_LATE, "stopped return")
    entered = [late.effects.of(workflow_id)[0] for workflow_id in (submits, returns)]

    with paused(late, [pid]):
        late.finish(submits, returns)
        rows = [late.row(workflow_id) for workflow_id in (submits, returns)]
        assert [left(late, entry) for entry in entered] == ["", ""]
        late.open_gate(submits, returns)
    wait_until(lambda: all(left(late, entry) for entry in entered), "the late activities end")
    wait_until(lambda: has_told(late, pid, submits) and has_told(late, pid, returns), "the lost claims are told")
    check_works(late, pid)

    assert [late.row(workflow_id) for workflow_id in (submits, returns)] == rows
    assert left(late, entered[0]).startswith(("Fenced", "ClaimLost"))
    assert left(late, entered[1]) == "str", "it returned as if nothing had happened"
    assert late.output(returns) == "by attempt 2"
    (effect,) = late.effects.of(submits, "only", EFFECT)
    assert (effect.attempt, effect.pid != pid) == (2, True)
    assert [late.instance(w).steps[0].takeovers for w in (submits, returns)] == [1, 1]


@pytest.mark.req("flt-two-committers", "clm-late-worker", "clm-lost-error", "clm-complete-cond")
def test_a_late_commit_meets_the_next_holder_at_work_and_is_refused(late: Tree) -> None:
    """Stopped with its commit in its hand; the step is running again under another claim when the commit arrives."""
    workflow_id = workflow_id_for("in hand")
    late.arms.arm("in-hand", Arm(call="complete_step", point="pause", workflow_id=workflow_id))
    late.start(apps.COMMIT_LATE, "in hand")
    (fired,) = wait_until(lambda: late.arms.fired("in-hand"), "a commit is about to leave")
    with paused(late, [fired.pid]):
        second = late.entered(workflow_id, "only", 2)
        row = late.row(workflow_id)
    late.arms.disarm("in-hand")
    wait_until(lambda: has_told(late, fired.pid, workflow_id), "the lost claim is told")

    now = late.row(workflow_id)
    assert {name: now[name] for name in now if name != "claimable_time"} == {
        name: row[name] for name in row if name != "claimable_time"
    }, "nothing but the next holder's renewal"
    assert second.pid != fired.pid
    late.open_gate(workflow_id)
    late.finish(workflow_id)
    assert late.output(workflow_id) == "by attempt 2"
    check_works(late, fired.pid)


@pytest.mark.case("A11")
@pytest.mark.req("flt-pop-claim-crash")
def test_frozen_between_pop_and_claim_another_runs_it_and_the_frozen_ones_claim_is_refused(late: Tree) -> None:
    workflow_id = workflow_id_for("frozen")
    late.arms.arm("freeze", Arm(call="claim", point="pause", workflow_id=workflow_id))
    late.start(apps.STEADY, "frozen", 1, hold_s=0.4)
    (fired,) = wait_until(lambda: late.arms.fired("freeze"), "a worker is between pop and claim")
    with paused(late, [fired.pid]):
        entered = late.entered(workflow_id, "b")
        assert entered.pid != fired.pid, "the scan brought the id back, another took it"
    late.arms.disarm("freeze")

    late.finish(workflow_id)
    check_works(late, fired.pid)
    row = late.instance(workflow_id)
    assert {step.worker_id for step in row.steps} == {entered.worker_id}
    assert late.effects.counts(workflow_id) == dict.fromkeys("abcd", 1)
    assert [step.attempt for step in row.steps] == [1, 1, 1, 1]


@pytest.mark.case("A12")
def test_cut_off_from_the_store_it_starts_no_effect_after_the_fence(late: Tree) -> None:
    """Its activity would submit after the end of the lease; the submit of the second worker is the only one."""
    pid = late.pids()[1]
    workflow_id = held_by(late, pid, apps.SUBMIT_LATE, "cut")
    entered = late.effects.of(workflow_id)[0]
    late.arms.arm("cut", Arm(call="*", point="refused", pid=pid, lasting=True))
    try:
        wait_for(boot_ms() + round(1000 * LEASE_S))
        late.open_gate(workflow_id)
        wait_until(lambda: left(late, entered), "the activity wants to submit")
        late.finish(workflow_id)
    finally:
        late.arms.disarm("cut")

    assert left(late, entered).startswith("Fenced")
    (effect,) = late.effects.of(workflow_id, "only", EFFECT)
    assert effect.pid != pid and effect.attempt == 2
    assert late.arms.fired("cut"), "it was cut off"
    check_works(late, pid)


@pytest.mark.case("A54", "A05")
def test_renewals_fail_the_activity_is_told_nothing_is_committed_and_the_worker_goes_on(late: Tree) -> None:
    pid = late.pids()[0]
    workflow_id = held_by(late, pid, apps.GATED, "no renewal")
    entered = late.effects.of(workflow_id)[0]
    late.arms.arm("no renewal", Arm(call="renew", point="refused", pid=pid, lasting=True))
    try:
        wait_until(lambda: left(late, entered), "the activity is told: nobody has opened its gate")
    finally:
        late.arms.disarm("no renewal")
    late.open_gate(workflow_id)
    late.finish(workflow_id)

    assert left(late, entered).startswith("Fenced")
    (effect,) = late.effects.of(workflow_id, "only", EFFECT)
    assert (effect.attempt, late.instance(workflow_id).steps[0].takeovers) == (2, 1), "the first committed nothing"
    wait_until(lambda: has_told(late, pid, workflow_id), "the lost claim is told")
    check_works(late, pid)
    # The renewal thread has survived: a claim longer than a lease is kept again, also when one renewal fails.
    kept = held_by(late, pid, apps.ONE, "renewed again", hold_s=1.5 * LEASE_S)
    late.arms.arm("one renewal", Arm(call="renew", point="refused", pid=pid))
    late.finish(kept)
    assert len(late.arms.fired("one renewal")) == 1
    assert late.effects.counts(kept) == {"a": 1}
    assert not has_told(late, pid, kept)


@pytest.mark.case("A53")
def test_the_store_is_away_ten_times_and_every_loop_turns_again(late: Tree) -> None:
    """Nobody can write for 0.05 to 5 s, ten times, under load: no process is lost, nothing is lost, all loops move.

    How many claims that costs depends on the machine. Whatever it costs is accounted for: a step is entered again only
    where the row says that it was taken over, and only after its holder said that it had lost the claim.
    """
    pids = [child["pid"] for child in late.session.status()["children"]]
    ids = late.start_many(apps.TEN, "outage", 20, hold_s=0.1)
    away = random.Random(53)
    with Watch(late) as watch, open(f"{store_file(late.folder)}-lock", "rb") as lock:
        for number in range(OUTAGES):
            fcntl.flock(lock, fcntl.LOCK_EX)
            wait_for(boot_ms() + (round(1000 * LONG_OUTAGE_S) if number == 5 else away.randrange(50, 400)))
            fcntl.flock(lock, fcntl.LOCK_UN)
            wait_for(boot_ms() + 100)
    late.finish(*ids)

    wait_until(lambda: all_move(late), "every loop turns")
    assert [late.output(workflow_id) for workflow_id in ids] == [number + 9 for number in range(20)]
    assert [child["pid"] for child in late.session.status()["children"]] == pids
    taken_over = {}
    for workflow_id in ids:
        entries, row = late.effects.counts(workflow_id), late.instance(workflow_id)
        assert [step.attempt for step in row.steps] == [1 + step.takeovers for step in row.steps]
        assert all(1 <= entries[step.name] <= 1 + step.takeovers for step in row.steps), (entries, row.steps)
        taken_over[workflow_id] = sum(step.takeovers for step in row.steps)
    wait_until(lambda: all(told(late, key) >= times for key, times in taken_over.items()), "every lost claim is told")
    assert watch.found == []


def told(late: Tree, workflow_id: str) -> int:
    """How often a holder has said that it lost its claim of that workflow."""
    return sum(line["workflow_id"] == workflow_id for line in late.log("claim.lost"))


def all_move(late: Tree) -> bool:
    """Every loop of every child has moved within its period and the time between two reports."""
    ages = [age for child in late.session.status()["children"] for age in child["loops"].values()]
    # A worker has three: it schedules, scans and observes. The dispatcher sweeps and observes.
    return len(ages) == 2 * 3 + 2 and max(ages) < late.config.scan_s + 2


def test_afterwards_every_invariant_holds(late: Tree) -> None:
    wait_until(lambda: late.ended(row["workflow_id"] for row in late.rows()), "the rest ends", LIMIT_S)
    rows = late.rows()
    # Two kinds of activity here listen to nobody: they were still inside when another worker ran their step.
    deaf = {row["workflow_id"] for row in rows if row["type"] in ("submit_late", "return_late")}
    effects = [effect for effect in late.effects.all() if effect.workflow_id not in deaf]

    assert findings(rows, effects, [row["biz_key"] for row in rows]) == []
    stays(lambda: late.rows() == rows, "what has ended stays as it is", seconds=1)
