"""Which steps are ready: the one algorithm, against a reference on random graphs, and in whole runs (group 14)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel.engine
from kernel.clock import ManualClock
from kernel.context import Context
from kernel.definition import Definition, Step
from kernel.directives import Sleep, Yield
from kernel.engine import readiness
from kernel.records import StepRecord, Wait
from kernel.states import STEP_STATUSES
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow, seconds, step
from tests.support.engine_rig import SteppedRig

NOW = 1_000


@st.composite
def graphs(draw: st.DrawFn, largest: int = 12) -> list[list[int]]:
    """Dependencies of each step on earlier ones."""
    size = draw(st.integers(1, largest))
    return [sorted(draw(st.sets(st.integers(0, k - 1)))) if k else [] for k in range(size)]


def definition_of(graph: list[list[int]], **options: Any) -> Definition:
    steps = [
        Step(f"s{k}", lambda ctx: None, depends_on=[f"s{d}" for d in depends_on]) for k, depends_on in enumerate(graph)
    ]
    return Definition(type="graph", steps=steps, **options)


def record(index: int, status: str, due: int | None, poll: int | None) -> StepRecord:
    wait = Wait(wait_id="w", kind="timer" if poll else "signal", step=f"s{index}", step_index=index, poll_time=poll)
    return StepRecord(
        name=f"s{index}",
        status=status,  # type: ignore[arg-type]
        due_time=due if status == "pending" else None,
        wait=wait if status == "waiting" else None,
    )


records = st.tuples(
    st.sampled_from(STEP_STATUSES), st.sampled_from([None, 500, 2_000]), st.sampled_from([None, 500, 2_000])
)


@given(graph=graphs(), states=st.lists(records, min_size=12, max_size=12))
@settings(max_examples=300, deadline=None)
@pytest.mark.req(
    "dag-algorithm", "dag-running-ready", "dag-waiting-not-ready", "dag-failed-not-ready", "stp-skip-satisfies"
)
def test_readiness_is_what_a_reference_says(graph: list[list[int]], states: list[tuple[Any, ...]]) -> None:
    steps = [record(k, *states[k]) for k in range(len(graph))]
    depends_on = readiness.dependencies(definition_of(graph).plan)

    satisfied = {k for k, s in enumerate(steps) if s.status == "completed" or s.status == "skipped"}
    expected = []
    for k, s in enumerate(steps):
        if s.status in ("completed", "skipped", "failed", "waiting"):
            continue
        if not set(graph[k]) <= satisfied:
            continue
        if s.due_time is not None and s.due_time > NOW:
            continue
        expected.append(k)
    assert readiness.ready(readiness.enterable(depends_on, steps), steps, NOW) == expected


@given(graph=graphs(), states=st.lists(records, min_size=12, max_size=12))
@settings(max_examples=300, deadline=None)
def test_an_instance_at_rest_can_always_be_woken_by_what_it_waits_for(
    graph: list[list[int]], states: list[tuple[Any, ...]]
) -> None:
    """`waiting` only when no step is pending or running; claimable at the earliest of all due and poll times."""
    steps = [record(k, *states[k]) for k in range(len(graph))]
    depends_on = readiness.dependencies(definition_of(graph).plan)
    rest = readiness.rest(depends_on, steps)

    runnable = readiness.enterable(depends_on, steps)
    polls = [s.wait.poll_time for s in steps if s.wait is not None and s.wait.poll_time is not None]
    assert rest.status == ("running" if runnable else "waiting")
    if any(steps[k].due_time is None for k in runnable):
        assert rest.now
    else:
        times = [*(steps[k].due_time or 0 for k in runnable), *polls]
        assert (rest.now, rest.claimable_time) == (False, min(times, default=None))
    if polls:
        assert rest.wait is not None
        assert rest.wait.poll_time == min(polls)


class Moves:
    """What each step does when it is entered: a number of sleeps and yields, then its end."""

    def __init__(self, moves: list[int]) -> None:
        self._moves = moves

    def __call__(self, ctx: Context) -> Any:
        done = ctx.checkpoint() or 0
        number = int(str(ctx.step)[1:])
        if done >= self._moves[number % len(self._moves)] % 3:
            return number
        return Sleep(seconds(1 + done), done + 1) if self._moves[number % len(self._moves)] % 2 else Yield(done + 1)


@given(graph=graphs(8), moves=st.lists(st.integers(0, 5), min_size=1, max_size=8), workers=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
@pytest.mark.req("dag-algorithm", "dag-default", "core-unique-outcome", "s4")
def test_random_graphs_run_every_step_once_and_after_what_it_depends_on(
    graph: list[list[int]], moves: list[int], workers: int
) -> None:
    clock = ManualClock()
    rig = SteppedRig(MemoryStore(clock), clock)
    activity = Moves(moves)
    steps = [step(rig, f"s{k}", activity, depends_on=[f"s{d}" for d in ds]) for k, ds in enumerate(graph)]
    definition = flow(rig, *steps)
    for _ in range(workers):
        rig.worker(definition)
    workflow_id = rig.start(definition)
    rig.finish(workflow_id)

    instance = rig.instance(workflow_id)
    assert instance.status == "completed"
    assert len(instance.outputs) == len(graph)
    assert all(record.attempt == 1 for record in instance.steps)
    first = {name: k for k, name in reversed(list(enumerate(rig.ledger.steps())))}
    last = {name: k for k, name in enumerate(rig.ledger.steps())}
    for k, depends_on in enumerate(graph):
        assert all(last[f"s{d}"] < first[f"s{k}"] for d in depends_on)
    assert rig.ledger.overlaps() == []


@pytest.mark.req("dag-default", "dag-linear-special", "fpr-normalise")
def test_without_dependencies_a_step_follows_the_one_before(rig: SteppedRig) -> None:
    """The linear case is the same algorithm: every ready set has one step, and the graph is the explicit one."""
    linear = flow(rig, "a", "b", "c")
    explicit = flow(rig, step(rig, "a", depends_on=[]), step(rig, "b", depends_on=["a"]), step(rig, "c"))
    rig.drive(linear)

    assert linear.plan == explicit.plan
    assert rig.ledger.steps() == ["a", "b", "c"]
    started = [event["step"] for event in rig.recorder.of("step.started")]
    completed = [event["step"] for event in rig.recorder.of("step.completed")]
    assert started == completed == ["a", "b", "c"]


def _looks_up_dependencies(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == "depends_on"


@pytest.mark.req("dag-linear-special")
def test_there_is_one_function_that_says_what_is_ready() -> None:
    """No second path for linear workflows: `enterable` alone decides by dependencies. `ready_time` says since when."""
    users = []
    for path in sorted(Path(kernel.engine.__file__).parent.glob("*.py")):
        users.extend(
            f"{path.name}:{function.name}"
            for function in ast.walk(ast.parse(path.read_text()))
            if isinstance(function, ast.FunctionDef) and any(map(_looks_up_dependencies, ast.walk(function)))
        )

    assert users == ["readiness.py:enterable", "readiness.py:ready_time"]


@pytest.mark.req("dag-root", "dag-default")
def test_an_empty_list_declares_a_root_and_none_the_step_before(rig: SteppedRig) -> None:
    definition = flow(rig, "a", step(rig, "b", depends_on=[]), "c")

    assert [(s.name, s.depends_on) for s in definition.plan.steps] == [("a", ()), ("b", ()), ("c", ("b",))]
    worker = rig.worker(definition)
    rig.start(definition)
    rig.pass_once(worker)
    names = rig.recorder.names()
    assert names.index("step.completed") > 1
    assert [event["step"] for event in rig.recorder.of("step.started")][:2] == ["a", "b"]
