"""Every reusable shape of a flow, written by an author and run by ordinary worker processes (spl-forms).

A worker is killed under each of them: what the shapes need beside their own code, the kernel has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kernel import Definition
from tests.faults import shapes
from tests.faults.rig import Tree, kill, tree
from tests.faults.shapes import Job, Outside
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("spl-forms", "spl-subject-of-review")]


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("shaped") / "data"
    with tree(folder, app="tests.faults.shapes:app", lease_s=30.0) as running:
        yield running


@pytest.fixture
def outside(shaped: Tree) -> Outside:
    return Outside(shaped.folder)


def start(shaped: Tree, definition: Definition, key: str, job: Job) -> str:
    return shaped.client.start_or_resume(definition.plan, biz_key=key, input=job).workflow_id


def kill_one(shaped: Tree) -> None:
    """A worker dies and comes back: nothing here needs to know."""
    victim = shaped.pids()[0]
    kill(victim)
    shaped.wait_running(without=[victim])


def wait_waiting(shaped: Tree, *workflow_ids: str) -> None:
    wait_until(lambda: all(shaped.row(key)["status"] == "waiting" for key in workflow_ids), "they wait")


def test_linear_content_job(shaped: Tree, outside: Outside) -> None:
    ids = [start(shaped, shapes.LINEAR, f"note {n}", Job(f"note{n}")) for n in range(20)]
    kill_one(shaped)
    shaped.finish(*ids)

    assert [outside.ask(f"published-note{n}") for n in range(20)] == [f"CONTENT OF NOTE{n}" for n in range(20)]


def test_async_external_task_with_polling(shaped: Tree, outside: Outside) -> None:
    workflow_id = start(shaped, shapes.POLLING, "speech", Job("speech"))
    wait_waiting(shaped, workflow_id)
    kill_one(shaped)
    outside.say("task-speech", "done")
    shaped.finish(workflow_id)

    assert shaped.output(workflow_id) == "task-speech: done"
    (step,) = shaped.instance(workflow_id).steps
    # A worker that was killed in the middle of a look costs an attempt, and is counted.
    assert (step.attempt - step.takeovers, step.failures) == (1, 0), "waiting is neither an attempt nor a failure"


def test_wait_for_an_event(shaped: Tree, outside: Outside) -> None:
    workflow_id = start(shaped, shapes.WAITING, "single wait", Job("single"))
    wait_waiting(shaped, workflow_id)
    kill_one(shaped)
    outside.say("recording-single", "it is there")
    shaped.client.signal(workflow_id, "recording_ready", wait_key="single", signal_id="single:1")
    shaped.finish(workflow_id)

    assert shaped.output(workflow_id) == "it is there"


def test_durable_fan_out(shaped: Tree, outside: Outside) -> None:
    waiting = [start(shaped, shapes.WAITING, f"listener {n}", Job("show")) for n in range(10)]
    wait_waiting(shaped, *waiting)
    outside.say("waiting-show", msgspec.json.encode(waiting).decode())
    fan_out = start(shaped, shapes.FAN_OUT, "show is there", Job("show"))
    kill_one(shaped)
    shaped.finish(fan_out, *waiting)

    assert shaped.output(fan_out) == 10
    assert {shaped.output(workflow_id) for workflow_id in waiting} == {"it is there"}


def test_resource_observer(shaped: Tree, outside: Outside) -> None:
    """A new generation of the resource: the old observer is superseded, and then the new one is started."""
    old = start(shaped, shapes.OBSERVER, "show:1", Job("live", 1))
    wait_waiting(shaped, old)
    assert shaped.client.supersede(old).changed
    new = start(shaped, shapes.OBSERVER, "show:2", Job("live", 2))
    wait_until(lambda: int(outside.ask("looks-live-2") or 0) >= 2, "it looks again and again")
    kill_one(shaped)
    outside.say("show-live-2", "over")
    shaped.finish(new)

    assert shaped.output(new) == "generation 2 is over"
    assert shaped.instance(old).status == "canceled"


def test_the_shapes_need_nothing_but_the_authors_door() -> None:
    """A new type is a Definition, activities and idempotent writes: no lease, retry, restart or claim is in it."""
    text = Path(shapes.__file__).read_text()

    imports = [line for line in text.splitlines() if line.startswith(("from kernel", "import kernel"))]
    assert [line.partition(" import ")[0] for line in imports] == ["from kernel"]
    assert not [word for word in ("claim", "lease", "retry", "Redis", "sqlite", "thread") if word in text]
