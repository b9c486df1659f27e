"""Each fact has one owner: the business object, the instance, and Redis, which only speeds up (groups 1 and 3)."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import kernel
from kernel.business_objects import BusinessObjects
from kernel.client import Handle
from kernel.context import Context
from kernel.directives import Yield
from kernel.objects import Objects
from kernel.requests import Requests
from kernel.store.memory import MemoryStore
from tests.engine.flows import flow, step
from tests.support.engine_rig import SteppedRig

ORDERS = Objects(name="orders", grace_ms=0)
ENGINE = Path(kernel.__file__).parent / "engine"


def orders(rig: SteppedRig) -> BusinessObjects:
    return BusinessObjects(ORDERS, MemoryStore(rig.clock, {ORDERS.place: ORDERS.table}), rig.ids)


@pytest.mark.req("layer-two-records", "layer-big-fields")
def test_registering_a_workflow_leaves_the_business_object_as_it_is(rig: SteppedRig) -> None:
    """The whole document before and after, and nothing of its material in the instance or the intent."""
    definition = flow(rig, step(rig, "only", lambda ctx: "done"), type="order")
    objects, material = orders(rig), "a picture of 3 MB"
    accepted = objects.accept(
        "o-1",
        type_="order",
        biz_key="order:o-1",
        input={"object_id": "o-1", "fencing_token": ""},
        priority=1,
        fields={"attachment": material},
    ).object

    workflow_id = rig.start(definition, "order:o-1")
    rig.run(lambda: rig.status(workflow_id) == "completed", "the end", rig.worker(definition))

    assert objects.get("o-1") == accepted
    assert accepted.intent is not None
    assert material.encode() not in accepted.intent.input
    assert material not in str(rig.row(workflow_id))


@pytest.mark.req("layer-lock-short")
def test_without_any_lock_racing_requests_are_one_object_and_one_instance(rig: SteppedRig) -> None:
    """No lock and no Redis: the object's key and the unique biz_key decide alone, and all get the same identity."""
    definition = flow(rig, step(rig, "only", lambda ctx: "done"), type="order")
    objects = orders(rig)
    desk = Requests(rig.client, objects, definition.plan, ids=rig.ids)
    barrier, answers = threading.Barrier(8), list[tuple[str, str]]()

    def ask() -> None:
        barrier.wait()
        answer = desk.request({"object_id": "o-1", "fencing_token": ""}, object_id="o-1")
        assert answer.stream is not None
        answers.append((answer.object_id, answer.stream.workflow_id))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert answers == [answers[0]] * 8
    handle: Handle = rig.client.start_or_resume(definition.plan, biz_key="order:o-1", input={"object_id": "o-1"})
    assert (handle.workflow_id, handle.branch) == (answers[0][1], "running")


@pytest.mark.req("layer-instance")
def test_with_everything_else_gone_the_same_step_runs_next(rig: SteppedRig) -> None:
    """The queue is emptied in the middle: what runs next is in the row."""

    def first(ctx: Context) -> str | Yield:
        return "one" if ctx.checkpoint(int) else Yield(checkpoint=1)

    definition = flow(rig, step(rig, "first", first), step(rig, "second", lambda ctx: ctx.output("first")))
    workflow_id = rig.start(definition, "k")
    rig.run(lambda: rig.ledger.count("first") == 1, "the first page", rig.worker(definition))

    rig.queue.wipe()
    rig.finish(workflow_id)

    assert (rig.ledger.count("first"), rig.ledger.count("second"), rig.output(workflow_id)) == (2, 1, "one")


@pytest.mark.req("core-business-vs-kernel")
def test_no_branch_of_the_engine_asks_for_a_workflow_type() -> None:
    """A type is looked up and compared with another type, never with a text that stands in the engine."""
    found = []
    for path in sorted(ENGINE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                asked = any(isinstance(side, ast.Attribute) and side.attr in ("type", "type_") for side in sides)
                if asked and any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides):
                    found.append(f"{path.name}:{node.lineno}")
            elif (
                isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute) and node.subject.attr == "type"
            ):
                found.append(f"{path.name}:{node.lineno}")
    assert found == []


@pytest.mark.req("core-business-vs-kernel")
def test_two_unrelated_definitions_import_nothing_of_each_other() -> None:
    """The bundled speech job and the fan-out run on the same engine and do not know each other."""
    root = Path(kernel.__file__).parents[1]
    job = ["app", "activities", "speech", "flow", "notes"]
    assert not any("fanout" in (root / "asr_demo" / f"{name}.py").read_text(encoding="utf-8") for name in job)
    assert not any("asr_demo" in path.read_text(encoding="utf-8") for path in (root / "fanout").glob("*.py"))


OWNERS = {
    "INSTANCES": {"transitions/parts.py", "transitions/start.py"},
    "SIGNALS": {"transitions/inbox.py"},
    "LIMITS": {"transitions/limits.py"},
    "DEFINITIONS": {"engine/sweeps.py"},
    # Only their end; they are kept by verbs of their own (kernel.store.projection).
    "SNAPSHOTS": {"observe/retention.py"},
    "ATTEMPTS": {"observe/retention.py"},
    "table": {"transitions/dispatch.py"},  # the user's own: business objects with their intents
}
"""Who builds the writes of a table, beside the files that it names nobody does."""


@pytest.mark.req("layer-four")
def test_each_table_is_written_by_one_owner_and_each_redis_key_built_in_one_module() -> None:
    root = Path(kernel.__file__).parent
    found: dict[str, set[str]] = {}
    prefixed = set()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Transition", "Insert", "Remove"):
                assert isinstance(node.args[1], ast.Name), f"{place}:{node.lineno} names its table"
                found.setdefault(node.args[1].id, set()).add(place)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("wk1"):
                prefixed.add(place)
    assert found == OWNERS
    assert prefixed == {"coordination/keys.py"}
