"""A batch of noted events as rows to keep: of each snapshot and of each attempt the newest, projected once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from kernel.observe.bare import INPUT_BYTES_KEPT, bare
from kernel.observe.projection import attempts_of, snapshot_of
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.records import Document, Instance
from kernel.store.projection import Keep

log = logging.getLogger("kernel.observe")


class Noted(msgspec.Struct, frozen=True):
    """One event as it waits: the bare record, and the boot clock when it was noted."""

    event: str
    instance: Instance
    step: int | None
    attempt: int
    """Of the step, 0 without one."""
    at_ms: int


class Rows(msgspec.Struct, frozen=True):
    """What a batch leaves to be written, and the events that could not be projected at all."""

    kept: list[Keep]
    poisoned: int


K = TypeVar("K")


def rows_of(noted: Sequence[Noted], offset_ms: int) -> Rows:
    """The rows of a batch, attempts before the snapshots that speak of them. `offset_ms` + boot clock = store's clock.

    A batch usually holds several events of one workflow, and only the one of the highest revision can survive the
    guard of the store: the others are not even projected.
    """
    found = _Projecting(offset_ms)
    attempts = [
        ((one.instance.workflow_id, one.instance.workflow_run, one.step, one.attempt), one)
        for one in noted
        if one.step is not None
    ]
    kept = list(found.newest(attempts, ATTEMPTS, _attempt))
    kept += found.newest([(one.instance.biz_key, one) for one in noted], SNAPSHOTS, _snapshot)
    return Rows(kept, found.poisoned)


class _Projecting:
    def __init__(self, offset_ms: int) -> None:
        self._offset_ms = offset_ms
        self.poisoned = 0

    def newest(
        self, keyed: Sequence[tuple[K, Noted]], table: str, project: Callable[[Noted, int], msgspec.Struct | None]
    ) -> Iterator[Keep]:
        """One row for each key, in the order of their first events."""
        groups: dict[K, list[Noted]] = {}
        for key, one in keyed:
            groups.setdefault(key, []).append(one)
        for group in groups.values():
            # Stable: of two events of one revision the later is popped first.
            left = sorted(group, key=lambda one: one.instance.revision)
            row = None
            while left and row is None:
                row = self._projected(left.pop(), project)
            if row is not None:
                yield Keep(table, document_of(row))

    def _projected(self, one: Noted, project: Callable[[Noted, int], msgspec.Struct | None]) -> msgspec.Struct | None:
        try:
            return project(one, one.at_ms + self._offset_ms)
        except Exception:
            # One record that no projection was written for must not keep the others from being seen.
            self.poisoned += 1
            log.exception("%s of %s can not be shown", one.event, one.instance.workflow_id)
            return None


def document_of(row: msgspec.Struct) -> Document:
    """A row as a document: absent instead of null where a column could be asked for."""
    document: Document = msgspec.to_builtins(row, builtin_types=(bytes,))
    return {name: value for name, value in document.items() if value is not None}


def _snapshot(one: Noted, now_ms: int) -> msgspec.Struct:
    # A long input that was noted with room for it is cut down here, beside the path.
    instance = one.instance if len(one.instance.input) <= INPUT_BYTES_KEPT else bare(one.instance)
    return snapshot_of(instance, now_ms)


def _attempt(one: Noted, now_ms: int) -> msgspec.Struct | None:
    assert one.step is not None
    return attempts_of(one.event, one.instance, one.step, now_ms)
