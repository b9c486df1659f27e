"""Orders in a tree whose processes are there to be hurt: its business objects, and what holds of each at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kernel import BusinessObjects, Intent, workflow_id_for
from kernel.clock import SystemClock
from kernel.runtime import open_objects
from tests.faults.crash_app import ORDERS, SERVED, WRITTEN
from tests.faults.invariants import findings, orphans
from tests.faults.rig import ARMED, LIMIT_S, Tree, tree
from tests.faults.stalls import patient
from tests.support.wait import stays, wait_until

APP = "tests.faults.crash_app:app"


class State(msgspec.Struct, frozen=True):
    """How an order stands: its business status, its intent's, its round; status and run of its instance."""

    object: str | None = None
    intent: str | None = None
    round: str | None = None
    instance: str | None = None
    run: int | None = None


class Orders:
    """The business objects of a running tree, as another process sees them."""

    def __init__(self, running: Tree, objects: BusinessObjects) -> None:
        self.tree = running
        self.objects = objects

    def intent(self, object_id: str) -> Intent:
        found = self.objects.read(object_id)
        assert found is not None, f"{object_id} does not exist"
        return found

    def state(self, object_id: str) -> State:
        there, instance = self.objects.get(object_id), self.tree.client.get(id_of(object_id))
        intent = None if there is None else there.intent
        return State(
            None if there is None else str(there.status),
            None if intent is None else intent.status,
            None if intent is None else intent.fencing_token.partition("-")[0],
            None if instance is None else instance.status,
            None if instance is None else instance.workflow_run,
        )

    def accept(self, *ids: str, **input: Any) -> None:
        """Stored and pending, as by a process that died right after that."""
        for object_id in ids:
            key, value = f"{SERVED.type}:{object_id}", {"object_id": object_id, **input}
            self.objects.accept(object_id, type_=SERVED.type, biz_key=key, input=value, priority=3)

    def wait_due(self, *ids: str) -> None:
        due_ms = max(self.intent(object_id).due_time or 0 for object_id in ids)
        wait_until(lambda: self.objects.now_ms() > due_ms, "all are due", LIMIT_S)

    def wait_dispatched(self, *ids: str) -> None:
        def dispatched() -> bool:
            return all(self.intent(object_id).status == "dispatched" for object_id in ids)

        wait_until(dispatched, f"{len(ids)} orders are dispatched", LIMIT_S, every=0.05)

    def check_served(self, object_id: str, runs: int = 1, **entries: int) -> None:
        """Dispatched in its last round and served in it, by one instance, in `runs` runs; whatever died on the way, no
        step was entered but as `entries` says. Writes of an old round, and of no lease, change nothing."""
        workflow_id = id_of(object_id)
        self.wait_dispatched(object_id)
        self.tree.finish(workflow_id)
        wait_until(lambda: self.state(object_id).object == "completed", "its object is completed", LIMIT_S)
        instance, intent = self.tree.instance(workflow_id), self.intent(object_id)
        assert self.state(object_id) == State("completed", "dispatched", f"f{runs}", "completed", runs)
        assert (instance.input, instance.retry_count) == (intent.input, runs - 1)
        assert self.tree.output(workflow_id) == f"served in {intent.fencing_token}"
        assert {"a": 1, "b": runs, None: runs} | entries == self.tree.effects.counts(workflow_id)
        assert (intent.claim_token, intent.due_time) == (None, None)

    def check_nobody_else_may_write(self, object_id: str, *tokens: str) -> None:
        """Confirm, renew and release under these lease tokens, and a confirm of the first round's, miss."""
        row, token = self.objects.get(object_id), self.intent(object_id).fencing_token
        for lease in tokens:
            assert not self.objects.confirm(object_id, token, lease)
            assert not self.objects.renew(object_id, token, lease, 60_000)
            assert self.objects.release(object_id, token, lease, 0, "too late") is None
        assert not self.objects.confirm(object_id, token, None), "it is not pending any more"
        assert self.objects.get(object_id) == row

    def written(self, object_id: str, what: str = WRITTEN) -> list[str]:
        """The rounds of which the business store took the result, or refused it."""
        return [effect.note for effect in self.tree.effects.of(id_of(object_id), what=what)]

    def check_all(self) -> None:
        """S1–S9 over everything in the tree, and nothing moves any more."""
        wait_until(lambda: not orphans(self.tree.rows()), "no claim is left", LIMIT_S)
        rows, ids = self.tree.rows(), [row["object_id"] for row in self.objects.page(limit=1_000)]
        self.wait_dispatched(*ids)
        assert findings(rows, self.tree.effects.all(), [f"{SERVED.type}:{object_id}" for object_id in ids]) == []
        assert len(rows) == len(ids)
        stays(lambda: self.tree.rows() == rows, "what has ended stays as it is", seconds=0.5)


def id_of(object_id: str) -> str:
    return workflow_id_for(f"{SERVED.type}:{object_id}")


@contextmanager
def orders_in(folder: Path, **more: Any) -> Iterator[Orders]:
    """A running tree, and its orders."""
    fields = {"app": APP, "lease_s": 30.0, "restart_give_up": 1_000} | more
    with tree(folder, ARMED, **fields) as running:
        objects = open_objects(patient(running.config), folder, [ORDERS], SystemClock())[ORDERS.name]
        try:
            yield Orders(running, objects)
        finally:
            objects.close()
