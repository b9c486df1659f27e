"""The single entry into business code: timeouts, panics, what an activity sees, async (group 12)."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import kernel.engine
from kernel.context import Context
from kernel.directives import Sleep, Yield
from kernel.errors import KernelError, StepTimeout
from tests.engine.flows import fails_first, flow, gives, raises, seconds, step
from tests.support.engine_rig import LiveRig, SteppedRig


@pytest.mark.req("act-single-entry")
def test_business_code_is_called_in_one_place() -> None:
    """Activities, finalizers and prepare are handed to `invoke_activity`; nothing else of the engine calls them."""
    business = {"activity", "success_finalizer", "failure_finalizer", "prepare", "hook", "function"}
    calls = []
    for path in sorted(Path(kernel.engine.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                if name in business and not ast.unparse(node.func).startswith("self._ending"):
                    calls.append((path.name, ast.unparse(node.func)))

    assert calls == [("invoke.py", "function")]


@pytest.mark.req("act-single-entry", "act-one-classification")
def test_first_runs_retries_resumes_and_recoveries_enter_the_same_way(rig: SteppedRig, monkeypatch: Any) -> None:
    entered: list[str] = []
    definition = flow(
        rig,
        step(rig, "a", fails_first(1), max_retry=1),
        step(rig, "b", lambda ctx: "rested" if ctx.resume else Sleep(seconds(1))),
        success_finalizer=rig.ledger(gives(None)),
        prepare=gives(None),
    )
    for _ in range(2):
        worker = rig.worker(definition)
        invoker = worker.engine.services.invoker
        enter = invoker.invoke_activity

        def noted(what: str, *args: Any, enter: Any = enter) -> Any:
            entered.append(what)
            return enter(what, *args)

        monkeypatch.setattr(invoker, "invoke_activity", noted)
    rig.workers[0].store.fail_once("finish_completed", "kill_before")
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert entered.count("step a") == rig.ledger.count("a") == 2
    assert entered.count("step b") == rig.ledger.count("b") == 2
    assert entered.count("success finalizer of job") == rig.ledger.count(None)
    assert entered.count("prepare") == 0 and entered.count("prepare of job") == len(rig.recorder.of("claim.taken"))


@pytest.mark.req("act-timeout-per-call", "act-timeout-fresh")
def test_a_timeout_limits_one_invocation_and_not_the_life_of_a_step(rig: SteppedRig) -> None:
    """Five invocations of 0.7 s with a timeout of 1 s, far apart."""

    def activity(ctx: Context) -> Any:
        assert 0.9 < ctx.remaining_s() <= 1.0
        rig.advance(700)
        polls = ctx.checkpoint() or 0
        return Sleep(seconds(90), polls + 1) if polls < 4 else "done"

    definition = flow(rig, step(rig, "a", activity, timeout=seconds(1)))
    rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    assert rig.output(workflow_id) == "done"
    assert rig.ledger.count("a") == 5


@pytest.mark.parametrize("late", [gives("ok"), gives(Sleep(seconds(1), "task-1")), raises(ValueError("late"))])
@pytest.mark.req("act-timeout-error", "act-timeout-per-call", "stp-max-retry")
def test_what_comes_after_the_timeout_does_not_count(rig: SteppedRig, late: Any) -> None:
    """Neither a value nor a suspension with a fresh task: the timeout decides, and is told as such."""

    def activity(ctx: Context) -> Any:
        rig.advance(2_000)
        return late(ctx)

    workflow_id = rig.drive(flow(rig, step(rig, "a", activity, timeout=seconds(1))))

    record = rig.step(workflow_id, "a")
    assert (rig.status(workflow_id), record.status, record.checkpoint) == ("failed", "failed", None)
    assert (record.error.code, record.error.kind, record.error.type) == (StepTimeout.code, "timeout", "StepTimeout")
    assert rig.instance(workflow_id).outputs == {}
    assert rig.ledger.count("a") == 1


@pytest.mark.req("act-timeout-cancel-wait", "act-timeout-no-immediate", "act-pass-context")
def test_after_a_timeout_the_old_attempt_is_waited_for(live: LiveRig) -> None:
    """The first attempt ignores its cancellation for a while: no other attempt starts before it has returned."""
    told: list[tuple[bool, float]] = []

    def activity(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        cancelled = ctx.cancel.wait(60)
        told.append((cancelled, live.clock.boot_ms()))
        threading.Event().wait(0.7)  # time enough for the next attempt, if nobody waited for this one
        return "first"

    definition = flow(live, step(live, "a", activity, timeout=seconds(1), max_retry=1))
    for _ in range(2):
        live.worker(definition)
    began_ms = live.clock.boot_ms()  # before the timeout can begin
    workflow_id = live.start(definition)
    live.wait_ended(workflow_id)

    first, second = live.ledger.of("a")
    assert live.output(workflow_id) == "second"
    (cancelled, at_ms), *_ = told
    assert cancelled and at_ms >= began_ms + 1_000
    assert first.end_ms is not None
    assert second.begin_ms >= first.end_ms >= at_ms + 690
    assert live.ledger.overlaps() == []


@pytest.mark.req("act-ignore-cancel-stuck", "b-40")
@pytest.mark.case("A71")
def test_an_activity_that_never_ends_keeps_its_claim_until_its_process_dies(rig: SteppedRig) -> None:
    """It blocks that workflow and nothing else; the process is told; when it is gone another one takes over, finds that
    the attempt had ignored its timeout, and counts that as its failure."""
    watched: list[tuple[str, int]] = []

    def activity(ctx: Context) -> str:
        if ctx.worker_id == "w2":
            return "by w2"
        for _ in range(10):
            rig.advance(rig.settings.lease_ms)
            rig.pass_once(other)
            watched.append((rig.row(ctx.workflow_id)["worker_id"], rig.ledger.count("fine")))
        worker.kill()
        return "never seen"

    stuck = flow(rig, step(rig, "a", activity, timeout=seconds(1), max_retry=1))
    fine = flow(rig, "fine", type="fine")
    worker = rig.worker(stuck, slots=1, stuck_grace_ms=2_000)
    other = rig.worker(stuck, fine)
    workflow_id = rig.start(stuck)
    worker.loop.pass_once()
    others = [rig.start(fine, f"f{k}") for k in range(3)]
    rig.base_runner.run_all()

    assert {owner for owner, _ in watched} == {"w1"}
    assert watched[0][1] == 3
    assert len(worker.stuck) == 1
    rig.finish(workflow_id, *others)
    assert rig.output(workflow_id) == "by w2"
    assert rig.step(workflow_id, "a").attempt == 2
    assert [error.code for error in rig.step(workflow_id, "a").errors] == ["step_timeout"]


@pytest.mark.req("act-timeout-error", "b-40")
def test_a_step_that_ignores_its_timeout_uses_up_its_budget_and_ends(rig: SteppedRig) -> None:
    """Its workers are replaced; it is not entered again for ever."""
    entered: list[str] = []
    workers: list[Any] = []

    def activity(ctx: Context) -> str:
        entered.append(ctx.worker_id)
        for _ in range(5):
            rig.advance(rig.settings.lease_ms)
            rig.pass_once(bystander)
        workers[-1].kill()
        return "never seen"

    definition = flow(rig, step(rig, "a", activity, timeout=seconds(1), max_retry=1))
    bystander = rig.worker(flow(rig, "fine", type="fine"))
    workflow_id = rig.start(definition)
    for _ in range(4):
        workers.append(rig.worker(definition, stuck_grace_ms=2_000))
        rig.pass_once(workers[-1])
        rig.advance(2 * rig.settings.lease_ms)

    assert rig.status(workflow_id) == "failed"
    assert len(entered) == 2
    assert rig.step(workflow_id, "a").failures == 2


class OwnBase(BaseException):
    """What only a careless library would raise."""


class Unprintable(Exception):
    """An error whose text can not be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), SystemExit(3), KeyboardInterrupt(), OwnBase("base"), GeneratorExit(), StopIteration(1),
        MemoryError(), RecursionError("deep"), Unprintable(), ValueError("\ud800 lone surrogate \0"),
        ValueError("x" * 9_000),
        asyncio.CancelledError(), KernelError("its own"), AssertionError(), ExceptionGroup("two", [ValueError("a")]),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.req("act-panic", "act-one-classification")
def test_whatever_an_activity_raises_becomes_the_error_of_its_step(
    sqlite_rig: SteppedRig, error: BaseException
) -> None:
    """Recorded, retried by the same rule, and the worker goes on with other work."""
    rig = sqlite_rig
    definition, fine = flow(rig, step(rig, "a", raises(error), max_retry=1)), flow(rig, "fine", type="fine")
    worker = rig.worker(definition, fine)
    workflow_id, other = rig.start(definition), rig.start(fine, "other")

    rig.finish(workflow_id, other)

    record = rig.step(workflow_id, "a")
    kind = "error" if isinstance(error, Exception) else "panic"
    assert (rig.status(workflow_id), rig.status(other)) == ("failed", "completed")
    assert rig.ledger.count("a") == 2
    assert [(e.attempt, e.kind) for e in record.errors] == [(1, kind), (2, kind)]
    assert type(error).__name__ in f"{record.error.type}: {record.error.message}"
    assert len(record.error.message) <= 2_000
    assert (worker.busy, worker.dead) == (0, False)


@pytest.mark.parametrize("value", [(n for n in (1, 2)), object(), lambda: None, {1: object()}, open, 2**70])
@pytest.mark.req("stp-output-small", "rec-no-runtime-objects", "act-panic")
def test_a_value_that_can_not_be_stored_is_a_failure_of_the_step(rig: SteppedRig, value: Any) -> None:
    workflow_id = rig.drive(flow(rig, step(rig, "a", gives(value))))

    error = rig.step(workflow_id, "a").error
    assert (rig.status(workflow_id), error.code) == ("failed", "bad_return")
    assert "output of step a" in error.message


@pytest.mark.req("act-suspend-return", "slp-directive")
@pytest.mark.parametrize("directive", [Sleep(seconds(60)), Yield("cursor")])
def test_a_directive_ends_the_invocation_and_its_timeout(rig: SteppedRig, directive: Any) -> None:
    """Long after the step's timeout nothing has happened to it; the thread has ended; the directive is no error."""
    definition = flow(rig, step(rig, "a", lambda ctx: "done" if _second(rig) else directive, timeout=seconds(1)))
    worker = rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.pass_once(worker)
    assert worker.busy == 0

    rig.advance(10_000)

    record = rig.step(workflow_id, "a")
    assert (record.error, record.failures) == (None, 0)
    assert record.status == ("waiting" if isinstance(directive, Sleep) else "pending")
    assert rig.ledger.of("a")[0].end_ms == rig.ledger.of("a")[0].begin_ms


def _second(rig: SteppedRig) -> bool:
    return rig.ledger.count("a") > 1


def test_an_activity_sees_its_input_its_past_and_its_capabilities(rig: SteppedRig) -> None:
    """Identity, attempt, outputs of earlier steps, its checkpoint and what woke it, ports, prepared context, time."""
    seen: list[dict[str, Any]] = []

    def look(ctx: Context) -> Any:
        seen.append(
            {
                "ids": (ctx.workflow_id, ctx.biz_key, ctx.type, ctx.step, ctx.workflow_run, ctx.attempt, ctx.worker_id),
                "input": ctx.input,
                "outputs": (ctx.output("first"), ctx.output("left_out"), ctx.output("unknown")),
                "checkpoint": ctx.checkpoint(),
                "resume": None if ctx.resume is None else ctx.resume.kind,
                "ports": ctx.ports,
                "prepared": ctx.prepared,
                "key": ctx.effect_key,
            }
        )
        assert 0 < ctx.remaining_s() <= 300
        assert not ctx.cancelled
        return "done" if ctx.resume else Sleep(seconds(1), {"n": 1})

    definition = flow(
        rig,
        step(rig, "first", gives([1, 2])),
        step(rig, "left_out", raises(ValueError("no")), on_failed="skip"),
        step(rig, "look", look),
        prepare=lambda ctx: f"user of {ctx.input['user']}",
    )
    ports = object()
    rig.worker(definition, ports=ports)
    workflow_id = rig.drive(definition, "k", {"user": "li"})

    first, second = seen
    assert first == {
        "ids": (workflow_id, "k", "job", "look", 1, 1, "w1"),
        "input": {"user": "li"},
        "outputs": ([1, 2], None, None),
        "checkpoint": None,
        "resume": None,
        "ports": ports,
        "prepared": "user of li",
        "key": f"{workflow_id}:1:look",
    }
    assert second == first | {"checkpoint": {"n": 1}, "resume": "timer"}


@pytest.mark.req("sor-prepare-context")
def test_prepare_runs_once_for_every_claim_before_anything_else(rig: SteppedRig) -> None:
    """Every activity of that claim sees what it made; when it fails the instance is tried again later."""
    prepared: list[str] = []

    def prepare(ctx: Context) -> Any:
        if not prepared:
            prepared.append("failed")
            raise ValueError("not yet")
        prepared.append(f"claim {len(prepared)}")
        return prepared[-1]

    definition = flow(
        rig,
        step(rig, "a", lambda ctx: ctx.prepared),
        step(rig, "b", lambda ctx: ctx.prepared if ctx.resume else Sleep(seconds(1))),
        step(rig, "c", lambda ctx: [ctx.output("a"), ctx.output("b"), ctx.prepared]),
        prepare=prepare,
    )
    workflow_id = rig.drive(definition)

    assert len(prepared) == len(rig.recorder.of("claim.taken")) == 3
    assert rig.output(workflow_id) == ["claim 1", "claim 2", "claim 2"]
    assert [event["what"] for event in rig.recorder.of("finalizer.deferred")] == ["prepare"]
