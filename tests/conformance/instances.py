"""Rows of workflow_instances in any state that a test wants, and what differs between two of them."""

from __future__ import annotations

from typing import Any

from kernel.records import Document, Instance, Wait, to_document, to_instance
from kernel.store.conditional import Insert
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES

TYPE = "sample"
FINGERPRINT = "f" * 16
KEY = f"{TYPE}@{FINGERPRINT}"
TOKEN = "token-of-the-holder"
OWNER = "worker-of-the-holder"
_AWAITED = {"signal_type": "answer", "wait_key": "page-1", "generation": 2}
ERROR = {"code": "kernel_error", "type": "ValueError", "message": "no", "kind": "error", "attempt": 1}


def wait_document(index: int, at_ms: int, *, kind: str = "timer", wait_id: str = "wait-1") -> Document:
    """The wait of step `index`, whose poll time is `at_ms`."""
    wait = {"wait_id": wait_id, "kind": kind, "step": f"step_{index}", "step_index": index, "poll_time": at_ms}
    return {**wait, "since_time": at_ms - 1_000} | (_AWAITED if kind == "signal" else {})


def step_document(index: int, status: str = "pending", **fields: Any) -> Document:
    counters = dict.fromkeys(
        (
            *("attempt", "failures", "takeovers", "elapsed_ms", "executed_ms"),
            *("external_wait_ms", "traffic_wait_ms", "traffic_wait_count"),
        ),
        0,
    )
    return {"name": f"step_{index}", "status": status, **counters, "errors": [], **fields}


def instance_document(workflow_id: str, now_ms: int, *, without: tuple[str, ...] = (), **fields: Any) -> Document:
    """A running instance with two pending steps that nobody holds and that has been due for a while."""
    document: Document = {
        "v": 1,
        "workflow_id": workflow_id,
        "type": TYPE,
        "biz_key": f"biz:{workflow_id}",
        "definition_fingerprint": FINGERPRINT,
        "definition_key": KEY,
        "status": "running",
        "business_priority": 2,
        "input": b"\x01\xc0",
        "steps": [step_document(0), step_document(1)],
        "outputs": {},
        "workflow_run": 1,
        "retry_count": 0,
        "revision": 7,
        "deaths": 0,
        "created_time": now_ms - 60_000,
        "claimable_time": now_ms - 60_000,
        "runs": [],
        "commit_ids": ["commit-0"],
        **fields,
    }
    return {name: value for name, value in document.items() if name not in without}


def claimed(token: str = TOKEN, now_ms: int = 0) -> Document:
    """The fields of a claim."""
    return {"claim_token": token, "worker_id": OWNER, "worker": "host:1", "claim_time": now_ms}


def put(store: Store, document: Document) -> Document:
    """Store a new row and return it as read back."""
    key = document["workflow_id"]
    store.insert(Insert("create", INSTANCES, key, document))
    return row(store, key)


def row(store: Store, key: str) -> Document:
    document = store.get(INSTANCES, key)
    assert document is not None, f"{key} is not in the store"
    return document


def read(store: Store, key: str) -> Instance:
    return to_instance(row(store, key))


def wait_of(document: Document) -> Wait:
    return Wait(**document)


def as_document(instance: Instance) -> Document:
    return to_document(instance)


def differences(before: Document, after: Document) -> set[str]:
    """The fields that differ, one level down in `outputs` and two in `steps`."""
    return set(_differences(before, after, ""))


def _differences(before: Any, after: Any, path: str) -> list[str]:
    if path == "steps" and isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"steps.{k}", old, new) for k, (old, new) in enumerate(zip(before, after, strict=True))]
    elif _is_opened(path) and isinstance(before, dict) and isinstance(after, dict):
        prefix = f"{path}." if path else ""
        names = {*before, *after}
        pairs = [(prefix + name, before.get(name, _NOTHING), after.get(name, _NOTHING)) for name in names]
    else:
        return [] if type(before) is type(after) and before == after else [path]
    return [found for name, old, new in pairs for found in _differences(old, new, name)]


def _is_opened(path: str) -> bool:
    return path in ("", "outputs") or (path.startswith("steps.") and path.count(".") == 1)


_NOTHING = object()
