"""The worker that holds a claim is killed with -9, wherever it is: another goes on from what was committed.

The lease of this tree is 30 s, so what goes on within seconds goes on because the death was proved, not because a
lease ran out (DECISIONS 27).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.redis_calls import RedisCalls
from tests.faults import apps
from tests.faults.effects import EFFECT, Effect, boot_ms
from tests.faults.invariants import Watch, findings, orphans
from tests.faults.rig import PROMPT_MS, Tree, kill, tree
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("proof") / "data", lease_s=30.0) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(proof: Tree) -> None:
    """Every test begins with both workers at work."""
    proof.wait_running()


def kill_inside(proof: Tree, workflow_id: str, step: str | None, times: int = 1) -> tuple[Effect, Effect]:
    """Kill the process that entered this step; its entry, and the one of whoever went on."""
    killed = proof.entered(workflow_id, step, times)
    at_ms = boot_ms()
    kill(killed.pid)
    resumed = proof.entered(workflow_id, step, times + 1)
    assert resumed.at_ms - at_ms <= PROMPT_MS, "the lease was not waited for"
    assert resumed.worker_id != killed.worker_id
    assert resumed.pid != killed.pid
    return killed, resumed


@pytest.mark.case("A15")
@pytest.mark.bound("L1")
@pytest.mark.req("core-worker-replaceable", "shd-resume", "cmp-skip-on-recover", "dc-restart-child")
def test_inside_an_activity(proof: Tree) -> None:
    """The step runs again, its neighbours do not; what the dead worker did is counted. The timeout is 30 minutes."""
    workflow_id = proof.start(apps.HELD, "activity", 10)

    killed, resumed = kill_inside(proof, workflow_id, "b")
    proof.finish(workflow_id)
    proof.wait_running(without=[killed.pid])

    row = proof.instance(workflow_id)
    assert proof.output(workflow_id) == 12
    assert proof.effects.counts(workflow_id) == {"a": 1, "b": 2, "c": 1}
    assert [(step.attempt, step.takeovers, step.failures) for step in row.steps] == [(1, 0, 0), (2, 1, 0), (1, 0, 0)]
    assert (killed.attempt, resumed.attempt) == (1, 2)
    assert row.deaths == 0, "progress forgives deaths"


@pytest.mark.case("A13")
@pytest.mark.bound("L1")
@pytest.mark.req("stp-attempt-crash", "stp-trace")
def test_inside_a_step_and_again_inside_its_retry(proof: Tree) -> None:
    """Crashes do not eat the retry budget: entries = 1 + retries + crashes, all in the ledger."""
    workflow_id = proof.start(apps.RETRYING, "retry")

    kill_inside(proof, workflow_id, "only", 1)
    kill_inside(proof, workflow_id, "only", 3)
    proof.finish(workflow_id)

    (step,) = proof.instance(workflow_id).steps
    assert proof.effects.counts(workflow_id) == {"only": 1 + 2 + 2}
    assert (step.attempt, step.failures, step.takeovers) == (5, 2, 2)
    trace = proof.instance(workflow_id).trace_id
    failed = {(error.attempt, trace, error.worker_id) for error in step.errors}

    def told() -> bool:
        lines = retried(proof, workflow_id)
        return {(line["attempt"], line["trace_id"], line["worker_id"]) for line in lines} == failed

    wait_until(told, "the log, which comes after the commit, has every failure")
    entries = proof.effects.of(workflow_id, "only")
    assert {(e.attempt, trace, e.worker_id) for e in entries if e.attempt in (2, 4)} == failed
    assert len({entry.worker_id for entry in entries}) >= 2, "several workers, one trace"
    assert proof.output(workflow_id) == 5


def retried(proof: Tree, workflow_id: str) -> list[dict[str, Any]]:
    return [line for line in proof.log("step.retried") if line["workflow_id"] == workflow_id]


@pytest.mark.req("fin-after-kill-success", "fin-idempotent", "fin-success-before")
def test_inside_the_success_finalizer(proof: Tree) -> None:
    """The finalizer runs again, no step does; its effect has one key, so it counts once."""
    workflow_id = proof.start(apps.FINISHED, "success", 5)
    proof.entered(workflow_id, None)
    assert proof.row(workflow_id)["status"] == "running", "not completed before its finalizer has ended"

    kill_inside(proof, workflow_id, None)
    proof.finish(workflow_id)

    assert proof.effects.counts(workflow_id) == {"a": 1, "b": 1, None: 2}
    assert len({effect.note for effect in proof.effects.of(workflow_id, None, EFFECT)}) == 1
    assert proof.output(workflow_id) == 6


@pytest.mark.req("fin-failing-resume", "clm-failing-claimable", "fin-failing-first")
def test_inside_the_failure_finalizer(proof: Tree) -> None:
    """Only the failure is brought to its end: the failed step is never entered again."""
    workflow_id = proof.start(apps.REFUSED, "failure")
    proof.entered(workflow_id, None)
    assert proof.row(workflow_id)["status"] == "failing"

    kill_inside(proof, workflow_id, None)
    wait_until(lambda: proof.ended([workflow_id]), "the end")

    row = proof.instance(workflow_id)
    assert row.status == "failed" and row.error is not None
    assert row.error.message == "this can not be done"
    assert proof.effects.counts(workflow_id) == {"a": 1, "b": 1, None: 2}
    assert len({effect.note for effect in proof.effects.of(workflow_id, None, EFFECT)}) == 1


@pytest.mark.req("slp-frees", "slp-not-early", "slp-checkpoint-roundtrip", "core-min-state")
def test_all_workers_while_it_sleeps(proof: Tree) -> None:
    """Nobody holds a sleeping workflow: the row alone brings it back, in a process that never saw it, on time."""
    workflow_id = proof.start(apps.SLEEPING, "asleep", 7, nap_s=4.0)
    wait_until(lambda: proof.row(workflow_id)["status"] == "waiting", "it sleeps")
    row = proof.instance(workflow_id)
    assert (row.claim_token, row.steps[0].attempt) == (None, 0)
    old = proof.pids()

    kill(*old)
    proof.finish(workflow_id)

    before, after = proof.effects.of(workflow_id)
    assert row.claimable_time is not None
    assert after.wall_ms >= row.claimable_time, "not early"
    assert before.pid in old and after.pid not in old
    (step,) = proof.instance(workflow_id).steps
    assert (step.attempt, step.takeovers) == (1, 0)
    assert proof.output(workflow_id) == 7


@pytest.mark.req("core-redis-loss-latency", "flt-redis-flush")
def test_at_the_moment_when_redis_is_emptied(proof: Tree) -> None:
    workflow_id = proof.start(apps.HELD, "flushed", 20)
    proof.entered(workflow_id, "b")
    redis = RedisCalls(proof.session.redis_url)

    redis.flush()
    kill_inside(proof, workflow_id, "b")
    redis.flush()
    proof.finish(workflow_id)
    redis.close()

    assert proof.effects.counts(workflow_id) == {"a": 1, "b": 2, "c": 1}
    assert proof.output(workflow_id) == 22


@pytest.mark.req("core-truth", "core-inv-alo", "core-unique-outcome", "shd-no-business-fail", "cmp-atomic")
def test_every_child_at_once_and_redis_with_them(proof: Tree) -> None:
    """Half way through 50 workflows all workers, the dispatcher and the embedded server are killed together.

    Rows and outputs are those of an undisturbed run, and no effect has a second key.
    """
    ids = proof.start_many(apps.STEADY, "all", 50, hold_s=0.02)
    wait_until(lambda: len(proof.effects.all()) > 50, "they are under way")
    wait_until(lambda: sum(len(proof.effects.of(key, "c")) for key in ids) >= 5, "they are half way")
    victims = [child["pid"] for child in proof.session.status()["children"]]

    with Watch(proof) as watch:
        kill(*victims)
        proof.finish(*ids)
        proof.wait_running(without=victims)

    assert [proof.output(key) for key in ids] == [number + 3 for number in range(50)]
    keys = [effect.note for key in ids for effect in proof.effects.of(key, what=EFFECT)]
    assert len(set(keys)) == 4 * 50, "one key for each step, however often it ran"
    entries = sum(len(proof.effects.of(key)) for key in ids)
    assert entries - 4 * 50 <= 2 * proof.config.slots, "only what was under way ran again"
    assert watch.looks > 0 and watch.found == []


@pytest.mark.req("flt-process-exit")
def test_afterwards_every_invariant_holds_and_nothing_is_claimed(proof: Tree) -> None:
    wait_until(lambda: not orphans(proof.rows()), "no claim is left")
    rows = proof.rows()

    assert findings(rows, proof.effects.all(), [row["biz_key"] for row in rows]) == []
    stays(lambda: proof.rows() == rows, "what has ended stays as it is", seconds=1.2 * proof.config.scan_s)
