"""Metrics in files of prometheus-client's format, one set of them for each slot of the tree (ECOSYSTEM §3.5).

The library's own key of such files is the process number, so that each restart leaves another four behind and a scrape
reads all of them for ever. Here it is the slot: a successor opens its predecessor's files and counts on. At any moment
one process has a slot, which is what the library asks of a key.

Only `kernel.runtime` imports this module, and only with metrics on: the package belongs to the extra `metrics`, and
reads its folder from the environment when it is imported.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

from kernel.observe.metric_names import METERS
from kernel.observe.slot_file import SlotFile

SERIES_MAX = 1_000
"""Label sets of one metric in one process; what comes after them is counted together, under `other`."""
_GAUGE_MODES = {"kernel_observation_queue": "livesum", "kernel_store_up": "livemin"}
_LIVE = "gauge_live"

log = logging.getLogger("kernel.observe")


class SlotMeters:
    """Every metric that this process counts. A count costs about a microsecond, and needs no call to anybody."""

    def __init__(self, folder: Path, slot: str) -> None:
        _forget_live(folder, slot)
        # Before the first metric is made: each takes the class that stands there then, and that its class of files.
        values.MmapedDict = SlotFile  # type: ignore[attr-defined,assignment]
        values.ValueClass = values.MultiProcessValue(process_identifier=lambda: slot)  # type: ignore[no-untyped-call]
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


def _forget_live(folder: Path, slot: str) -> None:
    """What the predecessor was just then says nothing of this process."""
    try:
        for stale in folder.glob(f"{_LIVE}*_{slot}.db"):
            stale.unlink()
    except OSError as error:
        log.warning("metrics of an earlier process in this slot can not be removed: %s", error)
