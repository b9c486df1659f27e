"""Redis as the processes of a run share it: the models of the scripts, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernel.coordination.lanes import LaneEntry, Popped, PushCount
from kernel.ids import SeededIds
from tests.simulation.places import Places
from tests.support.engine_queue import MemoryQueue
from tests.support.lane_model import LaneModel
from tests.support.outbox_rig import MemoryIndex
from tests.support.stream_port import MemoryStreams

if TYPE_CHECKING:
    from tests.simulation.world import World


class RedisModel:
    """Lanes, permits, the index of due intents, and streams. `skew_ms`: how far its clock is from the store's."""

    def __init__(self, world: World, skew_ms: int, seed: int) -> None:
        self._world = world
        self.skew_ms = skew_ms
        settings = world.settings
        self.queue = MemoryQueue(self.wall_ms)
        self.lanes = LanesModel(self.queue.model, self.queue.wake, self.wall_ms)
        self.permits = Places(world, self.queue, self.wall_ms, settings.permit_lease_ms, settings.permit_wait_ms)
        self.index = MemoryIndex(self, SeededIds(seed))
        self.streams = MemoryStreams(self.wall_ms)

    def wall_ms(self) -> int:
        return self._world.hub.now_ms + self.skew_ms

    boot_ms = wall_ms

    def skew(self, ms: int) -> None:
        """Its clock is set by so much."""
        self.permits.about_to_be_skewed()
        self.skew_ms += ms

    def wipe(self) -> None:
        """What FLUSHALL does."""
        self.permits.wipe()
        self.index.wipe()
        self.streams.wipe()


class LanesModel:
    """The scripts of the lanes, with the answers that `kernel.coordination.ready_queue` expects of them."""

    def __init__(self, model: LaneModel, wake: Callable[[], None], now_ms: Callable[[], int]) -> None:
        self._model = model
        self._wake = wake
        self._now_ms = now_ms
        self.pushed_ms: dict[str, int] = {}
        """When each id was pushed last, by the clock of Redis."""

    def push(self, entries: Sequence[LaneEntry], *, wake: bool = True) -> PushCount:
        now_ms = self._now_ms()
        self.pushed_ms.update((entry.workflow_id, now_ms) for entry in entries)
        counts = self._model.push_many((e.workflow_id, e.lane, e.score_ms) for e in entries)
        if wake:
            self._wake()
        return PushCount(*counts)

    def pop(self, n: int) -> Popped:
        model, now_ms = self._model, self._now_ms()
        entries = tuple(LaneEntry(*entry) for entry in model.pop(n, now_ms))
        if len(entries) == n:
            return Popped(entries)
        return Popped(entries, 0, True, model.next_due_ms(), now_ms, model.epoch)
