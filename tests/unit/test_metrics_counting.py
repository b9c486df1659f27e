"""Counting without a tree: the files of a slot, the ports that count, and that nothing is loaded when it is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import multiprocess, values

from kernel.candidates import Candidate, Popped
from kernel.clock import SystemClock
from kernel.config import Config, metrics_address, traces_are_wanted
from kernel.coordination.scripts import BoundScript, ScriptRunner
from kernel.errors import InvalidConfig, StoreUnavailable
from kernel.limits import kind_of
from kernel.observe.metric_names import METERS
from kernel.observe.metrics import MetricsObserver
from kernel.observe.prometheus import SERIES_MAX, SlotMeters
from kernel.runtime.metered import MeteredQueue, MeteredStore, StoreHealth
from kernel.runtime.metering import ScriptWatch
from kernel.store.conditional import MISSED
from kernel.transitions import Held, renew
from supervisor.metrics_looks import Looks
from supervisor.metrics_scrape import Scrape
from tests.support.meters import KeptMeters
from tests.support.observations import record

OFF = """
import sys
from pathlib import Path
from kernel.clock import SystemClock
from kernel.config import Config
import kernel.runtime, supervisor.boot
from kernel.runtime.metering import open_metering
from kernel.runtime.tracing import open_tracing
metering = open_metering(Config(), Path("."), "worker", 0)
assert metering.beside == () and open_tracing(SystemClock(), None, "worker-0", 1.0) == ()
store = object()
assert metering.store(store) is store and metering.queue(store) is store and metering.streams(store) is store
extras = ("prometheus_client", "uvicorn", "starlette", "opentelemetry.sdk.trace", "opentelemetry.exporter")
loaded = [name for name in sys.modules if name.startswith(extras)]  # redis-py itself loads some of opentelemetry
assert not loaded, loaded
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where slots count, and prometheus-client as it was before."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setattr(values, "MmapedDict", values.MmapedDict)
    yield tmp_path
    values.close_all_multiprocess_files()


def sums(folder: Path, name: str) -> dict[tuple[str, ...], float]:
    """Label values → value of one sample name, all slots together."""
    metrics = multiprocess.MultiProcessCollector.merge([str(path) for path in sorted(folder.glob("*.db"))])
    samples = [sample for metric in metrics for sample in metric.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


@pytest.mark.req("obs-claims-visible")
def test_a_successor_in_a_slot_counts_on_and_leaves_no_more_files(folder: Path) -> None:
    for _process in range(3):
        meters = SlotMeters(folder, "worker-0")
        meters.count("kernel_claims_lost_total", "fenced")
        meters.observe("kernel_permit_wait_seconds", 0.4, "desk")
        meters.set("kernel_observation_queue", 7)
        files = sorted(path.name for path in folder.iterdir())
    assert files == ["counter_worker-0.db", "gauge_livesum_worker-0.db", "histogram_worker-0.db"]
    SlotMeters(folder, "worker-1").count("kernel_claims_lost_total", "fenced", by=2)
    assert sums(folder, "kernel_claims_lost_total") == {("fenced",): 5}
    assert sums(folder, "kernel_permit_wait_seconds_count") == {("desk",): 3}
    assert sums(folder, "kernel_observation_queue") == {(): 7}, "a successor waits for nothing yet"


def test_what_a_predecessor_was_just_then_is_forgotten(folder: Path) -> None:
    SlotMeters(folder, "worker-0").set("kernel_store_up", 0, "truth")
    SlotMeters(folder, "worker-0").set("kernel_store_up", 1, "truth")
    SlotMeters(folder, "worker-1").set("kernel_store_up", 1, "redis")
    assert sums(folder, "kernel_store_up") == {("truth",): 1, ("redis",): 1}


@pytest.mark.req("obs-no-affect")
def test_no_file_is_mapped_into_memory(folder: Path) -> None:
    """A mapped page for which a full disk has no block is SIGBUS, in mid-step."""
    meters = SlotMeters(folder, "worker-0")
    meters.count("kernel_takeovers_total")
    meters.observe("kernel_permit_wait_seconds", 0.4, "desk")

    assert sums(folder, "kernel_takeovers_total") == {(): 1}
    assert str(folder) not in Path("/proc/self/maps").read_text()


@pytest.mark.req("obs-no-affect")
def test_a_folder_that_can_not_be_written_to_ends_nobody(folder: Path) -> None:
    folder.rmdir()
    meters = SlotMeters(folder, "worker-0")
    meters.count("kernel_takeovers_total")
    meters.set("kernel_store_up", 1, "truth")

    assert not folder.exists()


def test_the_number_of_series_is_bounded(folder: Path) -> None:
    meters = SlotMeters(folder, "worker-0")
    for number in range(SERIES_MAX + 5):
        meters.count("kernel_workflows_started_total", f"type_{number}")
        meters.count("kernel_workflows_started_total", f"type_{number}")
    found = sums(folder, "kernel_workflows_started_total")
    assert len(found) == SERIES_MAX + 1
    assert found["other",] == 10


def test_a_scrape_shows_the_other_files_when_one_is_broken(folder: Path) -> None:
    """One that is being made is empty; one of a machine that lost power may hold anything."""
    SlotMeters(folder, "worker-0").count("kernel_takeovers_total", by=3)
    (folder / "counter_worker-1.db").touch()
    (folder / "counter_worker-2.db").write_bytes(b"\x40\0\0\0\0\0\0\0\xff\xff\xff\x0f" + bytes(100))
    looks = Looks(Config(), folder, None, SystemClock())
    text = Scrape(folder, looks).answer("")[0].decode()
    assert "\nkernel_takeovers_total 3.0\n" in text
    assert all(f"# TYPE {name} " in text for name in METERS)


@pytest.mark.req("obs-claims-visible", "obs-counters")
def test_dropped_observations_are_counted_once_each() -> None:
    meters = KeptMeters()
    observer = MetricsObserver(meters, kind_of)
    for dropped in (0, 3, 3, 10):
        observer.sample({"observation_dropped": dropped, "observation_queue": 5, "observation_errors": 1})
    assert meters.of("kernel_observation_dropped_total") == {(): 10}
    assert meters.of("kernel_observation_errors_total") == {(): 1}
    assert meters.gauges == {("kernel_observation_queue",): 5}


def test_tenants_are_counted_as_their_kind() -> None:
    meters = KeptMeters()
    for tenant in range(20):
        MetricsObserver(meters, kind_of).note("permit.refused", resource=f"tenant_work:{tenant}", reason="concurrency")
    assert meters.of("kernel_permit_refused_total") == {("tenant_work", "concurrency"): 20}


def test_an_end_without_a_first_step_is_no_start() -> None:
    meters = KeptMeters()
    observer = MetricsObserver(meters, kind_of)
    for attempt in (1, 2):
        observer.note("step.started", instance=record("a", attempt=attempt), step=0)
    assert meters.of("kernel_workflows_started_total") == {("report",): 1}


class OneStore:
    """Answers every write as it is told."""

    def __init__(self) -> None:
        self.answer: Any = MISSED

    def apply_all(self, transitions: Any) -> list[Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer for _ in transitions]


def test_writes_are_timed_by_name_and_outcome_and_an_outage_is_seen() -> None:
    meters, inner, ticks = KeptMeters(), OneStore(), iter([1.0, 1.25, 2.0, 2.5])
    store = MeteredStore(inner, meters, lambda: next(ticks))  # type: ignore[arg-type]
    writes = [renew(Held("wf-1", "t"), 1000), renew(Held("wf-2", "t"), 1000)]
    assert store.apply_all(writes) == [MISSED, MISSED]
    inner.answer = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable, match="gone"):
        store.apply_all(writes[:1])
    assert meters.times("kernel_commit_seconds") == {("renew", "miss"): [0.25, 0.25], ("renew", "error"): [0.5]}
    assert meters.of("kernel_claim_renewals_total") == {("lost",): 2, ("error",): 1}
    assert meters.of("kernel_store_errors_total") == {("truth", "renew"): 1}
    assert meters.gauges["kernel_store_up", "truth"] == 0


class OneQueue:
    def pop(self, n: int) -> Popped:
        return Popped((Candidate("a", 0, 1), Candidate("b", 3, 1), Candidate("c", 0, 1)))


def test_pops_are_counted_by_lane() -> None:
    meters = KeptMeters()
    assert len(MeteredQueue(OneQueue(), meters).pop(3).candidates) == 3  # type: ignore[arg-type]
    assert meters.of("kernel_lane_popped_total") == {("P0",): 2, ("P3",): 1}


def test_a_script_that_can_not_be_called_is_timed_and_redis_is_said_to_be_down() -> None:
    def refused(timeout_s: float) -> Any:
        raise ConnectionRefusedError

    class Boot:
        def boot_ms(self) -> int:
            return 0

    from lua import scripts

    meters, ticks = KeptMeters(), iter([1.0, 1.5])
    runner = ScriptRunner(refused, Boot())
    runner.watch = ScriptWatch(meters, StoreHealth(meters, "redis"), lambda: next(ticks))
    script = next(script for script in scripts() if script.name == "lane_pop")
    with pytest.raises(Exception, match="lane_pop"):
        runner.call(BoundScript(script, [b"k"] * len(script.keys)))
    assert meters.times("kernel_lua_seconds") == {("lane_pop",): [0.5]}
    assert meters.of("kernel_store_errors_total") == {("redis", "lane_pop"): 1}
    assert meters.gauges == {("kernel_store_up", "redis"): 0}


def test_off_loads_nothing_and_changes_nothing() -> None:
    """In a process of its own: this one has loaded everything."""
    ran = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (9100, ("127.0.0.1", 9100)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("localhost:9100", ("localhost", 9100)),
    ],
)
def test_a_port_alone_is_one_of_the_loopback(value: int | str, address: tuple[str, int]) -> None:
    assert metrics_address(value) == address


@pytest.mark.parametrize("value", ["", "x", "65536", "-1", -1, ":1", "a:b", "::1:9100", "[::1]", "[::1:9100", "1_0"])
def test_what_is_no_address_is_refused(value: int | str) -> None:
    with pytest.raises(InvalidConfig, match=r"^metrics: .* is neither a port"):
        metrics_address(value)


def test_metrics_and_traces_are_off_until_asked_for() -> None:
    assert Config().metrics is None
    assert not traces_are_wanted({})
    assert traces_are_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert not traces_are_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})
