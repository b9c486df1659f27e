"""Counting in one worker or dispatcher: off, or in files that are keyed by the slot (ECOSYSTEM §3.5).

Opened after the fork and before the application is imported. A successor of a killed worker has the same slot, opens
the same files and counts on: nothing that was counted is lost, and there are as many files after a hundred deaths as
after none. With metrics off nothing of this is made, and the package behind it is not imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kernel.candidates import Candidate
from kernel.config import Config, share_metrics_in
from kernel.coordination.scripts import ScriptRunner
from kernel.engine.delivery import UNKNOWN, Delivery
from kernel.engine.ports import ReadyQueue
from kernel.engine.takeover import ClaimAnswer, Claimed, NotYet, Stale
from kernel.errors import CoordinationUnavailable
from kernel.limits import kind_of
from kernel.observe.metrics import Meters, MetricsObserver
from kernel.runtime.assembly import Engine
from kernel.runtime.metered import MeteredQueue, MeteredStore, MeteredStreams, StoreHealth, lane_label
from kernel.runtime.observer import Beside
from kernel.states import STEP_RUNNING, TERMINAL
from kernel.store.protocol import Store
from kernel.stream_writer import StreamPort

METRICS_DIR = "metrics"
"""In the data folder: the files of all slots."""


class Metering(Protocol):
    """What the assembly of a process asks, whether metrics are on or off."""

    beside: Sequence[Beside]

    def store(self, store: Store) -> Store: ...

    def queue(self, queue: ReadyQueue) -> ReadyQueue: ...

    def streams(self, port: StreamPort) -> StreamPort: ...

    def scripts(self, runner: ScriptRunner) -> None: ...

    def watch(self, engine: Engine) -> None: ...


class NoMetering:
    """Metrics are off."""

    beside: Sequence[Beside] = ()

    def store(self, store: Store) -> Store:
        return store

    def queue(self, queue: ReadyQueue) -> ReadyQueue:
        return queue

    def streams(self, port: StreamPort) -> StreamPort:
        return port

    def scripts(self, runner: ScriptRunner) -> None:
        pass

    def watch(self, engine: Engine) -> None:
        pass


class SlotMetering:
    """Metrics are on: everything is counted by `meters`."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._redis = StoreHealth(meters, "redis")
        self.beside: Sequence[Beside] = (MetricsObserver(meters, kind_of),)

    def store(self, store: Store) -> Store:
        return MeteredStore(store, self._meters)

    def queue(self, queue: ReadyQueue) -> ReadyQueue:
        return MeteredQueue(queue, self._meters)

    def streams(self, port: StreamPort) -> StreamPort:
        return MeteredStreams(port, self._meters)

    def scripts(self, runner: ScriptRunner) -> None:
        runner.watch = ScriptWatch(self._meters, self._redis)

    def watch(self, engine: Engine) -> None:
        """What no port and no event tells: tried candidates, delivered signals, confirmed intents."""
        engine.scheduler.tried = ClaimWatch(self._meters).tried
        engine.watch_deliveries(self._delivered)
        engine.outbox.counted = self._dispatched

    def _delivered(self, deliveries: Sequence[Delivery]) -> None:
        """What did not wake anybody at once; who was woken, and what was a repeat, the store's writes tell."""
        for delivery in deliveries:
            if not (delivery.activated or delivery.duplicate):
                is_late = delivery.target == UNKNOWN or delivery.target in TERMINAL
                self._meters.count("kernel_signals_total", "unmatched" if is_late else "early")

    def _dispatched(self, name: str) -> None:
        if name == "dispatched":
            self._meters.count("kernel_dispatch_confirmed_total")


class ScriptWatch:
    """Times the calls of scripts (`kernel.coordination.scripts.Watch`)."""

    def __init__(self, meters: Meters, redis: StoreHealth, ticks: Callable[[], float] = time.perf_counter) -> None:
        self._meters = meters
        self._redis = redis
        self._ticks = ticks

    def began(self) -> float:
        return self._ticks()

    def ended(self, script: str, began: float, error: Exception | None) -> None:
        self._meters.observe("kernel_lua_seconds", self._ticks() - began, script)
        if isinstance(error, CoordinationUnavailable):
            self._redis.failed(script)
        else:
            self._redis.answered()

    def sent_text(self, script: str) -> None:
        self._meters.count("kernel_lua_noscript_total", script)


class ClaimWatch:
    """What came of the candidates of one pass."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def tried(self, candidates: Sequence[Candidate], answers: Sequence[ClaimAnswer]) -> None:
        """Called after every try; `answers` are in any order."""
        asked = {candidate.workflow_id: candidate for candidate in candidates}
        for answer in answers:
            if isinstance(answer, Claimed):
                self._claimed(answer, asked.get(answer.claim.instance.workflow_id))
                continue
            outcome = "not_yet" if isinstance(answer, NotYet) else type(answer).__name__.lower()
            self._meters.count("kernel_claims_total", outcome)
            candidate = asked.get(answer.workflow_id)
            if isinstance(answer, Stale) and candidate is not None:
                self._meters.count("kernel_lane_stale_total", lane_label(candidate.lane))

    def _claimed(self, answer: Claimed, candidate: Candidate | None) -> None:
        instance = answer.claim.instance
        self._meters.count("kernel_claims_total", "claimed")
        waited_s = 0.0
        if candidate is not None and instance.claim_time is not None:
            waited_s = max(0, instance.claim_time - candidate.at_ms) / 1000
            self._meters.observe(
                "kernel_schedule_wait_seconds", waited_s, lane_label(instance.business_priority), instance.type
            )
        if answer.taken_over or any(step.status == STEP_RUNNING for step in instance.steps):
            # Also where the dead worker's claim was released before: an attempt of his is still open.
            self._meters.count("kernel_takeovers_total")
            self._meters.observe("kernel_takeover_delay_seconds", waited_s)


def open_metering(config: Config, data_dir: Path, role: str, slot: int) -> Metering:
    """Counting for the process in this slot; nothing where the settings do not ask for metrics."""
    if config.metrics is None:
        return NoMetering()
    folder = data_dir / METRICS_DIR
    share_metrics_in(folder)
    from kernel.observe.prometheus import SlotMeters  # imports an extra package, which reads the environment

    return SlotMetering(SlotMeters(folder, f"{role}-{slot}"))
