"""What rows went through, as far as somebody saw it who looked again and again: S3, S5 and S6 while work goes on.

Looked at is what is not terminal, and once more what has just become terminal; of the others a page is looked at in
turn, so that a look costs what is live and not what ever was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from kernel.records import COMMIT_IDS_KEPT, Document
from kernel.states import TERMINAL
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES
from tests.chaos.window import Window
from tests.faults.invariants import broken_in
from tests.support.looking import Looking

EVERY_S = 0.1
_ENDED_PAGE = 20
_STANDING = ("status", "outputs", "workflow_run")


def halves(row: Document) -> Iterator[str]:
    """S5: what one row must never show. A wait for a signal alone is looked at by nobody, and rightly so."""
    for found in broken_in(row):
        if "nobody will ever look" not in found or row["status"] != "waiting" or not _waits_for_signal(row):
            yield f"S5: {found}"


def _waits_for_signal(row: Document) -> bool:
    return any(step.get("wait", {}).get("kind") == "signal" for step in row["steps"])


def between(last: Document, row: Document) -> Iterator[str]:
    """S3 and S6: what an earlier and a later sight of one row must have to do with each other.

    Commit ids are a log of which the last are kept: what was in it is not taken back, and every revision has one. At
    one revision only claims change, so a stale commit that changed anything is seen.
    """
    name = f"{row['biz_key']} (revision {last['revision']} → {row['revision']})"
    if row["revision"] < last["revision"]:
        yield f"S3: {name}: a revision was taken back"
        return
    known, ids = last["commit_ids"], row["commit_ids"]
    fresh = ids[ids.index(known[-1]) + 1 :] if known[-1] in ids else ids
    if known[-1] not in ids and len(ids) < COMMIT_IDS_KEPT:
        yield f"S3: {name}: commit {known[-1]} is gone from the log"
    elif known[-1] in ids and row["revision"] - last["revision"] > len(fresh):
        yield f"S3: {name}: {len(fresh)} commits made more than as many revisions"
    if row["revision"] == last["revision"]:
        changed = [field for field in _STANDING if row[field] != last[field]]
        if changed or [step["status"] for step in row["steps"]] != [step["status"] for step in last["steps"]]:
            yield f"S3: {name}: {changed or 'a step'} changed and the revision did not"
    if last["status"] in TERMINAL and row != last:
        replayed = last["status"] == "failed" and row["workflow_run"] > last["workflow_run"]
        if not replayed:
            yield f"S6: {name}: was {last['status']} and became {row['status']}"
    if row["workflow_run"] == last["workflow_run"]:
        yield from _lost_steps(name, last, row)


def _lost_steps(name: str, last: Document, row: Document) -> Iterator[str]:
    """S4 in the rows: within a run a step that was completed or skipped stays so, and so does its output."""
    for before, step in zip(last["steps"], row["steps"], strict=True):
        if before["status"] in ("completed", "skipped") and step["status"] != before["status"]:
            yield f"S4: {name}: step {step['name']} was {before['status']} and became {step['status']}"
    for step_name, output in last["outputs"].items():
        if row["outputs"].get(step_name) != output:
            yield f"S4: {name}: the output of {step_name} changed"


_FIELDS = ("workflow_id", "biz_key", "type", "status", "revision", "workflow_run", "outputs", "error", "parked")
_CLAIM = ("claim_token", "worker")
_STEP_FIELDS = ("name", "status", "attempt", "worker_id", "finish_time", "takeovers", "wait")


def slim(row: Document) -> Document:
    """Of a row what the checker reads: an hour has a hundred thousand of them."""
    kept = {field: row[field] for field in (*_FIELDS, *_CLAIM) if field in row}
    return kept | {"steps": [{f: step[f] for f in _STEP_FIELDS if f in step} for step in row["steps"]]}


class History:
    """All sights of all rows, and what was wrong with them."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.looks = 0
        self.statuses: dict[str, str] = {}
        """Of every row that was seen, as it was then."""
        self.earlier_runs: list[Document] = []
        """The last sight of each run that another one has followed."""
        self._last: dict[str, bytes] = {}

    def last(self, workflow_id: str) -> Document | None:
        """The last sight of that row."""
        data = self._last.get(workflow_id)
        return None if data is None else msgspec.msgpack.decode(data)

    def see(self, row: Document) -> None:
        """One more sight."""
        workflow_id, data = row["workflow_id"], msgspec.msgpack.encode(row)
        if self._last.get(workflow_id) == data:
            return
        self.found += halves(row)
        last = self.last(workflow_id)
        if last is not None:
            self.found += between(last, row)
            if row["workflow_run"] > last["workflow_run"]:
                self.earlier_runs.append(slim(last))
        self._last[workflow_id] = data
        self.statuses[workflow_id] = row["status"]


class Sampler(Looking):
    """Looks from a thread of its own, through a window that may be shut."""

    def __init__(self, window: Window, history: History, every_s: float = EVERY_S) -> None:
        super().__init__("sampler", every_s)
        self._window = window
        self._history = history
        self._live: set[str] = set()
        self._ended: deque[str] = deque()
        self._newest: tuple[int, str] | None = None

    def live_ids(self) -> list[str]:
        """Of the rows that were not terminal when they were seen last."""
        return list(self._live)

    def _turn(self) -> None:
        with self._window.looking() as store:
            if store is not None:
                self.look(store)

    def _failed(self, error: Exception) -> None:
        self._history.found.append(f"the sampler ended: {error!r}")

    def look(self, store: Store) -> None:
        columns = ("created_time", "workflow_id")
        while True:
            # A row of the very millisecond may be inserted behind the cursor: that one is found at the end, not here.
            fresh = store.scan(Query(INSTANCES, (), "created_time", columns, 500, self._newest))
            self._live.update(workflow_id for _, workflow_id in fresh)
            if not fresh:
                break
            self._newest = fresh[-1]
        again = [self._ended.popleft() for _ in range(min(_ENDED_PAGE, len(self._ended)))]
        for workflow_id in (*list(self._live), *again):
            self._see(store, workflow_id)
        self._history.looks += 1

    def _see(self, store: Store, workflow_id: str) -> None:
        row = store.get(INSTANCES, workflow_id)
        if row is None:
            self._history.found.append(f"S1: {workflow_id} is gone")
            return
        self._history.see(row)
        if row["status"] in TERMINAL:
            self._live.discard(workflow_id)
            self._ended.append(workflow_id)
        else:
            self._live.add(workflow_id)
