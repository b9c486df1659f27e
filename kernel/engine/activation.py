"""Waking what waits for a time that has come: two commits for a whole batch, whoever does it (slp-activate)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernel import transitions
from kernel.engine.commit import settled
from kernel.engine.readiness import due_waits
from kernel.engine.telling import Note, woken
from kernel.errors import CorruptRecord, OutcomeUnknown, StoreUnavailable
from kernel.records import Document, Instance, bears_mark, to_instance
from kernel.states import WAITING
from kernel.store.conditional import Answer, Applied, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES


def activate_all_due(
    store: Store, instances: Sequence[Instance], now_ms: int, commit_id: Callable[[], str], note: Note
) -> list[Instance | None]:
    """Activate the first due wait of each waiting instance, at the price of few commits, and tell of it. The record
    after it, or None where nothing is due, another was faster, or the store does not say: the next scan looks again."""
    writes: dict[int, Transition] = {}
    chosen: dict[int, int] = {}
    for place, instance in enumerate(instances):
        due = due_waits(instance.steps, now_ms) if instance.status == WAITING else []
        if due:
            chosen[place] = min(due, key=partial(_poll_time, instance))
            writes[place] = transitions.activate_timer(instance, chosen[place], now_ms=now_ms, commit_id=commit_id())
    found: list[Instance | None] = [None] * len(instances)
    if not writes:
        return found
    try:
        answers: list[Answer | None] = list(store.apply_all(list(writes.values())))
    except (OutcomeUnknown, CorruptRecord):
        answers = [None] * len(writes)  # lost, or one damaged row raised for all: each tells
    except StoreUnavailable:
        return found
    for (place, write), answer in zip(writes.items(), answers, strict=True):
        document = answer.document if isinstance(answer, Applied) else None
        if answer is None:
            document = _landed(store, write)
        if document is not None:
            found[place] = activated = to_instance(document)
            woken(note, activated, chosen[place], was_waiting=True)
    return found


def _landed(store: Store, write: Transition) -> Document | None:
    """The row, when this very activation is in it or hits now."""
    try:
        document = store.get(INSTANCES, write.key)
        if document is not None and bears_mark(document, write.commit_id):
            return document
        return settled(store, write)
    except (StoreUnavailable, OutcomeUnknown, CorruptRecord):
        return None


def _poll_time(instance: Instance, index: int) -> int:
    wait = instance.steps[index].wait
    return 0 if wait is None or wait.poll_time is None else wait.poll_time
