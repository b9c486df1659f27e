"""What the write vocabulary refuses when a transition is made: what one of the interpreters could not run exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel.errors import InvalidTransition
from kernel.store.conditional import (
    Add,
    Append,
    AtLeast,
    AtMost,
    Clear,
    Differs,
    Due,
    Equals,
    Insert,
    Put,
    PutNow,
    PutNowPlus,
    Remove,
    Transition,
)

TOUCH = Put("status", "running")


def made(*words: Any, commit_id: str | None = None) -> Transition:
    guards = tuple(word for word in words if isinstance(word, Equals | Differs | AtMost | AtLeast | Due))
    changes = tuple(word for word in words if word not in guards)
    return Transition("test", "workflow_instances", "wf-1", guards, changes or (TOUCH,), commit_id)


@pytest.mark.parametrize(
    "build",
    [
        lambda: made(Equals("status", None)),
        lambda: made(Differs("status", None)),
        lambda: made(Equals("steps", ["a"])),
        lambda: made(Equals("wait", {"$gt": ""})),
        lambda: made(AtMost("deaths", "1")),  # type: ignore[arg-type]
        lambda: made(AtLeast("deaths", True)),
        lambda: made(Clear("steps.0")),
        lambda: made(Append("runs", "x", 0)),
        lambda: made(Put("commit_ids", []), commit_id="c"),
        lambda: made(PutNowPlus("claimable_time", 5), Put("steps.0.status", "pending")),
        lambda: made(PutNowPlus("wait.poll_time", 5)),
        lambda: made(Put("steps.0", {}), Put("steps.0.status", "pending")),
        lambda: made(Put("status", "a"), Clear("status")),
        lambda: made(Put("$where", 1)),
        lambda: made(Put("outputs.a.b.c", 1)),
        lambda: made(Put("steps.-1.status", 1)),
        lambda: made(Put("steps.00.status", 1)),
        lambda: Transition("empty", "workflow_instances", "wf-1", (), (), None),
        lambda: Transition("odd", "workflow_instances", "wf-1", (Put("a", 1),), (TOUCH,), None),  # type: ignore[arg-type]
        lambda: Transition("odd", "workflow_instances", "wf-1", (), (Due("a_time"),), None),  # type: ignore[arg-type]
    ],
)
def test_a_transition_that_no_store_could_run_exactly_is_refused_when_it_is_made(
    build: Callable[[], Transition],
) -> None:
    with pytest.raises(InvalidTransition):
        build()


@pytest.mark.req("rec-status-set")
@pytest.mark.parametrize(
    "build",
    [
        lambda: made(Put("status", "done")),
        lambda: made(Put("status", "pending")),
        lambda: made(Put("steps.0.status", "failing")),
        lambda: made(Put("steps.12.status", None)),
        lambda: Insert("create", "workflow_instances", "wf-1", {"workflow_id": "wf-1", "status": "new"}),
    ],
)
def test_a_status_outside_the_closed_set_is_never_written(build: Callable[[], object]) -> None:
    with pytest.raises(InvalidTransition, match="is no status"):
        build()


@pytest.mark.parametrize(
    "words",
    [
        (Equals("status", "running"), Put("steps.1.status", "running"), Add("steps.1.attempt", 1)),
        (Due("claimable_time"), PutNowPlus("claimable_time", 30_000), PutNow("claim_time")),
        (Put("outputs.compose_content", b"x"), Put("outputs.finalize", b"y")),
        (Clear("steps.1.wait"), Put("steps.1.resume", {"kind": "timer"}), PutNow("claimable_time")),
        (Put("steps.1", {"name": "x"}), Put("steps.10", {"name": "y"})),
    ],
)
def test_what_every_store_can_run_is_made(words: tuple[Any, ...]) -> None:
    assert made(*words, commit_id="c").name == "test"


@pytest.mark.parametrize(
    "guard",
    [
        Equals("status", None),
        Equals("a.b.c.d", 1),
        AtMost("match_time", "soon"),
        Put("status", "x"),
        Equals("$where", 1),
    ],  # type: ignore[arg-type]
)
def test_a_removal_with_a_word_that_is_no_guard_is_refused_when_it_is_made(guard: Any) -> None:
    with pytest.raises(InvalidTransition):
        Remove("forget", "workflow_signals", "s1", (guard,))


@pytest.mark.req("id-biz-key")
def test_an_instance_is_never_removed() -> None:
    with pytest.raises(InvalidTransition, match="one biz_key is one instance for ever"):
        Remove("forget", "workflow_instances", "wf-1", (Equals("status", "completed"),))
