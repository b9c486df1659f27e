"""The ports of a process that is there to be hurt: what `kernel.runtime` opens is wrapped, everything else is its own.

Store and ready queue are wrapped by `arms`; here are business objects, the index of intents, client streams and the
store of observations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from kernel.candidates import DueObjects, ScanTurn
from kernel.coordination.dispatch_index import DispatchIndex
from kernel.coordination.ready_queue import LaneQueue
from kernel.dispatch import DueIntent
from kernel.errors import CoordinationUnavailable, OutcomeUnknown, StoreUnavailable
from kernel.ids import workflow_id_for
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.runtime import observer, opening, roles
from kernel.store.projection import Keep, ProjectionStore
from kernel.stream_words import Appended, Batch, NotAppended, Seniority, StreamId
from kernel.stream_writer import StreamPort
from tests.faults.arms import Arm, ArmedQueue, ArmedStore, Arms, hurt

T = TypeVar("T")


class ArmedIndex:
    """The index of intents. `taken` is a take that brought the object; it touches the number of those it brought."""

    def __init__(self, inner: DispatchIndex, arms: Arms, role: str) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role

    def add(self, source: str, intents: Sequence[DueIntent], *, wake: bool = True) -> int:
        return self._inner.add(source, intents, wake=wake)

    def take(self, source: str, count: int, until_ms: int) -> DueObjects:
        gone = CoordinationUnavailable("take: no answer")
        arm = self._arms.met(self._role, "take")
        taken = hurt(arm, lambda: self._inner.take(source, count, until_ms), gone, gone)
        many = [str(len(taken.object_ids))]
        for object_id in taken.object_ids:
            arm = self._arms.met(self._role, "taken", object_id, many)
            if arm is not None:
                break
        return hurt(arm, lambda: taken, gone, gone)

    def hold_scan(self, source: str, hold_ms: int) -> ScanTurn:
        """`hold_scan` that got the turn touches `turn`: only then a death leaves the mutex behind."""
        gone = CoordinationUnavailable("hold_scan: no answer")
        arm = self._arms.met(self._role, "hold_scan", "", ["asked"])
        turn = hurt(arm, lambda: self._inner.hold_scan(source, hold_ms), gone, gone)
        arm = self._arms.met(self._role, "hold_scan", "", ["turn"]) if turn.token is not None else None
        return hurt(arm, lambda: turn, gone, gone)

    def free_scan(self, source: str, token: str) -> bool:
        return self._inner.free_scan(source, token)


class ArmedStreams:
    """Client streams."""

    def __init__(self, inner: StreamPort, arms: Arms, role: str) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended:
        return self._hurt(
            "stream_append",
            stream,
            lambda: self._inner.append(stream, generation, records, writer=writer, request=request),
        )

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None:
        return self._hurt(
            "stream_reset", stream, lambda: self._inner.reset(stream, seniority, reset_id=reset_id, keep=keep)
        )

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> Any:
        return self._hurt("stream_finish", stream, lambda: self._inner.finish(stream, seniority, record))

    def read(self, stream: StreamId, generation: int, offset: int, **terms: Any) -> Batch:
        return self._inner.read(stream, generation, offset, **terms)

    def generation(self, stream: StreamId) -> int:
        return self._inner.generation(stream)

    def _hurt(self, call: str, stream: StreamId, do: Callable[[], T]) -> T:
        gone = CoordinationUnavailable(f"{call}: no answer")
        return hurt(self._arms.met(self._role, call, stream.workflow_id), do, gone, gone)


class ArmedProjection:
    """The store of observations. A batch that holds an attempt touches `step:outcome`, one that holds a snapshot its
    revision."""

    def __init__(self, inner: ProjectionStore, arms: Arms, role: str) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def keep_all(self, kept: Sequence[Keep]) -> int:
        arm = None
        for keep in kept:
            arm = arm or self._met(keep)
        gone = "keep_all: no answer"
        return hurt(arm, lambda: self._inner.keep_all(kept), OutcomeUnknown(gone), StoreUnavailable(gone))

    def _met(self, keep: Keep) -> Arm | None:
        row = keep.document
        call, touched = {
            ATTEMPTS: ("keep_attempts", f"{row.get('step')}:{row.get('outcome')}"),
            SNAPSHOTS: ("keep_snapshot", str(row["revision"])),
        }[keep.table]
        return self._arms.met(self._role, call, workflow_id_for(row["biz_key"]), [touched])


@contextmanager
def armed_ports(data_dir: Path, role: str) -> Iterator[Arms]:
    """What `kernel.runtime` opens inside this block is wrapped. For a process that is there to be hurt."""
    arms = Arms(data_dir)
    last: dict[str, str] = {}
    real_store, real_objects, real_streams = opening.open_store, opening.open_objects, opening.open_streams
    real_observations = observer.open_observation_store

    def open_store(*arguments: Any, **options: Any) -> Any:
        return ArmedStore(real_store(*arguments, **options), arms, role, last)

    def open_objects(*arguments: Any, **options: Any) -> Any:
        opened = real_objects(*arguments, **options)
        for objects in opened.values():
            objects._store = ArmedStore(objects._store, arms, role, last)
        return opened

    def open_queue(*arguments: Any, **options: Any) -> Any:
        return ArmedQueue(LaneQueue(*arguments, **options), arms, role, last)

    def open_index(*arguments: Any, **options: Any) -> Any:
        return ArmedIndex(DispatchIndex(*arguments, **options), arms, role)

    def open_streams(*arguments: Any, **options: Any) -> Any:
        opened = real_streams(*arguments, **options)
        return None if opened is None else (ArmedStreams(opened[0], arms, role), opened[1])

    def open_observations(*arguments: Any, **options: Any) -> Any:
        return ArmedProjection(real_observations(*arguments, **options), arms, role)

    with ExitStack() as patches:
        for module in (roles, opening):  # what a child opens, and what a publisher does
            patches.enter_context(patch.object(module, "open_store", open_store))
            patches.enter_context(patch.object(module, "open_objects", open_objects))
            patches.enter_context(patch.object(module, "LaneQueue", open_queue))
            patches.enter_context(patch.object(module, "open_streams", open_streams))
        patches.enter_context(patch.object(roles, "DispatchIndex", open_index))
        patches.enter_context(patch.object(observer, "open_observation_store", open_observations))
        yield arms
