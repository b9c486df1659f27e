"""What this kernel does not do, kept as promises (group 30)."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kernel
from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import WaitForSignal
from kernel.errors import TooLarge
from kernel.signals import Signal, SignalRecord
from kernel.store.conditional import Insert, Inserted
from kernel.store.tables import DEFINITIONS, INSTANCES, TABLES
from tests.engine.flows import flow, raises, seconds, step
from tests.engine.signals import inbox_row, tell, waiting
from tests.support.engine_rig import SteppedRig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTENERS = re.compile(r"http\.server|socketserver|xmlrpc|grpc|fastapi|flask|aiohttp|starlette|uvicorn")
"""What accepts requests from other services."""


def _modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def _imported(tree: ast.Module) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.req("non-platform")
def test_definitions_are_code_and_nothing_takes_them_from_other_services() -> None:
    """No part that runs work listens to anybody, and what the store keeps of a Definition can not be run."""
    listening = {
        (path, name)
        for path, tree in _modules("kernel", "lua", "fanout")
        for name in _imported(tree)
        if LISTENERS.search(name)
    }
    assert listening == set()
    assert TABLES[DEFINITIONS].columns == ("definition_key", "type", "seen_time")


@pytest.mark.req("non-history")
def test_a_workflow_goes_on_from_its_row_alone_in_an_empty_store(
    rig: SteppedRig, make_rig: Callable[..., SteppedRig]
) -> None:
    definition = flow(rig, "a", "b", "c")
    worker = rig.worker(definition)
    worker.store.fail_once("complete_step", "kill_after")
    workflow_id = rig.start(definition)
    rig.run(lambda: worker.dead, "the death behind the commit of a step", worker)
    row = rig.row(workflow_id)

    other = make_rig()
    other.advance(rig.settings.lease_ms)
    assert isinstance(other.store.insert(Insert("moved", INSTANCES, workflow_id, row)), Inserted)
    moved = flow(other, "a", "b", "c")
    other.worker(moved)
    other.finish(workflow_id)

    assert other.status(workflow_id) == "completed"
    done = [entry["name"] for entry in row["steps"] if entry["status"] == "completed"]
    assert done == ["a"]
    assert "a" not in other.ledger.steps()


@pytest.mark.req("non-saga")
def test_a_failure_behind_three_completed_steps_calls_the_failure_finalizer_and_undoes_nothing(rig: SteppedRig) -> None:
    called: list[str] = []
    broken = step(rig, "d", raises(ValueError("no")))
    definition = flow(
        rig, "a", "b", "c", broken, failure_finalizer=lambda ctx: called.append("failure"),
        success_finalizer=lambda ctx: called.append("success"),
    )  # fmt: skip

    workflow_id = rig.drive(definition)

    assert rig.status(workflow_id) == "failed"
    assert called == ["failure"]
    assert rig.ledger.steps() == ["a", "b", "c", "d"]
    assert not [name for name in inspect.signature(Step).parameters if "compensat" in name or "undo" in name]
    assert not [name for name in inspect.signature(Definition).parameters if "compensat" in name or "undo" in name]


@pytest.mark.req("non-bigfields")
@pytest.mark.parametrize("what", ["input", "output", "checkpoint"])
def test_a_value_above_its_limit_is_refused_and_the_row_stays_small(rig: SteppedRig, what: str) -> None:
    big = "x" * 300_000
    if what == "input":
        definition = flow(rig, "a")
        with pytest.raises(TooLarge, match=r"input of job: 3\d{5} bytes encoded, at most 262144 are allowed"):
            rig.start(definition, input=big)
        assert rig.store.find(INSTANCES, "biz_key", "job-1") is None
        return
    value = big if what == "output" else kernel.Sleep(seconds(1), checkpoint=big)
    workflow_id = rig.drive(flow(rig, step(rig, "a", lambda ctx: value)))

    error = rig.instance(workflow_id).error
    assert error is not None
    assert re.search(rf"{what} of .*: 3\d{{5}} bytes encoded, at most 262144 are allowed", error.message)
    assert len(msgspec.msgpack.encode(rig.row(workflow_id))) < 16_384


@pytest.mark.req("non-speculative")
def test_every_public_name_is_used_by_somebody_who_is_no_part_of_the_kernel() -> None:
    texts = [
        path.read_text(encoding="utf-8")
        for package in ("asr_demo", "bench", "fanout", "supervisor", "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != Path(__file__)
    ]
    words = set(re.findall(r"\w+", " ".join([README, *texts])))

    assert [name for name in kernel.__all__ if name not in words] == []


@pytest.mark.req("non-signal-payload")
def test_a_signal_can_not_be_given_a_payload_and_its_row_holds_none(rig: SteppedRig) -> None:
    _, workflow_id = waiting(rig)
    with pytest.raises(TypeError, match="payload"):
        Signal(signal_id="s", workflow_id="w", signal_type="t", wait_key="k", payload={"a": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="payload"):
        rig.client.signal(workflow_id, "ready", wait_key="k", signal_id="s", payload={})  # type: ignore[call-arg]

    tell(rig, workflow_id)
    row = inbox_row(rig)

    assert row is not None
    identity = {"signal_id", "workflow_id", "signal_type", "wait_key", "generation"}
    assert set(row) <= {"v", *identity, "status", "created_time", "pending_time", "match_time"}
    assert set(SignalRecord.__struct_fields__) == {
        "v",
        *identity,
        "status",
        "created_time",
        "pending_time",
        "match_time",
    }


@pytest.mark.req("non-wait-timeout")
def test_a_wait_without_fallback_goes_on_for_ever_and_no_wait_can_be_told_to_fail(rig: SteppedRig) -> None:
    worker, workflow_id = waiting(rig)
    before = rig.row(workflow_id)
    for _ in range(3):
        rig.advance(rig.settings.scan_ms)
        worker.sweep()
        rig.pass_once(worker)
    rig.advance(400 * 86_400_000)
    worker.sweep()
    rig.pass_once(worker)

    assert rig.row(workflow_id) == before
    assert set(inspect.signature(WaitForSignal).parameters) == {
        "signal_type", "wait_key", "generation", "poll_fallback", "checkpoint",
    }  # fmt: skip


@pytest.mark.req("non-exactly-once")
def test_an_effect_without_a_key_happens_again_when_its_commit_was_lost(rig: SteppedRig) -> None:
    effects: list[int] = []

    def activity(ctx: Context) -> None:
        effects.append(ctx.attempt)

    definition = flow(rig, step(rig, "pay", activity))
    worker = rig.worker(definition)
    worker.store.fail_once("complete_step", "kill_before")
    workflow_id = rig.start(definition)
    rig.run(lambda: worker.dead, "the death behind the effect", worker)
    rig.run(lambda: rig.ended(workflow_id), "the end", rig.worker(definition))

    assert len(effects) == 2
    assert rig.status(workflow_id) == "completed"
    assert re.search(r"\*\*at least once\*\*, never exactly once", README)


@pytest.mark.req("non-cancel-recall")
def test_a_superseded_workflow_leaves_what_it_has_sent_where_it_is(rig: SteppedRig) -> None:
    provider: dict[str, str] = {}

    def submit(ctx: Context) -> Any:
        provider.setdefault(ctx.effect_key, "accepted")
        return kernel.Sleep(seconds(60), checkpoint=ctx.effect_key)

    definition = flow(rig, step(rig, "transcribe", submit), "compose")
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.run(lambda: rig.status(workflow_id) == "waiting", "the submit", worker)

    assert rig.client.supersede(workflow_id).changed
    rig.advance(120_000)
    rig.pass_once(worker)

    assert list(provider.values()) == ["accepted"]
    assert rig.status(workflow_id) == "canceled"
    assert rig.ledger.steps() == ["transcribe"]


@pytest.mark.req("non-cost", "non-audit")
@pytest.mark.parametrize(
    "said",
    [
        "six for a workflow of three steps",
        "idempotent activities",
        "care with versions",
        "never for audit or billing",
    ],
)
def test_the_readme_states_what_it_costs_and_what_it_is_not_for(said: str) -> None:
    assert said in " ".join(README.split())
