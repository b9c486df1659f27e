"""Metrics in memory-mapped files by prometheus-client, one set of files for each slot of the tree (ECOSYSTEM §3.5).

The library's own key of such files is the process number, so that each restart leaves another four behind and a scrape
reads all of them for ever. Here it is the slot: a successor opens its predecessor's files and counts on. At any moment
one process has a slot, which is what the library asks of a key.

Only `kernel.runtime` imports this module, and only with metrics on: the package belongs to the extra `metrics`, and
reads its folder from the environment when it is imported.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

from kernel.observe.metric_names import METERS

SERIES_MAX = 1_000
"""Label sets of one metric in one process; what comes after them is counted together, under `other`."""
_GAUGE_MODES = {"kernel_observation_queue": "livesum", "kernel_store_up": "livemin"}
_LIVE = "gauge_live"


class SlotMeters:
    """Every metric that this process counts. A count costs about a microsecond, and needs no call to anybody."""

    def __init__(self, folder: Path, slot: str) -> None:
        for stale in folder.glob(f"{_LIVE}*_{slot}.db"):
            stale.unlink()  # what the predecessor was just then says nothing of this process
        # Before the first metric is made: each takes the class that stands there then.
        values.ValueClass = _private_values(folder, slot)
        self._registry = CollectorRegistry()
        self._made = {name: self._make(name) for name, meter in METERS.items() if meter.source == "worker"}
        self._series: dict[tuple[str, ...], Any] = {}
        self._sizes = dict.fromkeys(self._made, 0)
        self._lock = threading.Lock()

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        self._of(name, labels).inc(by)

    def observe(self, name: str, value_s: float, *labels: str) -> None:
        self._of(name, labels).observe(value_s)

    def set(self, name: str, value: float, *labels: str) -> None:
        self._of(name, labels).set(value)

    def _of(self, name: str, labels: tuple[str, ...]) -> Any:
        series = self._series.get((name, *labels))
        return series if series is not None else self._new_series(name, labels)

    def _new_series(self, name: str, labels: tuple[str, ...]) -> Any:
        metric = self._made[name]
        with self._lock:
            self._sizes[name] += 1
            if self._sizes[name] > SERIES_MAX:
                return metric.labels(*("other" for _ in labels))
            made = metric.labels(*labels) if labels else metric
            self._series[(name, *labels)] = made
            return made

    def _make(self, name: str) -> Any:
        meter = METERS[name]
        if meter.kind == "histogram":
            return Histogram(name, meter.help, meter.labels, buckets=meter.buckets, registry=self._registry)
        if meter.kind == "gauge":
            mode: Any = _GAUGE_MODES[name]
            return Gauge(name, meter.help, meter.labels, multiprocess_mode=mode, registry=self._registry)
        return Counter(name, meter.help, meter.labels, registry=self._registry)


def _private_values(folder: Path, slot: str) -> Any:
    """The library's class of values, in files that only their owner may read: its own are made as the umask has it."""
    shared: Any = values.MultiProcessValue(process_identifier=lambda: slot)  # type: ignore[no-untyped-call]

    class PrivateValue(shared):  # type: ignore[misc]
        def __init__(self, typ: str, *place: Any, multiprocess_mode: str = "", **more: Any) -> None:
            prefix = f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(folder / f"{prefix}_{slot}.db", flags, 0o600))
            super().__init__(typ, *place, multiprocess_mode=multiprocess_mode, **more)

    return PrivateValue
