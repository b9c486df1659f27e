"""What the row of an instance tells, at rest and on its way (groups 2 and 5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernel.context import Context
from kernel.directives import Sleep, Yield
from kernel.errors import CorruptRecord, InvalidTransition
from kernel.records import Instance, to_instance
from kernel.states import INSTANCE_STATUSES
from tests.engine.flows import fails_first, flow, raises, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig

PLAIN = (str, int, float, bool, bytes, dict, list)


def busy_flow(rig: SteppedRig) -> Any:
    """One of everything: a retry, a sleep, a yield, a wave, a step left out, finalizers."""
    return flow(
        rig,
        "a",
        step(rig, "b", fails_first(1), max_retry=1),
        step(rig, "c", lambda ctx: "rested" if ctx.resume else Sleep(seconds(1), "cursor")),
        step(rig, "d", lambda ctx: "turned" if ctx.checkpoint() else Yield("cursor")),
        step(rig, "e", depends_on=["d"]),
        step(rig, "f", raises(ValueError("no")), on_failed="skip", depends_on=["d"]),
        step(rig, "g", depends_on=["e", "f"]),
        success_finalizer=fails_first(1),
    )


@pytest.mark.req("rec-fields", "rec-steps-fields", "rec-no-runtime-objects", "core-min-state", "spl-instance-contents")
def test_a_row_holds_plain_values_only_and_every_field_that_the_specification_names(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    rows: list[dict[str, Any]] = []
    definition = busy_flow(rig)
    worker = rig.worker(definition)
    worker.store.fault_of = lambda call: rows.append(rig.row(workflow_id)) or None  # type: ignore[func-returns-value]
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)
    rows.append(rig.row(workflow_id))

    fields = set().union(*rows)
    step_fields = set().union(*(record for row in rows for record in row["steps"]))
    assert fields >= {
        "workflow_id", "type", "biz_key", "status", "steps", "input", "outputs", "claimable_time", "claim_token",
        "wait", "resume", "definition_fingerprint", "retry_count", "revision", "business_priority", "worker_id",
        "finish_time",
    }  # fmt: skip
    assert step_fields >= {
        "name", "status", "attempt", "error", "elapsed_ms", "traffic_wait_ms", "traffic_wait_count", "checkpoint",
        "worker_id", "started_time", "finish_time",
    }  # fmt: skip
    assert fields <= set(Instance.__struct_fields__)
    assert all(plain(row) for row in rows)
    assert all(to_instance(row) for row in rows)


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return type(value) in PLAIN


@pytest.mark.req("rec-revision-each-commit", "id-revision", "rec-claim-not-revision", "s3")
def test_every_commit_raises_the_revision_by_one_and_claims_and_renewals_do_not(rig: SteppedRig) -> None:
    """No revision is ever seen with two different states."""
    seen: list[tuple[str, int, int]] = []
    states: dict[int, Any] = {}
    definition = busy_flow(rig)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    applied = rig.store.apply

    def apply(transition: Any) -> Any:
        before = rig.row(workflow_id)["revision"]
        answer = applied(transition)
        if transition.key == workflow_id and hasattr(answer, "document"):
            row = answer.document
            seen.append((transition.name, before, row["revision"]))
            state = msgspec.to_builtins(
                (row["status"], row["steps"], row["outputs"], row["input"]), builtin_types=(bytes,)
            )
            assert states.setdefault(row["revision"], state) == state, transition.name
        return answer

    rig.store.apply = apply  # type: ignore[method-assign]
    rig.finish(workflow_id)

    assert len(seen) > 20
    for name, before, after in seen:
        assert after - before == (0 if name in ("claim", "renew", "take_over", "claim_alone") else 1), name
    assert worker.busy == 0


@pytest.mark.req("rec-claim-not-revision")
def test_ten_renewals_leave_the_revision_as_it_is(rig: SteppedRig) -> None:
    seen: list[int] = []

    def long(ctx: Context) -> None:
        for _ in range(10):
            seen.append(rig.row(ctx.workflow_id)["revision"])
            rig.advance(rig.settings.renew_ms)

    rig.drive(flow(rig, step(rig, "a", long)))

    assert len(rig.workers[0].store.renewed_at) >= 9
    assert len(set(seen)) == 1


@pytest.mark.req("rec-claimable-double")
def test_the_claimable_time_is_due_time_lease_end_and_poll_time_in_turn(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", lambda ctx: Sleep(seconds(60))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, start_delay=seconds(5))
    now_ms = rig.clock.wall_ms()
    times = [rig.row(workflow_id)["claimable_time"] - now_ms]
    rig.advance(5_000)
    worker.loop.pass_once()
    times.append(rig.row(workflow_id)["claimable_time"] - rig.clock.wall_ms())
    rig.base_runner.run_all()
    times.append(rig.row(workflow_id)["claimable_time"] - rig.clock.wall_ms())

    assert times == [5_000, rig.settings.lease_ms, 60_000]


@pytest.mark.req("rec-status-set", "stp-states")
@pytest.mark.parametrize("field", ["status", "steps__0__status"])
@pytest.mark.parametrize("value", ["done", "RUNNING", "", "timed_out", 1])
def test_a_status_outside_the_list_is_refused_when_it_is_written_and_when_it_is_read(
    rig: SteppedRig, field: str, value: Any
) -> None:
    workflow_id = rig.start(flow(rig, "a"))
    before = rig.row(workflow_id)
    with pytest.raises(InvalidTransition, match="status"):
        set_fields(rig, workflow_id, **{field: value})
    assert rig.row(workflow_id) == before

    damaged = before | {"status": value} if field == "status" else before | {"steps": [{"name": "a", "status": value}]}
    with pytest.raises(CorruptRecord, match="status"):
        to_instance(damaged)
    assert set(INSTANCE_STATUSES) == {"running", "waiting", "failing", "completed", "failed", "canceled"}


@pytest.mark.req("rec-worker-id")
def test_each_attempt_names_the_worker_that_made_it(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", fails_first(2), max_retry=2))
    workers = [rig.worker(definition) for _ in range(3)]
    workflow_id = rig.start(definition)
    for worker in workers:
        rig.pass_once(worker)

    record = rig.step(workflow_id, "a")
    assert [(error.attempt, error.worker_id) for error in record.errors] == [(1, "w1"), (2, "w2")]
    assert (record.attempt, record.worker_id) == (3, "w3")


@pytest.mark.req("id-attempt", "id-workflow-run", "id-claim-token")
def test_attempt_run_and_token_count_three_different_things(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", fails_first(3), max_retry=1))
    workflow_id = rig.drive(definition)
    rig.start(definition)
    rig.finish(workflow_id)

    assert [(e.run, e.attempt) for e in rig.ledger.entries] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert len({e.claim_token for e in rig.ledger.entries}) == 4


@pytest.mark.req("rec-retry-count")
def test_no_rule_depends_on_the_retry_count(rig: SteppedRig) -> None:
    definition = flow(rig, "a")
    workflow_id = rig.start(definition)
    set_fields(rig, workflow_id, retry_count=1_000_000)
    rig.worker(definition)
    rig.finish(workflow_id)

    assert rig.status(workflow_id) == "completed"
    assert rig.instance(workflow_id).retry_count == 1_000_000
