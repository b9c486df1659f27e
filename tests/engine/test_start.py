"""start_or_resume: every branch of its table, on an instance in every status (group 6, T-03)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.definition import plan
from kernel.directives import Sleep, WaitForSignal
from kernel.errors import (
    DefinitionMismatch,
    InputIdentityChanged,
    InvalidId,
    InvalidInput,
    InvalidPriority,
    KernelError,
    Refused,
    TooLarge,
)
from kernel.records import Document
from kernel.store.tables import INSTANCES
from tests.engine.flows import flow, raises, seconds, step
from tests.support.engine_rig import SteppedRig

PLAN = plan("job", ["first", "second"])


def without(row: Document, *fields: str) -> Document:
    return {name: value for name, value in row.items() if name not in fields}


@pytest.mark.req("sor-new", "rec-new-claimable", "fpr-on-create", "sor-returns", "id-workflow-id")
def test_a_new_key_makes_a_running_instance_that_can_be_claimed_at_once(durable_rig: SteppedRig) -> None:
    rig = durable_rig

    handle = rig.client.start_or_resume(PLAN, biz_key="job:t1:42", input={"n": 1}, priority="realtime")

    row = rig.row(handle.workflow_id)
    assert handle.execution_activated
    assert (handle.workflow_id, handle.status) == (row["workflow_id"], row["status"]) == (row["workflow_id"], "running")
    assert [(s["name"], s["status"], s["attempt"]) for s in row["steps"]] == [
        ("first", "pending", 0),
        ("second", "pending", 0),
    ]
    assert row["claimable_time"] == row["created_time"] == rig.clock.wall_ms()
    assert row["definition_fingerprint"] == PLAN.fingerprint
    assert (row["biz_key"], row["type"], row["business_priority"], row["revision"]) == ("job:t1:42", "job", 0, 1)
    assert "claim_token" not in row
    assert "_id" not in row


@pytest.mark.req("sor-returns", "sor-no-second-instance", "core-inv-one-instance")
def test_a_second_call_finds_the_same_instance(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    first = rig.client.start_or_resume(PLAN, biz_key="k")

    second = rig.client.start_or_resume(PLAN, biz_key="k")

    assert (second.workflow_id, second.status) == (first.workflow_id, "running")
    assert (first.execution_activated, second.execution_activated) == (True, False)
    assert (first.branch, second.branch) == ("created", "running")


@pytest.mark.req("sor-running")
def test_a_call_during_a_long_activity_changes_neither_input_nor_steps_nor_claim(rig: SteppedRig) -> None:
    seen: dict[str, Any] = {}

    def long(ctx: Any) -> int:
        before = rig.row(ctx.workflow_id)
        handle = rig.client.start_or_resume(definition.plan, biz_key="k", input={"n": 2}, priority="async")
        seen.update(before=before, after=rig.row(ctx.workflow_id), handle=handle)
        return int(ctx.input["n"])

    definition = flow(rig, step(rig, "long", long))
    rig.drive(definition, "k", {"n": 1})

    assert seen["before"] == seen["after"]
    assert "claim_token" in seen["before"]
    assert not seen["handle"].execution_activated
    assert rig.output(seen["handle"].workflow_id) == 1


@pytest.mark.req("sor-waiting")
def test_a_call_on_a_sleeping_instance_does_not_wake_it(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(60), {"n": 1})))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "k")
    rig.pass_once(worker)
    before = rig.row(workflow_id)
    assert before["status"] == "waiting"

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", input="other")
    rig.advance(30_000)
    rig.pass_once(worker)

    assert (handle.branch, handle.execution_activated) == ("waiting", False)
    assert rig.row(workflow_id) == before
    assert rig.ledger.count("nap") == 1


@pytest.mark.req("sor-failing")
def test_a_call_while_the_failure_is_being_completed_changes_nothing(rig: SteppedRig) -> None:
    """The FailureFinalizer of the old round may still run: the new round has to wait."""
    seen: dict[str, Any] = {}

    def finalizer(ctx: Any) -> None:
        before = rig.row(ctx.workflow_id)
        handle = rig.client.start_or_resume(definition.plan, biz_key="k", input={"round": 2})
        seen.update(before=before, after=rig.row(ctx.workflow_id), handle=handle)

    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))), failure_finalizer=rig.ledger(finalizer))
    workflow_id = rig.drive(definition, "k", {"round": 1})

    assert (seen["handle"].branch, seen["handle"].execution_activated) == ("failing", False)
    assert seen["before"] == seen["after"]
    assert seen["before"]["status"] == "failing"
    assert rig.status(workflow_id) == "failed"
    assert rig.instance(workflow_id).workflow_run == 1


@pytest.mark.req("sor-completed")
def test_a_call_on_a_completed_instance_runs_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, "only")
    workflow_id = rig.drive(definition, "k")
    before = rig.row(workflow_id)

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", input="new", priority="realtime")
    rig.pass_once(rig.workers[0])

    assert (handle.branch, handle.execution_activated) == ("completed", False)
    assert rig.row(workflow_id) == before
    assert rig.ledger.count("only") == 1


@pytest.mark.req("sor-canceled", "can-no-replay", "can-meaning")
def test_a_canceled_instance_is_never_replayed_and_a_failed_one_is(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    canceled, failed = rig.start(definition, "k1"), rig.start(definition, "k2")
    rig.client.supersede(canceled)
    rig.worker(definition)
    rig.finish(canceled, failed)
    before = rig.row(canceled)

    again = rig.client.start_or_resume(definition.plan, biz_key="k1", input="new", priority="realtime")
    replayed = rig.client.start_or_resume(definition.plan, biz_key="k2", input="new")

    assert (again.branch, again.execution_activated, again.status) == ("canceled", False, "canceled")
    assert rig.row(canceled) == before
    assert (replayed.branch, replayed.execution_activated) == ("replayed", True)


@pytest.mark.req("sor-priority-rise")
def test_priority_only_rises(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    stored = []
    for priority in ("compensation", "async", "compensation", 2, "realtime", 3):
        workflow_id = rig.client.start_or_resume(PLAN, biz_key="k", priority=priority).workflow_id
        stored.append(rig.row(workflow_id)["business_priority"])

    assert stored == [3, 1, 1, 1, 0, 0]


@pytest.mark.req("sor-priority-rise")
def test_a_priority_that_another_caller_raised_meanwhile_is_not_lowered(rig: SteppedRig) -> None:
    """This caller has read P3 and wants P2; before its write another one raises it to P0."""
    workflow_id = rig.client.start_or_resume(PLAN, biz_key="k", priority=3).workflow_id

    def meanwhile(call: Any) -> None:
        if call.names == ("raise_priority",):
            rig.make_client(rig.store).start_or_resume(PLAN, biz_key="k", priority=0)

    rig.client_store.fault_of = meanwhile
    rig.client.start_or_resume(PLAN, biz_key="k", priority=2)

    assert rig.row(workflow_id)["business_priority"] == 0
    assert rig.row(workflow_id)["revision"] == 2


@pytest.mark.req("sor-priority-any-status")
def test_the_priority_of_a_waiting_instance_rises_and_decides_its_lane_when_it_wakes(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(10))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "k", priority="compensation")
    rig.pass_once(worker)
    assert (rig.status(workflow_id), rig.row(workflow_id)["business_priority"]) == ("waiting", 3)

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", priority="async")

    assert not handle.execution_activated
    assert rig.row(workflow_id)["business_priority"] == 1
    rig.queue.wipe()
    rig.advance(10_000)
    worker.sweep()
    assert (rig.status(workflow_id), rig.queue.lane_of(workflow_id)) == ("running", 1)


@pytest.mark.req("sor-priority-any-status")
def test_the_priority_rises_while_the_instance_is_executed(rig: SteppedRig) -> None:
    def long(ctx: Any) -> None:
        rig.client.start_or_resume(definition.plan, biz_key="k", priority="realtime")

    definition = flow(rig, step(rig, "long", long))
    workflow_id = rig.drive(definition, "k", priority="background")

    assert rig.row(workflow_id)["business_priority"] == 0
    assert rig.status(workflow_id) == "completed"


@pytest.mark.parametrize("status", ["created", "running", "claimed", "waiting", "failed", "completed", "canceled"])
@pytest.mark.req("sor-enqueue-always")
def test_whatever_is_found_a_candidate_is_queued_with_a_wakeup(rig: SteppedRig, status: str) -> None:
    """The first push may have been lost; a vain candidate is dropped by the claim."""
    bad = raises(ValueError("no")) if status == "failed" else lambda ctx: Sleep(seconds(60))
    definition = flow(rig, step(rig, "only", None if status == "completed" else bad))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "k") if status != "created" else ""
    if status == "canceled":
        rig.client.supersede(workflow_id)
    elif status == "claimed":
        worker.loop.pass_once()
    elif status != "created":
        rig.pass_once(worker)
    rig.queue.wipe()
    wakeups = rig.queue.wakeups

    handle = rig.client.start_or_resume(definition.plan, biz_key="k", priority="background")

    assert rig.queue.lane_of(handle.workflow_id) == (2 if status == "created" else 1)
    assert rig.queue.wakeups == wakeups + 1


@pytest.mark.req("sor-enqueue-failure")
def test_without_a_queue_the_instance_is_registered_and_completed_all_the_same(rig: SteppedRig) -> None:
    rig.queue.down = True
    definition = flow(rig, "first", "second")

    handle = rig.client.start_or_resume(definition.plan, biz_key="k")

    assert handle.execution_activated
    rig.worker(definition)
    rig.finish(handle.workflow_id)
    assert rig.status(handle.workflow_id) == "completed"


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply"])
@pytest.mark.req("sor-unique-race")
@pytest.mark.case("A52")
def test_an_insert_whose_answer_is_lost_is_never_reported_as_anothers(rig: SteppedRig, fault: Any) -> None:
    """The caller's own first copy is no duplicate: it is told created, or that it may call again."""
    rig.client_store.fail_once("create", fault)
    activated = []
    for _ in range(2):
        try:
            activated.append(rig.client.start_or_resume(PLAN, biz_key="k").execution_activated)
        except KernelError as error:
            activated.append(error.code)

    assert activated == (["store_unavailable", True] if fault == "lose_request" else [True, False])


@pytest.mark.parametrize("key", ["", " ", "\t", "a\nb", "a\0b", "x" * 201, "\ud800", None, 7])
@pytest.mark.case("A22")
def test_a_key_that_is_no_key_is_refused_before_any_write(rig: SteppedRig, key: Any) -> None:
    with pytest.raises(InvalidId, match="biz_key"):
        rig.client.start_or_resume(PLAN, biz_key=key)
    assert rig.client_store.writes == []


@pytest.mark.parametrize("priority", [-1, 4, "urgent", True, 1.0, None, ""])
def test_a_priority_that_is_none_is_refused_before_any_write(rig: SteppedRig, priority: Any) -> None:
    with pytest.raises(InvalidPriority, match="priority"):
        rig.client.start_or_resume(PLAN, biz_key="k", priority=priority)
    assert rig.client_store.writes == []


def test_an_input_of_another_type_or_too_large_or_unencodable_is_refused_before_any_write(rig: SteppedRig) -> None:
    typed = plan("typed", ["a"], input=int)
    with pytest.raises(InvalidInput, match="input of typed"):
        rig.client.start_or_resume(typed, biz_key="k", input="text")
    with pytest.raises(TooLarge, match="input of job"):
        rig.client.start_or_resume(PLAN, biz_key="k", input=b"x" * 2**18)
    with pytest.raises(Refused, match="input of job"):
        rig.client.start_or_resume(PLAN, biz_key="k", input=object())
    assert rig.client_store.writes == []


def test_a_start_delay_is_honoured_and_a_negative_one_refused(rig: SteppedRig) -> None:
    definition = flow(rig, "only")
    rig.worker(definition)
    started_ms = rig.clock.boot_ms()
    workflow_id = rig.start(definition, "k", start_delay=seconds(90))
    with pytest.raises(Refused, match="start_delay"):
        rig.start(definition, "k2", start_delay=seconds(-1))

    rig.finish(workflow_id)

    assert rig.ledger.of("only")[0].begin_ms - started_ms >= 90_000


@pytest.mark.req("fpr-replay")
def test_a_failed_instance_of_another_version_is_not_replayed_and_says_so(rig: SteppedRig) -> None:
    old = flow(rig, step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(old, "k")
    before = rig.row(workflow_id)
    changed = plan("job", ["bad", "more"])

    handle = rig.client.start_or_resume(changed, biz_key="k")

    assert (handle.branch, handle.execution_activated) == ("definition_mismatch", False)
    assert rig.row(workflow_id) == before
    assert DefinitionMismatch.code == handle.branch


def test_a_plan_that_asks_for_a_fresh_run_starts_over_with_its_own_steps(rig: SteppedRig) -> None:
    old = flow(rig, "a", step(rig, "bad", raises(ValueError("no"))))
    workflow_id = rig.drive(old, "k")
    changed = plan("job", ["a", "good"], on_changed_plan="fresh_run")

    handle = rig.client.start_or_resume(changed, biz_key="k")

    instance = rig.instance(workflow_id)
    assert (handle.branch, handle.execution_activated) == ("replayed", True)
    assert [(s.name, s.status) for s in instance.steps] == [("a", "pending"), ("good", "pending")]
    assert (instance.outputs, instance.workflow_run, instance.definition_fingerprint) == ({}, 2, changed.fingerprint)
    assert [(run.workflow_run, run.status) for run in instance.runs] == [(1, "failed")]


def test_the_identity_fields_of_a_replay_must_be_those_of_the_failed_run(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "bad", raises(ValueError("no"))), identity=("object_id",))
    workflow_id = rig.drive(definition, "k", {"object_id": "o1", "text": "old"})
    before = rig.row(workflow_id)

    with pytest.raises(InputIdentityChanged, match="object_id"):
        rig.start(definition, "k", {"object_id": "o2", "text": "new"})
    assert rig.row(workflow_id) == before

    rig.start(definition, "k", {"object_id": "o1", "text": "new"})
    assert rig.instance(workflow_id).workflow_run == 2


def test_many_starts_are_as_many_single_ones(durable_rig: SteppedRig) -> None:
    rig = durable_rig
    old = rig.client.start_or_resume(PLAN, biz_key="k1").workflow_id

    handles = rig.client.start_many(PLAN, [("k0", 0), ("k1", 1), ("k2", 2)], priority="realtime")

    assert [handle.branch for handle in handles] == ["created", "running", "created"]
    assert handles[1].workflow_id == old
    assert rig.queue.ids() == {handle.workflow_id for handle in handles}
    assert rig.row(old)["business_priority"] == 0


def test_a_call_on_a_parked_instance_says_parked(rig: SteppedRig) -> None:
    workflow_id = rig.client.start_or_resume(PLAN, biz_key="k").workflow_id
    row = rig.row(workflow_id)
    parked = without(row, "claimable_time") | {"parked": {"reason": "it kills", "since_time": 1}, "biz_key": "k2"}
    other = "wf-parked"
    rig.store.insert(_insert(parked | {"workflow_id": other}))

    handle = rig.client.start_or_resume(PLAN, biz_key="k2")

    assert (handle.branch, handle.execution_activated, handle.workflow_id) == ("parked", False, other)


def _insert(row: Document) -> Any:
    from kernel.store.conditional import Insert

    return Insert("create", INSTANCES, row["workflow_id"], row)


@pytest.mark.req("slp-no-wait-timeout", "slp-signal-no-fallback")
def test_a_call_on_an_instance_that_waits_for_a_signal_only_queues_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "ask", lambda ctx: WaitForSignal("answer", "key-1")))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, "k")
    rig.pass_once(worker)
    rig.queue.wipe()

    rig.client.start_or_resume(definition.plan, biz_key="k")
    rig.advance(10 * 86_400_000)
    worker.sweep()
    rig.pass_once(worker)

    assert rig.queue.ids() == set()
    assert rig.status(workflow_id) == "waiting"
    assert "claimable_time" not in rig.row(workflow_id)
    assert rig.ledger.count("ask") == 1
