"""One scrape: what the slots have counted, what the looks have seen, and what the supervisor says, as Prometheus text.

Every name of `METERS` is there from the first scrape on, with or without a series. A gauge whose fact is too old is
left out rather than told: a line that stands still looks like a queue that does.
"""

from __future__ import annotations

import hashlib
import logging
import math
import platform
import struct
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from kernel.observe.metric_names import METERS
from supervisor.lua_table import script_rows
from supervisor.metrics_facts import Look
from supervisor.metrics_looks import Looks

log = logging.getLogger("supervisor.metrics")

STALE_S = 60.0
"""Counting a large store may take seconds, and is then done rarely."""
_LIVE = "gauge_live"
Labels = tuple[str, ...]
Value = tuple[Labels, float]


class Scrape(Collector):
    """What one request is answered from."""

    def __init__(self, folder: Path, looks: Looks) -> None:
        self._folder = folder
        self._looks = looks
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._build = (_version(), platform.python_version(), _scripts_digest())

    def answer(self, accept: str) -> tuple[bytes, str]:
        """The text and its type, in the newest form that the asker takes."""
        encoder, content_type = choose_encoder(accept)
        text: bytes = encoder(self._registry)
        return text, content_type

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics, in the order of METERS; behind them those of the application, if it has any."""
        status = self._looks.status.seen().value or {}
        counted = {metric.name: metric for metric in self._counted(status)}
        values = self._values(status)
        for meter in METERS.values():
            family = meter.name.removesuffix("_total") if meter.kind == "counter" else meter.name
            metric = counted.pop(family, None) or Metric(family, meter.help, meter.kind)
            for labels, value in values.get(meter.name, ()):
                metric.add_sample(meter.name, dict(zip(meter.labels, labels, strict=True)), value)
            yield metric
        yield from (metric for name, metric in counted.items() if not name.startswith("kernel_"))

    # --- counted in the slots' files -------------------------------------------------------------------

    def _counted(self, status: dict[str, Any]) -> list[Metric]:
        alive = {f"{child['role']}-{child['slot']}" for child in status.get("children", ()) if child["pid"] is not None}
        files = [path for path in sorted(self._folder.glob("*.db")) if _says_something(path, alive)]
        try:
            return _merged(files)
        except (RuntimeError, ValueError, struct.error) as error:
            log.warning("a file of metrics can not be read, the others are shown: %s", error)
        return _merged([path for path in files if _is_readable(path)])

    # --- looked up, and told by the supervisor ---------------------------------------------------------

    def _values(self, status: dict[str, Any]) -> dict[str, list[Value]]:
        found: dict[str, list[Value]] = {"kernel_build_info": [(self._build, 1.0)]}
        self._add_lanes(found)
        for resource, look in (_value_of(self._looks.permits) or {}).items():
            _add(found, "kernel_permit_in_use", (resource,), look.in_use)
            _add(found, "kernel_permit_waiters", (resource,), look.waiters)
            if look.limit is not None:
                _add(found, "kernel_permit_limit", (resource,), look.limit)
        for count in _value_of(self._looks.workflows) or ():
            _add(found, "kernel_workflows", (count.type or "", count.status or ""), count.n)
        for source, intents in (_value_of(self._looks.dispatch) or {}).items():
            _add(found, "kernel_dispatch_pending", (source,), intents.pending)
            _add(found, "kernel_dispatch_oldest_age_seconds", (source,), intents.oldest_age_s)
        for child in status.get("children", ()):
            _add_process(found, child)
        for level, records in status.get("log_records", {}).items():
            _add(found, "kernel_log_records_total", (level,), records)
        for where, key in (("child", "lost_in_children"), ("sink", "lost_at_sink")):
            if "log" in status:
                _add(found, "kernel_log_dropped_total", (where,), status["log"][key])
        return found

    def _add_lanes(self, found: dict[str, list[Value]]) -> None:
        report = _value_of(self._looks.lanes)
        for lane in () if report is None else report.lanes:
            label = (f"P{lane.lane}",)
            _add(found, "kernel_lane_depth", label, lane.depth)
            _add(found, "kernel_lane_ready", label, lane.ready)
            _add(found, "kernel_lane_delayed", label, lane.delayed)
            _add(found, "kernel_lane_oldest_wait_seconds", label, lane.oldest_wait_ms / 1000)


def _add(found: dict[str, list[Value]], name: str, labels: Labels, value: float) -> None:
    found.setdefault(name, []).append((labels, float(value)))


def _add_process(found: dict[str, list[Value]], child: dict[str, Any]) -> None:
    place = (str(child["slot"]), str(child["role"]))
    _add(found, "kernel_process_up", place, child["pid"] is not None)
    for cause in ("exit", "signal", "wedged"):
        _add(found, "kernel_process_restarts_total", (*place, cause), child["restart_causes"].get(cause, 0))
    ages = [age for age in child["loops"].values() if math.isfinite(age)]
    if ages:
        _add(found, "kernel_process_loop_lag_seconds", place, max(ages))
    streams = child.get("x_streams")
    if isinstance(streams, int):
        _add(found, "kernel_sse_connections", place, streams)
    try:
        process = psutil.Process(child["pid"]) if child["pid"] is not None else None
        if process is not None:
            times = process.cpu_times()
            _add(found, "kernel_process_resident_bytes", place, process.memory_info().rss)
            _add(found, "kernel_process_cpu_seconds_total", place, times.user + times.system)
    except psutil.Error:
        pass  # it ended meanwhile


def _value_of(look: Look[Any]) -> Any:
    seen = look.seen()
    return seen.value if seen.age_s is not None and seen.age_s <= STALE_S else None


def _merged(files: Iterable[Path]) -> list[Metric]:
    return list(MultiProcessCollector.merge([str(path) for path in files]))  # type: ignore[no-untyped-call]


def _says_something(path: Path, alive: set[str]) -> bool:
    """Counters and histograms always do; what a process is just now, only while one is in that slot. A file that is
    being made is empty."""
    slot = path.stem.rsplit("_", 1)[-1]
    try:
        return path.stat().st_size > 0 and (not path.name.startswith(_LIVE) or slot in alive)
    except FileNotFoundError:
        return False


def _is_readable(path: Path) -> bool:
    try:
        _merged([path])
        return True
    except (RuntimeError, ValueError, struct.error):
        return False


def _version() -> str:
    try:
        return metadata.version("workflow-kernel")
    except metadata.PackageNotFoundError:
        return "unknown"


def _scripts_digest() -> str:
    """Names the set of scripts that this kernel loads into Redis: it changes with any of them."""
    text = "\n".join(f"{row['name']} {row['version']} {row['sha1']}" for row in script_rows())
    return hashlib.sha256(text.encode()).hexdigest()[:12]
