"""Data that can not be right: damaged rows, undecodable values, foreign versions; contained, shown, never guessed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest

from kernel.context import Context
from kernel.directives import Sleep
from kernel.errors import CorruptRecord, UnknownVersion
from kernel.store.conditional import Clear, Transition
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_rows import BODY
from kernel.store.tables import INSTANCES
from tests.engine.flows import flow, gives, seconds, step
from tests.engine.test_claims import set_fields
from tests.support.engine_rig import SteppedRig


class Cursor(msgspec.Struct, tag="cursor/1"):
    page: int


def garbage(rig: SteppedRig, workflow_id: str) -> None:
    """Overwrite the document of a row with bytes that no version of the kernel wrote; its columns stay."""
    assert isinstance(rig.store, SqliteStore)
    with closing(sqlite3.connect(rig.store.path)) as connection, connection:
        statement = f"UPDATE {INSTANCES} SET {BODY} = ? WHERE workflow_id = ?"
        assert connection.execute(statement, (b"\xc1\xff", workflow_id)).rowcount == 1


@pytest.mark.parametrize("damage", [{"retry_count": "many"}, {"steps": "none"}, {"v": 2}, {"v": 99}, {"input": 7}])
def test_a_row_that_does_not_decode_is_left_alone_and_the_others_run(rig: SteppedRig, damage: dict[str, Any]) -> None:
    definition = flow(rig, "a")
    worker = rig.worker(definition)
    damaged = rig.start(definition, "damaged")
    others = [rig.start(definition, f"k{k}") for k in range(10)]
    set_fields(rig, damaged, **damage)
    rig.finish(*others)
    rig.run(lambda: rig.clock.boot_ms() > 1_060_000, "a minute of scans")

    assert [entry.workflow_id for entry in rig.ledger.entries].count(damaged) == 0
    assert all(rig.status(workflow_id) == "completed" for workflow_id in others)
    assert rig.row(damaged).items() >= damage.items()
    assert all(rig.instance(workflow_id).deaths == 0 for workflow_id in others)
    with pytest.raises((CorruptRecord, UnknownVersion), match=damaged):
        rig.client.get(damaged)
    assert worker.busy == 0


@pytest.mark.parametrize("change", [lambda steps: [], lambda steps: steps[:1], lambda steps: steps[::-1]])
def test_a_row_with_other_steps_than_its_version_has_is_told_and_put_aside(
    rig: SteppedRig, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It decodes, so that it is claimed; run, it would end nowhere, or in another step's place."""
    definition = flow(rig, "a", "b")
    rig.worker(definition)
    damaged, other = rig.start(definition, "damaged"), rig.start(definition, "other")
    set_fields(rig, damaged, steps=change(rig.row(damaged)["steps"]))
    rig.finish(other)
    rig.run(lambda: rig.row(damaged).get("parked") is not None, "an end that an operator sees")

    assert [entry.workflow_id for entry in rig.ledger.entries].count(damaged) == 0
    told = [record for record in caplog.records if damaged in record.getMessage() and "steps" in record.getMessage()]
    assert len(told) == 1 and "are not those of" in told[0].getMessage()


@pytest.mark.parametrize("status", ["running", "waiting", "held"])
def test_a_row_of_garbage_stops_neither_claims_nor_sweeps_nor_renewals(sqlite_rig: SteppedRig, status: str) -> None:
    """It shares batches with good rows all the time: they must lose neither a claim nor a renewal to it."""
    rig = sqlite_rig
    naps = flow(rig, step(rig, "nap", lambda ctx: "rested" if ctx.resume else Sleep(seconds(2))), type="naps")
    definition = flow(rig, step(rig, "a", lambda ctx: rig.advance(4_000)))
    worker = rig.worker(definition, naps)
    bad = rig.start(naps if status == "waiting" else definition, "bad")
    if status == "waiting":
        rig.pass_once(worker)
    good = [rig.start(definition, f"k{k}") for k in range(6)]
    asleep = [rig.start(naps, f"n{k}") for k in range(3)]
    if status == "held":
        worker.loop.pass_once()
    garbage(rig, bad)

    rig.finish(*good, *asleep, limit_ms=120_000)
    rig.advance(10_000)
    worker.sweep()

    rows = [rig.instance(workflow_id) for workflow_id in (*good, *asleep)]
    assert {row.status for row in rows} == {"completed"}
    assert {row.steps[0].takeovers for row in rows} == {0}, "nobody lost a claim"
    assert {entry.attempt for entry in rig.ledger.entries if entry.workflow_id in good} == {1}
    with pytest.raises(CorruptRecord):
        rig.row(bad)


def test_the_release_of_a_dead_owner_is_not_stopped_by_a_damaged_row(sqlite_rig: SteppedRig) -> None:
    rig = sqlite_rig
    definition = flow(rig, "a")
    dead = rig.worker(definition, slots=4)
    ids = [rig.start(definition, f"k{k}") for k in range(4)]
    dead.loop.pass_once()
    dead.kill()
    garbage(rig, ids[1])
    _process, loop = rig.dispatcher(definition)

    freed = loop.release_owner("w1", counted=True)

    assert sorted(freed) == sorted({*ids} - {ids[1]})


@pytest.mark.parametrize(
    "checkpoint", [b"", b"\x01", b"\x02\xc0", b"\x01\xc1", b"\x01\x81\xa4type\xa8cursor/9", b"\x01\xa3abc"]
)
@pytest.mark.req("dc-msgspec-types", "dc-msgspec")
@pytest.mark.case("A58")
def test_a_checkpoint_that_does_not_decode_is_the_error_of_its_step(rig: SteppedRig, checkpoint: bytes) -> None:
    """Named with its field; retried without it, as any error; the worker lives."""
    seen: list[Any] = []

    def activity(ctx: Context) -> Any:
        seen.append(ctx.attempt)
        cursor = ctx.checkpoint(Cursor)
        return Sleep(seconds(1), Cursor(1)) if cursor is None else cursor.page

    definition = flow(rig, step(rig, "a", activity, max_retry=1))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    set_fields(rig, workflow_id, steps__0__checkpoint=checkpoint)
    rig.finish(workflow_id)

    error = rig.step(workflow_id, "a").errors[0]
    assert error.code in ("checkpoint_error", "unknown_version")
    assert "checkpoint of step a" in error.message
    assert rig.output(workflow_id) == 1
    assert seen == [1, 1, 2, 2]


@pytest.mark.req("dc-msgspec-types")
def test_an_input_or_output_that_does_not_decode_is_an_error_of_the_step_that_reads_it(rig: SteppedRig) -> None:
    definition = flow(
        rig,
        "first",
        step(rig, "reads_input", lambda ctx: ctx.input, on_failed="skip"),
        step(rig, "reads_output", lambda ctx: ctx.output("first", int)),
    )
    workflow_id = rig.start(definition)
    set_fields(rig, workflow_id, input=b"\x01\xc1")
    rig.worker(definition)
    rig.finish(workflow_id)

    messages = {s.name: s.error.message for s in rig.instance(workflow_id).steps if s.error is not None}
    assert messages["reads_input"].startswith("input of job: ")
    assert messages["reads_output"].startswith("output of step first: Expected `int`, got `str`")
    assert rig.status(workflow_id) == "failed"


@pytest.mark.req("stp-output-small")
@pytest.mark.case("A73")
def test_what_is_too_large_is_refused_before_any_write(rig: SteppedRig) -> None:
    """An output, a checkpoint, and the sum of an instance, each by its own limit and with its own line."""
    definition = flow(
        rig,
        step(rig, "output", gives(b"x" * 900), on_failed="skip"),
        step(rig, "checkpoint", gives(Sleep(seconds(1), b"x" * 700)), on_failed="skip"),
        step(rig, "half", gives(b"x" * 500)),
        step(rig, "other_half", gives(b"x" * 500), on_failed="skip"),
        "small",
    )
    rig.worker(definition, output_bytes_max=800, checkpoint_bytes_max=600, instance_bytes_max=1_000)
    workflow_id = rig.drive(definition)

    instance = rig.instance(workflow_id)
    errors = {s.name: (s.error.code, s.error.message) for s in instance.steps if s.error is not None}
    assert {name: code for name, (code, _) in errors.items()} == {
        "output": "too_large", "checkpoint": "too_large", "other_half": "too_large"
    }  # fmt: skip
    assert all(name in errors[name][1] for name in errors)
    assert sorted(instance.outputs) == ["half", "small"]
    assert sum(map(len, instance.outputs.values())) < 1_000
    assert rig.status(workflow_id) == "completed"


def test_a_row_that_waits_without_a_wait_is_not_turned_round_for_ever(rig: SteppedRig) -> None:
    definition = flow(rig, step(rig, "nap", lambda ctx: Sleep(seconds(1))))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    rig.store.apply(_without_wait(workflow_id))
    rig.advance(2_000)
    pops = rig.queue.pops
    for _ in range(20):
        rig.pass_once(worker)

    assert rig.status(workflow_id) == "waiting"
    assert rig.queue.pops - pops <= 60


def _without_wait(workflow_id: str) -> Any:
    return Transition("damage", INSTANCES, workflow_id, (), (Clear("steps.0.wait"),))
