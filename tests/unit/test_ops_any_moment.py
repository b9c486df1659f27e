"""At any moment of a workflow's life `show` names one thing that it waits for: every record that the engine commits is
looked at, at once and as it would be seen later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import click
import pytest

from kernel import Context, Definition, RetryPolicy, Sleep, Step, WaitForSignal, Yield
from kernel.clock import ManualClock
from kernel.config import Limit
from kernel.observe.projection import snapshot_of
from kernel.observe.views import Waiting
from kernel.records import Instance, to_instance
from kernel.states import TERMINAL
from kernel.store.memory import MemoryStore
from supervisor.ops_now import brief, reading
from supervisor.ops_page import page
from supervisor.ops_surroundings import Surroundings
from supervisor.ops_timeline import as_of
from tests.support.engine_rig import SteppedRig

LATER_MS = (0, 1, 5_000, 86_400_000)


def slept(ctx: Context) -> Any:
    return "up" if ctx.checkpoint() else Sleep(timedelta(minutes=5), checkpoint={"asleep": True})


def asked(ctx: Context) -> Any:
    if ctx.checkpoint():
        return "told"
    return WaitForSignal("paid", "k", poll_fallback=timedelta(minutes=7), checkpoint={"asked": True})


def paged(ctx: Context) -> Any:
    return "all" if ctx.checkpoint() else Yield(checkpoint={"page": 1})


class Flaky:
    """Fails so often, then not any more."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, ctx: Context) -> str:
        self.left -= 1
        if self.left >= 0:
            raise ValueError("not yet")
        return "done"


def flow(*, failing: bool) -> Definition:
    return Definition(
        type="everything",
        steps=[
            Step("sleep", slept),
            Step("ask", asked),
            Step("page", paged),
            Step("flaky", Flaky(2), retry=RetryPolicy(max_attempts=5, initial_interval=timedelta(minutes=3))),
            Step("print_it", Flaky(9 if failing else 0), resource="printer", depends_on=["flaky"]),
            Step("skip", Flaky(9), on_failed="skip", depends_on=["flaky"]),
        ],
        success_finalizer=Flaky(2),
        failure_finalizer=Flaky(2),
    )


def lives(*, failing: bool) -> list[tuple[Instance, int]]:
    """Every record that two workflows of one worker went through, and when: one of them waits for the other's place."""
    clock = ManualClock()
    rig = SteppedRig(MemoryStore(clock), clock)
    rig.limits = {"printer": Limit(max_concurrency=1, max_starts_per_second=1)}
    seen: list[tuple[Instance, int]] = []
    applied = rig.store.apply

    def looking(transition: Any) -> Any:
        answer = applied(transition)
        document = getattr(answer, "document", None)
        if document is not None and "workflow_run" in document:
            seen.append((to_instance(document), clock.wall_ms()))
        return answer

    rig.store.apply = looking  # type: ignore[method-assign]
    definition = flow(failing=failing)
    rig.worker(definition)
    ids = [rig.start(definition, key) for key in ("first", "second")]
    seen += [(rig.instance(workflow_id), clock.wall_ms()) for workflow_id in ids]
    rig.finish(*ids)
    return seen


@pytest.mark.req("ops-find", "ops-where-stuck", "lat-split")
@pytest.mark.parametrize("failing", [False, True])
def test_every_record_has_one_reading_a_screen_and_figures_that_sum(failing: bool) -> None:
    seen = lives(failing=failing)
    kinds: set[Waiting | None] = set()
    for instance, at_ms in seen:
        snapshot = snapshot_of(instance, at_ms)
        for later_ms in LATER_MS:
            now_ms = at_ms + later_ms
            found = reading(snapshot, now_ms)
            kinds.add(found.waiting)
            assert (found.waiting is None) == (instance.status in TERMINAL), instance
            assert found.sentence and found.waiting in (None, *get_args(Waiting))
            assert bool(brief(snapshot.waiting, snapshot.waiting_on, snapshot.waiting_until, now_ms)) == bool(
                found.waiting
            )
            for split in (as_of(snapshot, now_ms).split, *(step.split for step in as_of(snapshot, now_ms).steps)):
                parts = (split.scheduling_ms, split.traffic_ms, split.execution_ms, split.external_ms)
                assert sum(parts) == split.total_ms and min(parts) >= 0
            lines = [click.unstyle(line) for line in page(snapshot, Surroundings(), now_ms, plain=False)]
            assert lines[0] == found.sentence

    assert kinds >= {"worker", "step", "timer", "signal", "retry", "permit", "finalizer", None}
    assert {instance.status for instance, _ in seen} >= {"failed" if failing else "completed"}
