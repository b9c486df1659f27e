"""Completion: status and output in one write, never run again afterwards, and the eye beside the path (group 15)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep
from kernel.records import Instance
from kernel.store.sqlite import SqliteStore
from tests.engine.flows import flow, gives, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import LiveRig, SteppedRig
from tests.support.wait import wait_until


class Part(msgspec.Struct, tag="part/1"):
    """What one step hands to the next."""

    text: str
    raw: bytes
    count: int = 0


@pytest.mark.req("cmp-atomic", "rec-revision-each-commit", "s5", "slp-atomic", "dag-wave-independent-commits")
@pytest.mark.parametrize("kind", ["live", "live_sqlite"])
def test_no_reader_ever_sees_one_half_of_a_commit(request: pytest.FixtureRequest, kind: str) -> None:
    """Rows are read as fast as possible while workflows complete, suspend and end."""
    rig: LiveRig = request.getfixturevalue(kind)
    reads = [0]

    def while_read(ctx: Context) -> str:
        """Every row has been looked at since this began: the reader is at it, however late its thread was started."""
        until = reads[0] + 50
        wait_until(lambda: reads[0] >= until, "the reader reads", every=0.001)
        return "x" * 500

    definition = flow(
        rig,
        step(rig, "a", while_read),
        step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(0.01), "cursor")),
        *(step(rig, f"w{k}", depends_on=["nap"]) for k in range(4)),
        step(rig, "last", while_read, depends_on=[f"w{k}" for k in range(4)]),
    )
    for _ in range(2):
        rig.worker(definition)
    ids = [rig.start(definition, f"k{k}") for k in range(20)]
    halves: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for workflow_id in ids:
                halves.extend(problems(rig.row(workflow_id)))
                reads[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        rig.wait_ended(*ids, timeout=60)
    finally:
        stop.set()
        reader.join(60)

    assert halves == []
    assert reads[0] >= 100
    assert {rig.status(workflow_id) for workflow_id in ids} == {"completed"}


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row by itself."""
    found = []
    for record in row["steps"]:
        if (record["status"] == "completed") is not (record["name"] in row["outputs"]):
            found.append(f"{record['name']} is {record['status']} with outputs of {sorted(row['outputs'])}")
        if (record["status"] == "waiting") is not ("wait" in record):
            found.append(f"{record['name']} is {record['status']}, wait {record.get('wait')}")
    if row["status"] == "waiting" and ("claim_token" in row or "wait" not in row or "claimable_time" not in row):
        found.append("waiting and claimed, or without what it waits for")
    if row["status"] == "completed" and ("claim_token" in row or "finish_time" not in row):
        found.append("completed and claimed, or without its time")
    return found


@pytest.mark.req("cmp-skip-on-recover", "shd-resume", "shd-no-force-clear", "clm-crash-lease", "s4")
def test_after_a_death_the_next_worker_goes_on_at_the_step_that_was_under_way(durable_rig: SteppedRig) -> None:
    """No earlier than the lease's end, although the queue names it all the time; completed steps stay done."""
    rig = durable_rig
    definition = flow(rig, "a", "b", step(rig, "c", lambda ctx: first.kill() if ctx.worker_id == "w1" else "done"), "d")
    first = rig.worker(definition)
    second = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    died_ms, held = rig.clock.boot_ms(), rig.row(workflow_id)
    assert (held["steps"][2]["status"], "claim_token" in held) == ("running", True)

    while rig.ledger.count("c") == 1:
        row = rig.row(workflow_id)
        assert (row["claim_token"], row["claimable_time"]) == (held["claim_token"], held["claimable_time"])
        rig.start(definition)
        rig.pass_once(second)
        rig.advance(50)

    waited_ms = rig.ledger.of("c")[1].begin_ms - died_ms
    assert rig.settings.lease_ms <= waited_ms <= rig.settings.lease_ms + 100
    assert [(e.step, e.worker_id) for e in rig.ledger.entries] == [
        ("a", "w1"),
        ("b", "w1"),
        ("c", "w1"),
        ("c", "w2"),
        ("d", "w2"),
    ]
    assert rig.status(workflow_id) == "completed"


@pytest.mark.req("cmp-window", "core-return-is-not-complete", "core-inv-alo")
def test_an_effect_whose_completion_was_not_committed_is_repeated_under_the_same_key(rig: SteppedRig) -> None:
    effects: dict[str, int] = {}

    def effect(ctx: Context) -> int:
        effects[ctx.effect_key] = effects.get(ctx.effect_key, 0) + 1
        return ctx.attempt

    definition = flow(rig, step(rig, "a", effect))
    first = rig.worker(definition)
    first.store.fail_once("complete_step", "kill_before")
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(first)
    assert rig.step(workflow_id, "a").status == "running"
    rig.finish(workflow_id)

    assert effects == {f"{workflow_id}:1:a": 2}
    assert rig.output(workflow_id) == 2


@pytest.mark.req("cmp-observe-after", "core-side-paths-do-not-decide", "fin-best-effort-outside", "s13")
def test_an_observer_that_breaks_changes_nothing(rig: SteppedRig) -> None:
    definition = flow(rig, "a", step(rig, "b", lambda ctx: "x" if ctx.resume else Sleep(seconds(1))), "c")
    rig.recorder.raises = RuntimeError("the observer is broken")
    workflow_id = rig.drive(definition)

    assert rig.status(workflow_id) == "completed"
    assert rig.ledger.steps() == ["a", "b", "b", "c"]


@pytest.mark.req("cmp-observe-after")
def test_events_follow_the_commit_that_they_tell_of(rig: SteppedRig) -> None:
    """At the time of an event the row already shows it, with the same revision."""
    told: list[tuple[str, bool]] = []
    note = rig.recorder.note

    def noted(event: str, *, instance: Instance | None = None, step: int | None = None, **fields: Any) -> None:
        note(event, instance=instance, step=step, **fields)
        if instance is not None and not event.startswith("claim."):
            told.append((event, rig.row(instance.workflow_id)["revision"] == instance.revision))

    rig.recorder.note = noted  # type: ignore[method-assign]
    rig.drive(flow(rig, "a", "b"))

    # A completion and the entry of the next step are one write: one revision, told twice.
    assert [event for event, _ in told] == [
        "workflow.created",
        "step.started",
        "step.completed",
        "step.started",
        "step.completed",
        "workflow.completed",
    ]
    assert all(same for _, same in told)


@pytest.mark.parametrize("status", ["canceled", "failing"])
@pytest.mark.req("cmp-status-guard", "can-late-commit", "clm-complete-cond")
def test_a_completion_is_refused_when_the_workflow_is_not_running_any_more(rig: SteppedRig, status: str) -> None:
    def activity(ctx: Context) -> str:
        if status == "canceled":
            rig.client.supersede(ctx.workflow_id)
        else:
            set_fields(rig, ctx.workflow_id, status="failing")
        before.update(rig.row(ctx.workflow_id))
        return "late"

    before: dict[str, Any] = {}
    definition = flow(rig, step(rig, "a", activity))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)

    assert rig.row(workflow_id) == before
    assert (before["status"], before["outputs"]) == (status, {})
    assert worker.store.missed[-1] == "complete_step"
    assert rig.recorder.names()[-1] == "claim.lost"


@pytest.mark.req("cmp-output-readable", "core-min-state", "rec-wait-resume", "stp-checkpoint-kept-over-polls")
def test_outputs_checkpoints_and_waits_are_read_by_a_new_process_from_the_row_alone(tmp_path: Path) -> None:
    """The store is closed and opened again between two steps: nothing else is left of the first life."""
    clock = ManualClock()

    def life(store: SqliteStore) -> tuple[SteppedRig, Definition]:
        store.prepare()
        rig = SteppedRig(store, clock)
        steps = [
            Step("make", rig.ledger(gives(Part("ä", b"\0\xff", 3)))),
            Step(
                "nap", rig.ledger(lambda ctx: ctx.checkpoint(Part) if ctx.resume else Sleep(seconds(5), Part("c", b"")))
            ),
            Step("use", rig.ledger(lambda ctx: [ctx.output("make", Part), ctx.output("nap", Part)])),
        ]
        return rig, Definition(type="parts", steps=steps)

    first_store = SqliteStore(tmp_path / "store.db", clock, durability="normal")
    rig, definition = life(first_store)
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    assert (rig.status(workflow_id), rig.row(workflow_id)["wait"]["kind"]) == ("waiting", "timer")
    first_store.close()

    second_store = SqliteStore(tmp_path / "store.db", clock, durability="normal")
    again, definition = life(second_store)
    again.worker(definition)
    again.finish(workflow_id)

    made = again.client.result(workflow_id, seconds(0), list[Part])
    assert made == [Part("ä", b"\0\xff", 3), Part("c", b"")]
    assert again.ledger.steps() == ["nap", "use"]
    second_store.close()


@pytest.mark.req("cmp-elapsed")
def test_a_completed_step_tells_how_long_its_attempt_took(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "a", lambda ctx: rig.advance(740)), step(rig, "b", lambda ctx: rig.advance(20)))
    workflow_id = rig.drive(definition)

    assert [s.elapsed_ms for s in rig.instance(workflow_id).steps] == [740, 20]
    assert all(s.finish_time is not None and s.started_time is not None for s in rig.instance(workflow_id).steps)


class FakePorts:
    """The capabilities that a flow needs, without a database or a network."""

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}

    def read_object(self, object_id: str) -> str:
        return f"text of {object_id}"

    def save_result(self, object_id: str, text: str, *, key: str) -> None:
        self.saved[f"{object_id} {key}"] = text


@pytest.mark.req("spl-ports", "spl-instance-contents")
def test_a_flow_reaches_the_outside_through_its_ports_only_and_runs_with_fakes(rig: SteppedRig) -> None:
    """One Definition serves many instances: what differs between them is in their input."""
    definition = flow(
        rig,
        step(rig, "read", lambda ctx: ctx.ports.read_object(ctx.input["object_id"])),
        step(
            rig,
            "save",
            lambda ctx: ctx.ports.save_result(ctx.input["object_id"], ctx.output("read").upper(), key=ctx.effect_key),
        ),
    )
    ports = FakePorts()
    rig.worker(definition, ports=ports)
    ids = [rig.start(definition, f"k{k}", {"object_id": f"o{k}"}) for k in range(3)]
    rig.finish(*ids)

    assert ports.saved == {f"o{k} {ids[k]}:1:save": f"TEXT OF O{k}" for k in range(3)}
