"""Waking what waits for a time that has come: two commits for a whole batch, whoever does it (slp-activate)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernel import transitions
from kernel.engine.commit import settled
from kernel.engine.readiness import due_waits
from kernel.errors import CorruptRecord, OutcomeUnknown, StoreUnavailable
from kernel.records import Document, Instance
from kernel.states import WAITING
from kernel.store.conditional import Answer, Applied, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES


def activate_all_due(
    store: Store, instances: Sequence[Instance], now_ms: int, commit_id: Callable[[], str]
) -> list[Document | None]:
    """Activate the first due wait of each waiting instance, at the price of few commits. The row after it, or None
    where nothing is due, another was faster, or the store does not say: the next scan looks again."""
    writes: dict[int, Transition] = {}
    for place, instance in enumerate(instances):
        due = due_waits(instance.steps, now_ms) if instance.status == WAITING else []
        if due:
            first = min(due, key=partial(_poll_time, instance))
            writes[place] = transitions.activate_timer(instance, first, now_ms=now_ms, commit_id=commit_id())
    rows: list[Document | None] = [None] * len(instances)
    if not writes:
        return rows
    try:
        answers: list[Answer | None] = list(store.apply_all(list(writes.values())))
    except (OutcomeUnknown, CorruptRecord):
        answers = [None] * len(writes)  # lost, or one damaged row raised for all: each tells
    except StoreUnavailable:
        return rows
    for (place, write), answer in zip(writes.items(), answers, strict=True):
        if isinstance(answer, Applied):
            rows[place] = answer.document
        elif answer is None:
            rows[place] = _landed(store, write)
    return rows


def _landed(store: Store, write: Transition) -> Document | None:
    """The row, when this very activation is in it or hits now."""
    try:
        document = store.get(INSTANCES, write.key)
        if document is not None and write.commit_id in document.get("commit_ids", ()):
            return document
        return settled(store, write)
    except (StoreUnavailable, OutcomeUnknown, CorruptRecord):
        return None


def _poll_time(instance: Instance, index: int) -> int:
    wait = instance.steps[index].wait
    return 0 if wait is None or wait.poll_time is None else wait.poll_time
