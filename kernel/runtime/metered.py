"""Ports that count what goes through them, where no event tells: each stands before the one that it is given.

Made only when metrics are on; what a call returns or raises passes through untouched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from kernel.candidates import Candidate, Popped
from kernel.engine.ports import ReadyQueue
from kernel.errors import OutcomeUnknown, StoreUnavailable
from kernel.observe.metrics import Meters
from kernel.records import Document
from kernel.store.conditional import (
    Answer,
    Applied,
    Duplicate,
    Insert,
    InsertAnswer,
    Inserted,
    Remove,
    RemoveAnswer,
    Removed,
    Transition,
)
from kernel.store.protocol import Query, Store
from kernel.store.tables import SIGNALS
from kernel.stream_words import Appended, Batch, NotAppended, Seniority, StreamId
from kernel.stream_writer import StreamPort

T = TypeVar("T")
Write = Insert | Transition | Remove
_AWAY = (StoreUnavailable, OutcomeUnknown)


class StoreHealth:
    """Whether one store answers this process; told when it changes, so that a call that succeeds costs a comparison."""

    def __init__(self, meters: Meters, store: str) -> None:
        self._meters = meters
        self._store = store
        self._is_up: bool | None = None

    def answered(self) -> None:
        if self._is_up is not True:
            self._is_up = True
            self._meters.set("kernel_store_up", 1, self._store)

    def failed(self, op: str) -> None:
        self._meters.count("kernel_store_errors_total", self._store, op)
        if self._is_up is not False:
            self._is_up = False
            self._meters.set("kernel_store_up", 0, self._store)


class MeteredStore:
    """The durable store: seconds of every write by name and outcome, and whether it answers.

    Of a batch each write has taken as long as the batch, because that is how long its caller has waited.
    """

    def __init__(self, store: Store, meters: Meters, ticks: Callable[[], float] = time.perf_counter) -> None:
        self._store = store
        self._meters = meters
        self._ticks = ticks
        self._health = StoreHealth(meters, "truth")

    def prepare(self) -> None:
        self._store.prepare()

    def now_ms(self) -> int:
        return self._store.now_ms()

    def insert(self, insert: Insert) -> InsertAnswer:
        return self._written([insert], lambda: [self._store.insert(insert)])[0]

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return self._written(inserts, lambda: self._store.insert_all(inserts))

    def apply(self, transition: Transition) -> Answer:
        return self._written([transition], lambda: [self._store.apply(transition)])[0]

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return self._written(transitions, lambda: self._store.apply_all(transitions))

    def remove(self, remove: Remove) -> RemoveAnswer:
        return self._written([remove], lambda: [self._store.remove(remove)])[0]

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return self._written(removes, lambda: self._store.remove_all(removes))

    def get(self, table: str, key: str) -> Document | None:
        return self._read("get", lambda: self._store.get(table, key))

    def find(self, table: str, column: str, value: str) -> Document | None:
        return self._read("find", lambda: self._store.find(table, column, value))

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        return self._read("scan", lambda: self._store.scan(query))

    def close(self) -> None:
        self._store.close()

    def _read(self, op: str, call: Callable[[], T]) -> T:
        try:
            found = call()
        except _AWAY:
            self._health.failed(op)
            raise
        self._health.answered()
        return found

    def _written(self, writes: Sequence[Write], call: Callable[[], list[T]]) -> list[T]:
        began = self._ticks()
        try:
            answers = call()
        except Exception as error:
            took_s = self._ticks() - began
            for write in writes:
                self._meters.observe("kernel_commit_seconds", took_s, write.name, "error")
                if write.name == "renew":
                    self._meters.count("kernel_claim_renewals_total", "error")
            if isinstance(error, _AWAY):
                self._health.failed(writes[0].name if writes else "write")
            raise
        took_s = self._ticks() - began
        self._health.answered()
        for write, answer in zip(writes, answers, strict=True):
            self._answered(write, answer, took_s)
        return answers

    def _answered(self, write: Write, answer: object, took_s: float) -> None:
        outcome = "hit" if isinstance(answer, Applied | Inserted | Removed) else "miss"
        self._meters.observe("kernel_commit_seconds", took_s, write.name, outcome)
        if write.name == "renew":
            self._meters.count("kernel_claim_renewals_total", "renewed" if outcome == "hit" else "lost")
        elif write.name == "activate_signal" and outcome == "hit":
            self._meters.count("kernel_signals_total", "delivered")
        elif write.table == SIGNALS and isinstance(answer, Duplicate):
            self._meters.count("kernel_signals_total", "duplicate")


class MeteredQueue:
    """The ready queue: what is taken from each lane."""

    def __init__(self, queue: ReadyQueue, meters: Meters) -> None:
        self._queue = queue
        self._meters = meters

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None:
        self._queue.push(candidates, wake=wake)

    def pop(self, n: int) -> Popped:
        popped = self._queue.pop(n)
        for candidate in popped.candidates:
            self._meters.count("kernel_lane_popped_total", lane_label(candidate.lane))
        return popped


class MeteredStreams:
    """Client streams: what was stored for readers, and what was begun anew."""

    def __init__(self, port: StreamPort, meters: Meters) -> None:
        self._port = port
        self._meters = meters

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended:
        answer = self._port.append(stream, generation, records, writer=writer, request=request)
        if isinstance(answer, Appended):
            self._meters.count("kernel_stream_records_total", by=len(records))
            self._meters.count("kernel_stream_bytes_total", by=sum(map(len, records)))
        return answer

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None:
        generation = self._port.reset(stream, seniority, reset_id=reset_id, keep=keep)
        if generation is not None and not keep:
            self._meters.count("kernel_stream_resets_total")
        return generation

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> int | Literal["stale", "absent"]:
        return self._port.finish(stream, seniority, record)

    def read(
        self, stream: StreamId, generation: int, offset: int, *, bytes_max: int, count_max: int, watch_ms: int = 0
    ) -> Batch:
        return self._port.read(stream, generation, offset, bytes_max=bytes_max, count_max=count_max, watch_ms=watch_ms)

    def generation(self, stream: StreamId) -> int:
        return self._port.generation(stream)


def lane_label(lane: int) -> str:
    """`P0` … `P3`; a record of another layout may hold any number."""
    return f"P{lane}" if 0 <= lane <= 3 else "other"
