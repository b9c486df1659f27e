"""Pickle bombs in every field that we read: none goes off, and other work goes on (A84)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel import codec
from kernel.context import Context
from kernel.directives import Sleep
from kernel.errors import KernelError
from kernel.store.conditional import Applied, Insert, Inserted, Put, Transition
from kernel.store.tables import DEFINITIONS, INSTANCES, LIMITS, SIGNALS, TABLES
from tests.engine.flows import flow, seconds, step
from tests.support.engine_rig import SteppedRig
from tests.support.pickle_bombs import bombs

FIELDS = (
    *("v", "type", "biz_key", "definition_fingerprint", "definition_key", "status", "business_priority", "input"),
    *("steps", "outputs", "workflow_run", "retry_count", "revision", "deaths", "created_time", "claimable_time"),
    *("claim_token", "worker_id", "worker", "wait", "resume", "permit_wait", "parked", "deferred", "runs", "error"),
    *("steps.0.status", "steps.0.checkpoint", "steps.0.wait", "steps.0.errors", "outputs.first", "commit_ids"),
)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def test_the_bombs_are_bombs(canary: Path) -> None:
    """The first three go off where somebody does unpickle them: in a process that is none of ours."""
    for number, bomb in enumerate(bombs(canary)[:3]):
        victim = f"import pickle; pickle.loads({bomb!r})"
        subprocess.run([sys.executable, "-c", victim], check=True, timeout=60)
        assert canary.exists(), f"bomb {number}"
        canary.unlink()


@pytest.mark.case("A84")
@pytest.mark.parametrize("form", ["bytes", "codec"])
@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_an_instance_is_run(durable_rig: SteppedRig, canary: Path, field: str, form: str) -> None:
    """As raw bytes, and behind the version byte of our own codec. What can not be read is put aside; what reads on
    takes it for the plain value that it is."""
    rig = durable_rig
    naps = step(rig, "first", lambda ctx: _reads(ctx) or (None if ctx.resume else Sleep(seconds(1), "cursor")))
    definition = flow(rig, naps, step(rig, "second", _reads))
    worker = rig.worker(definition)
    for number, bomb in enumerate(bombs(canary)):
        value = bomb if form == "bytes" else bytes([codec.CODEC_VERSION]) + bomb
        workflow_id = rig.start(definition, f"hurt-{number}", {"a": 1})
        if number % 2:
            rig.run(lambda workflow_id=workflow_id: rig.status(workflow_id) == "waiting", "it sleeps")
        try:
            answer = rig.store.apply(Transition("by hand", INSTANCES, workflow_id, (), (Put(field, value),)))
        except KernelError:
            continue  # the store does not take such a value there
        assert isinstance(answer, Applied)
    good = [rig.start(definition, f"good-{number}") for number in range(3)]
    rig.run(lambda: rig.ended(*good), "others go on", limit_ms=60_000)
    worker.sweep()
    for number in range(len(bombs(canary))):
        try:
            rig.start(definition, f"hurt-{number}", {"a": 1})  # the publisher's side reads them as well
        except KernelError:
            continue

    assert {rig.status(key) for key in good} == {"completed"}
    assert not canary.exists()


def _reads(ctx: Context) -> None:
    """As an author's code does: input, checkpoint, outputs."""
    assert ctx.input is not Ellipsis
    ctx.checkpoint(Any)


@pytest.mark.case("A84")
@pytest.mark.parametrize("table", [SIGNALS, LIMITS, DEFINITIONS])
def test_no_field_of_another_table_is_run(durable_rig: SteppedRig, canary: Path, table: str) -> None:
    rig = durable_rig
    definition = flow(rig, step(rig, "a", resource="printer"))
    worker = rig.worker(definition)
    columns = [column for column in TABLES[table].columns if column != TABLES[table].key]
    for number, bomb in enumerate(bombs(canary)):
        for column in (*columns, "v", "body"):
            key = "printer" if table == LIMITS and column == "v" and not number else f"row-{number}-{column}"
            row: dict[str, Any] = {"v": 1, **dict.fromkeys(columns, 1), TABLES[table].key: key, column: bomb}
            try:
                assert isinstance(rig.store.insert(Insert("by hand", table, key, row)), Inserted)
            except KernelError:
                continue
    good = rig.start(definition, "good")
    rig.advance(10_000)
    worker.sweep()
    if table == LIMITS:
        rig.pass_once(worker)  # a limit that can not be read refuses, and that is all
    else:
        rig.run(lambda: rig.ended(good), "others go on", limit_ms=60_000)

    assert not canary.exists()
