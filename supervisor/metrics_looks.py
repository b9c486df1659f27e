"""The looks of the process that serves metrics: supervisor, durable store, lanes, permits, workflows, intents.

Each opens what it needs at its first turn and keeps it, on its own thread: nothing is shared between them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from kernel.clock import Clock
from kernel.config import Config, Limit
from kernel.coordination.lanes import LaneReport, Lanes
from kernel.coordination.permits import Permits
from kernel.dispatch import DispatchSource
from kernel.errors import CoordinationUnavailable, StoreUnavailable
from kernel.limits import in_force, kind_of, list_limits
from kernel.observe.reading import Count, Observations, Wanted
from kernel.runtime import load_app, open_lanes, open_permits
from kernel.runtime.observing import open_observations
from kernel.runtime.probing import StoreProbe
from kernel.store.facts import StoreFacts
from kernel.transitions.limits import LimitRecord
from supervisor.control_client import ControlClient
from supervisor.metrics_facts import Look
from supervisor.ops_dispatch import open_dispatch_sources

HEALTH_EVERY_S, GAUGES_EVERY_S, DISPATCH_EVERY_S = 0.5, 2.0, 5.0
GAUGES_SHARE = 0.1
"""Counting what is large is let have a tenth of the time at most."""
STATUS_LIMIT_S = 1.5
RESOURCES_MAX = 200
INTENTS_MAX = 1_000
_PAGE = 200
_AGES_READ = 20


class ResourceLook(msgspec.Struct, frozen=True, kw_only=True):
    """All resources of one kind together; `limit` is that of a resource which is its own kind, else None."""

    in_use: int
    waiters: int
    limit: float | None


class IntentsLook(msgspec.Struct, frozen=True):
    """Open intents of one source: how many, to INTENTS_MAX, and the age of the oldest that was looked at, in s."""

    pending: int
    oldest_age_s: float


class Looks:
    """All looks of one process, and their threads."""

    def __init__(self, config: Config, data_dir: Path, redis_url: str | None, clock: Clock) -> None:
        self._config, self._data_dir, self._redis_url, self._clock = config, data_dir, redis_url, clock
        self._stop = threading.Event()
        self._until = ExitStack()
        self.status: Look[dict[str, Any]] = Look("the supervisor", self._status, period_s=HEALTH_EVERY_S)
        self.store: Look[StoreFacts] = Look("the durable store", _Lazy(self._probe), period_s=HEALTH_EVERY_S)
        self.lanes: Look[LaneReport] = Look("redis", _Lazy(self._lanes), period_s=HEALTH_EVERY_S)
        self.permits: Look[dict[str, ResourceLook]] = _rare("permits", _Lazy(self._permits), GAUGES_EVERY_S)
        self.workflows: Look[list[Count]] = _rare("workflows", _Lazy(self._workflows), GAUGES_EVERY_S)
        self.dispatch: Look[dict[str, IntentsLook]] = _rare("intents", _Lazy(self._dispatch), DISPATCH_EVERY_S)

    def start(self) -> None:
        """Begin to look. The threads end with the process, whatever holds them."""
        for look in (self.status, self.store, self.lanes, self.permits, self.workflows, self.dispatch):
            threading.Thread(target=look.run, args=(self._stop,), name=f"look-{look.name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _status(self) -> dict[str, Any]:
        with ControlClient(self._data_dir, timeout_s=STATUS_LIMIT_S) as client:
            return client.request("status")

    # --- what is opened once, and then asked again and again ------------------------------------------

    def _probe(self) -> Callable[[], StoreFacts]:
        return StoreProbe(self._config, self._data_dir, self._clock).look

    def _lanes(self) -> Callable[[], LaneReport]:
        opened = open_lanes(self._config, self._redis_url, self._clock)
        if opened is None:
            raise CoordinationUnavailable("no Redis is configured")
        lanes: Lanes = opened[0]
        return lanes.report

    def _permits(self) -> Callable[[], dict[str, ResourceLook]]:
        opened = open_permits(self._config, self._redis_url, self._clock)
        if opened is None:
            raise CoordinationUnavailable("no Redis is configured")
        probe = StoreProbe(self._config, self._data_dir, self._clock)
        return lambda: _resources(probe, opened[0], self._config.limits)

    def _workflows(self) -> Callable[[], list[Count]]:
        config = self._config
        if config.observe == "off":
            return list
        reader: Observations = open_observations(config, self._data_dir, self._clock, prepare=False)
        return lambda: reader.counts(Wanted(), by=("type", "status"))

    def _dispatch(self) -> Callable[[], dict[str, IntentsLook]]:
        if self._config.app is None:
            return dict
        config = msgspec.structs.replace(self._config, data_dir=str(self._data_dir))
        app = load_app(config.app)
        sources = open_dispatch_sources(config, app, self._until) if app.objects or app.source_makers else []
        if app.objects and not sources:
            raise StoreUnavailable("the business objects are not there yet")
        return lambda: {source.name: _intents(source) for source in sources}


class _Lazy:
    """Opens at the first call, and again after a failed opening."""

    def __init__(self, opened: Callable[[], Callable[[], Any]]) -> None:
        self._open = opened
        self._call: Callable[[], Any] | None = None

    def __call__(self) -> Any:
        if self._call is None:
            self._call = self._open()
        return self._call()


def _rare(name: str, call: Callable[[], Any], period_s: float) -> Look[Any]:
    return Look(name, call, period_s=period_s, share=GAUGES_SHARE)


def _resources(probe: StoreProbe, permits: Permits, declared: Mapping[str, Limit]) -> dict[str, ResourceLook]:
    rows = {record.resource: record for record in list_limits(probe.store)}
    found: dict[str, ResourceLook] = {}
    for resource in [*dict.fromkeys([*declared, *rows])][:RESOURCES_MAX]:
        stats, kind = permits.stats(resource, holders_max=1), kind_of(resource)
        before = found.get(kind) or ResourceLook(in_use=0, waiters=0, limit=None)
        found[kind] = ResourceLook(
            in_use=before.in_use + stats.held + stats.reserved,
            waiters=before.waiters + stats.waiting,
            limit=_limit(rows.get(resource), declared.get(resource)) if kind == resource else before.limit,
        )
    return found


def _limit(row: LimitRecord | None, declared: Limit | None) -> float:
    """What holds, as `limits list` tells it; what the App declares is in the row."""
    limit = in_force([row], declared or (row.declared if row is not None else None) or Limit())
    return 0.0 if limit.paused else float(limit.max_concurrency) or math.inf


def _intents(source: DispatchSource) -> IntentsLook:
    pending, oldest_ms = 0, 0
    after: tuple[int, str] | None = None
    while pending < INTENTS_MAX and (page := source.due(after=after, limit=_PAGE)):
        if after is None:
            oldest_ms = max((_age_ms(source, due.object_id) for due in page[:_AGES_READ]), default=0)
        pending += len(page)
        after = (page[-1].due_time, page[-1].object_id)
        if len(page) < _PAGE:
            break
    return IntentsLook(min(pending, INTENTS_MAX), oldest_ms / 1000)


def _age_ms(source: DispatchSource, object_id: str) -> int:
    """0 for one that has ended since, or that its reader can not decode: the dispatcher reports it."""
    try:
        intent = source.read(object_id)
    except StoreUnavailable:
        raise
    except Exception:
        return 0
    return 0 if intent is None or intent.due_time is None else max(0, source.now_ms() - intent.accepted_time)
