"""For tests of the side path: records as a commit leaves them, and a store of observations that fails as told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kernel.codec import encode
from kernel.ids import workflow_id_for
from kernel.observe.batch import document_of
from kernel.observe.projection import attempts_of, snapshot_of
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document, ErrorRecord, Instance, StepRecord
from kernel.store.conditional import Remove, RemoveAnswer
from kernel.store.projection import Keep, ProjectionStore, Total, Totals
from kernel.store.protocol import Query

CREATED_MS = 1_700_000_000_000


def record(key: str, revision: int = 1, *, step: str = "running", attempt: int = 1, **fields: Any) -> Instance:
    """The instance of `key` with one step `work`, as the commit of `revision` left it."""
    base: dict[str, Any] = {
        "v": 1,
        "workflow_id": workflow_id_for(key),
        "type": "report",
        "biz_key": key,
        "definition_fingerprint": "f1",
        "definition_key": "report@f1",
        "status": "running",
        "business_priority": 1,
        "input": encode({"fencing_token": "round-1"}, "input", 1000),
        "steps": (StepRecord(name="work", status=step, attempt=attempt, started_time=CREATED_MS),),  # type: ignore[arg-type]
        "outputs": {},
        "workflow_run": 1,
        "retry_count": 0,
        "revision": revision,
        "deaths": 0,
        "created_time": CREATED_MS,
        "claim_token": "token",
        "claim_time": CREATED_MS,
    }
    return Instance(**(base | fields))


def ended(key: str, revision: int = 9, status: str = "completed", **fields: Any) -> Instance:
    """The instance of `key` after its end."""
    over: dict[str, Any] = {
        "status": status,
        "finish_time": CREATED_MS + 1_000,
        "claim_token": None,
        "claim_time": None,
    }
    if status == "failed":
        over["error"] = ErrorRecord(code="broken", type="ValueError", message="it broke")
    return record(key, revision, step="failed" if status == "failed" else "completed", **(over | fields))


def snapshot(instance: Instance, now_ms: int = CREATED_MS + 2_000) -> Keep:
    """The snapshot of an instance as a row."""
    return Keep(SNAPSHOTS, document_of(snapshot_of(instance, now_ms)))


def attempt(event: str, instance: Instance, now_ms: int = CREATED_MS + 2_000) -> Keep:
    """The attempt of its step that an event tells of, as a row."""
    found = attempts_of(event, instance, 0, now_ms)
    assert found is not None
    return Keep(ATTEMPTS, document_of(found))


class Observed:
    """A `ProjectionStore` around `inner`: counts its calls, and fails, waits or refuses as the test says."""

    def __init__(self, inner: ProjectionStore) -> None:
        self.inner = inner
        self.fault: Exception | None = None
        """What every call raises that opens, prepares or writes."""
        self.poison: tuple[str, Exception] | None = None
        """A key, and what a write raises that holds the row of it."""
        self.gate: threading.Event | None = None
        """Every write waits here first."""
        self.calls: list[str] = []
        self.kept: list[Keep] = []
        """Every row that was kept, in order."""
        self.entered = threading.Event()
        self.closed = False

    def _fails(self, call: str) -> None:
        self.calls.append(call)
        if self.fault is not None:
            raise self.fault

    def prepare(self) -> None:
        self._fails("prepare")
        self.inner.prepare()

    def keep_all(self, kept: Sequence[Keep]) -> int:
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        self._fails("keep_all")
        if self.poison is not None and any(self.poison[0] in keep.document.values() for keep in kept):
            raise self.poison[1]
        count = self.inner.keep_all(kept)
        self.kept.extend(kept)
        return count

    def close(self) -> None:
        self.closed = True

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def get(self, table: str, key: str) -> Document | None:
        return self.inner.get(table, key)

    def find(self, table: str, column: str, value: str) -> Document | None:
        return self.inner.find(table, column, value)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        return self.inner.scan(query)

    def rows(self, query: Query) -> list[Document]:
        return self.inner.rows(query)

    def totals(self, wanted: Totals) -> list[Total]:
        return self.inner.totals(wanted)

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return self.inner.remove_all(removes)
